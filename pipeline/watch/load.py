"""Load that changed: the last quarter of an hour beside the hour before, both relative to what is usual at their time.

An index of distributions (:mod:`pipeline.watch.drift`) asks whether the last half hour looks like the reference days.
Days differ among themselves, by a fifth on many clusters, and it must forgive that: a load that doubles hides behind it
for hours. But days differ as wholes: what is busy today was busy an hour ago. So the level of now is held against that
of a while before, from which the reference days take the daily rhythm out. A step at a moment when steps are usual
(midnight, the begin of work) is no alarm: there the limit is what the reference days have shown at that time.

The level is the mean over the series of the logarithm of each relative to its own median: a change by a factor is the
same for small and large ones, and no single one can make it alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np

from pipeline.watch.drift import DAY_S, Floats, Samples, scale_of

STEP_S = 900
"""Levels are taken over a quarter of an hour, the distance of two looks."""
STEPS = DAY_S // STEP_S
NOW, GAP, BEFORE = 1, 1, 2
"""Steps that are now, steps that lie between, and steps before them that are now's measure. The gap lets two looks in a
row see the same change; what is measured against lies close, because noise that lasts for hours is the same in both."""
SPAN_S = (NOW + GAP + BEFORE) * STEP_S
"""What a look needs of a signal: an hour."""
SPREADS = 3.5
"""Spreads of all steps of the reference days (by their median absolute deviation) that are no alarm."""
AROUND = 2
"""Steps before and after that count as the same time of the day."""
HEADROOM = 1.5
"""Where the reference days have shown more than that: times the largest of them at that time, for they are few."""
ACT = math.log(1.45)
"""Never an alarm below a change by nearly a half."""
MOST = math.log(16.0)
"""A series counts at most so much: one that begins or ends is no change of the load."""


class Usual(msgspec.Struct, frozen=True):
    """What the load of a signal does on the reference days."""

    scales: dict[str, float]
    """Series -> its median."""
    profile: list[float]
    """Quarter of the day -> the usual level there (natural logarithm, relative to the medians)."""
    limits: list[float]
    """Quarter of the day -> the largest step that is no alarm."""
    days: int


class Look(msgspec.Struct, frozen=True):
    """One look at the load of one signal."""

    step: float
    """Logarithm of how many times the load of a while before it is, beyond the daily rhythm."""
    limit: float

    @property
    def times(self) -> float:
        """How many times the load of a while before."""
        return math.exp(self.step)

    @property
    def beyond(self) -> bool:
        """Whether it is more, or less, than the reference days have shown."""
        return abs(self.step) > self.limit


def learn(series: Samples) -> Usual | None:
    """Learn what is usual; None where there are fewer than three days, which say nothing about each other."""
    finite = {name: (at[np.isfinite(v)], v[np.isfinite(v)]) for name, (at, v) in series.items()}
    finite = {name: (at, v) for name, (at, v) in finite.items() if len(v)}
    if not finite:
        return None
    first = min(float(at.min()) for at, _ in finite.values()) // DAY_S * DAY_S
    days = int(max(float(at.max()) for at, _ in finite.values()) - first) // DAY_S + 1
    if len(np.unique(np.concatenate([at // DAY_S for at, _ in finite.values()]))) < 3:
        return None
    scales = {name: scale_of(v) for name, (_, v) in finite.items()}
    levels = _levels(finite, scales, first, days * STEPS)
    by_day = levels.reshape(days, STEPS)
    # The median of the days, over neighbouring quarters: one strange day does not become what is usual.
    near = np.stack([np.roll(by_day, -shift, axis=1) for shift in (-1, 0, 1)])
    profile = _nan(np.nanmedian, near.reshape(-1, STEPS))
    profile = np.where(np.isfinite(profile), profile, 0.0)
    steps = np.abs(_steps(levels - np.tile(profile, days)))
    if not np.isfinite(steps).any():
        return None
    chance = SPREADS * 1.4826 * float(np.nanmedian(steps))
    largest = np.nan_to_num(_nan(np.nanmax, steps.reshape(days, STEPS)))
    own = np.where(largest > chance, HEADROOM * largest, 0.0)
    around = np.stack([np.roll(own, shift) for shift in range(-AROUND, AROUND + 1)]).max(axis=0)
    return Usual(scales, profile.tolist(), np.maximum(max(ACT, chance), around).tolist(), days)


def look(known: Usual, now_s: float, series: Samples) -> Look | None:
    """Hold the last quarter of an hour against what was before; None where either is missing.

    Args:
        known: What is usual.
        now_s: The time.
        series: The last :data:`SPAN_S` of each series, with the times of its samples.
    """
    middle = float(np.median(list(known.scales.values())))
    scales = {name: known.scales.get(name, middle) for name in series}
    levels = _levels(series, scales, now_s - SPAN_S, SPAN_S // STEP_S)
    centres = now_s - SPAN_S + (np.arange(SPAN_S // STEP_S) + 0.5) * STEP_S
    grid = (np.arange(STEPS) + 0.5) * STEP_S
    usual = np.interp(centres % DAY_S, grid, known.profile, period=DAY_S)
    step = _steps(levels - usual)[-1]
    if not np.isfinite(step):
        return None
    last = int((now_s - STEP_S / 2) % DAY_S // STEP_S)
    return Look(float(step), max(known.limits[last], known.limits[last - 1]))


def _levels(series: Samples, scales: dict[str, float], begin_s: float, count: int) -> Floats:
    """Mean over the series of the logarithm of each, quarter by quarter; NaN where there is none."""
    total, present = np.zeros(count), np.zeros(count)
    for name, (at, values) in series.items():
        place = np.floor((at - begin_s) / STEP_S).astype(np.intp)
        kept = (place >= 0) & (place < count) & np.isfinite(values)
        counted = np.bincount(place[kept], minlength=count)
        summed = np.bincount(place[kept], weights=values[kept] / scales[name], minlength=count)
        there = counted > 0
        means = np.maximum(summed[there] / counted[there], np.exp(-MOST))
        total[there] += np.minimum(np.log(means), MOST)
        present[there] += 1
    return np.asarray(np.divide(total, present, out=np.full(count, np.nan), where=present > 0))


def _steps(levels: Floats) -> Floats:
    """Of each quarter: its level less that of a while before; NaN where a part is missing."""
    sums = np.concatenate([[0.0], np.cumsum(np.nan_to_num(levels))])
    holes = np.concatenate([[0], np.cumsum(~np.isfinite(levels))])
    found = np.full(levels.size, np.nan)
    end = np.arange(NOW + GAP + BEFORE, levels.size + 1)
    then = end - NOW - GAP
    steps = (sums[end] - sums[end - NOW]) / NOW - (sums[then] - sums[then - BEFORE]) / BEFORE
    whole = holes[end] == holes[then - BEFORE]
    found[end - 1] = np.where(whole, steps, np.nan)
    return found


def _nan(reduce: Callable[..., Floats], values: Floats) -> Floats:
    """Reduce over days; a time of the day that no day has stays NaN, without numpy's warning about it."""
    empty = ~np.isfinite(values).any(axis=0)
    return np.where(empty, np.nan, reduce(np.where(empty, 0.0, values), axis=0))
