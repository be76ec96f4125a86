"""The tables of ``jobs``: what is queued, where it can run, and how long it takes there beside which others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import TraceError

Floats = NDArray[np.float64]
Indices = NDArray[np.int32]
Bools = NDArray[np.bool_]
MB_PER_GB = 1024.0
"""Upstream's transfer time is GB x 1024 / (MB/s)."""


def _none() -> Floats:
    return np.empty(0)


def _floats(what: str, values: Any, shape: tuple[int, ...], legal: Callable[[Any], Any], expected: str) -> Floats:
    try:
        array: Floats = np.ascontiguousarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TraceError(f"{what}: {error}", "numbers") from error
    if array.shape != shape:
        raise TraceError(f"{what} has shape {array.shape}", f"{shape}")
    bad = np.argwhere(~legal(array))
    if len(bad):
        at = tuple(int(index) for index in bad[0])
        raise TraceError(f"{what} {list(at)}: {array[at]}", expected)
    return array


def _positive(values: Any) -> Any:
    return np.isfinite(values) & (values > 0)


def _amount(values: Any) -> Any:
    return np.isfinite(values) & (values >= 0)


def _indices(what: str, values: Any, rows: int, below: int, of: str) -> Indices:
    array: Indices = np.ascontiguousarray(values, dtype=np.int32)
    if array.shape != (rows,):
        raise TraceError(f"{what} has shape {array.shape}", f"({rows},), one value a row")
    bad = np.flatnonzero((array < 0) | (array >= below))
    if bad.size:
        raise TraceError(f"{what} row {bad[0]}: {array[bad[0]]}", f"an index from 0 to {below - 1} into {of}")
    return array


def _names(what: str, names: Sequence[str]) -> tuple[str, ...]:
    if not names or len(set(names)) != len(names):
        raise TraceError(f"{what} has {len(names)} entries, {len(set(names))} distinct", "at least one, all distinct")
    return tuple(names)


