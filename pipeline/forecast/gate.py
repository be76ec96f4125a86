"""How pods are foreseen: as in the last window, unless another method is nearer by more than chance explains.

Pre-registered, because the best of several is nearer by chance alone: the interval allows for all that were tried. The
gate decides the method, not whether a forecast ships: how far off the last window is, nobody else says.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.forecast.methods import LAST, METHODS, Asked, Fitted, Floats, off, relative, spreads
from pipeline.statistics.bootstrap import Resampler
from sched_env.pods.forecast import HORIZONS, RESOURCES
from wire.contracts.window import WINDOW_SECONDS

BLOCK_WINDOWS = 7200 // WINDOW_SECONDS
"""Two hours, as ``evaluate.pods.block_seconds``: a load that deviates for an hour is one piece of evidence. Never less
than what is looked ahead."""
SAMPLES, SEED = 10_000, 0
FALSE = 0.05
"""Chance that any of the methods passes that is no better than the last window, over resources and horizons."""
FORESEEN = tuple(f"{resource}_{horizon}" for resource, _ in RESOURCES for horizon in HORIZONS)
CONFIDENCE = 1.0 - FALSE / (len(FORESEEN) * (len(METHODS) - 1))


class Verdict(NamedTuple):
    """What was found of one resource at one horizon."""

    method: str
    """That foresees it from now on; ``last`` where none was better beyond doubt."""
    best: str
    """The method with the smallest error."""
    gain: float
    """Of the best: share of the last window's error that it does away with."""
    lower: float
    upper: float
    why: str


def judge(ways: dict[str, Floats], held: Asked) -> tuple[dict[str, Verdict], dict[str, Floats]]:
    """Judge each of :data:`FORESEEN` apart, on rows that no method was fitted to; also returns the relative errors."""
    errors = off(ways, held)
    shown = {way: found.ravel() for way, found in relative(errors, held).items()}
    windows = np.unique(held.window)
    draws = Resampler(np.zeros(len(windows), np.intp), windows // BLOCK_WINDOWS, samples=SAMPLES, seed=SEED)
    return {
        name: _verdict(name, {way: each.reshape(len(windows), -1)[:, k] for way, each in errors.items()}, draws)
        for k, name in enumerate(FORESEEN)
    }, shown


def chosen(ways: dict[str, Floats], verdicts: dict[str, Verdict], train: Asked) -> Fitted:
    """Return what ships: the methods of the verdicts, and how far off they were on these rows."""
    each = [ways[verdict.method].reshape(len(FORESEEN), -1)[k] for k, verdict in enumerate(verdicts.values())]
    weight = np.stack(each).reshape(len(RESOURCES), len(HORIZONS), -1)
    return Fitted(weight, spreads(weight, train))


def _verdict(name: str, errors: dict[str, Floats], draws: Resampler) -> Verdict:
    best = min(errors, key=lambda way: (errors[way].sum(), way != LAST))
    ours, last = errors[best], errors[LAST]
    if best == LAST or not last.any():
        return Verdict(LAST, best, 0.0, 0.0, 0.0, f"{name}: nothing is nearer than the last window")

    def gain(counts: Floats) -> Floats:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(1.0 - (counts @ ours) / (counts @ last))

    found = draws.estimate(gain, confidence=CONFIDENCE)
    said = f"{name}: {best} is {found.value:.1%} [{found.lower:.1%}, {found.upper:.1%}] nearer than the last window"
    return Verdict(best if found.lower > 0.0 else LAST, best, found.value, found.lower, found.upper, said)
