"""Slices beside the verdict: by hour, by size of request, and on clusters of other sizes.

They are shown to whoever approves, and warned of where the challenger is worse; they decide nothing, because the
pre-registered rules have known error rates and a dozen more tests would change them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts.evaluation import ASKED, HOUR, Terms
from pipeline.contracts.gate import ShownSlice
from pipeline.gate import wording
from pipeline.gate.comparisons import Comparer
from pipeline.gate.config import Config
from pipeline.gate.episodes import CHALLENGER, Episodes

Bools = NDArray[np.bool_]
QUARTER_H = 6
PARTS = 3
"""Of the traces by the size of what they ask for: the smallest, the middle and the largest third."""


def shown(comparer: Comparer, sizes: Episodes | None) -> list[ShownSlice]:
    """Estimate every slice there is."""
    terms, about = comparer.terms, comparer.episodes.values[CHALLENGER]
    found = []
    if HOUR in about:
        found += [_slice("hour", name, comparer, rows, comparer.rivals) for name, rows in _hours(about[HOUR])]
    if ASKED in about:
        thirds = _thirds(about[ASKED], terms.asked_in)
        found += [_slice("size of request", name, comparer, rows, comparer.rivals) for name, rows in thirds]
    return found + (_of_sizes(terms, sizes, comparer) if sizes else [])


def _of_sizes(terms: Terms, episodes: Episodes, comparer: Comparer) -> list[ShownSlice]:
    there = Comparer(terms, episodes, comparer.config)
    known = {*episodes.values}
    rivals = [name for name in comparer.rivals if name in known]
    order = sorted(range(len(episodes.scenarios)), key=lambda at: terms.sizes.get(episodes.scenarios[at], 0.0))
    return [
        _slice(
            "size of cluster",
            f"{terms.sizes.get(episodes.scenarios[at], float('nan')):g} times the cluster and its load",
            there,
            episodes.scenario == at,
            rivals,
        )
        for at in order
    ]


def _slice(by: str, name: str, comparer: Comparer, rows: Bools, rivals: list[str]) -> ShownSlice:
    against = [comparer.compare_some(rival, rows) for rival in rivals]
    return ShownSlice(by, name, comparer.resampler.blocks(rows), against)  # type: ignore[arg-type]


def _hours(hour: NDArray[np.float64]) -> Iterator[tuple[str, Bools]]:
    for first in range(0, 24, QUARTER_H):
        rows = (hour >= first) & (hour < first + QUARTER_H)
        if rows.any():
            yield f"{first:02d}:00 to {first + QUARTER_H:02d}:00 UTC", rows


def _thirds(asked: NDArray[np.float64], unit: str) -> Iterator[tuple[str, Bools]]:
    edges = np.quantile(asked, np.arange(1, PARTS) / PARTS)
    part = np.searchsorted(edges, asked, side="left")
    for each in range(PARTS):
        rows = part == each
        if rows.any():
            low, high = asked[rows].min(), asked[rows].max()
            yield f"{low:.3g} to {high:.3g} {unit}, the mean of an episode", rows


def warnings(slices: list[ShownSlice], config: Config, terms: Terms, sizes: Episodes | None) -> list[str]:
    """Say where the challenger is worse than what it is compared with, by more than a scenario may be.

    And on which sizes of the cluster it was not played.
    """
    played = sizes.scenarios if sizes else ()
    left_out = [factor for name, factor in terms.sizes.items() if name not in played]
    return [
        *(f"not shown on {x:g} times the cluster: more than evaluate may spend on it (size_work)" for x in left_out),
        *_worse(slices, config),
    ]


def _worse(slices: list[ShownSlice], config: Config) -> list[str]:
    return [
        f"worse than {row.reference} by {each.by}, {each.name}: {wording.interval(row.better_by)} on {row.metric} "
        "(shown, not judged)"
        for each in slices
        for row in each.against
        if row.better_by.upper is not None and row.better_by.upper < -config.slice_margin
    ]
