"""What the bundle's ``forecast`` model of ``pods`` is asked of each pod: what is known of its use before the window.

Everything comes from the window means of the last day, so that a source that has just started and one that has run for
a year ask the same. Training and the live migrator use these functions; numpy and msgspec only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sched_env.pods.counting import grained
from sched_env.tables import Floats
from wire.contracts.bundle import Column, ModelInput, ModelName, ModelSpec
from wire.contracts.window import WINDOW_SECONDS

NAME: ModelName = "forecast"
ROWS, EXPECTED = "rows", "expected"
"""Names of the graph's input and output."""
DAY = 86_400 // WINDOW_SECONDS
LOOKED_BACK = DAY + 1
"""Windows that are looked back at: the first of them is a day before the present one, the second before the next."""
RATES = (0.3, 0.5, 0.7)
"""Weight of the newest window in what is smoothed."""
SMOOTHED = 36
"""Windows (three hours) that are smoothed over: of the slowest rate, a millionth lies before them."""
KNOWN = ("last", *(f"smoothed_{rate:g}" for rate in RATES), "so_far", "day_before", "last_day_before")
"""Of each resource. ``so_far`` is the mean of the last day, or of what there is of it; ``day_before`` is the window a
day before the one to come and ``last_day_before`` the one a day before the last, or both the last where either is not
known: their difference is how use went on then."""
RESOURCES = (("cpu", "cores"), ("mem", "GiB"))
COLUMNS = tuple(Column(f"{resource}_{name}", unit) for resource, unit in RESOURCES for name in KNOWN)
SPEC = ModelSpec(
    inputs=(ModelInput(ROWS, "float32", (None, len(COLUMNS)), COLUMNS),),
    output=EXPECTED,
    unit="mean use in the next window: cores, GiB",
    version=1,
    output_axes=(None, len(RESOURCES)),
)
"""Of the ``forecast`` model: what a pod is expected to use of cpu and of memory, never below 0."""

Model = Callable[[Mapping[str, NDArray[Any]]], NDArray[np.float32]]
"""As :class:`wire.models.GraphModel`."""
MOST_AT_ONCE = 256
"""Pods whose days are unfolded at once: memory stays a few tens of MiB."""


def rows(use: Floats, first: int = 0) -> NDArray[np.float32]:
    """Return [windows from ``first`` on, pods, columns] of what was known at the end of each.

    Args:
        use: [windows, pods, 2] mean cores and GiB, in order of time without gaps; NaN where a pod was not there.
        first: Index of the first window that is asked about; those before it are what is looked back at.
    """
    asked, stop = len(use) - first, LOOKED_BACK + len(use)
    # In whole grains sums are exact: a running sum over a trace and the sum of one day are the same bits.
    padded = np.concatenate([np.full((LOOKED_BACK, *use.shape[1:]), np.nan), grained(use)])
    found = np.empty((asked, use.shape[1], len(RESOURCES), len(KNOWN)))
    last = padded[LOOKED_BACK + first :]
    found[..., 0] = last
    for column, rate in enumerate(RATES, start=1):
        smooth = np.full_like(last, np.nan)
        for back in range(SMOOTHED - 1, -1, -1):
            then = padded[LOOKED_BACK + first - back : stop - back]
            moved = np.where(np.isnan(then), smooth, smooth + rate * (then - smooth))
            smooth = np.where(np.isnan(smooth), then, moved)
        found[..., column] = smooth
    there = ~np.isnan(padded)
    total, count = (np.cumsum(values, axis=0) for values in (np.where(there, padded, 0.0), there))
    ends, begins = slice(LOOKED_BACK + first, stop), slice(first + 1, first + 1 + asked)
    with np.errstate(invalid="ignore"):  # a pod that was never there is not asked about
        found[..., -3] = (total[ends] - total[begins]) / (count[ends] - count[begins])
    next_then, last_then = (padded[first + ahead : first + ahead + asked] for ahead in (2, 1))
    both = there[first + 2 : first + 2 + asked] & there[first + 1 : first + 1 + asked]
    found[..., -2], found[..., -1] = np.where(both, next_then, last), np.where(both, last_then, last)
    return found.reshape(asked, use.shape[1], len(COLUMNS)).astype(np.float32)


def rows_of(use: Floats, window: NDArray[np.integer], pod: NDArray[np.integer]) -> NDArray[np.float32]:
    """Return [asked, columns] for some pods at some windows of ``use``."""
    found = np.empty((window.size, len(COLUMNS)), np.float32)
    first = int(window.min(initial=len(use)))
    for begin in range(0, use.shape[1], MOST_AT_ONCE):
        chosen = np.flatnonzero((pod >= begin) & (pod < begin + MOST_AT_ONCE))
        if chosen.size:
            some = rows(use[:, begin : begin + MOST_AT_ONCE], first)
            found[chosen] = some[window[chosen] - first, pod[chosen] - begin]
    return found


def expected(model: Model, asked: NDArray[np.float32]) -> Floats:
    """Ask a model: [asked, 2], cores and GiB of the next window."""
    if not len(asked):
        return np.empty((0, len(RESOURCES)))
    return model({ROWS: asked}).astype(np.float64)
