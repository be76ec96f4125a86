"""From intervals to decisions: superiority, non-inferiority, deterioration, and Holm over several references."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from pipeline.statistics.bootstrap import Estimate

Decision = Literal["yes", "no", "open"]
"""Shown; its contrary is shown; the data do not say."""


def superiority(better_by: Estimate) -> Decision:
    """Better when the whole interval lies above 0, worse when it lies below, otherwise open."""
    if better_by.lower > 0.0:
        return "yes"
    return "no" if better_by.upper < 0.0 else "open"


def non_inferiority(worse_by: Estimate, margin: float) -> Decision:
    """Harmless when the upper bound of the harm stays inside the margin, harmful when the lower bound is beyond it.

    "Not significantly worse" is not non-inferior: a wide interval around 0 is ``open``.
    """
    if worse_by.upper <= margin:
        return "yes"
    return "no" if worse_by.lower > margin else "open"


def deteriorated(better_by: Estimate, margin: float) -> bool:
    """A slice is worse only when even its upper bound lies below ``-margin``."""
    return better_by.upper < -margin


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values, in the order given; each may be held against the unadjusted level."""
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    stepped = np.minimum(1.0, np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)))
    adjusted = np.empty_like(stepped)
    adjusted[order] = stepped
    return [float(value) for value in adjusted]
