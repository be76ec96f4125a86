"""What others use of nodes and cards, from each cluster's Prometheus, put right by the controller's own books.

Metrics are a scrape or more behind: a job placed a moment ago is not in them, one that ended a moment ago still is. So
what others use is what is measured less what our settled jobs are booked with, and while any job of ours on a node has
come or gone within ``settle_s``, what was found before stays. Own use always comes from the books.
"""

from __future__ import annotations

import logging
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from placement.cpn.books import Books
from placement.cpn.clock import Clock
from placement.cpn.config import CpnSettings
from placement.cpn.topology import Network
from placement.kube.objects import GIB

log = logging.getLogger(__name__)

BY_NODE = 'sum by (node) (label_replace({}, "node", "$1", "instance", "([^:]+).*"))'
"""node-exporter says ``instance``: the node's name, or with its port."""
QUERIES = {
    "cpu": BY_NODE.format('1 - avg by (instance) (rate(node_cpu_seconds_total{mode="idle"}[%ds]))'),
    "mem_gib": BY_NODE.format("node_memory_MemTotal_bytes - node_memory_MemAvailable_bytes"),
    "gpu_gib": "sum by (Hostname, gpu) (DCGM_FI_DEV_FB_USED)",
    "jobs": "count(kube_job_info)",
}
"""node-exporter, DCGM, kube-state-metrics. The rate is over ``settle_s``: a job that is settled is all in it."""
MIB_PER_GIB = 1024.0
TIMEOUT_S = 10.0


@dataclass
class Probe:
    """What a cluster's Prometheus said, and when."""

    url: str
    found: dict[str, int] = field(default_factory=dict)
    """Query -> series it found."""
    error: str = ""
    at: float | None = None
    """On the monotonic clock: the last time it answered."""


