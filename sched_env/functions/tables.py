"""The table of ``functions``: instances to place, in order of arrival."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sched_env.tables import Floats, column, demand, finite_at_least, no_floats
from wire.errors import TraceError

SLO_FACTOR = 2.0
"""A function's default response-time SLO is this multiple of its uncontended response time."""


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
    slo_s: Floats = field(default_factory=no_floats)
    """Response-time SLO of one call; left out: 2 x ``response_s``."""
    function_names: tuple[str, ...] = ()
    """Left out: ``f0``, ``f1``, …"""
    response_s: Floats = field(default_factory=no_floats)
    """Uncontended response time of one call; left out: ``slo_s`` / 2, or, without an SLO too, calls one after
    another, ``duration_s`` / ``requests``."""

    def __post_init__(self) -> None:
        """Coerce the columns, fill in what was left out, and refuse what the kernels cannot replay."""
        rows = int(np.size(self.arrival_s))
        filled: dict[str, Any] = {
            name: column("FunctionTrace", name, getattr(self, name), np.float64, rows)
            for name in ("arrival_s", "cpu", "mem", "net", "disk", "duration_s")
        }
        for name in ("function", "requests"):
            filled[name] = column("FunctionTrace", name, getattr(self, name), np.int32, rows)
        slo, response = np.asarray(self.slo_s), np.asarray(self.response_s)
        if response.size == 0 and rows:
            response = slo / SLO_FACTOR if slo.size else filled["duration_s"] / np.maximum(filled["requests"], 1)
        if slo.size == 0 and rows:
            slo = SLO_FACTOR * response
        filled["slo_s"] = column("FunctionTrace", "slo_s", slo, np.float64, rows)
        filled["response_s"] = column("FunctionTrace", "response_s", response, np.float64, rows)
        for name in ("cpu", "mem", "duration_s", "slo_s", "response_s"):
            demand("FunctionTrace", name, filled[name], finite_at_least(0, strictly=True), "a positive number")
        for name in ("net", "disk"):
            demand("FunctionTrace", name, filled[name], finite_at_least(0), "a number, at least 0")
        demand("FunctionTrace", "requests", filled["requests"], lambda v: v >= 1, "at least 1")
        demand("FunctionTrace", "arrival_s", filled["arrival_s"], np.isfinite, "a finite time")
        if rows and np.any(np.diff(filled["arrival_s"]) < 0):
            row = int(np.flatnonzero(np.diff(filled["arrival_s"]) < 0)[0]) + 1
            raise TraceError(f"FunctionTrace.arrival_s falls at row {row}", "arrivals in order", "sort the trace")
        count = int(filled["function"].max(initial=-1)) + 1
        names = self.function_names or tuple(f"f{index}" for index in range(count))
        demand("FunctionTrace", "function", filled["function"], lambda v: v >= 0, "an index, at least 0")
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
