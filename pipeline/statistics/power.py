"""Power and sample size of paired comparisons, from the standard deviation of the paired differences."""

from __future__ import annotations

import math

from scipy.special import ndtr, ndtri


def sample_size(deviation: float, effect: float, *, confidence: float = 0.95, power: float = 0.8) -> int:
    """Traces needed so that a true ``effect`` is found: ``((z_(1-a/2) + z_power) s / effect)^2``, rounded up.

    Args:
        deviation: Standard deviation of the paired differences; with blocks, ``standard error x sqrt(n)``, which
            holds the design effect of the blocks.
        effect: The difference that must not be missed, in the same unit; for non-inferiority, the margin.
        confidence: Of the two-sided interval.
        power: Wanted probability of finding the effect.
    """
    reach = float(ndtri((1.0 + confidence) / 2.0) + ndtri(power))
    return max(1, math.ceil((reach * deviation / effect) ** 2))


def power(error: float, effect: float, *, confidence: float = 0.95) -> float:
    """Probability that the interval's lower bound is above 0 when the truth is ``effect``.

    Args:
        error: Standard error of the estimate (of the mean difference, not of one trace).
        effect: The true difference.
        confidence: Of the two-sided interval.
    """
    if error <= 0.0:
        return 1.0
    return float(ndtr(effect / error - ndtri((1.0 + confidence) / 2.0)))


def shared_power(power: float, tests: int) -> float:
    """Power each of ``tests`` guardrails needs so that all are cleared with ``power`` (Bonferroni on beta)."""
    return 1.0 - (1.0 - power) / max(1, tests)