class Collection(threading.Thread):
    """Asks every cluster's Prometheus on a schedule.

    Args:
        settings: How often, and what is stale.
        clock: The controller's.
    """

    def __init__(self, settings: CpnSettings, clock: Clock) -> None:
        super().__init__(name="cpn collection", daemon=True)
        self._settings, self._clock = settings, clock
        self._network: Callable[[], Network] | None = None
        self._stopped = threading.Event()
        self.probes: dict[str, Probe] = {}
        self._measured: dict[str, dict[str, float]] = {"cpu": {}, "mem_gib": {}, "gpu_gib": {}}
        self._at: dict[str, float] = {}
        """Cluster -> when what it measured was true, on the controller's clock."""
        self._others: dict[str, dict[str, float]] = {"cpu": {}, "mem_gib": {}, "gpu_gib": {}}

    def follow(self, network: Callable[[], Network]) -> None:
        """Say whose clusters are asked."""
        self._network = network

    def run(self) -> None:
        """Ask for ever."""
        while not self._stopped.is_set():
            self.collect()
            self._stopped.wait(self._settings.collect_s)

    def stop(self) -> None:
        """End."""
        self._stopped.set()

    def collect(self) -> None:
        """Ask every cluster once."""
        if self._network is None:
            return
        for name, cluster in self._network().clusters.items():
            if cluster.prometheus_url is None:
                continue
            probe = self.probes.setdefault(name, Probe(cluster.prometheus_url))
            try:
                self._ask(name, cluster.prometheus_url, probe)
            except (urllib.error.URLError, OSError, ValueError, KeyError, msgspec.MsgspecError) as error:
                probe.error = str(error)[:200]
                log.warning("Prometheus of %s: %s", name, probe.error)

    def _ask(self, name: str, url: str, probe: Probe) -> None:
        window_s, asked_at = max(int(self._settings.settle_s), 1), self._clock()
        queries = {kind: query % window_s if kind == "cpu" else query for kind, query in QUERIES.items()}
        answers = {kind: _query(url, query) for kind, query in queries.items()}
        probe.found = {kind: len(series) for kind, series in answers.items()}
        for measured in self._measured.values():  # a node that is no longer reported is no longer known
            for place in [place for place in measured if place.split("/", 1)[0] == name]:
                del measured[place]
        for kind in ("cpu", "mem_gib"):
            for series in answers[kind]:
                value = float(series["value"][1]) / (GIB if kind == "mem_gib" else 1.0)
                self._measured[kind][f"{name}/{series['metric'].get('node', '')}"] = value
        for series in answers["gpu_gib"]:
            card = f"{name}/{series['metric'].get('Hostname', '')}/gpu{series['metric'].get('gpu', '')}"
            self._measured["gpu_gib"][card] = float(series["value"][1]) / MIB_PER_GIB
        probe.error, probe.at = "", time.monotonic()
        # As old as the question: a job that left while a busy Prometheus thought about it is still in the answer.
        self._at[name] = asked_at

    def others(self, network: Network, books: Books, now: float) -> Mapping[str, Mapping[str, float]]:
        """Return what others use: share of cores and GiB a node, GiB a card; where nothing is known, nothing."""
        # Prometheus and its scrapes go by the wall's clock.
        settle_s, stale_s = (one * self._clock.scale for one in (self._settings.settle_s, self._settings.stale_s))
        fresh = {name for name, at in self._at.items() if now - at <= stale_s}
        for found in self._others.values():
            for place in [place for place in found if place.split("/", 1)[0] not in fresh]:
                del found[place]
        moving: set[str] = set()
        own: dict[str, dict[str, float]] = {"cpu": {}, "mem_gib": {}, "gpu_gib": {}}
        for attempt in books.attempts.values():
            job, node = books.jobs[attempt.job], f"{attempt.cluster}/{attempt.node}"
            at = self._at.get(attempt.cluster, 0.0)
            if attempt.started_at is None or at - attempt.started_at < settle_s:
                moving |= {node, attempt.card}
            for kind, place, amount in (
                ("cpu", node, job.cpu_cores), ("mem_gib", node, job.mem_gib), ("gpu_gib", attempt.card, job.gpu_mem_gib)
            ):  # fmt: skip
                own[kind][place] = own[kind].get(place, 0.0) + amount
        for card, ended_at in list(books.last_end.items()):
            if self._at.get(card.split("/", 1)[0], 0.0) - ended_at < settle_s:
                moving |= {card, card.rsplit("/", 1)[0]}
        cores = dict(zip(network.table.nodes, network.table.node_cpu, strict=True))
        for kind, measured in self._measured.items():
            for place, value in measured.items():
                if place.split("/", 1)[0] not in fresh or place in moving:
                    continue
                mine = own[kind].get(place, 0.0)
                if kind == "cpu":
                    mine /= float(cores.get(place, 1.0))
                self._others[kind][place] = max(value - mine, 0.0)
        return self._others

    def found(self, now: float) -> Mapping[str, Mapping[str, float]]:
        """Return what was last found that others use."""
        stale_s = self._settings.stale_s * self._clock.scale
        fresh = {name for name, at in dict(self._at).items() if now - at <= stale_s}
        return {
            kind: {place: value for place, value in dict(found).items() if place.split("/", 1)[0] in fresh}
            for kind, found in self._others.items()
        }

    def shown(self) -> dict[str, dict[str, Any]]:
        """Return the result of the last probe of each cluster, for people."""
        return {
            name: {
                "prometheus": probe.url,
                "series": probe.found,
                "error": probe.error,
                "age_s": None if probe.at is None else round(time.monotonic() - probe.at, 1),
            }
            for name, probe in self.probes.items()
        }


def _query(url: str, query: str) -> list[dict[str, Any]]:
    address = f"{url.rstrip('/')}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    if not address.startswith(("http://", "https://")):
        raise ValueError(f"prometheus_url {url!r} is no http address")
    with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:  # noqa: S310 - see above
        found: list[dict[str, Any]] = msgspec.json.decode(answer.read())["data"]["result"]
        return found
