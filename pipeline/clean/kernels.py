"""Loops over samples in order of series and time; what they do is said in ``series``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.clean.expressions import SECOND_US, WINDOW_US
from sched_env.jit import kernel, part
from sched_env.sorting import sort

Array = NDArray[Any]

QUANTILE = 0.95
ROOM = 64
"""Samples of a window that there is room for at first; most have fewer."""


@part
def _widest_gap(n: int) -> int:
    """Return the first gap of a shell sort: 1, plain insertion, for the few and mostly ordered samples of a window."""
    gap = 1
    while gap < n // 9:
        gap = 3 * gap + 1
    return gap


@part
def _quantile(numbers: Array, n: int) -> float:
    """Quantile of sorted numbers, linear between neighbours."""
    place = (n - 1) * QUANTILE
    below = int(place)
    above = min(below + 1, n - 1)
    return float(numbers[below] + (numbers[above] - numbers[below]) * (place - below))


@kernel
def arrange(
    sid: Array, t: Array, value: Array, mark: Array, low_sid: int, sids: int, low_t: int, windows: int
) -> tuple[Array, Array, Array, Array]:
    """Pick the rows of some series and put them in order of series and time.

    Rows are dealt to series and windows first, in one pass, and then sorted within each of these, where they are few
    and mostly in order.
    """
    ends = np.zeros(sids * windows + 1, np.int32)
    for i in range(sid.size):
        series = sid[i] - low_sid
        if 0 <= series < sids:
            ends[series * windows + (t[i] - low_t) // WINDOW_US + 1] += 1
    for group in range(sids * windows):
        ends[group + 1] += ends[group]
    n = ends[sids * windows]
    out_sid, out_t = np.empty(n, np.int32), np.empty(n, np.int64)
    out_value, out_mark = np.empty(n, np.float64), np.empty(n, np.bool_)
    for i in range(sid.size):
        series = sid[i] - low_sid
        if 0 <= series < sids:
            group = series * windows + (t[i] - low_t) // WINDOW_US
            at = ends[group]
            ends[group] = at + 1
            out_sid[at], out_t[at], out_value[at], out_mark[at] = sid[i], t[i], value[i], mark[i]
    start = 0
    for group in range(sids * windows):
        end = ends[group]
        gap = _widest_gap(end - start)
        while gap > 0:
            for i in range(start + gap, end):
                moved_t, moved_value, moved_mark = out_t[i], out_value[i], out_mark[i]
                j = i
                while j >= start + gap and out_t[j - gap] > moved_t:
                    out_t[j], out_value[j], out_mark[j] = out_t[j - gap], out_value[j - gap], out_mark[j - gap]
                    j -= gap
                if j != i:
                    out_t[j], out_value[j], out_mark[j] = moved_t, moved_value, moved_mark
            gap //= 3
        start = end
    return out_sid, out_t, out_value, out_mark


@kernel
def count_windows(sid: Array, t: Array, start_t: Array) -> int:
    """Count the windows of series that have a sample or are touched by an interval, some twice; rows are in order."""
    found = 0
    for i in range(sid.size):
        own = t[i] // WINDOW_US
        found += own - start_t[i] // WINDOW_US
        if i == 0 or sid[i] != sid[i - 1] or own != t[i - 1] // WINDOW_US:
            found += 1
    return found


@kernel
def sum_gauges(
    sid: Array,
    t: Array,
    value: Array,
    rejected: Array,
    repaired: Array,
    out_sid: Array,
    out_window: Array,
    statistics: Array,
    counts: Array,
) -> None:
    """Sum the samples of each series and window up; of equal times the largest value counts."""
    n, group, first = sid.size, 0, 0
    used = np.empty(ROOM)
    while first < n:
        start = t[first] - t[first] % WINDOW_US
        last = first
        while last < n and sid[last] == sid[first] and t[last] < start + WINDOW_US:
            last += 1
        if last - first > used.size:
            used = np.empty(2 * (last - first))
        size, total, bad, put_right = 0, 0.0, 0, 0
        i = first
        while i < last:
            # One moment: all rows of one time.
            best, found, right, now = 0.0, False, False, t[i]
            while i < last and t[i] == now:
                if rejected[i]:
                    bad += 1
                else:
                    best = value[i] if not found else max(best, value[i])
                    right |= repaired[i]
                    found = True
                i += 1
            if found:
                used[size] = best
                size += 1
                total += best
                put_right += right
        out_sid[group], out_window[group] = sid[first], start
        if size > 0:
            sort(used, size)
            peak = used[size - 1]
            # Rounding may lift the mean of equal values above them by one bit.
            statistics[0, group] = min(total / size, peak)
            statistics[1, group] = _quantile(used, size)
            statistics[2, group], statistics[3, group] = peak, used[0]
        counts[0, group], counts[1, group] = size, last - first
        counts[2, group], counts[3, group] = bad, put_right
        group += 1
        first = last


@kernel
def following(sid: Array, window: Array, mean: Array) -> Array:
    """Find the next window with a mean of each row that has one; where there is none, NaN."""
    found = np.full(sid.size, np.nan)
    after = -1
    for i in range(sid.size - 1, -1, -1):
        if not np.isnan(mean[i]):
            if after >= 0 and sid[after] == sid[i]:
                found[i] = window[after]
            after = i
    return found


@kernel
def merge(sid: Array, t: Array, value: Array, mark: Array) -> Array:
    """Merge samples of equal times in place, the largest value counts; rows are in order.

    Returns how many rows each merged sample stands for: as many first places of the arrays hold the samples.
    """
    rows = np.ones(sid.size, np.int64)
    k = -1
    for i in range(sid.size):
        if k >= 0 and sid[i] == sid[k] and t[i] == t[k]:
            value[k] = max(value[k], value[i])
            rows[k] += 1
            mark[k] |= mark[i]
        else:
            k += 1
            sid[k], t[k], value[k], mark[k] = sid[i], t[i], value[i], mark[i]
    return rows[: k + 1]


@part
def _jumped(sid: Array, value: Array, i: int) -> bool:
    """Tell whether a counter's sample is out of line: lower or higher than both neighbours, which agree.

    A real reset drops to near zero (so the next increase exceeds the value); a real burst before a real reset exceeds
    what comes after it. Neither is taken for a jump. Where the counter goes on above a high sample, it is the low one
    after it that jumped.
    """
    if i < 1 or i + 1 >= sid.size or sid[i - 1] != sid[i] or sid[i + 1] != sid[i]:
        return False
    before, own, after = value[i - 1], value[i], value[i + 1]
    if own < before:
        return bool(before <= after and after - own < own)
    later = value[i + 2] if i + 2 < sid.size and sid[i + 2] == sid[i] else 0.0
    return bool(own > after >= before and own - before < after and own > later)


@kernel
def intervals(sid: Array, t: Array, value: Array, max_interval_us: int) -> tuple[Array, Array, Array]:
    """Turn a counter's samples into intervals with rates: ``rejected``, ``rate`` and ``start_t`` of each.

    A reset (the counter starts again at zero) makes the sample's own value the increase. A sample out of line with
    both neighbours, where a reset is less likely than a clock that jumped or a wrong copy, is ``rejected``, and the
    interval of the next one begins at the sample before it.
    """
    n = sid.size
    rejected, rate, start_t = np.zeros(n, np.bool_), np.full(n, np.nan), t.copy()
    for i in range(n):
        rejected[i] = _jumped(sid, value, i)
        back = i - 2 if i > 0 and rejected[i - 1] else i - 1
        if rejected[i] or back < 0 or sid[back] != sid[i] or t[i] - t[back] > max_interval_us:
            continue
        increase = value[i] - value[back] if value[i] >= value[back] else value[i]
        rate[i] = increase / (t[i] - t[back]) * SECOND_US
        start_t[i] = t[back]
    return rejected, rate, start_t


@part
def _spread(statistics: Array, window: int, rates: Array, n: int) -> None:
    """Write what the rates of one window are like."""
    if n > 0:
        sort(rates, n)
        statistics[1, window], statistics[2, window], statistics[3, window] = (
            _quantile(rates, n),
            rates[n - 1],
            rates[0],
        )


@kernel
def sum_counters(
    sid: Array,
    t: Array,
    start_t: Array,
    rate: Array,
    rows: Array,
    rejected: Array,
    repaired: Array,
    out_sid: Array,
    out_window: Array,
    out_statistics: Array,
    out_counts: Array,
) -> int:
    """Sum the rates of each series up in the windows their intervals touch; returns how many windows there are."""
    n, found, first = sid.size, 0, 0
    rates = np.empty(ROOM)
    while first < n:
        low, last = start_t[first], first
        while last < n and sid[last] == sid[first]:
            low = min(low, start_t[last])
            last += 1
        low -= low % WINDOW_US
        windows = (t[last - 1] - low) // WINDOW_US + 1
        statistics = np.full((5, windows), np.nan)
        counts = np.zeros((4, windows), np.int64)
        weight = np.zeros(windows, np.int64)
        touched = np.zeros(windows, np.bool_)
        size, at = 0, 0
        for i in range(first, last):
            own = (t[i] - low) // WINDOW_US
            touched[own] = True
            counts[0, own] += not rejected[i]
            counts[1, own] += rows[i]
            counts[2, own] += rejected[i]
            counts[3, own] += repaired[i]
            if np.isnan(rate[i]):
                continue
            # Intervals that have a rate follow each other, and so do the windows they touch.
            for window in range((start_t[i] - low) // WINDOW_US, own + 1):
                if window != at:
                    _spread(statistics, at, rates, size)
                    size, at = 0, window
                touched[window] = True
                border = low + window * WINDOW_US
                inside = min(t[i], border + WINDOW_US) - max(start_t[i], border)
                so_far = 0.0 if np.isnan(statistics[4, window]) else statistics[4, window]
                statistics[4, window] = so_far + rate[i] * inside / SECOND_US
                weight[window] += inside
                if inside > 0:
                    if size == rates.size:
                        rates = np.concatenate((rates, np.empty(size)))
                    rates[size] = rate[i]
                    size += 1
        _spread(statistics, at, rates, size)
        for window in range(windows):
            if not touched[window]:
                continue
            if weight[window] > 0:
                mean = statistics[4, window] * SECOND_US / weight[window]
                # Rounding may lift the weighted mean of equal rates above them by one bit.
                statistics[0, window] = min(mean, statistics[2, window])
            out_sid[found], out_window[found] = sid[first], low + window * WINDOW_US
            for k in range(5):
                out_statistics[k, found] = statistics[k, window]
            for k in range(4):
                out_counts[k, found] = counts[k, window]
            found += 1
        first = last
    return found
