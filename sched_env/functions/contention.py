"""How much slower a call gets on a shared node: the response-time model of ``functions``.

Every function takes scalars (compiled by the kernels) or arrays (plain numpy in the service) and gives the same bits
both ways, so only ``+ - * /``, minimum, maximum and comparisons are used, and none calls another. The model:

* cpu: waiting for a core grows with the fourth power of the utilisation and shrinks with the number of free cores,
  as in a queue with several servers: 80 % of a 16-core node hurts less than 80 % of a 4-core node.
* memory: above 80 % of the node's memory the page cache goes and reclaim begins; up to 1.5 x at 100 %.
* network and disk: queueing below saturation; above it every instance gets its fair share, so a demand of twice the
  capacity takes twice the time. (cpu and memory cannot be oversubscribed; network and disk can.)

A call spends its time on cpu, network and disk in proportion to what its instance asks of each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

SPARE_CORES = 0.5
"""Keeps the waiting time finite on a full node: a full node is 3 x slower for pure compute."""
MEMORY_KNEE = 0.8
"""Share of memory above which the kernel starts to reclaim pages."""
PRESSURE_SCALE = 1.0 / (1.0 - MEMORY_KNEE)
MEMORY_SLOWDOWN = 0.5
"""Added to the factor 1 when memory is full."""
IO_QUEUEING = 0.5
"""Added to the factor 1 when a link or disk is exactly saturated."""
LEAST_FREE = 0.1
"""Cores that keep the wait finite where use reaches capacity: there a queue grows as long as the window lasts."""
NET_PER_CORE_MB_S = 100.0
DISK_PER_CORE_IOPS = 1000.0
"""So much network or disk use weighs as much in a call's time as one busy core."""


def time_shares(cpu: Any, net: Any, disk: Any) -> Any:
    """Split a call's time over cpu, network and disk; the three shares add up to 1."""
    net_weight = net / NET_PER_CORE_MB_S
    disk_weight = disk / DISK_PER_CORE_IOPS
    total = cpu + net_weight + disk_weight
    return cpu / total, net_weight / total, disk_weight / total


def shares_of(cpu: Any, net: Any, disk: Any, work_s: Any, response_s: Any) -> Any:
    """Split a call's time as measured, where it is known how long a call computes; the rest of it nobody slows.

    What is not computing is network and disk in proportion to their weights, as far as they have any.
    """
    assumed = time_shares(cpu, net, disk)
    computing = np.minimum(work_s / response_s, 1.0)
    other = assumed[1] + assumed[2]
    rest = np.where(other > 0.0, np.minimum(other, 1.0 - computing) / np.maximum(other, 1e-12), 0.0)
    known = work_s > 0.0
    return (
        np.where(known, computing, assumed[0]),
        np.where(known, assumed[1] * rest, assumed[1]),
        np.where(known, assumed[2] * rest, assumed[2]),
    )


def power(cores: Any) -> Any:
    """Return the power of utilisation with which waiting grows on a node (Sakasegawa's approximation of M/M/c)."""
    return np.sqrt(2.0 * (cores + 1.0)) - 1.0


def waiting(utilization: Any, free: Any, power: Any) -> Any:
    """Return how long calls wait for a core, in multiples of their work, on a node of which so much is *used*.

    With several cores the queue is short until nearly all are busy, and then grows without end.
    """
    return utilization**power / (np.maximum(free, 0.0) + LEAST_FREE)


def factors(
    cpu_utilization: Any, cpu_free: Any, mem_utilization: Any, net_utilization: Any, disk_utilization: Any
) -> Any:
    """Return how many times longer cpu, network and disk time takes on a node used like this, each at least 1.

    The relative response time of a call is the sum of its time shares x these.
    """
    square = cpu_utilization * cpu_utilization
    cpu = 1.0 + square * square / (np.maximum(cpu_free, 0.0) + SPARE_CORES)
    pressure = np.maximum(mem_utilization - MEMORY_KNEE, 0.0) * PRESSURE_SCALE
    memory = 1.0 + MEMORY_SLOWDOWN * (pressure * pressure)
    net_below = np.minimum(net_utilization * net_utilization, 1.0)
    net = np.maximum(net_utilization, 1.0) + IO_QUEUEING * (net_below * net_below)
    disk_below = np.minimum(disk_utilization * disk_utilization, 1.0)
    disk = np.maximum(disk_utilization, 1.0) + IO_QUEUEING * (disk_below * disk_below)
    return cpu * memory, net * memory, disk * memory


def cold_calls(cold_start_s: Any, duration_s: Any, requests: Any) -> Any:
    """Return how many calls wait for the container of a cold start.

    The first call comes at once and starts the container; the others are spread evenly over the instance's life.
    """
    later = np.maximum(requests - 1.0, 0.0)
    return np.minimum(requests, 1.0) + later / duration_s * np.minimum(cold_start_s, duration_s)


def cold_ratio(cold_start_s: Any, duration_s: Any, requests: Any, response_s: Any) -> Any:
    """Return what a cold start adds to the relative response time, averaged over all calls of the instance."""
    seconds = np.minimum(cold_start_s, duration_s)
    later = np.maximum(requests - 1.0, 0.0)
    waited = np.minimum(requests, 1.0) * cold_start_s + later / duration_s * seconds * (cold_start_s - 0.5 * seconds)
    return waited / (np.maximum(requests, 1.0) * response_s)
