"""The last hour at a glance: counters read every few seconds, beside the decisions, never by them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple

import msgspec

from placement.metrics import SECONDS, Metrics

EVERY_S = 10.0
KEPT = 360
"""Readings: an hour. What is older is Prometheus's to know."""


class Moment(msgspec.Struct, frozen=True):
    """What happened between one reading and the next, of one problem."""

    at: str
    """End of the interval, RFC 3339 UTC."""
    decisions: int
    fallbacks: int
    p50_ms: float | None
    """From the buckets of the histogram, as Prometheus would say it; null without a decision."""
    p99_ms: float | None


class _Reading(NamedTuple):
    at: float
    decisions: dict[str, int]
    fallbacks: dict[str, int]
    buckets: dict[str, tuple[int, ...]]
    """Problem -> decisions up to each limit of ``SECONDS``, and all."""


class OverTime:
    """A ring of readings."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._readings: deque[_Reading] = deque(maxlen=KEPT + 1)
        self.read()

    def read(self) -> None:
        """Take one reading: some hundred numbers, whatever the load."""
        counts = self._metrics.since_start()
        buckets: dict[str, list[int]] = {}
        for family in self._metrics.seconds.collect():
            for sample in family.samples:
                if sample.name.endswith("_bucket"):
                    buckets.setdefault(sample.labels["problem"], []).append(int(sample.value))
        limits = {problem: tuple(found) for problem, found in buckets.items()}
        self._readings.append(_Reading(time.time(), counts["totals"], counts["fallbacks"], limits))

    async def read_for_ever(self) -> None:
        """Take a reading every ``EVERY_S``."""
        while True:
            await asyncio.sleep(EVERY_S)
            self.read()

    def moments(self) -> dict[str, list[Moment]]:
        """Return the intervals of each problem that decided anything, oldest first; the last one ends now."""
        self.read()
        readings = list(self._readings)
        self._readings.pop()  # the pace of the ring is its own, however often somebody asks
        named = sorted({problem for reading in readings for problem in reading.decisions})
        return {problem: [_between(problem, *pair) for pair in pairwise(readings)] for problem in named}


def _between(problem: str, before: _Reading, after: _Reading) -> Moment:
    none = (0,) * (len(SECONDS) + 1)
    earlier, later = before.buckets.get(problem, none), after.buckets.get(problem, none)
    inside = [new - old for new, old in zip(later, earlier, strict=True)]
    return Moment(
        datetime.fromtimestamp(after.at, UTC).isoformat(timespec="seconds"),
        after.decisions.get(problem, 0) - before.decisions.get(problem, 0),
        after.fallbacks.get(problem, 0) - before.fallbacks.get(problem, 0),
        quantile(inside, 0.5),
        quantile(inside, 0.99),
    )


def quantile(cumulative: Iterable[int], share: float) -> float | None:
    """Return a quantile in milliseconds from counts up to each limit, linear within a bucket; above all: the last."""
    counts = list(cumulative)
    if not counts[-1]:
        return None
    wanted, low, below = share * counts[-1], 0.0, 0
    for limit, count in zip(SECONDS, counts, strict=False):
        if count >= wanted:
            inside = (wanted - below) / (count - below) if count > below else 0.0
            return round(1e3 * (low + inside * (limit - low)), 4)
        low, below = limit, count
    return round(1e3 * SECONDS[-1], 4)
