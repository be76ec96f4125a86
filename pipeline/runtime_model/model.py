"""Fit the runtime model, hold it to sets it has not seen, and make its intervals honest.

Intervals are quantiles of the forest's pool, moved by a margin (conformalised quantile regression): how far the truth
lies outside them on held-out sets, in units of their width. Two margins, for short and for long iterations, because
language models vary for reasons that nothing recorded explains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import DataError
from pipeline.runtime_model import facts
from pipeline.runtime_model.forest import TREES, Forest, grow, quantile
from pipeline.runtime_model.profiles import Profiles
from sched_env.jobs.catalogue import LONG_S, Catalogue
from sched_env.jobs.predictor import COLUMNS, CROWDING, Asked, rows

Floats = NDArray[np.float64]
FOLDS = 5
COVERED = 0.9
FEWEST_SETS = 50
"""Below this nothing can be held out."""
NARROWEST = 0.004
"""Log units: an interval is at least so wide before margins are reckoned in its widths."""
OWN_LOG_S = [column.name for column in COLUMNS].index("own_log_s")


@dataclass(frozen=True)
class Fitted:
    """A runtime model."""

    catalogue: Catalogue
    forest: Forest
    margins: tuple[float, float]
    """Of short and of long iterations, in widths of the interval."""

    def predict(self, asked: NDArray[np.float32]) -> Floats:
        """Return [rows, 3]: expected, lower and upper log seconds; what the graph computes."""
        return _widened(_raw(self.forest, asked), _is_long(asked), self.margins)


def offset(asked: NDArray[np.float32]) -> Floats:
    """Return the log seconds to which the forest adds."""
    found: Floats = asked[:, OWN_LOG_S].astype(np.float64) + asked[:, CROWDING]
    return found


def _is_long(asked: NDArray[np.float32]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = asked[:, OWN_LOG_S] > np.log(LONG_S)
    return found


def _raw(forest: Forest, asked: NDArray[np.float32]) -> Floats:
    pool = forest.pool(asked)
    tail = (1.0 - COVERED) / 2.0
    found = (quantile(pool, 0.5, relative=True), quantile(pool, tail), quantile(pool, 1.0 - tail))
    return np.stack(found, axis=1) + offset(asked)[:, None]


def _widened(raw: Floats, is_long: NDArray[np.bool_], margins: tuple[float, float]) -> Floats:
    width = np.maximum(raw[:, 2] - raw[:, 1], NARROWEST) * np.where(is_long, margins[1], margins[0])
    # The expected value belongs into its interval, however the margin came out.
    lower = np.minimum(raw[:, 1] - width, raw[:, 0])
    upper = np.maximum(raw[:, 2] + width, raw[:, 0])
    return np.stack([raw[:, 0], lower, upper], axis=1)


def _margin(raw: Floats, truth: Floats) -> float:
    """Return how many widths an interval must grow on both sides to hold the truth nine times in ten."""
    outside = np.maximum(raw[:, 1] - truth, truth - raw[:, 2]) / np.maximum(raw[:, 2] - raw[:, 1], NARROWEST)
    share = min(1.0, COVERED * (1.0 + 1.0 / len(truth)))
    return float(np.quantile(outside, share))


Held = tuple[Floats, NDArray[np.bool_]]
"""Of jobs held out: expected, lower and upper log seconds before margins, and whether iterations are long."""


def fit(profiles: Profiles, *, seed: int = 0, trees: int = TREES, held: Held | None = None) -> Fitted:
    """Fit on all sets; the margins come from sets held out in turn (``held``, if that was done already)."""
    if len(profiles) < FEWEST_SETS:
        raise DataError(f"{len(profiles)} measured sets", f"at least {FEWEST_SETS}", "run more jobs, or more profiles")
    raw, is_long = held or held_out(profiles, seed=seed, trees=trees)
    truth = profiles.logs()
    short, long = (
        _margin(raw[chosen], truth[chosen]) if chosen.sum() >= FEWEST_SETS else _margin(raw, truth)
        for chosen in (~is_long, is_long)
    )
    known = facts.catalogue(profiles)
    return Fitted(known, grown(known, profiles, seed, trees), (short, long))


def held_out(profiles: Profiles, *, seed: int, trees: int = TREES) -> Held:
    """Predict every job from a fit on the folds that its set is not in; facts are learned without it, too."""
    fold, of = profiles.folds(FOLDS, seed), profiles.of_set()
    raw, is_long = np.empty((len(of), 3)), np.zeros(len(of), bool)
    for number in range(FOLDS):
        train = profiles.only(fold != number)
        test = profiles.only(fold == number)
        known = facts.catalogue(train)
        test_rows = rows(known, test.asked())
        at = fold[of] == number
        raw[at] = _raw(grown(known, train, seed, trees), test_rows)
        is_long[at] = _is_long(test_rows)
    return raw, is_long


def grown(known: Catalogue, profiles: Profiles, seed: int, trees: int) -> Forest:
    """Grow the forest of a catalogue."""
    x = rows(known, profiles.asked())
    return grow(x, profiles.logs() - offset(x), seed=seed, trees=trees)


def expected(forest: Forest, known: Catalogue, asked: Sequence[Asked]) -> Floats:
    """Return the expected log seconds of every job of some sets."""
    x = rows(known, asked)
    return quantile(forest.pool(x), 0.5, relative=True) + offset(x)


def figures(predicted: Floats, profiles: Profiles) -> dict[str, float]:
    """Return what a prediction ([rows, 3] of log seconds) is worth on sets that it has not seen; errors in per cent."""
    truth = profiles.logs()
    error = 100.0 * np.abs(np.expm1(predicted[:, 0] - truth))
    inside = (predicted[:, 1] <= truth) & (truth <= predicted[:, 2])
    is_long = np.exp(truth) > LONG_S
    found = {
        "mape": float(error.mean()),
        "median_ape": float(np.median(error)),
        "p90_ape": float(np.quantile(error, 0.9)),
        "coverage90": 100.0 * float(inside.mean()),
        "relative_width90": 100.0 * float(np.median(np.expm1(predicted[:, 2] - predicted[:, 1]))),
        "jobs": float(len(truth)),
    }
    if is_long.any():
        found |= {"llm_mape": float(error[is_long].mean()), "llm_coverage90": 100.0 * float(inside[is_long].mean())}
    return found


def cross_validated(profiles: Profiles, *, seed: int = 0, trees: int = TREES) -> Floats:
    """Predict each fifth of the sets with a model fitted on the others, margins included; [jobs, 3] of log seconds."""
    fold, of = profiles.folds(FOLDS, seed), profiles.of_set()
    predicted = np.empty((len(of), 3))
    for number in range(FOLDS):
        fitted = fit(profiles.only(fold != number), seed=seed, trees=trees)
        test = profiles.only(fold == number)
        predicted[fold[of] == number] = fitted.predict(rows(fitted.catalogue, test.asked()))
    return predicted
