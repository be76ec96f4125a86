"""What the bundle's ``forecast`` model of ``pods`` is asked of each pod, and answers: its use, soon and in an hour.

Everything comes from the window means of the last day, so that a source that has just started and one that has run for
a year ask the same. Training and the live migrator use these functions; numpy and msgspec only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sched_env.pods.counting import grained
from sched_env.pods.foresight import AHEAD, UNITS
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
LATER = 3600 // WINDOW_SECONDS
"""Windows from the last to the one that is foreseen beside the next: a pod that is moved stays for hours."""
SWING = "swing"
KNOWN = (
    "last", *(f"smoothed_{rate:g}" for rate in RATES), "so_far",
    "day_before", "last_day_before", "later_day_before", SWING,
)  # fmt: skip
"""Of each resource. ``so_far`` is the mean of the last day, or of what there is of it; ``day_before`` is the window a
day before the one to come and ``last_day_before`` the one a day before the last, or both the last where either is not
known: their difference is how use went on then. ``later_day_before`` is the window a day before the later one, or the
last. ``swing`` is the variance of the window means of the last day; of a few windows it is between what these say and
a pod that swings by :data:`USUAL` of its mean."""
USUAL, USUAL_WINDOWS = 0.3, 3
"""What a pod is taken to swing by before anything is known of it, and how many windows that counts for."""
RESOURCES = (("cpu", "cores"), ("mem", "GiB"))
HORIZONS = ("next", "later")
COLUMNS = tuple(
    Column(f"{resource}_{name}", unit + "²" * (name == SWING)) for resource, unit in RESOURCES for name in KNOWN
)
SPEC = ModelSpec(
    inputs=(ModelInput(ROWS, "float32", (None, len(COLUMNS)), COLUMNS),),
    output=EXPECTED,
    unit=", ".join(f"{name} {unit}" for name, unit in zip(AHEAD, UNITS, strict=True)),
    version=1,
    output_axes=(None, len(AHEAD)),
)
"""Of the ``forecast`` model: mean use of a pod that is expected in the next window and an hour later, and the variance
of what comes around it; never below 0."""

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
    known: dict[str, Floats] = {}
    last = known["last"] = padded[LOOKED_BACK + first :]
    for rate in RATES:
        smooth = np.full_like(last, np.nan)
        for back in range(SMOOTHED - 1, -1, -1):
            then = padded[LOOKED_BACK + first - back : stop - back]
            moved = np.where(np.isnan(then), smooth, smooth + rate * (then - smooth))
            smooth = np.where(np.isnan(smooth), then, moved)
        known[f"smoothed_{rate:g}"] = smooth
    there = ~np.isnan(padded)
    amounts = np.where(there, padded, 0.0)
    ends, begins = slice(LOOKED_BACK + first, stop), slice(first + 1, first + 1 + asked)
    running = (np.cumsum(values, axis=0) for values in (amounts, grained(amounts * amounts), there))
    total, squares, count = (values[ends] - values[begins] for values in running)
    with np.errstate(invalid="ignore"):  # a pod that was never there is not asked about
        so_far = known["so_far"] = total / count
        usual = USUAL * so_far
        around = np.maximum(squares - total * so_far, 0.0) + USUAL_WINDOWS * (usual * usual)
        known[SWING] = around / (count + USUAL_WINDOWS)
    last_then, next_then, later_then = (padded[first + n : first + n + asked] for n in (1, 2, 1 + LATER))
    both = ~(np.isnan(next_then) | np.isnan(last_then))
    known["day_before"], known["last_day_before"] = np.where(both, next_then, last), np.where(both, last_then, last)
    known["later_day_before"] = np.where(np.isnan(later_then), last, later_then)
    found = np.stack([known[name] for name in KNOWN], axis=-1)
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
    """Ask a model: [asked, 8], as ``foresight.AHEAD``."""
    if not len(asked):
        return np.empty((0, len(AHEAD)))
    return model({ROWS: asked}).astype(np.float64)
