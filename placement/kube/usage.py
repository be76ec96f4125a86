"""What nodes and pods really use, from Prometheus: the last five minutes, asked again every half minute.

A monitoring system is dead, slow or wrong more often than the cluster it looks at. Nothing it says is believed that
cannot be (negative, NaN, more than any node has, of another time): such samples are counted and left out. What it no
longer says is taken as it was last, for ten minutes; then it is unknown, and those who ask must do without.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import urllib3
from numpy.typing import NDArray

from placement.kube.config import PrometheusSettings
from placement.kube.objects import GIB
from wire.contracts.window import WINDOW_SECONDS

log = logging.getLogger(__name__)

STEP_S = 15
"""Between two samples of a window: 21 of them, ends included."""
KEPT_S = 600.0
"""How long what was seen last counts as known: two windows."""
MOST_BYTES = 64 * 2**20
"""Of an answer: 50,000 pods with 21 samples each are 30 MiB."""
WINDOWS_ASKED = 72
"""Of a day, in one question (six hours): a whole day of 10,000 pods is more than Prometheus answers at once."""
IMPOSSIBLE = 2.0
"""Times what the largest node has: nothing uses more than that, whatever is said."""

_EXPORTER = "* on (namespace, pod) group_left (node) topk by (namespace, pod) (1, kube_pod_info)"
_CARDS = 'device!~"lo|veth.*|cali.*|cni.*|cilium.*|lxc.*|flannel.*|docker.*|br-.*|tun.*|kube.*"'
_DISKS = 'device!~"loop.*|dm-.*|md.*|ram.*|zram.*|sr.*|nbd.*"'
QUERIES = {
    "pod_cpu": "sum by (namespace, pod) (rate(container_cpu_usage_seconds_total{container!='',container!='POD'}[2m]))",
    "pod_mem": "sum by (namespace, pod) (container_memory_working_set_bytes{container!='',container!='POD'})",
    "node_cpu": f'sum by (node) (rate(node_cpu_seconds_total{{mode!~"idle|iowait|guest.*"}}[2m]) {_EXPORTER})',
    "node_mem": f"max by (node) ((node_memory_MemTotal_bytes - node_memory_MemAvailable_bytes) {_EXPORTER})",
    "node_net": f"sum by (node) ((rate(node_network_receive_bytes_total{{{_CARDS}}}[2m]) "
    f"+ rate(node_network_transmit_bytes_total{{{_CARDS}}}[2m])) {_EXPORTER}) / 1e6",
    "node_disk": f"sum by (node) ((rate(node_disk_reads_completed_total{{{_DISKS}}}[2m]) "
    f"+ rate(node_disk_writes_completed_total{{{_DISKS}}}[2m])) {_EXPORTER})",
}
"""What is asked unless the settings say otherwise: exporters as kube-prometheus-stack installs them. Answers carry the
labels ``node``, or ``namespace`` and ``pod``; cores, bytes, MB/s and operations a second."""

Key = str
"""A node's name, or ``namespace/name`` of a pod."""
Series = NDArray[np.float64]