@dataclass(frozen=True)
class JobTrace:
    """A queue of jobs, in order of submission."""

    arrival_s: Floats
    """Seconds from an origin of the trace's own; never falling."""
    model: Indices
    """Index into ``model_names``."""
    epochs: Floats
    """Iterations to run."""
    gpu_mem: Floats
    """GPU memory the job needs, GiB."""
    data_gb: Floats = field(default_factory=_none)
    """To be moved to the node before the first iteration; left out: 0."""
    mem: Floats = field(default_factory=_none)
    """Memory of the node, GiB; left out: 0."""
    cpu: Floats = field(default_factory=_none)
    """Cores of the node kept busy; left out: 0."""
    origin: Indices = field(default_factory=lambda: np.empty(0, np.int32))
    """Data centre where the data lie, an index into ``Topology.datacenters``; left out: 0."""
    deadline_s: Floats = field(default_factory=_none)
    """From submission; left out: the scenario's multiple of (transfer + run alone on the best card)."""
    cancel_s: Floats = field(default_factory=_none)
    """From submission: when its user withdraws the job if it has not ended; infinite, or left out: never."""
    card: Indices = field(default_factory=lambda: np.empty(0, np.int32))
    """Card on which the job was recorded; -1, or left out: nobody says."""
    began_s: Floats = field(default_factory=_none)
    """When it was recorded to begin there, and to end; NaN, or left out: nobody says."""
    ended_s: Floats = field(default_factory=_none)
    caution: Floats = field(default_factory=_none)
    """Upper end of the predicted run time over the prediction: beside a reservation a job is reckoned so much longer,
    so that one which may well overstay does not back-fill. Left out: 1, predictions are taken as they are."""
    model_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Coerce the columns, fill in what was left out and refuse what the kernels cannot replay."""
        rows = int(np.size(self.arrival_s))
        names = _names("JobTrace.model_names", self.model_names)
        filled: dict[str, Any] = {
            "model": _indices("JobTrace.model", self.model, rows, len(names), "model_names"),
            "model_names": names,
        }
        for name in ("epochs", "gpu_mem"):
            filled[name] = _floats(f"JobTrace.{name}", getattr(self, name), (rows,), _positive, "a positive number")
        for name in ("data_gb", "mem", "cpu"):
            given = getattr(self, name) if np.size(getattr(self, name)) else np.zeros(rows)
            filled[name] = _floats(f"JobTrace.{name}", given, (rows,), _amount, "a number, at least 0")
        origin = self.origin if np.size(self.origin) else np.zeros(rows)
        filled["origin"] = _indices("JobTrace.origin", origin, rows, np.iinfo(np.int32).max, "datacenters")
        if np.size(self.deadline_s):
            filled["deadline_s"] = _floats(
                "JobTrace.deadline_s", self.deadline_s, (rows,), _positive, "a positive number"
            )
        if np.size(self.cancel_s):
            filled["cancel_s"] = _floats(
                "JobTrace.cancel_s", self.cancel_s, (rows,), lambda v: v >= 0, "a number, at least 0, or infinity"
            )
        caution = self.caution if np.size(self.caution) else np.ones(rows)
        filled["caution"] = _floats(
            "JobTrace.caution", caution, (rows,), lambda v: np.isfinite(v) & (v >= 1), "a number, at least 1"
        )
        card = self.card if np.size(self.card) else np.full(rows, -1)
        filled["card"] = np.ascontiguousarray(card, np.int32)
        for name in ("began_s", "ended_s"):
            given = getattr(self, name) if np.size(getattr(self, name)) else np.full(rows, np.nan)
            filled[name] = _floats(f"JobTrace.{name}", given, (rows,), lambda v: ~np.isinf(v), "a time, or NaN")
        arrival = _floats("JobTrace.arrival_s", self.arrival_s, (rows,), np.isfinite, "a finite time")
        if np.any(np.diff(arrival) < 0):
            row = int(np.flatnonzero(np.diff(arrival) < 0)[0]) + 1
            raise TraceError(f"JobTrace.arrival_s falls at row {row}", "submissions in order", "sort the queue")
        filled["arrival_s"] = arrival
        for name, value in filled.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return int(self.arrival_s.size)

    def cancelled_at(self) -> Floats:
        """Return when each job's user withdraws it; infinite: never."""
        return self.arrival_s + self.cancel_s if self.cancel_s.size else np.full(len(self), np.inf)

    def rows(self, start: int, stop: int) -> JobTrace:
        """Return rows ``start:stop`` as a queue of their own; names and indices are kept."""
        cut = {name: getattr(self, name)[start:stop] for name in self.__dataclass_fields__ if name != "model_names"}
        return JobTrace(**cut, model_names=self.model_names)


