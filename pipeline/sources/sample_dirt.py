"""The dirt of the sample: what scrapes, agents and clocks really do to metrics, at rates a busy cluster shows.

Faults that must agree between days (counters that start again, a node that leaves) are drawn once; the rest is drawn
for each day. Nothing here touches the ground truth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts.raw import METRICS
from pipeline.sources.columns import METRIC_CODE, METRIC_NAMES, NONE, SampleColumns
from pipeline.sources.sample_cluster import ClusterTruth

F8 = NDArray[np.float64]
I8 = NDArray[np.int64]

DAY_S = 86_400.0
LOST_SCRAPES = 0.004
EXACT_DUPLICATES = 0.002
OTHER_VALUES = 0.0005
LATE = 0.02
NAN = 0.0003
NEGATIVE = 0.0002
OVER_CAPACITY = 0.0001
PODS_RESTARTED = 0.03
PODS_IN_MILLICORES = 0.01
NO_NODE = 0.002
CLOCK_AHEAD_US = 97_000_000
VANISHED_S = 35 * 60.0

_GAUGES = np.array([METRICS[name].kind == "gauge" for name in METRIC_NAMES])
_USED_MEM = [METRIC_CODE["node_mem_used_bytes"], METRIC_CODE["pod_mem_used_bytes"]]


@dataclass(frozen=True)
class Faults:
    """Faults of the whole range; times in seconds from its start, infinite = never."""

    vanished_node: int
    vanished_s: float
    pod_reset_s: F8
    gateway_reset_s: float
    millicore_pods: I8

    @classmethod
    def draw(cls, rng: np.random.Generator, truth: ClusterTruth, days: int, *, enabled: bool) -> Faults:
        """Draw the faults; none when not enabled."""
        pods = len(truth.pod_created_s)
        if not enabled:
            return cls(NONE, np.inf, np.full(pods, np.inf), np.inf, np.empty(0, np.int64))
        day = 1 if days > 1 else 0
        reset = np.full(pods, np.inf)
        restarted = np.flatnonzero((rng.random(pods) < PODS_RESTARTED) & (truth.pod_minutes > 10))
        share = rng.uniform(0.2, 0.8, len(restarted))
        reset[restarted] = (truth.pod_first[restarted] + share * truth.pod_minutes[restarted]) * 60.0
        return cls(
            vanished_node=int(rng.integers(len(truth.node_type))),
            vanished_s=day * DAY_S + float(rng.uniform(9, 15)) * 3600.0,
            pod_reset_s=reset,
            gateway_reset_s=float(rng.uniform(0.2, 0.8)) * days * DAY_S,
            millicore_pods=np.flatnonzero(rng.random(pods) < PODS_IN_MILLICORES),
        )

    def node_resets(self, node: int) -> list[float]:
        """When a node's counters started again at zero."""
        return [self.vanished_s + VANISHED_S] if node == self.vanished_node else []


def soil_samples(
    rng: np.random.Generator, samples: SampleColumns, faults: Faults, day: int, origin_us: int
) -> SampleColumns:
    """Soil one day of samples."""
    t = (samples.time_us - origin_us) / 1e6
    nodes = int(samples.node.max()) + 1
    keep = rng.random(len(t)) >= LOST_SCRAPES
    keep &= ~((samples.node == faults.vanished_node) & (t >= faults.vanished_s) & (t < faults.vanished_s + VANISHED_S))
    for minutes in (4.0, 6.0, 8.0, 30.0):  # three short gaps and a long one, each of one node with its pods
        start = day * DAY_S + rng.uniform(0.0, DAY_S - 3600.0)
        keep &= ~((samples.node == rng.integers(nodes)) & (t >= start) & (t < start + minutes * 60.0))
    soiled = samples.take(keep)
    t = t[keep]
    rows = len(t)

    def pick(share: float, among: NDArray[np.bool_] | None = None) -> I8:
        chosen = rng.random(rows) < share
        return np.flatnonzero(chosen if among is None else chosen & among)

    gauge = _GAUGES[soiled.metric]
    used = np.isin(soiled.metric, _USED_MEM)
    start = day * DAY_S + rng.uniform(0.0, DAY_S - 7200.0)
    kib = (soiled.metric == _USED_MEM[0]) & (soiled.node == rng.integers(nodes)) & (t >= start) & (t < start + 1800.0)
    soiled.value[kib] /= 1024.0
    milli = (soiled.metric == METRIC_CODE["pod_cpu_request_cores"]) & np.isin(soiled.pod, faults.millicore_pods)
    soiled.value[milli] *= 1000.0
    soiled.value[pick(NAN, gauge)] = np.nan
    negative = pick(NEGATIVE, used)
    soiled.value[negative] = -np.abs(soiled.value[negative])
    soiled.value[pick(OVER_CAPACITY, used)] *= 1000.0
    soiled.node[pick(NO_NODE, soiled.metric == METRIC_CODE["pod_info"])] = NONE

    start = day * DAY_S + rng.uniform(0.0, DAY_S - 7200.0)
    ahead = (soiled.node == rng.integers(nodes)) & (t >= start) & (t < start + 1200.0)
    soiled.time_us[ahead] += CLOCK_AHEAD_US

    other = soiled.take(pick(OTHER_VALUES, np.isfinite(soiled.value)))
    other.value *= rng.uniform(0.9, 1.1, len(other.value))
    late = np.zeros(rows, dtype=bool)
    late[pick(LATE)] = True
    tail = SampleColumns.join([soiled.take(late), soiled.take(pick(EXACT_DUPLICATES)), other])
    return SampleColumns.join([soiled.take(~late), tail.take(rng.permutation(len(tail.value)))])


def soil_requests(rng: np.random.Generator, function: NDArray[np.int32], pod: NDArray[np.int32], duration: F8) -> I8:
    """Soil a day of the request log in place; returns the order, with repeats, in which rows are written."""
    rows = len(function)
    pod[rng.random(rows) < 0.10] = NONE  # the gateway did not note who answered
    function[rng.random(rows) < 0.0002] = NONE
    duration[rng.random(rows) < 0.0002] *= -1.0
    duration[rng.random(rows) < 0.0001] = np.nan
    again = np.flatnonzero(rng.random(rows) < 0.001)
    return np.concatenate([np.arange(rows), again])


def soil_events(rng: np.random.Generator, rows: I8) -> I8:
    """Repeat some events and let some come late, as a watch that reconnects does."""
    again = rows[rng.random(len(rows)) < 0.005]
    key = np.arange(len(rows)) + np.where(rng.random(len(rows)) < 0.01, 5.5, 0.0)
    return np.concatenate([rows[np.argsort(key, kind="stable")], again])
