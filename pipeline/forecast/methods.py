"""Ways to foresee the next window and one an hour later, each a weight on what is known of a pod, and how far off.

A method without a constant is as right on twice the load: training scales its traces. Weights of cpu and of memory, of
soon and later, are apart. How far off a method will be is foreseen too, by how the pod swings and how large it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from sched_env.pods.forecast import HORIZONS, KNOWN, LATER, RESOURCES, SWING, rows_of

Floats = NDArray[np.float64]
LAST, LINEAR = "last", "linear"
DAY_BEFORE = {"next": "day_before", "later": "later_day_before"}
"""Which window of a day before is the one that is to be foreseen."""
ALONE = tuple(name for name in KNOWN if name not in (*DAY_BEFORE.values(), "last_day_before", SWING))
METHODS = (*ALONE, DAY_BEFORE["next"], LINEAR)
"""How use went on a day before is nothing by itself: its end is a method, its beginning is for the linear one."""
COVERED = 1.28
"""Of a normal distribution, so many deviations to either side hold 80 %."""
MOST_ROWS = 2_000_000
"""Rows that are looked at: of more, every so many windows are taken."""


class Asked(NamedTuple):
    """Rows that a forecast would be asked for, and what came."""

    known: Floats
    """[rows, 2, known]: of cpu and of memory."""
    truth: Floats
    """[rows, 2, 2]: mean use of cpu and of memory in the window after, and an hour later; NaN where it was gone."""
    window: NDArray[np.int64]
    """Of each row."""


class Fitted(NamedTuple):
    """What a graph says."""

    weight: Floats
    """[2, 2, known]: of each resource at each horizon."""
    spread: Floats
    """[2, 2, 2]: what the swing and the square of the last window add to the variance around that."""


def asked(use: Floats, first: int = 0, *, begin: int = 0, every: int | None = None) -> Asked:
    """Take every pod of every window from ``first`` on that is there in the next one too.

    Args:
        use: As :func:`sched_env.pods.forecast.rows` takes it; the end is the last that is seen.
        first: The first window that is asked about.
        begin: The window of the first row of ``use``.
        every: Of so many windows one is taken; None: of as few as :data:`MOST_ROWS` allow.
    """
    there = ~np.isnan(use[:, :, 0])
    both = there[:-1] & there[1:]
    both[: max(first - begin, 0)] = False
    every = every or thinned(int(both.sum()))
    both[(begin + np.arange(len(both))) % every > 0] = False
    window, pod = np.nonzero(both)
    known = rows_of(use, window, pod).reshape(len(window), len(RESOURCES), len(KNOWN)).astype(np.float64)
    beyond = np.concatenate([use, np.full((LATER, *use.shape[1:]), np.nan)])
    return Asked(known, np.stack([beyond[window + 1, pod], beyond[window + LATER, pod]], axis=2), begin + window)


def thinned(rows: int) -> int:
    """Return of how many windows one is taken where there are so many rows."""
    return 1 + rows // MOST_ROWS


def together(parts: Sequence[Asked]) -> Asked:
    """Put rows behind one another."""
    return Asked(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def weights(train: Asked) -> dict[str, Floats]:
    """Return [2, 2, known] of every method; the linear one by least squares on these rows."""
    found = {name: np.zeros((len(RESOURCES), len(HORIZONS), len(KNOWN))) for name in METHODS}
    for h, horizon in enumerate(HORIZONS):
        for name in METHODS[:-1]:
            found[name][:, h, KNOWN.index(DAY_BEFORE[horizon] if name in DAY_BEFORE.values() else name)] = 1.0
        columns = [KNOWN.index(name) for name in (*ALONE, DAY_BEFORE[horizon], "last_day_before")]
        for k in range(len(RESOURCES)):
            came = ~np.isnan(train.truth[:, k, h])
            fitted = np.linalg.lstsq(train.known[came, k][:, columns], train.truth[came, k, h])[0]
            found[LINEAR][k, h, columns] = fitted
    return found


def spreads(weight: Floats, train: Asked) -> Floats:
    """Return [2, 2, 2]: the weights of :func:`parts` that fit squared errors.

    Large pods do not lead, and those below the mean, whose use jumps by many times what it was, weigh no more than the
    mean pod: what counts are sums over the pods of a node.
    """
    found, errors = np.zeros((len(RESOURCES), len(HORIZONS), 2)), train.truth - expected(weight, train.known)
    size = train.known[..., KNOWN.index("so_far")]
    by = size**2 + np.maximum(size.mean(axis=0), np.finfo(np.float32).tiny) ** 2
    for k, h in np.ndindex(found.shape[:2]):
        came = ~np.isnan(errors[:, k, h])
        sides = parts(train.known)[came, k] / by[came, k, None], errors[came, k, h] ** 2 / by[came, k]
        found[k, h] = nnls(*sides)[0] if came.any() else 0.0
    return found


def parts(known: Floats) -> Floats:
    """Return [rows, 2, 2]: what the variance around a forecast is made of, of cpu and of memory."""
    return np.stack([known[..., KNOWN.index(SWING)], known[..., KNOWN.index(LAST)] ** 2], axis=-1)


def expected(weight: Floats, known: Floats) -> Floats:
    """Return [rows, 2, 2]: what a method expects of each resource at each horizon, never below 0."""
    found: Floats = np.maximum(np.einsum("rck,chk->rch", known, weight), 0.0)
    return found


def predicted(fitted: Fitted, known: Floats) -> Floats:
    """Return [rows, 8], as ``sched_env.pods.foresight.AHEAD``."""
    spread = np.einsum("rcp,chp->rch", parts(known), fitted.spread)
    return np.concatenate([expected(fitted.weight, known), spread], axis=2).reshape(len(known), -1)


def covered(fitted: Fitted, held: Asked) -> Floats:
    """Return [2, 2]: the share of what came that lies within 80 % of a normal distribution around what was expected."""
    said = predicted(fitted, held.known).reshape(len(held.known), len(RESOURCES), 2, len(HORIZONS))
    inside = np.abs(held.truth - said[:, :, 0]) <= COVERED * np.sqrt(said[:, :, 1])
    came = (~np.isnan(held.truth)).sum(axis=0)
    return np.asarray(inside.sum(axis=0) / np.maximum(came, 1))


def off(ways: Mapping[str, Floats], some: Asked) -> dict[str, Floats]:
    """Return [windows, 2, 2] of every method: absolute errors added up over the pods of each window that has any."""
    _, window = np.unique(some.window, return_inverse=True)
    found: dict[str, Floats] = {}
    for name, weight in ways.items():
        errors = np.nan_to_num(np.abs(expected(weight, some.known) - some.truth)).reshape(len(window), -1)
        each = [np.bincount(window, column).astype(np.float64) for column in errors.T]
        found[name] = np.stack(each, axis=1).reshape(-1, *some.truth.shape[1:])
    return found


def relative(errors: Mapping[str, Floats], some: Asked) -> dict[str, Floats]:
    """Return [2, 2] of every method: its mean absolute error over the mean of what came."""
    total = np.maximum(np.nansum(some.truth, axis=0), np.finfo(float).tiny)
    return {name: np.asarray(each.sum(axis=0) / total) for name, each in errors.items()}
