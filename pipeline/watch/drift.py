"""Drift of a signal: the population stability index of the last half hour against the same time on the reference days.

Series differ in size, and nights from days, more than any shift would change them: so each value is taken relative to
the median of its own series and to what is usual at that time of the day. An index has noise: a few series over half an
hour differ from the rest by chance, and samples that follow each other are no independent samples. So the limit is no
constant: each reference day in turn is held against the others, and an alarm needs more than the worst half hour that
those days themselves have shown (:attr:`Reference.limits`), in two looks in a row (:data:`LOOKS`).

PSI = Σ (now - then) · ln(now / then) over bins; 0.1 is worth a look, 0.2 is the custom to act on.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BINS = 8
"""Quantiles of the reference; more bins find smaller changes and need more samples."""
OUTSIDE = 0.002
"""Share of the reference in each of its outermost bins; beyond them lies what was never seen."""
ACT = 0.2
"""Never an alarm below this."""
HEADROOM = 1.9
"""Times the worst the reference days have shown among themselves: they are few, and the next may be a little worse."""
AROUND = 2
"""Slots before and after that count as the same time of the day."""
LOOKS = 2
"""Looks in a row that must agree: a quarter of an hour apart, and no less than half of that."""
SMALLEST = 1e-3
"""Share that an empty bin counts as: keeps the logarithm finite."""
DAY_S = 86_400
SLOT_S = 1800
"""What one look sees: half an hour, so that two looks that see nothing but a shift are done within the hour."""
SLOTS = DAY_S // SLOT_S


class Reference(msgspec.Struct, frozen=True):
    """What a signal looked like on the days a policy learned from, time of the day by time."""

    scales: dict[str, float]
    """Series -> its median on the reference days; what is new is held against the median of those."""
    profile: list[float]
    """Half hour of the day -> the usual value there, relative to the medians."""
    edges: list[float]
    """Inner edges of the bins."""
    shares: list[list[float]]
    """Half hour of the day (UTC) -> share of samples in each bin."""
    limits: list[float]
    """Half hour of the day -> the largest index that is no alarm."""
    days: int


def psi(now: Floats, then: Floats) -> float:
    """Return the index of two distributions over the same bins."""
    one, two = (np.maximum(shares / max(shares.sum(), 1e-12), SMALLEST) for shares in (now, then))
    one, two = one / one.sum(), two / two.sum()
    return float(np.sum((one - two) * np.log(one / two)))


def counts(values: Floats, edges: Floats) -> Floats:
    """Count values by bin."""
    return np.bincount(np.searchsorted(edges, values, side="right"), minlength=len(edges) + 1).astype(np.float64)


Samples = dict[str, tuple[Floats, Floats]]
"""Series -> times in seconds, values."""


def scale_of(values: Floats) -> float:
    """Return what a series is measured by: its median, or 1 where that is nothing."""
    middle = float(np.median(values)) if len(values) else 0.0
    return middle if middle > 0 else 1.0


def reference(series: Samples) -> Reference | None:
    """Learn what is usual; None where there are fewer than three days, which say nothing about each other."""
    finite = {name: (at[np.isfinite(v)], v[np.isfinite(v)]) for name, (at, v) in series.items()}
    finite = {name: (at, v) for name, (at, v) in finite.items() if len(v)}
    if not finite:
        return None
    scales = {name: scale_of(v) for name, (_, v) in finite.items()}
    time_s = np.concatenate([at for at, _ in finite.values()])
    values = np.concatenate([v / scales[name] for name, (_, v) in finite.items()])
    slot_of = ((time_s % DAY_S) // SLOT_S).astype(np.intp)
    profile = np.array([_usual(values, slot_of, slot) for slot in range(SLOTS)])
    values = values / _at(profile, time_s)
    inner = np.quantile(values, [OUTSIDE, *np.linspace(0, 1, BINS + 1)[1:-1], 1 - OUTSIDE])
    edges = np.unique([values.min(), *inner, np.nextafter(values.max(), np.inf)])
    days, day_of = np.unique(time_s // DAY_S, return_inverse=True)
    if len(days) < 3:
        return None
    table = np.zeros((len(days), SLOTS, len(edges) + 1))
    np.add.at(table, (day_of, slot_of, np.searchsorted(edges, values, side="right")), 1.0)
    near = np.stack([_around(table, slot) for slot in range(SLOTS)], axis=1)
    shares, limits = near.sum(axis=0), []
    for slot in range(SLOTS):
        # What half an hour of one day looks like beside the same time on all the others.
        seen = [
            psi(table[day, other % SLOTS], shares[slot] - near[day, slot])
            for day in range(len(days))
            for other in range(slot - AROUND, slot + AROUND + 1)
            if table[day, other % SLOTS].sum() > 0 and (shares[slot] - near[day, slot]).sum() > 0
        ]
        limits.append(max(ACT, HEADROOM * max(seen, default=ACT)))
    totals = np.maximum(shares.sum(axis=1, keepdims=True), 1e-12)
    return Reference(scales, profile.tolist(), edges.tolist(), (shares / totals).tolist(), limits, len(days))


def _usual(values: Floats, slot_of: NDArray[np.intp], slot: int) -> float:
    """Median of the values around a time of the day."""
    apart = np.abs(slot_of - slot)
    return scale_of(values[np.minimum(apart, SLOTS - apart) <= AROUND])


def _at(profile: Floats, time_s: Floats) -> Floats:
    """Return the usual value at any time of the day."""
    centres = (np.arange(SLOTS) + 0.5) * SLOT_S
    return np.asarray(np.interp(time_s % DAY_S, centres, profile, period=DAY_S))


def _around(table: Floats, slot: int) -> Floats:
    """Counts of a time of the day and of those around it, day by day."""
    return np.asarray(table[:, [other % SLOTS for other in range(slot - AROUND, slot + AROUND + 1)]].sum(axis=1))


class Look(msgspec.Struct, frozen=True):
    """One look at one signal."""

    psi: float
    limit: float
    samples: int

    @property
    def beyond(self) -> bool:
        """Whether it is more than the reference days have shown."""
        return self.psi > self.limit


def look(known: Reference, now_s: float, series: dict[str, Floats]) -> Look | None:
    """Hold the values of the last half hour against the reference; None without any."""
    usual = float(np.median(list(known.scales.values())))
    values = np.concatenate([v / known.scales.get(name, usual) for name, v in series.items()] or [np.empty(0)])
    values = values[np.isfinite(values)]
    if len(values) == 0:
        return None
    middle_s = now_s - SLOT_S / 2
    slot = int(middle_s % DAY_S // SLOT_S)
    usual_now = _at(np.asarray(known.profile), np.array([middle_s]))
    found = counts(values / usual_now, np.asarray(known.edges))
    # What is looked at lies in two slots: the kinder of both counts.
    both = (slot, (slot + 1) % SLOTS)
    indices = {one: psi(found, np.asarray(known.shares[one])) for one in both}
    best = min(both, key=lambda one: indices[one] / known.limits[one])
    return Look(indices[best], known.limits[best], len(values))
