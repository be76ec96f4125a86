"""The table of ``functions``: instances to place, in order of arrival."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sched_env.tables import Floats, column, demand, finite_at_least, no_floats
from sched_env.tails import TAIL_AT, TAIL_POINTS
from wire.errors import TraceError

NOWHERE = -1
"""The recorded node of an instance of which nobody says where it ran."""
SLO_FACTOR = 2.0
"""A function's default response-time SLO is this multiple of its uncontended response time."""


@dataclass(frozen=True)
class FunctionTrace:
    """Function instances to place, in order of arrival.

    An instance lives ``[arrival_s, arrival_s + duration_s)`` and answers ``requests`` calls, evenly spread over that
    time; an uncontended call takes ``response_s``. Where a trace tells on which ``node`` an instance ran, an episode
    starts with those that ran at that moment, each on its node.
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
    """Calls the instance answers in its life."""
    duration_s: Floats
    """Life of the instance in seconds."""
    slo_s: Floats = field(default_factory=no_floats)
    """Response-time SLO of one call; left out: 2 x ``response_s``."""
    function_names: tuple[str, ...] = ()
    """Left out: ``f0``, ``f1``, …"""
    response_s: Floats = field(default_factory=no_floats)
    """Uncontended response time of one call; left out: ``slo_s`` / 2, or, without an SLO too, calls one after
    another, ``duration_s`` / ``requests``."""
    node: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    """Index of the node it was recorded on, or ``NOWHERE``; left out: nobody says."""
    held: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    """Not ours to place (a daemon, a database): it goes to ``node`` by itself and is not billed; left out: none."""
    domain: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    """Cluster it belongs to: only nodes of that domain can take it; left out: 0."""
    idle_use: Floats = field(default_factory=no_floats)
    """Cores it uses without calls; left out: what it requests, whatever its calls."""
    work_s: Floats = field(default_factory=no_floats)
    """Core-seconds that a call takes; left out: 0."""
    mem_use: Floats = field(default_factory=no_floats)
    """GiB it uses; left out: what it requests."""
    tails: Floats = field(default_factory=lambda: np.empty((0, len(TAIL_AT))))
    """[functions, points]: share of calls that take longer than ``TAIL_AT`` x their mean; left out: calls are alike,
    and a call is late when its mean is."""
    pace: Floats = field(default_factory=lambda: np.empty((0, 0)))
    """[windows, functions]: how fast calls come to an instance of a function in each stretch of ``up_s``, in any unit;
    left out: evenly over its life."""
    up: NDArray[np.bool_] = field(default_factory=lambda: np.empty((0, 0), np.bool_))
    """[windows, nodes]: which nodes were up in each stretch of ``up_s`` from second 0; left out: all, always."""
    up_s: float = 300.0

    def __post_init__(self) -> None:
        """Coerce the columns, fill in what was left out, and refuse what the kernels cannot replay."""
        rows = int(np.size(self.arrival_s))
        filled: dict[str, Any] = {
            name: column("FunctionTrace", name, getattr(self, name), np.float64, rows)
            for name in ("arrival_s", "cpu", "mem", "net", "disk", "duration_s")
        }
        for name in ("function", "requests"):
            filled[name] = column("FunctionTrace", name, getattr(self, name), np.int32, rows)
        absent: dict[str, tuple[type, Any]] = {
            "node": (np.int32, NOWHERE), "held": (np.bool_, False), "domain": (np.int32, 0),
            "idle_use": (np.float64, filled["cpu"]), "work_s": (np.float64, 0.0), "mem_use": (np.float64, filled["mem"])
        }  # fmt: skip
        for name, (dtype, default) in absent.items():
            given = np.asarray(getattr(self, name))
            filled[name] = column(
                "FunctionTrace", name, given if given.size else np.broadcast_to(default, rows), dtype, rows
            )
        slo, response = np.asarray(self.slo_s), np.asarray(self.response_s)
        if response.size == 0 and rows:
            response = slo / SLO_FACTOR if slo.size else filled["duration_s"] / np.maximum(filled["requests"], 1)
        if slo.size == 0 and rows:
            slo = SLO_FACTOR * response
        filled["slo_s"] = column("FunctionTrace", "slo_s", slo, np.float64, rows)
        filled["response_s"] = column("FunctionTrace", "response_s", response, np.float64, rows)
        for name in ("cpu", "mem", "duration_s", "slo_s", "response_s"):
            demand("FunctionTrace", name, filled[name], finite_at_least(0, strictly=True), "a positive number")
        for name in ("net", "disk", "idle_use", "work_s", "mem_use"):
            demand("FunctionTrace", name, filled[name], finite_at_least(0), "a number, at least 0")
        demand("FunctionTrace", "requests", filled["requests"], lambda v: v >= 0, "at least 0")
        demand("FunctionTrace", "node", filled["node"], lambda v: v >= NOWHERE, "an index, or -1")
        if not self.up_s > 0.0:
            raise TraceError(f"FunctionTrace.up_s is {self.up_s}", "seconds above 0")
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
        for name, shape in (("tails", (len(names), TAIL_POINTS)), ("pace", (np.shape(self.pace)[0], len(names)))):
            table = filled[name] = np.ascontiguousarray(getattr(self, name), np.float64)
            if table.size and (table.shape != shape or not np.isfinite(table).all() or table.min() < 0.0):
                raise TraceError(f"FunctionTrace.{name} has shape {table.shape}", f"{shape} numbers, at least 0")
        if filled["pace"].size and filled["pace"].min() <= 0.0:
            raise TraceError("FunctionTrace.pace is 0 somewhere", "positive numbers", "give quiet windows a little")
        for name, value in filled.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return int(self.arrival_s.size)

    def rows(self, start: int, stop: int) -> FunctionTrace:
        """Return rows ``start:stop`` as a trace of their own; names and indices are kept."""
        whole = {name: getattr(self, name) for name in ("function_names", "up", "up_s", "tails", "pace")}
        cut = {name: getattr(self, name)[start:stop] for name in self.__dataclass_fields__ if name not in whole}
        return FunctionTrace(**cut, **whole)