class _Matrix(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    values: list[tuple[float, str]]


class _Data(msgspec.Struct, frozen=True):
    result: list[_Matrix]
    resultType: str = "matrix"  # noqa: N815  (a key of theirs)


class _Answer(msgspec.Struct, frozen=True):
    status: str
    data: _Data | None = None
    error: str = ""


class Known(NamedTuple):
    """A series, and when it was seen by our own clock."""

    values: Series
    at: float


class Usage(threading.Thread):
    """Follows the use of one cluster.

    Args:
        settings: Where Prometheus is and what to ask.
        largest: Returns cores and GiB of the largest node, the measure of what can be.
        changed: Told after each round, with what became known of it.
        now: A clock that never goes back.
        wall: Seconds since 1970, the clock of samples.
    """

    def __init__(
        self,
        settings: PrometheusSettings,
        largest: Callable[[], tuple[float, float]],
        changed: Callable[[Usage], None] = lambda _: None,
        *,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(name=f"usage {settings.url}", daemon=True)
        self._settings, self._largest, self._changed, self._now, self._wall = settings, largest, changed, now, wall
        self._queries = QUERIES | settings.queries
        self._http = urllib3.PoolManager(maxsize=2, retries=False)
        self._decoder = msgspec.json.Decoder(_Answer)
        self._known: dict[str, dict[Key, Known]] = {name: {} for name in self._queries}
        self._stopped = threading.Event()
        self._heard: float | None = None
        self.rejected: Counter[str] = Counter()
        """Samples left out, by reason."""
        self.failures = self.rounds = 0

    @property
    def silent_s(self) -> float:
        """Seconds since every question was last answered; infinite before the first time."""
        return float("inf") if self._heard is None else self._now() - self._heard

    @property
    def positions(self) -> int:
        """How many samples a window has."""
        return self._settings.window_s // self._settings.step_s + 1

    @property
    def step_s(self) -> int:
        """Seconds between two of them."""
        return self._settings.step_s

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()

    def run(self) -> None:
        """Ask for ever."""
        while not self._stopped.is_set():
            self.ask()
            self._stopped.wait(self._settings.every_s)

    def ask(self) -> None:
        """Ask every question once; one that fails leaves what was known before."""
        complete, end = True, math.floor(self._wall())
        for name, query in self._queries.items():
            try:
                self._known[name] |= self._read(name, query, end)
            except (urllib3.exceptions.HTTPError, msgspec.MsgspecError, OSError, ValueError, RecursionError) as error:
                complete = False
                self.failures += 1
                log.warning("%s: %s: %s", self.name, name, str(error).split("\n")[0][:200])
            oldest = self._now() - KEPT_S
            self._known[name] = {key: one for key, one in self._known[name].items() if one.at > oldest}
        if complete:
            self._heard = self._now()
        self.rounds += 1
        self._changed(self)

    def get(self, name: str, key: Key) -> Series | None:
        """Return the window of one thing, GiB for memory; None when it is not known."""
        found = self._known[name].get(key)
        return None if found is None or self._now() - found.at > KEPT_S else found.values

    def means(self, name: str) -> dict[Key, float]:
        """Return the mean of the window, of everything a query is known of."""
        oldest = self._now() - KEPT_S
        return {key: float(one.values.mean()) for key, one in self._known[name].items() if one.at > oldest}

    def keys(self, name: str) -> set[Key]:
        """Return of what a query is known."""
        return set(self._known[name])

    def day(self, name: str, windows: int) -> dict[Key, Series]:
        """Ask for the means of so many windows before the present one, the latest last; NaN where nothing is known.

        What cannot be asked raises, as ``_fetch`` does.
        """
        query = f"avg_over_time(({self._queries[name]})[{WINDOW_SECONDS}s:{self._settings.step_s}s])"
        end, found = math.floor(self._wall()), dict[Key, Series]()
        for first in range(0, windows, WINDOWS_ASKED):
            count = min(WINDOWS_ASKED, windows - first)
            start = end - WINDOW_SECONDS * (windows - first)
            for key, means in self._told(name, query, start, WINDOW_SECONDS, count).items():
                found.setdefault(key, np.full(windows, np.nan))[first : first + count] = means
        return found

    def _read(self, name: str, query: str, end: int) -> dict[Key, Known]:
        step, start = self._settings.step_s, end - self._settings.window_s
        at = self._now()
        told = self._told(name, query, start, step, self.positions)
        return {key: Known(_filled(values), at) for key, values in told.items()}

    def _told(self, name: str, query: str, start: int, step: int, positions: int) -> dict[Key, Series]:
        """Ask a range and return what can be believed of it; NaN where nothing was said."""
        end = start + step * (positions - 1)
        fields = {"query": query, "start": str(start), "end": str(end), "step": str(step)}
        answer = self._decoder.decode(self._fetch(fields))
        if answer.status != "success" or answer.data is None or answer.data.resultType != "matrix":
            raise ValueError(f"it answered {answer.status!r}: {answer.error[:200]}")
        scale, most = self._measure(name)
        found: dict[Key, Series] = {}
        for series in answer.data.result:
            key = _key(name, series.metric)
            if key is None:
                self.rejected["labels"] += 1
                continue
            values = np.full(positions, np.nan)
            for when, text in series.values:
                place = round((when - start) / step) if math.isfinite(when) else -1
                value = _number(text) / scale
                reason = (
                    "time" if not 0 <= place < positions
                    else "nan" if not math.isfinite(value)
                    else "negative" if value < 0.0
                    else "impossible" if value > most
                    else None
                )  # fmt: skip
                if reason is None:
                    values[place] = value
                else:
                    self.rejected[reason] += 1
            if not np.isnan(values).all():
                found[key] = values
        return found

    def _measure(self, name: str) -> tuple[float, float]:
        """Return what one of our units is in theirs, and the most that can be."""
        cores, gib = self._largest()
        resource = name.partition("_")[2]
        most = {"cpu": cores, "mem": gib}.get(resource, math.inf) * IMPOSSIBLE
        return GIB if resource == "mem" else 1.0, most or math.inf

    def _fetch(self, fields: dict[str, str]) -> bytes:
        settings, headers = self._settings, {"Accept": "application/json"}
        if settings.token_file is not None:
            headers["Authorization"] = f"Bearer {Path(settings.token_file).expanduser().read_text().strip()}"
        timeout = urllib3.Timeout(total=settings.timeout_s)
        url, until = f"{settings.url.rstrip('/')}/api/v1/query_range", time.monotonic() + settings.timeout_s
        answer: Any = self._http.request(
            "POST", url, fields=fields, encode_multipart=False, headers=headers, timeout=timeout, preload_content=False
        )
        content = bytearray()
        try:
            while chunk := answer.read(2**16):
                content += chunk
                if len(content) > MOST_BYTES:
                    raise ValueError(f"the answer has more than {MOST_BYTES} bytes")
                if time.monotonic() > until:  # drop by drop: each read was in time
                    raise ValueError(f"the answer took more than {settings.timeout_s:g} s")
        finally:
            answer.close()
            answer.release_conn()
        if answer.status != 200 and not content.startswith(b"{"):
            raise ValueError(f"it answered {answer.status}")
        return bytes(content)


def _key(name: str, labels: dict[str, str]) -> Key | None:
    if name.startswith("node_"):
        return labels.get("node")
    return f"{labels['namespace']}/{labels['pod']}" if {"namespace", "pod"} <= labels.keys() else None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _filled(values: Series) -> Series:
    """Repeat the sample before where one is missing, and the first one before it."""
    there = ~np.isnan(values)
    if there.all():
        return values
    at = np.maximum.accumulate(np.where(there, np.arange(values.size), -1))
    return values[np.where(at < 0, int(there.argmax()), at)]
