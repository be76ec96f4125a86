"""A cluster so many times as large: several copies of its nodes, or one in so many of each kind.

What evaluation asks of a policy beside the cluster as it is: how it would do after the cluster has grown or shrunk. The
load grows with it: things come as many times as densely, live as long as before and are dealt to the copies in turn, so
that each copy sees what the cluster saw; what was there at the beginning is in every copy.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sched_env.tables import Floats, NodeTable
from wire.errors import ConfigError

Rows = NDArray[np.int64]
ROUNDING = 1e-9
"""Of one over a whole number."""


def check(factor: float) -> float:
    """Return the factor; refuse one that is neither a whole number nor one over a whole number."""
    other = factor if factor >= 1.0 else 1.0 / factor if factor > 0.0 else 0.5
    if not math.isfinite(other) or abs(other - round(other)) > ROUNDING:
        raise ConfigError(f"a cluster of {factor:g} times its size", "a whole number, or one over a whole number")
    return factor


@dataclass(frozen=True)
class Copies:
    """Which place of the cluster as it is each place of the other one is like, and the other way round."""

    source: Rows
    """[new places]"""
    twins: Rows
    """[places, copies]: the new places that are like each; where several became one, that one."""
    kept: NDArray[np.bool_]
    """[places]: what is there at the beginning stays there; where several became one, in the one that was kept."""

    @classmethod
    def of(cls, factor: float, *kind: ArrayLike) -> Copies:
        """Make copies of places, or keep one in so many.

        Args:
            factor: How many times as large.
            kind: What places are told apart by, the most important first: of each kind as many are kept as of any
                other, and of its sizes the largest first. What must not be mixed (a domain) comes first.
        """
        count = np.asarray(kind[0]).size
        if check(factor) >= 1.0:
            copies = round(factor)
            twins = np.arange(count)[:, None] + count * np.arange(copies)[None]
            return cls(np.tile(np.arange(count), copies), twins, np.ones(count, np.bool_))
        step = round(1.0 / factor)
        order = np.lexsort([-np.asarray(each, np.float64) for each in reversed(kind)])
        first = np.asarray(kind[0])[order]
        place = np.arange(count) - np.searchsorted(-first, -first)  # in its domain
        chosen = place % step == 0
        source = np.sort(order[chosen])
        twins = np.empty(count, np.int64)
        twins[order] = np.searchsorted(source, order[chosen])[np.cumsum(chosen) - 1]
        kept = np.zeros(count, np.bool_)
        kept[source] = True
        return cls(source, twins[:, None], kept)

    def dealt(self, place: ArrayLike, number: ArrayLike) -> Rows:
        """Return where things go that come one after another, by their place in the cluster as it is; -1 stays -1."""
        places = np.asarray(place, np.int64)
        found: Rows = self.twins[np.maximum(places, 0), np.asarray(number, np.int64) % self.twins.shape[1]]
        return np.where(places >= 0, found, -1)

    def spread(self, place: ArrayLike, there: NDArray[np.bool_]) -> tuple[Rows, Rows]:
        """Return which things there are, and where: those that are there already in every copy, others dealt in turn.

        A thing can be named several times; the order is that of the things.
        """
        places = np.asarray(place, np.int64)
        times = np.where(there, np.where(self.kept[np.maximum(places, 0)], self.twins.shape[1], 0), 1)
        rows = np.repeat(np.arange(places.size), times)
        copy = np.arange(rows.size) - np.repeat(np.cumsum(times) - times, times)
        turn = np.cumsum(~there) - 1
        return rows, self.dealt(places[rows], np.where(there[rows], copy, turn[rows]))


def copied(nodes: NodeTable, copies: Copies) -> NodeTable:
    """Return the nodes of the other cluster."""
    columns = {name: getattr(nodes, name)[copies.source] for name in NodeTable.__dataclass_fields__ if name != "names"}
    return NodeTable(names=numbered([nodes.names[node] for node in copies.source]), **columns)


def numbered(names: list[str]) -> tuple[str, ...]:
    """Tell copies apart by a number behind the name."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        found.append(f"{name}~{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return tuple(found)


def mean_over(values: Floats, chosen: NDArray[np.bool_], rows: Rows, count: int) -> Floats:
    """Return the mean of the next so many chosen values from each row on; 0: of all that follow."""
    place: Rows = np.cumsum(chosen) - chosen  # how many of the chosen come before a row
    total = np.concatenate([[0.0], np.cumsum(values[chosen])])
    first: Rows = place[rows]
    last = np.minimum(first + count, total.size - 1) if count else np.full(rows.size, total.size - 1)
    return np.asarray((total[last] - total[first]) / np.maximum(last - first, 1))
