"""Estimators over paired traces, written so that ten thousand bootstrap resamples are a few array operations.

A :data:`Statistic` takes ``counts [B, n]``, how often each of ``n`` traces was drawn in each of ``B`` resamples, and
answers ``[B]``. The plain estimate is the statistic of one row of ones; a jackknife is a matrix of ones with holes.
Counts come with the resamples side by side in memory (the transpose is contiguous): sums run along the traces, so a
processor works on many resamples at once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats]

ROUNDING = 1e-9
"""Relative differences below this are the order of floating-point sums, not policy: taken as 0. Otherwise a constant
error of one bit would have no variance and count as a significant improvement."""


def relative_difference(challenger: Floats, reference: Floats, scenario: NDArray[np.intp], *, higher: bool) -> Floats:
    """Paired relative difference of each trace, signed so that larger is better for the challenger.

    The unit is the mean of ``|reference|`` over the scenario, not the trace's own reference: returns may be negative
    or pass through 0, where a per-trace ratio changes sign or explodes. A reference that is 0 on a whole scenario is
    measured in the challenger's mean, so that losing everything shows as -100 %.
    """
    difference = np.where(higher, 1.0, -1.0) * (challenger - reference)
    relative = difference / scale(reference, scenario, challenger)
    relative[np.abs(relative) < ROUNDING] = 0.0
    return relative


def scale(reference: Floats, scenario: NDArray[np.intp], challenger: Floats) -> Floats:
    """The unit of each trace: mean ``|reference|`` of its scenario (``|challenger|`` where that is 0, else 1)."""
    size = np.bincount(scenario)
    unit = np.bincount(scenario, np.abs(reference)) / size
    spare = np.bincount(scenario, np.abs(challenger)) / size
    # A reference of 1e-12 on a metric of order 1 is zero with rounding; dividing by it would invent huge differences.
    unit = np.where(unit > ROUNDING * spare, unit, np.where(spare > 0.0, spare, 1.0))
    return np.asarray(unit[scenario])


def mean(values: Floats) -> Statistic:
    """The mean of the drawn values."""

    def of(counts: Floats) -> Floats:
        with np.errstate(invalid="ignore"):  # as in iqm
            return np.asarray((counts @ values) / counts.sum(axis=1))

    return of


def iqm(values: Floats) -> Statistic:
    """The interquartile mean: a quarter (rounded down) of the drawn values is cut from each end."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    steps = np.diff(ordered)

    def of(counts: Floats) -> Floats:
        cumulative = _cumulative(counts, order)
        total = cumulative[-1].copy()
        cut = np.floor(total / 4.0)
        kept = np.clip(cumulative[:-1], cut, total - cut, out=cumulative[:-1])
        # Summation by parts of sum(value x kept weight): one clip and one product instead of a difference as well.
        with np.errstate(invalid="ignore"):  # nothing was drawn of a rare slice: NaN, which says nothing
            return np.asarray((ordered[-1] * (total - cut) - ordered[0] * cut - steps @ kept) / (total - 2.0 * cut))

    return of


def cvar(values: Floats, share: float) -> Statistic:
    """Conditional value at risk: the mean of the worst ``share`` of the drawn values, larger being better.

    The trace on the edge counts with the fraction that is needed (Rockafellar and Uryasev), so the statistic does
    not jump when one trace is added.
    """
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    steps = np.diff(ordered)

    def of(counts: Floats) -> Floats:
        cumulative = _cumulative(counts, order)
        tail = share * cumulative[-1]
        kept = np.minimum(cumulative[:-1], tail, out=cumulative[:-1])
        return np.asarray(ordered[-1] - (steps @ kept) / tail)  # by parts, as in iqm

    return of


def _cumulative(counts: Floats, order: NDArray[np.intp]) -> Floats:
    """How many traces were drawn up to each place of the order: ``[n, B]``."""
    drawn = counts.T[order]
    return np.cumsum(drawn, axis=0, out=drawn)


def cvar_difference(challenger: Floats, reference: Floats, share: float) -> Statistic:
    """How much better the challenger's worst ``share`` of traces is than the reference's own worst."""
    first, second = cvar(challenger, share), cvar(reference, share)
    return lambda counts: first(counts) - second(counts)


def wins(difference: Floats) -> Floats:
    """1 where the challenger is better, one half where equal, 0 where worse: its mean is P(improvement)."""
    return np.asarray(0.5 * (np.sign(difference) + 1.0))


def neighbour_correlation(values: Floats, block: NDArray[np.int_]) -> float:
    """Lag-one autocorrelation of the block means, in order of the block numbers; about 0 for independent blocks."""
    cluster = np.unique(block, return_inverse=True)[1]
    means = np.bincount(cluster, values) / np.bincount(cluster)
    centred = means - means.mean()
    squares = float(centred @ centred)
    return float(centred[1:] @ centred[:-1]) / squares if squares > 0.0 else 0.0


def performance_profile(scores: Floats, thresholds: Floats) -> Floats:
    """Share of traces whose score exceeds each threshold: a curve that is higher everywhere is better everywhere."""
    return np.asarray((scores[None, :] > thresholds[:, None]).mean(axis=1))
