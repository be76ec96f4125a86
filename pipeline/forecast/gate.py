"""Whether a forecast ships: only where it is nearer to the truth than the last window, by more than chance explains.

Pre-registered, because a forecast that is no better costs a question in every cycle of the migrator and a feature that
says nothing new. The best of several is nearer by chance alone, so that the interval allows for all that were tried.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.forecast.methods import LAST, METHODS, Asked, Floats, off, relative
from pipeline.statistics.bootstrap import Resampler
from sched_env.pods.forecast import RESOURCES
from wire.contracts.window import WINDOW_SECONDS

BLOCK_WINDOWS = 7200 // WINDOW_SECONDS
"""Two hours, as ``evaluate.pods.block_seconds``: a load that deviates for an hour is one piece of evidence."""
SAMPLES, SEED = 10_000, 0
FALSE = 0.05
"""Chance that any of the methods passes that is no better than the last window, over both resources."""
CONFIDENCE = 1.0 - FALSE / (len(RESOURCES) * (len(METHODS) - 1))


class Verdict(NamedTuple):
    """What was found of one resource."""

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
    """Judge cpu and memory apart, on rows that no method was fitted to; also returns the relative error of each."""
    errors = off(ways, held)
    shown = relative(errors, held)
    windows = np.unique(held.window)
    draws = Resampler(np.zeros(len(windows), np.intp), windows // BLOCK_WINDOWS, samples=SAMPLES, seed=SEED)
    return {
        name: _verdict(name, {way: each[:, k] for way, each in errors.items()}, draws)
        for k, (name, _) in enumerate(RESOURCES)
    }, shown


def _verdict(resource: str, errors: dict[str, Floats], draws: Resampler) -> Verdict:
    best = min(errors, key=lambda way: (errors[way].sum(), way != LAST))
    ours, last = errors[best], errors[LAST]
    if best == LAST or not last.any():
        return Verdict(LAST, best, 0.0, 0.0, 0.0, f"{resource}: nothing is nearer than the last window")

    def gain(counts: Floats) -> Floats:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(1.0 - (counts @ ours) / (counts @ last))

    found = draws.estimate(gain, confidence=CONFIDENCE)
    said = f"{resource}: {best} is {found.value:.1%} [{found.lower:.1%}, {found.upper:.1%}] nearer than the last window"
    ships = found.lower > 0.0
    return Verdict(best if ships else LAST, best, found.value, found.lower, found.upper, said)
