"""Pod create and delete events of a day, and the tasks of workflows, from what kube-state-metrics shows.

Creation is exact (``kube_pod_created``). A pod that completes or fails ends then (``kube_pod_completion_time``, else
when its phase is first seen so), however long its object is kept; one that is deleted while it runs ends half-way
between the last scrape that saw it and the first that did not, so that is known to half a scrape interval. Where
nothing is scraped nobody is seen to go. A pod that comes back has not been deleted; one that comes back with another
time of creation (a StatefulSet gives its pods their names again) has been, and is another life, with its own node and
size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.contracts.raw import EVENTS, MARGIN_S
from pipeline.sources import Tally
from pipeline.sources.columns import raw_table, times
from pipeline.sources.kube_names import Names
from pipeline.sources.pod_tasks import KIND, Ran, tasks_table
from pipeline.sources.prometheus_http import Client, Series
from pipeline.sources.prometheus_server import Server

STEP_S = 60
SCRAPE_STEP_S = 15
"""How often it is asked when the last scrape was: the shortest interval in use; of shorter ones some are found."""
SPAN_S = 21_600

_WHO = "namespace, pod, uid"
_MINUTE = f"[{STEP_S * 1000 - 1}ms]"
_SIZES = {"cpu": "cpu_cores", "memory": "mem_bytes", "nvidia_com_gpu": "gpus", "amd_com_gpu": "gpus"}
Key = tuple[str, str]
"""Pod and uid; old releases of kube-state-metrics tell no uid."""
T = TypeVar("T")
F8 = NDArray[np.float64]


@dataclass
class _Life:
    """One life of a pod, as it was seen."""

    created_s: float
    seen_s: float
    """End of the last minute in which it was seen."""
    key: Key
    scrapes: int = 0
    """How many scrapes of that minute saw it; 0: all."""


class _Asked:
    """What is asked of one server about one day."""

    def __init__(self, client: Client, server: Server, span_s: tuple[int, int], beyond_s: int, tally: Tally) -> None:
        self._client, self._matchers, self._tally = client, server.matchers, tally
        # A pod that is seen within the margin is still there; longer gaps at midnight look like a deletion.
        self._start_s, self.until_s = span_s[0] - MARGIN_S, span_s[1] + beyond_s

    def _selector(self, metric: str, where: str = "") -> str:
        return f"{metric}{{{','.join(part for part in (where, self._matchers) if part)}}}"

    def each_minute(self, metric: str, where: str = "", condition: str = "") -> list[Series]:
        """Ask for a metric of pods minute by minute."""
        return self._range(f"max by ({_WHO}) (last_over_time({self._selector(metric, where)}{_MINUTE})){condition}")

    def partly(self, metric: str) -> list[Series]:
        """Ask how many scrapes of a minute saw a pod, of minutes in which not all did: its first and last."""
        seen = f"max by ({_WHO}) (count_over_time({self._selector(metric)}{_MINUTE}))"
        return self._range(f"{seen} < scalar(max({seen}))")

    def scrapes(self, metric: str) -> F8:
        """Ask when anything of a metric was scraped."""
        found = self._range(f"max(timestamp({self._selector(metric)}))", SCRAPE_STEP_S)
        return np.unique(np.concatenate([np.empty(0), *(one.value for one in found)]))

    def _range(self, query: str, step_s: int = STEP_S) -> list[Series]:
        found = []
        for begin in range(self._start_s, self.until_s, SPAN_S):
            last = min(begin + SPAN_S, self.until_s) - STEP_S
            series, warnings = self._client.range(query, begin, max(last, begin), step_s)
            for warning in warnings:
                self._tally.skipped[f"server warned: {warning}"] += 1
            found += series
        return found

    def last(self, metric: str, more: str = "", where: str = "", each: str = "") -> list[Series]:
        """Ask for the last value of the day, by pod and ``more`` labels."""
        text = f"last_over_time({self._selector(metric, where)}[{self.until_s - self._start_s}s])"
        by = f"{_WHO}{more}"
        inner = f"sum by ({by}) (max by ({by}, {each}) ({text}))" if each else f"max by ({by}) ({text})"
        return self._client.instant(inner, self.until_s)


def pod_events(
    client: Client, server: Server, span_s: tuple[int, int], names: Names, beyond_s: int, tally: Tally
) -> tuple[pa.Table, pa.Table]:
    """Derive events of a span, and tasks of workflows; ``beyond_s`` is how far after it the server can be asked."""
    asked = _Asked(client, server, span_s, beyond_s, tally)
    lives, scrapes = _lives(asked), asked.scrapes("kube_pod_created")
    ends = _ends(asked)
    starts = {_key(one): float(one.value[0]) for one in asked.last("kube_pod_start_time")}
    info = _info(asked, names)
    sizes: dict[Key, dict[str, float]] = defaultdict(dict)
    wanted = f'resource=~"{"|".join(_SIZES)}"'
    for one in asked.last("kube_pod_container_resource_requests", ", resource", wanted, "container"):
        sizes[_key(one)][_SIZES[one.labels["resource"]]] = float(one.value[0])

    rows: list[dict[str, object]] = []
    ran: list[Ran] = []
    for pod, lived in lives.items():
        following = [*(life.created_s for life in lived[1:]), np.inf]
        for life, after in zip(lived, following, strict=True):
            about: dict[str, object] = {"cluster": server.name, "entity": pod, "kind": "pod"}
            about.update(_found(info, life.key) or {})
            about.update(_found(sizes, life.key) or {})
            rows.append({**about, "at": life.created_s, "action": "create"})
            ended = _end(life, _found(ends, life.key), after, scrapes)
            started = _found(starts, life.key)
            if about.get("execution"):
                ran.append(Ran(rows[-1], ended, started))
            if ended is not None:
                lasted = None if started is None or started > ended else ended - started
                rows.append({**about, "at": ended, "action": "delete", "runtime_s": lasted})
    kept = [row for row in rows if span_s[0] <= float(str(row["at"])) < span_s[1]]
    kept.sort(key=lambda row: (row["at"], row["action"], row["entity"]))
    columns: dict[str, pa.Array] = {
        name: pa.array([row.get(name) for row in kept], EVENTS.field(name).type)
        for name in EVENTS.names
        if name != "time"
    }
    columns["time"] = times(np.array([round(float(str(row["at"])) * 1e3) * 1_000 for row in kept], dtype=np.int64))
    return raw_table(EVENTS, columns), tasks_table(ran, span_s, tally)


def _end(life: _Life, told_s: float | None, following_s: float, scrapes: F8) -> float | None:
    """When a life ended: as told, else between the scrapes that saw it and did not; None while it goes on."""
    if told_s is not None and life.created_s <= told_s < following_s:
        return told_s
    # The scrapes of its last minute that can have seen it, and how many of them did.
    low, high = np.searchsorted(scrapes, [max(life.seen_s - STEP_S, life.created_s), life.seen_s], side="right")
    last = min(low + (life.scrapes or high), high) - 1
    seen_s = float(scrapes[last]) if last >= low else life.seen_s
    if following_s == np.inf and not (scrapes >= seen_s + STEP_S).any():
        return None  # nobody has looked since: shards of kube-state-metrics are scraped one after another
    unseen_s = float(scrapes[last + 1]) if last + 1 < len(scrapes) else np.inf
    # Nobody knows when in a long gap between scrapes it went: soon, as nothing is known of it any more.
    return max(min(seen_s + min((unseen_s - seen_s) / 2, STEP_S), following_s - 1e-3), life.created_s)


def _lives(asked: _Asked) -> dict[str, list[_Life]]:
    """By pod, in order: its lives, looking a little beyond the day at both ends."""
    found: dict[str, dict[float, _Life]] = defaultdict(dict)
    for one in asked.each_minute("kube_pod_created"):
        key = _key(one)
        for created, seen in zip(one.value.tolist(), one.time_s.tolist(), strict=True):
            life = found[key[0]].setdefault(created, _Life(created, seen, key))
            life.seen_s = max(life.seen_s, seen)
    lives = {pod: [lives[created] for created in sorted(lives)] for pod, lives in found.items()}
    for one in asked.partly("kube_pod_created"):
        counts = dict(zip(one.time_s.tolist(), one.value.tolist(), strict=True))
        for life in lives.get(_key(one)[0], []):
            if life.key == _key(one):
                life.scrapes = round(counts.get(life.seen_s, 0))
    return lives


def _ends(asked: _Asked) -> dict[Key, float]:
    """When pods that completed or failed did so."""
    first: dict[Key, float] = {}
    for one in asked.each_minute("kube_pod_status_phase", 'phase=~"Succeeded|Failed"', " == 1"):
        key = _key(one)
        first[key] = min(first.get(key, np.inf), float(one.time_s[0]))
    # A pod whose sidecar alone has ended has a completion time too: the phase decides.
    told = {_key(one): float(one.value[0]) for one in asked.last("kube_pod_completion_time")}
    return {key: min(seen, told.get(key, np.inf)) for key, seen in first.items()}


def _info(asked: _Asked, names: Names) -> dict[Key, dict[str, object]]:
    """Node, workload and kind of owner of each life; a pod has no node until it is scheduled."""
    found: dict[Key, dict[str, object]] = {}
    for one in asked.last("kube_pod_info", ", node, created_by_kind, created_by_name"):
        labels = names.enriched(one.labels, asked.until_s)
        about = {
            "node": labels.get("node") or None,
            "function": labels.get("workload") or None,
            "owner_kind": labels.get("owner_kind") or None,
        }
        if labels.get("created_by_kind") == KIND:
            about["execution"] = f"{labels.get('namespace', '')}/{labels.get('created_by_name', '')}"
        if about["node"] or _key(one) not in found:
            found[_key(one)] = dict(about)
    return found


def _key(one: Series) -> Key:
    return f"{one.labels.get('namespace', '')}/{one.labels.get('pod', '')}", one.labels.get("uid", "")


def _found(table: Mapping[Key, T], key: Key) -> T | None:
    """Look a life up, by its uid where both sides have one."""
    return table.get(key, table.get((key[0], "")))
