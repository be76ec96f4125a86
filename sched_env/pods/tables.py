"""The trace of ``pods``: the pods of every window, where they were, and the requests dealt to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sched_env.pods.foresight import AHEAD
from sched_env.tables import Floats
from wire.contracts.window import WINDOW_SECONDS
from wire.errors import TraceError

WINDOW_S = float(WINDOW_SECONDS)
Numbers = NDArray[np.int32]
Offsets = NDArray[np.int64]

_ROW_FLOATS = ("cpu_request", "mem_request", "cpu_used", "mem_used")
_REQUEST_FLOATS = ("arrival_offset_s", "duration_s", "cpu", "mem")


@dataclass(frozen=True)
class PodTrace:
    """Three levels, each an index into the next: windows, the pods in a window, the requests of a pod in a window.

    Window ``w`` has the pod rows ``window_rows[w]:window_rows[w + 1]``; pod row ``r`` has the requests
    ``row_requests[r]:row_requests[r + 1]``, in the order they were dealt. Arrays may be mapped read-only.
    """

    window_s: Floats
    """Start of each window, seconds from an origin of the trace's own; rising."""
    window_rows: Offsets
    pod: Numbers
    """Index into ``pod_names``; a pod is in a window at most once."""
    node: Numbers
    """Index into the nodes; -1 where it is not known."""
    cpu_request: Floats
    """Cores."""
    mem_request: Floats
    """GiB."""
    cpu_used: Floats
    """Mean of the window."""
    mem_used: Floats
    row_requests: Offsets
    arrival_offset_s: Floats
    """Seconds from the start of the window."""
    duration_s: Floats
    cpu: Floats
    """Cores a request takes while it runs."""
    mem: Floats
    """GiB."""
    pod_names: tuple[str, ...]
    held: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    """Which pods stay where they are: one a node, bound to a volume, nobody's; left out: none."""
    domain: Numbers = field(default_factory=lambda: np.empty(0, np.int32))
    """Cluster of the pod, as ``NodeTable.domain``; left out: one cluster."""
    up: NDArray[np.bool_] = field(default_factory=lambda: np.empty((0, 0), np.bool_))
    """[windows, nodes]: which nodes take pods in a window, beside those they have; left out: all."""
    forecast: Floats = field(default_factory=lambda: np.empty((0, len(AHEAD))))
    """[rows, 8]: what was expected of the pod at the end of this window, as ``foresight.AHEAD``; left out: see
    :meth:`ahead`."""

    def __post_init__(self) -> None:
        """Coerce the columns (mapped ones stay mapped) and refuse what the kernels cannot replay."""
        rows, requests = int(np.size(self.pod)), int(np.size(self.cpu))
        for name in ("held", "domain"):
            if not np.size(getattr(self, name)):
                object.__setattr__(self, name, np.zeros(rows, np.bool_ if name == "held" else np.int32))
        if self.up.shape[0] not in (0, int(np.size(self.window_s))):
            raise TraceError(f"PodTrace.up has {self.up.shape[0]} windows", f"{np.size(self.window_s)}, or none")
        shapes: dict[str, tuple[type, int]] = {
            "window_s": (np.float64, int(np.size(self.window_s))),
            "window_rows": (np.int64, int(np.size(self.window_s)) + 1),
            "pod": (np.int32, rows),
            "node": (np.int32, rows),
            "held": (np.bool_, rows),
            "domain": (np.int32, rows),
            "row_requests": (np.int64, rows + 1),
            **dict.fromkeys(_ROW_FLOATS, (np.float64, rows)),
            **dict.fromkeys(_REQUEST_FLOATS, (np.float64, requests)),
        }
        for name, (dtype, size) in shapes.items():
            object.__setattr__(self, name, _array(name, getattr(self, name), dtype, (size,)))
        foreseen = (rows if np.size(self.forecast) else 0, len(AHEAD))
        object.__setattr__(self, "forecast", _array("forecast", self.forecast, np.float64, foreseen))
        object.__setattr__(self, "pod_names", tuple(self.pod_names))
        if rows == 0:
            raise TraceError("the trace has no pods", "at least one window with one pod")
        if np.any(np.diff(self.window_s) <= 0):
            raise TraceError("PodTrace.window_s does not rise", "windows in order of time, each once")
        _check_offsets("window_rows", self.window_rows, rows)
        if np.any(np.diff(self.window_rows) == 0):
            empty = int(np.flatnonzero(np.diff(self.window_rows) == 0)[0])
            raise TraceError(f"window {empty} of the trace has no pods", "windows that have some; leave it out")
        _check_offsets("row_requests", self.row_requests, requests)
        _check_range("pod", self.pod, 0, len(self.pod_names) - 1)
        _check_range("node", self.node, -1, np.inf)
        for name in (*_ROW_FLOATS, *_REQUEST_FLOATS, "forecast"):
            _check_range(name, getattr(self, name), 0.0, np.finfo(np.float64).max)
        window = np.repeat(np.arange(len(self)), np.diff(self.window_rows))
        if np.unique(window * len(self.pod_names) + self.pod).size != rows:
            raise TraceError("PodTrace.pod names a pod twice in one window", "each pod once a window")

    def __len__(self) -> int:
        return int(self.window_s.size)

    def windows(self, start: int, stop: int) -> PodTrace:
        """Return windows ``start:stop`` as a trace of their own; names and node numbers are kept."""
        rows = slice(int(self.window_rows[start]), int(self.window_rows[stop]))
        requests = slice(int(self.row_requests[rows.start]), int(self.row_requests[rows.stop]))
        columns = ("pod", "node", "held", "domain", *_ROW_FLOATS)
        cut: dict[str, Any] = {name: getattr(self, name)[rows] for name in columns}
        cut |= {name: getattr(self, name)[requests] for name in _REQUEST_FLOATS}
        return PodTrace(
            window_s=self.window_s[start:stop],
            window_rows=self.window_rows[start : stop + 1] - rows.start,
            row_requests=self.row_requests[rows.start : rows.stop + 1] - requests.start,
            pod_names=self.pod_names,
            up=self.up[start:stop],
            forecast=self.forecast[rows] if self.forecast.size else self.forecast,
            **cut,
        )

    def ahead(self, rows: slice = slice(None)) -> Floats:
        """Return [rows, 8] of what is expected of pods; where nobody foresees, the same again, for certain."""
        if self.forecast.size:
            return self.forecast[rows]
        again = {"cpu": self.cpu_used[rows], "mem": self.mem_used[rows]}
        return np.stack([again[name[:3]] * (not name.endswith("spread")) for name in AHEAD], axis=1)


def offsets(counts: Any) -> Offsets:
    """Turn the number of entries of each row into the index of its first, and the end of the last."""
    result: Offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return result


def _array(name: str, values: Any, dtype: type, shape: tuple[int, ...]) -> NDArray[Any]:
    array: NDArray[Any] = np.asanyarray(values, dtype=dtype)
    if array.shape != shape:
        raise TraceError(f"PodTrace.{name} has shape {array.shape}", f"{shape}")
    return array


def _check_offsets(name: str, values: Offsets, end: int) -> None:
    if values[0] != 0 or values[-1] != end or np.any(np.diff(values) < 0):
        raise TraceError(f"PodTrace.{name} does not lead from 0 to {end}", "offsets that never fall")


def _check_range(name: str, values: NDArray[Any], low: float, high: float) -> None:
    bad = np.argwhere(~((values >= low) & (values <= high)))
    if bad.size:
        raise TraceError(
            f"PodTrace.{name} row {bad[0][0]}: {values[tuple(bad[0])]}", f"a number from {low:g} to {high:g}"
        )
