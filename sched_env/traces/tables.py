"""The trace tables: parallel numpy arrays, checked once when they are built, so that kernels need no checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sched_env.errors import TraceError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
SLO_FACTOR = 2.0
"""A function's default response-time SLO is this multiple of its uncontended response time."""


def _no_floats() -> Floats:
    return np.empty(0)


def _column(table: str, name: str, values: Any, dtype: type, rows: int) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.ascontiguousarray(values, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise TraceError(f"{table}.{name}: {error}", f"{np.dtype(dtype)} values") from error
    if array.shape != (rows,):
        raise TraceError(f"{table}.{name} has shape {array.shape}", f"({rows},), one value a row")
    return array


def _demand(table: str, name: str, values: NDArray[Any], legal: Callable[[Any], Any], expected: str) -> None:
    bad = np.flatnonzero(~legal(values))
    if bad.size:
        raise TraceError(f"{table}.{name} row {bad[0]}: {values[bad[0]]}", expected)


def _finite_at_least(low: float, *, strictly: bool = False) -> Callable[[Any], Any]:
    return lambda values: np.isfinite(values) & (values > low if strictly else values >= low)


@dataclass(frozen=True)
class FunctionTrace:
    """Function instances to place, in order of arrival.

    An instance lives ``[arrival_s, arrival_s + duration_s)`` and answers ``requests`` calls, evenly spread over that
    time; an uncontended call takes ``response_s``.
    """

    arrival_s: Floats
    """Seconds from an origin of the trace's own; never falling."""
    function: NDArray[np.int32]
    """Index into ``function_names``."""
    cpu: Floats
    """Requested cores."""
    mem: Floats
    """Requested GiB."""
    net: Floats
    """Network use while running, MB/s."""
    disk: Floats
    """Disk use while running, IOPS."""
    requests: NDArray[np.int32]
    """Calls the instance answers in its life; at least 1."""
    duration_s: Floats
    """Life of the instance in seconds."""
    slo_s: Floats = field(default_factory=_no_floats)
    """Response-time SLO of one call; left out: 2 x ``response_s``."""
    function_names: tuple[str, ...] = ()
    """Left out: ``f0``, ``f1``, …"""
    response_s: Floats = field(default_factory=_no_floats)
    """Uncontended response time of one call; left out: ``slo_s`` / 2, or, without an SLO too, calls one after
    another, ``duration_s`` / ``requests``."""

    def __post_init__(self) -> None:
        """Coerce the columns, fill in what was left out, and refuse what the kernels cannot replay."""
        rows = int(np.size(self.arrival_s))
        filled: dict[str, Any] = {
            name: _column("FunctionTrace", name, getattr(self, name), np.float64, rows)
            for name in ("arrival_s", "cpu", "mem", "net", "disk", "duration_s")
        }
        for name in ("function", "requests"):
            filled[name] = _column("FunctionTrace", name, getattr(self, name), np.int32, rows)
        slo, response = np.asarray(self.slo_s), np.asarray(self.response_s)
        if response.size == 0 and rows:
            response = slo / SLO_FACTOR if slo.size else filled["duration_s"] / np.maximum(filled["requests"], 1)
        if slo.size == 0 and rows:
            slo = SLO_FACTOR * response
        filled["slo_s"] = _column("FunctionTrace", "slo_s", slo, np.float64, rows)
        filled["response_s"] = _column("FunctionTrace", "response_s", response, np.float64, rows)
        for name in ("cpu", "mem", "duration_s", "slo_s", "response_s"):
            _demand("FunctionTrace", name, filled[name], _finite_at_least(0, strictly=True), "a positive number")
        for name in ("net", "disk"):
            _demand("FunctionTrace", name, filled[name], _finite_at_least(0), "a number, at least 0")
        _demand("FunctionTrace", "requests", filled["requests"], lambda v: v >= 1, "at least 1")
        _demand("FunctionTrace", "arrival_s", filled["arrival_s"], np.isfinite, "a finite time")
        if rows and np.any(np.diff(filled["arrival_s"]) < 0):
            row = int(np.flatnonzero(np.diff(filled["arrival_s"]) < 0)[0]) + 1
            raise TraceError(f"FunctionTrace.arrival_s falls at row {row}", "arrivals in order", "sort the trace")
        count = int(filled["function"].max(initial=-1)) + 1
        names = self.function_names or tuple(f"f{index}" for index in range(count))
        _demand("FunctionTrace", "function", filled["function"], lambda v: v >= 0, "an index, at least 0")
        if len(names) < count:
            raise TraceError(f"FunctionTrace.function reaches {count - 1}, but there are {len(names)} function_names")
        filled["function_names"] = tuple(names)
        for name, value in filled.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return int(self.arrival_s.size)

    def rows(self, start: int, stop: int) -> FunctionTrace:
        """Return rows ``start:stop`` as a trace of their own; names and indices are kept."""
        cut = {name: getattr(self, name)[start:stop] for name in self.__dataclass_fields__ if name != "function_names"}
        return FunctionTrace(**cut, function_names=self.function_names)


@dataclass(frozen=True)
class NodeTable:
    """The nodes function instances may be placed on."""

    names: tuple[str, ...]
    cpu: Floats
    """Cores."""
    mem: Floats
    """GiB."""
    net: Floats
    """MB/s."""
    disk: Floats
    """IOPS."""
    price_usd_per_hour: Floats
    speed: Floats = field(default_factory=_no_floats)
    """What a core does in a second, relative to that of the trace's run times; left out: 1. Workflows take it into
    account; single function instances serve a stream of calls and live as long as it lasts."""

    def __post_init__(self) -> None:
        """Coerce the columns and refuse empty tables, doubled names and capacities that are not positive."""
        rows = len(self.names)
        if rows == 0 or len(set(self.names)) != rows:
            raise TraceError(f"NodeTable.names has {rows} entries, {len(set(self.names))} distinct", "distinct names")
        object.__setattr__(self, "names", tuple(self.names))
        if np.size(self.speed) == 0:
            object.__setattr__(self, "speed", np.ones(rows))
        for name in ("cpu", "mem", "net", "disk", "price_usd_per_hour", "speed"):
            values = _column("NodeTable", name, getattr(self, name), np.float64, rows)
            strictly = name != "price_usd_per_hour"
            _demand("NodeTable", name, values, _finite_at_least(0, strictly=strictly), "a positive number")
            object.__setattr__(self, name, values)

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class VmTrace:
    """Creations and deletions of VMs, in log order; ``time`` is informative, row order is what counts."""

    vmid: Ints
    cpu: Floats
    """Cores; of a deletion, those of its VM."""
    mem: Floats
    """GiB."""
    time: Floats
    """Seconds."""
    kind: NDArray[np.int8]
    """0 = create, 1 = delete."""

    def __post_init__(self) -> None:
        """Coerce the columns and refuse sizes that are not positive and kinds that are neither 0 nor 1."""
        rows = int(np.size(self.vmid))
        for name, dtype in {"vmid": np.int64, "cpu": np.float64, "mem": np.float64, "time": np.float64}.items():
            object.__setattr__(self, name, _column("VmTrace", name, getattr(self, name), dtype, rows))
        object.__setattr__(self, "kind", _column("VmTrace", "kind", self.kind, np.int8, rows))
        _demand("VmTrace", "kind", self.kind, lambda v: (v == 0) | (v == 1), "0 (create) or 1 (delete)")
        for name in ("cpu", "mem"):
            _demand("VmTrace", name, getattr(self, name), _finite_at_least(0, strictly=True), "a positive number")

    def __len__(self) -> int:
        return int(self.vmid.size)