@dataclass(frozen=True)
class Topology:
    """Data centres, their clusters, nodes and cards, and the links data come over."""

    datacenters: tuple[str, ...]
    """Places where data or cards are; a store without cards is one too."""
    link_mb_s: Floats
    """[D, D]: from, to. Infinite: no time."""
    link_usd_per_gb: Floats
    """[D, D]"""
    clusters: tuple[str, ...]
    cluster_datacenter: Indices
    nodes: tuple[str, ...]
    node_cluster: Indices
    node_cpu: Floats
    """Cores."""
    node_cpu_used: Floats
    """Share of them that others keep busy, 0 to 1."""
    node_mem: Floats
    """GiB free for jobs."""
    node_mb_s: Floats
    """What the node itself can receive."""
    cards: tuple[str, ...]
    card_node: Indices
    """Never falling: the cards of a node lie together."""
    card_type: Indices
    """Index into ``card_types``."""
    card_mem: Floats
    """GiB."""
    card_usd_per_hour: Floats
    card_types: tuple[str, ...]
    node_up: Bools = field(default_factory=lambda: np.ones((1, 1), np.bool_))
    """[windows, N]: which nodes were up, in windows of ``up_s`` from second 0 of the queue; left out: all, always."""
    up_s: float = 300.0

    def __post_init__(self) -> None:
        """Coerce the columns and refuse indices that point nowhere and sizes that make no sense."""
        filled: dict[str, Any] = {
            name: _names(f"Topology.{name}", getattr(self, name))
            for name in ("datacenters", "clusters", "nodes", "cards", "card_types")
        }
        D, N, C = len(self.datacenters), len(self.nodes), len(self.cards)
        for name, rows, of in (
            ("cluster_datacenter", len(self.clusters), "datacenters"),
            ("node_cluster", N, "clusters"),
            ("card_node", C, "nodes"),
            ("card_type", C, "card_types"),
        ):
            filled[name] = _indices(f"Topology.{name}", getattr(self, name), rows, len(filled[of]), of)
        if np.any(np.diff(filled["card_node"]) < 0):
            raise TraceError("Topology.card_node falls", "cards in the order of their nodes", "sort the cards")
        for name, rows, legal, expected in (
            ("node_cpu", N, _positive, "a positive number"),
            ("node_cpu_used", N, lambda v: (v >= 0) & (v <= 1), "a share from 0 to 1"),
            ("node_mem", N, _positive, "a positive number"),
            ("node_mb_s", N, lambda v: v > 0, "a positive number"),
            ("card_mem", C, _positive, "a positive number"),
            ("card_usd_per_hour", C, _amount, "a number, at least 0"),
        ):
            filled[name] = _floats(f"Topology.{name}", getattr(self, name), (rows,), legal, expected)
        filled["node_up"] = np.array(np.broadcast_to(self.node_up, (len(self.node_up), N)))
        filled["link_mb_s"] = _floats(
            "Topology.link_mb_s", self.link_mb_s, (D, D), lambda v: v > 0, "a positive number"
        )
        filled["link_usd_per_gb"] = _floats(
            "Topology.link_usd_per_gb", self.link_usd_per_gb, (D, D), _amount, "a number, at least 0"
        )
        for name, value in filled.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.cards)

    def node_datacenter(self) -> Indices:
        """Return the data centre of each node."""
        return self.cluster_datacenter[self.node_cluster]

    def seconds_per_gb(self) -> Floats:
        """Return [D, N]: how long a GB takes from a data centre to a node, by the narrower of link and node."""
        width = np.minimum(self.link_mb_s[:, self.node_datacenter()], self.node_mb_s[None, :])
        return MB_PER_GB / width

    def usd_per_gb(self) -> Floats:
        """Return [D, N]: what a GB costs from a data centre to a node."""
        return self.link_usd_per_gb[:, self.node_datacenter()]


@dataclass(frozen=True)
class RuntimeTable:
    """Seconds an iteration of each model takes on each type of card, beside up to two others."""

    card_types: tuple[str, ...]
    model_names: tuple[str, ...]
    seconds: Floats
    """[K, T, K + 1, K + 1]: model, type of card, the two co-runners (0: none, k + 1: model k) in either order.
    Infinite: the set cannot run on such a card."""

    def __post_init__(self) -> None:
        """Refuse wrong shapes, times that are not positive and co-runners whose order matters."""
        K, T = len(_names("RuntimeTable.model_names", self.model_names)), len(self.card_types)
        _names("RuntimeTable.card_types", self.card_types)
        seconds = _floats(
            "RuntimeTable.seconds", self.seconds, (K, T, K + 1, K + 1), lambda v: v > 0, "a positive number"
        )
        if not np.array_equal(seconds, seconds.transpose(0, 1, 3, 2)):
            raise TraceError("RuntimeTable.seconds depends on the order of the co-runners", "a symmetric table")
        object.__setattr__(self, "seconds", seconds)

    def select(self, card_types: Sequence[str], model_names: Sequence[str]) -> RuntimeTable:
        """Return the table for these types and models, in this order.

        Raises:
            TraceError: When one of them is not in the table.
        """
        for kind, wanted, known in (
            ("type of card", card_types, self.card_types),
            ("model", model_names, self.model_names),
        ):
            missing = [name for name in wanted if name not in known]
            if missing:
                raise TraceError(f"{kind} {missing[0]!r} has no run times", f"one of {', '.join(known)}")
        models = np.array([self.model_names.index(name) for name in model_names])
        types = np.array([self.card_types.index(name) for name in card_types])
        beside = np.concatenate([[0], models + 1])
        return RuntimeTable(tuple(card_types), tuple(model_names), self.seconds[np.ix_(models, types, beside, beside)])
