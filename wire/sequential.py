"""Confidence sequences: intervals that stay valid however often one looks, so a canary may be stopped at any moment.

A fixed-time interval looked at after every request crosses a true value sooner or later with certainty; a confidence
sequence contains it at *all* times at once with probability ``1 - alpha``. Three of them:

- :func:`betting` (Waudby-Smith and Ramdas 2023, hedged capital): bounded values, e.g. violated or not; the tightest.
- :func:`empirical_bernstein` (same authors, predictable plug-in): bounded values, closed form; for long streams.
- :func:`normal_mixture` (Robbins 1970; asymptotic form of Waudby-Smith et al. 2024): unbounded values, e.g. cost; holds
  after a burn-in in which the variance is learned, so not for rare events, which are bounded anyway.

Each answers with the running intersection: bounds never widen again. Values must be in the order they happened.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

Advice = Literal["stop", "advance", "wait"]

_LARGEST_BET = 0.5
"""Share of the capital that may be staked at most; keeps log-capital finite, costs little (the authors' choice)."""


class ConfidenceSequence(NamedTuple):
    """Bounds after each observation."""

    lower: Floats
    upper: Floats

    @property
    def now(self) -> tuple[float, float]:
        """Bounds after the last observation."""
        return float(self.lower[-1]), float(self.upper[-1])


def _intersect(lower: Floats, upper: Floats) -> ConfidenceSequence:
    return ConfidenceSequence(np.maximum.accumulate(lower), np.minimum.accumulate(upper))


def _unit(values: Floats) -> Floats:
    values = np.asarray(values, dtype=np.float64)
    if len(values) == 0 or not (values.min() >= 0.0 and values.max() <= 1.0):
        raise ValueError("a bounded confidence sequence needs at least one value, all between 0 and 1")
    return values


def _bets(values: Floats, alpha: float) -> tuple[Floats, Floats]:
    """Predictable mean before each value, and the stake: large when little variance has been seen."""
    time = np.arange(1, len(values) + 1, dtype=np.float64)
    mean = (0.5 + np.cumsum(values)) / (time + 1.0)
    variance = (0.25 + np.cumsum((values - mean) ** 2)) / (time + 1.0)
    before = np.concatenate(([0.25], variance[:-1]))
    stake = np.sqrt(2.0 * np.log(2.0 / alpha) / (before * time * np.log1p(time)))
    return np.concatenate(([0.5], mean[:-1])), stake


def empirical_bernstein(values: Floats, *, alpha: float = 0.05) -> ConfidenceSequence:
    """Confidence sequence for the mean of values in [0, 1]; O(n) time."""
    values = _unit(values)
    mean, stake = _bets(values, alpha)
    stake = np.minimum(stake, _LARGEST_BET)
    penalty = (values - mean) ** 2 * (-np.log1p(-stake) - stake)
    total = np.cumsum(stake)
    centre = np.cumsum(stake * values) / total
    reach = (np.log(2.0 / alpha) + np.cumsum(penalty)) / total
    return _intersect(np.maximum(centre - reach, 0.0), np.minimum(centre + reach, 1.0))


def betting(values: Floats, *, alpha: float = 0.05, grid: int = 400) -> ConfidenceSequence:
    """Confidence sequence for the mean of values in [0, 1] by betting against every mean of a grid.

    A mean is given up when a gambler who bets that it is wrong has multiplied the stake by ``1 / alpha``. The bounds
    are rounded outwards to the grid, so the guarantee holds; memory is ``O(n)``, time ``O(n x grid)``.
    """
    values = _unit(values)
    stake = _bets(values, alpha)[1]
    means = np.linspace(0.0, 1.0, grid + 1)
    given_up = np.array([_ruined(values, stake, float(mean), alpha) for mean in means])
    # given_up[k]: when mean k is excluded (n: never). The lowest mean still standing at time t is the first whose
    # running maximum exceeds t; the highest one likewise, from the other end.
    time = np.arange(len(values))
    first = np.searchsorted(np.maximum.accumulate(given_up), time, side="right")
    last = grid - np.searchsorted(np.maximum.accumulate(given_up[::-1]), time, side="right")
    standing = first <= last
    # Nothing left (the truth lies between two means of the grid): nothing more is learned.
    lower = np.where(standing, means[np.maximum(first - 1, 0)], -np.inf)
    upper = np.where(standing, means[np.minimum(last + 1, grid)], np.inf)
    return _intersect(lower, upper)


def _ruined(values: Floats, stake: Floats, mean: float, alpha: float) -> int:
    """First time at which betting against ``mean`` has won ``1 / alpha``; the number of values if never."""
    up = np.minimum(stake, _LARGEST_BET / mean) if mean > 0.0 else stake
    down = np.minimum(stake, _LARGEST_BET / (1.0 - mean)) if mean < 1.0 else stake
    gain = values - mean
    # Half the money on "larger", half on "smaller"; a zero factor (all lost) is -inf, which is what it means.
    with np.errstate(divide="ignore"):
        capital = np.maximum(np.cumsum(np.log1p(up * gain)), np.cumsum(np.log1p(-down * gain)))
    won: NDArray[np.bool_] = capital + np.log(0.5) >= np.log(1.0 / alpha)
    return int(np.argmax(won)) if won.any() else len(values)


def normal_mixture(
    values: Floats, *, alpha: float = 0.05, tightest_at: int = 500, burn_in: int = 50, deviation: float | None = None
) -> ConfidenceSequence:
    """Confidence sequence for the mean of values of any size.

    Args:
        values: Observations, in order.
        alpha: Probability of ever excluding the truth.
        tightest_at: Number of observations at which it should be tightest; set to when the decision is expected.
        burn_in: Observations before which nothing is excluded, because the variance is not known yet.
        deviation: Known (sub-Gaussian) standard deviation: then valid from the first observation on.
    """
    values = np.asarray(values, dtype=np.float64)
    time = np.arange(1, len(values) + 1, dtype=np.float64)
    mean = np.cumsum(values) / time
    spread: Floats | float
    if deviation is None:
        # Shifted by the first value: the textbook E[x^2] - E[x]^2 cancels away when the mean is large.
        shifted = values - values[0]
        spread = np.sqrt(np.maximum(np.cumsum(shifted**2) / time - (np.cumsum(shifted) / time) ** 2, 0.0))
    else:
        spread, burn_in = deviation, 0
    rho2 = mixture_variance(alpha, tightest_at)
    reach = spread * np.sqrt((time * rho2 + 1.0) / (time**2 * rho2) * np.log((time * rho2 + 1.0) / alpha**2))
    # Equal values so far (no violation yet) are no proof that there is no variance.
    early = (time < burn_in) | (np.asarray(spread) == 0.0)
    return _intersect(np.where(early, -np.inf, mean - reach), np.where(early, np.inf, mean + reach))


def mixture_variance(alpha: float, tightest_at: int) -> float:
    """Variance of the mixing distribution that makes the sequence (nearly) tightest at that time."""
    level = -2.0 * np.log(alpha)
    return float((level + np.log(level + 1.0)) / tightest_at)


def difference(canary: ConfidenceSequence, control: ConfidenceSequence) -> tuple[float, float]:
    """Bounds, now, for mean(canary) - mean(control); each made with ``alpha / 2`` they hold with ``1 - alpha``."""
    (low, high), (control_low, control_high) = canary.now, control.now
    return low - control_high, high - control_low


def advise(worse_by: tuple[float, float], margin: float) -> Advice:
    """What to do with a canary now: stop for harm, advance when non-inferior, otherwise wait.

    Args:
        worse_by: Any-time-valid bounds of canary minus control on a metric where less is better.
        margin: Harm that is still acceptable.
    """
    lower, upper = worse_by
    if lower > margin:
        return "stop"
    return "advance" if upper <= margin else "wait"
