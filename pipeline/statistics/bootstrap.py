"""Stratified block bootstrap: whole time blocks are drawn, every trace of a block with it.

Start points close in time share their load, so the time block, not the trace, is the independent unit; and the same
block seen in several scenarios (load +-30 %) is one piece of evidence, drawn once for all of them. The stratum of a
block is the set of scenarios it occurs in: with the same blocks everywhere there is one stratum, with blocks of its
own for each scenario the strata are the scenarios.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from pipeline.statistics.estimators import Floats, Statistic

Method = Literal["percentile", "bca"]

_CHUNK_ELEMENTS = 1 << 15
"""Counts materialised at once (256 KiB of float64): with its cumulative sums it stays in the cache of one core."""


class Estimate(NamedTuple):
    """A statistic with its interval; bounds are infinite when there are too few blocks to give any."""

    value: float
    lower: float
    upper: float
    error: float
    """Standard deviation of the resampled statistic, corrected for few blocks."""
    p: float
    """Two-sided, against 0; consistent with the interval."""
    freedom: int
    """Blocks minus strata."""


class Resampler:
    """Draws of time blocks, made once and shared by every comparison of a report (common random numbers).

    Args:
        scenario: Scenario index of each trace.
        block: Time block of each trace.
        samples: Number of resamples.
        seed: Seed of the draws; goes into the report.
    """

    def __init__(self, scenario: NDArray[np.intp], block: NDArray[np.int_], *, samples: int, seed: int) -> None:
        blocks, self.cluster = np.unique(block, return_inverse=True)
        presence = np.zeros((len(blocks), int(scenario.max()) + 1), dtype=bool)
        presence[self.cluster, scenario] = True
        self.stratum = np.unique(presence, axis=0, return_inverse=True)[1].reshape(-1)
        if np.bincount(self.stratum).min() < 2:
            # A block alone in its stratum would be drawn every time and add no variance: intervals too narrow.
            self.stratum = np.zeros(len(blocks), dtype=np.intp)
        random = np.random.default_rng(seed)
        self.draws = np.empty((samples, len(blocks)), dtype=np.int32)
        for stratum in range(int(self.stratum.max()) + 1):
            members = np.flatnonzero(self.stratum == stratum)
            even = np.full(len(members), 1.0 / len(members))
            self.draws[:, members] = random.multinomial(len(members), even, size=samples)

    def blocks(self, rows: NDArray[np.bool_] | None = None) -> int:
        """Number of different time blocks among the rows."""
        return len(np.unique(self.cluster if rows is None else self.cluster[rows]))

    def distribution(self, statistic: Statistic, rows: NDArray[np.bool_] | None = None) -> Floats:
        """The statistic of every resample; ``statistic`` is over the chosen rows only."""
        cluster = self.cluster if rows is None else self.cluster[rows]
        chunk = max(1, _CHUNK_ELEMENTS // max(1, len(cluster)))
        blocks = self.draws.T
        parts = [
            statistic(blocks[:, start : start + chunk].astype(np.float64)[cluster].T)
            for start in range(0, len(self.draws), chunk)
        ]
        return np.concatenate(parts)

    def jackknife(self, statistic: Statistic, rows: NDArray[np.bool_] | None = None) -> Floats:
        """The statistic with one block left out at a time."""
        cluster = self.cluster if rows is None else self.cluster[rows]
        return statistic((cluster[None, :] != np.unique(cluster)[:, None]).astype(np.float64))

    def estimate(
        self,
        statistic: Statistic,
        rows: NDArray[np.bool_] | None = None,
        *,
        confidence: float = 0.95,
        method: Method = "percentile",
        widen: bool = True,
    ) -> Estimate:
        """Estimate, interval, standard error and p-value of one statistic.

        Args:
            statistic: Over the chosen rows.
            rows: Which traces; all by default.
            confidence: Of the two-sided interval; each bound is a one-sided bound at ``(1 + confidence) / 2``.
            method: ``percentile`` or ``bca`` (bias-corrected and accelerated).
            widen: Correct for few blocks: the plain bootstrap of g blocks has a variance (g-1)/g too small and normal
                instead of t tails. Hesterberg's expanded percentiles; no effect with many blocks.
        """
        cluster = self.cluster if rows is None else self.cluster[rows]
        value = float(statistic(np.ones((1, len(cluster))))[0])
        present = np.unique(cluster)
        freedom = len(present) - len(np.unique(self.stratum[present]))
        if freedom < 1:
            return Estimate(value, -np.inf, np.inf, np.inf, 1.0, freedom)
        resampled = self.distribution(statistic, rows)
        # A rare scenario can be missing from a resample altogether; those say nothing about it.
        resampled = resampled[np.isfinite(resampled)]
        growth = np.sqrt(len(present) / freedom) if widen else 1.0
        bias, acceleration = (0.0, 0.0) if method == "percentile" else self._bca(statistic, rows, value, resampled)
        tail = (1.0 - confidence) / 2.0
        reach = growth * (stdtrit(freedom, 1.0 - tail) if widen else ndtri(1.0 - tail))
        lower, upper = np.quantile(resampled, [_level(z, bias, acceleration) for z in (-reach, reach)])
        spread = float(np.std(resampled, ddof=1)) if len(resampled) > 1 else 0.0
        # Share of resamples below 0, never exactly 0 or 1: B resamples cannot tell less than 1 / (B+1) ...
        below = (np.sum(resampled < 0.0) + 0.5 * np.sum(resampled == 0.0) + 0.5) / (len(resampled) + 1.0)
        shifted = ndtri(below) - bias
        z = abs(shifted / (1.0 + acceleration * shifted) - bias)
        if value != 0.0 and (np.all(resampled > 0.0) or np.all(resampled < 0.0)):
            # ... so when none crosses 0 the distance to it says how small p is; Holm over many needs that.
            z = max(z, abs(value) / spread if spread > 0.0 else np.inf)
        p = 2.0 * (stdtr(freedom, -z / growth) if widen else ndtr(-z))
        return Estimate(value, float(lower), float(upper), spread * growth, float(p), freedom)

    def _bca(
        self, statistic: Statistic, rows: NDArray[np.bool_] | None, value: float, resampled: Floats
    ) -> tuple[float, float]:
        share = (np.sum(resampled < value) + 0.5 * np.sum(resampled == value)) / len(resampled)
        bias = float(ndtri(np.clip(share, 0.5 / len(resampled), 1.0 - 0.5 / len(resampled))))
        left_out = self.jackknife(statistic, rows)
        centred = left_out.mean() - left_out
        squares = float(np.sum(centred**2))
        return bias, float(np.sum(centred**3) / (6.0 * squares**1.5)) if squares > 0.0 else 0.0


def _level(z: float, bias: float, acceleration: float) -> float:
    """The quantile of the resamples that is the BCa bound for the normal quantile ``z``."""
    shifted = bias + z
    return float(ndtr(bias + shifted / (1.0 - acceleration * shifted)))
