"""Ways to foresee the next window, each a weight on what is known of a pod, and how far off they are.

A method without a constant is as right on twice the load: training scales its traces. Weights of cpu and of memory are
apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sched_env.pods.forecast import KNOWN, RESOURCES, rows_of

Floats = NDArray[np.float64]
LAST, LINEAR = "last", "linear"
METHODS = (*KNOWN[:-1], LINEAR)
"""How use went on a day before is nothing by itself: its end is a method, its beginning is for the linear one."""
MOST_ROWS = 2_000_000
"""Rows that are looked at: of more, every so many windows are taken."""


class Asked(NamedTuple):
    """Rows that a forecast would be asked for, and what came."""

    known: Floats
    """[rows, 2, known]: of cpu and of memory."""
    truth: Floats
    """[rows, 2]: mean use of the window after."""
    window: NDArray[np.int64]
    """Of each row."""


def asked(use: Floats, first: int = 0) -> Asked:
    """Take every pod of every window from ``first`` on that is there in the next one too.

    Args:
        use: As :func:`sched_env.pods.forecast.rows` takes it; the end is the last that is seen.
        first: Index of the first window that is asked about.
    """
    there = ~np.isnan(use[:, :, 0])
    both = there[:-1] & there[1:]
    both[:first] = False
    every = 1 + int(both.sum()) // MOST_ROWS
    both[np.arange(len(both)) % every > 0] = False
    window, pod = np.nonzero(both)
    known = rows_of(use, window, pod).reshape(len(window), len(RESOURCES), len(KNOWN)).astype(np.float64)
    return Asked(known, use[window + 1, pod], window)


def weights(train: Asked) -> dict[str, Floats]:
    """Return [2, known] of every method; the linear one by least squares on these rows."""
    fixed = np.eye(len(KNOWN))
    found = {name: np.tile(fixed[KNOWN.index(name)], (len(RESOURCES), 1)) for name in METHODS[:-1]}
    fitted = [np.linalg.lstsq(train.known[:, k], train.truth[:, k])[0] for k in range(len(RESOURCES))]
    return found | {LINEAR: np.stack(fitted)}


def predicted(weight: Floats, known: Floats) -> Floats:
    """Return [rows, 2]: what a method expects, never below 0."""
    found: Floats = np.maximum(np.einsum("rck,ck->rc", known, weight), 0.0)
    return found


def off(ways: Mapping[str, Floats], some: Asked) -> dict[str, Floats]:
    """Return [windows, 2] of every method: absolute errors added up over the pods of each window that has any."""
    _, window = np.unique(some.window, return_inverse=True)
    found: dict[str, Floats] = {}
    for name, weight in ways.items():
        errors = np.abs(predicted(weight, some.known) - some.truth)
        each = [np.bincount(window, errors[:, k]).astype(np.float64) for k in range(len(RESOURCES))]
        found[name] = np.stack(each, axis=1)
    return found


def relative(errors: Mapping[str, Floats], some: Asked) -> dict[str, Floats]:
    """Return [2] of every method: its mean absolute error over the mean of what came."""
    total = np.maximum(some.truth.sum(axis=0), np.finfo(float).tiny)
    return {name: np.asarray(each.sum(axis=0) / total) for name, each in errors.items()}
