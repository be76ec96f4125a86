"""Sharing and counting, written to be read: what the kernels of ``pods`` must agree with (docs/pods.md).

One node in one window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sched_env.pods.tables import WINDOW_S, PodTrace
from sched_env.tables import Floats, NodeTable

Arrival = Literal["serial", "parallel"]

SLACK = 1.0 + 1e-9
"""A sum of many demands is rounded: a limit is passed only beyond this factor."""
INSTANT_S = 1e-6
"""A request that ends within a microsecond of another's arrival has ended."""
GRAIN = 2.0**-20
"""Cores and GiB in an environment are whole multiples of this, about a millionth: their sums are exact in any order."""
P95_ABOVE = 0.05
"""Share of the positions that may lie above the 95th percentile."""


class Requests(NamedTuple):
    """The requests of one pod in one window, in the order they were dealt."""

    arrival_s: Floats
    duration_s: Floats
    cpu: Floats
    mem: Floats


class Loads(NamedTuple):
    """Cpu and memory in use, position by position."""

    cpu: Floats
    mem: Floats


class Statistics(NamedTuple):
    """How a load went in the window; ``last - first`` is its change."""

    mean: float
    p95: float
    max: float
    first: float
    last: float


class Allocation(NamedTuple):
    """What a node gives its pods."""

    assigned_cpu: Floats
    assigned_mem: Floats
    remain_cpu: float
    remain_mem: float


class Score(NamedTuple):
    """A window of the whole cluster, counted."""

    over: int
    """Resource violations: positions above the threshold."""
    under: int
    """Positions below the lower threshold."""
    positions: int
    unmet: int
    """Performance violations: requests that are not satisfied."""
    crowded: int
    """All requests on nodes that cannot satisfy all."""
    requests: int
    occupied: NDArray[np.bool_]
    """[N]: which nodes hold a pod."""


def share(total_cpu: float, total_mem: float, request_cpu: Floats, request_mem: Floats) -> Allocation:
    """Share a node: all of its cpu in proportion to the requests (work-conserving), memory as asked.

    Pods that all ask for no cpu share it evenly.
    """
    if request_cpu.size == 0:
        return Allocation(np.empty(0), np.empty(0), total_cpu, total_mem)
    weights = request_cpu if request_cpu.any() else np.ones(request_cpu.size)
    assigned_cpu = total_cpu * weights / weights.sum()
    return Allocation(assigned_cpu, request_mem.copy(), 0.0, float(total_mem - request_mem.sum()))


def loads(pods: Sequence[Requests], arrival: Arrival) -> Loads:
    """Add up the demands of a node's pods.

    ``serial``: the k-th requests of all pods meet at position k, whenever they came. ``parallel``: a request occupies
    ``[arrival, arrival + duration)``, and a position is an instant at which some request of the node arrives.
    """
    if arrival == "serial":
        size = max((pod.cpu.size for pod in pods), default=0)
        cpu, mem = np.zeros(size), np.zeros(size)
        for pod in pods:
            cpu[: pod.cpu.size] += pod.cpu
            mem[: pod.mem.size] += pod.mem
        return Loads(cpu, mem)
    instants = np.unique(np.concatenate([np.empty(0), *(pod.arrival_s for pod in pods)]))
    cpu, mem = np.zeros(instants.size), np.zeros(instants.size)
    for pod in pods:
        for begin, duration, asked_cpu, asked_mem in zip(*pod, strict=True):
            there = (instants == begin) | ((instants > begin) & (instants + INSTANT_S < begin + duration))
            cpu[there] += asked_cpu
            mem[there] += asked_mem
    return Loads(cpu, mem)


def statistics(load: Floats) -> Statistics:
    """Describe a load; the 95th percentile is the lowest value that at most 5 % of the positions exceed."""
    if load.size == 0:
        return Statistics(0.0, 0.0, 0.0, 0.0, 0.0)
    total = float(np.cumsum(load)[-1])  # in order; np.sum adds pairwise
    ordered = np.sort(load)
    p95 = float(ordered[load.size - 1 - int(P95_ABOVE * load.size)])
    return Statistics(total / load.size, p95, float(ordered[-1]), float(load[0]), float(load[-1]))


def above(load: Loads, cpu: float, mem: float, threshold: float) -> int:
    """Count the positions at which cpu or memory is above the threshold's share of the node."""
    return int(((load.cpu > threshold * cpu * SLACK) | (load.mem > threshold * mem * SLACK)).sum())


def below(load: Loads, cpu: float, mem: float, threshold: float) -> int:
    """Count the positions at which cpu or memory is below the threshold's share of the node."""
    return int(((load.cpu * SLACK < threshold * cpu) | (load.mem * SLACK < threshold * mem)).sum())


def demand(size: Floats, duration_s: Floats) -> Floats:
    """Return what requests ask of the window: their size times the share of the window that they last."""
    return grained(size * (np.minimum(duration_s, WINDOW_S) / WINDOW_S))


def grained(amount: Floats) -> Floats:
    """Round amounts to whole multiples of ``GRAIN``."""
    result: Floats = np.rint(amount / GRAIN) * GRAIN
    return result


def unmet(pods: Sequence[Requests], cpu: float, mem: float, cluster_cpu: float, cluster_mem: float) -> tuple[int, int]:
    """Count a node's performance violations, and all requests of a node that has any.

    Where the total demand of the requests is above the node's capacity they are served smallest first (demand of cpu
    and memory as shares of the cluster's, added); one that does not fit into what is left is not satisfied.
    """
    asked_cpu = np.concatenate([np.empty(0), *(demand(pod.cpu, pod.duration_s) for pod in pods)])
    asked_mem = np.concatenate([np.empty(0), *(demand(pod.mem, pod.duration_s) for pod in pods)])
    if asked_cpu.size == 0 or (np.cumsum(asked_cpu)[-1] <= cpu * SLACK and np.cumsum(asked_mem)[-1] <= mem * SLACK):
        return 0, 0
    used_cpu = used_mem = 0.0
    missed = 0
    for q in np.argsort(asked_cpu / cluster_cpu + asked_mem / cluster_mem, kind="stable"):
        if used_cpu + asked_cpu[q] <= cpu * SLACK and used_mem + asked_mem[q] <= mem * SLACK:
            used_cpu += asked_cpu[q]
            used_mem += asked_mem[q]
        else:
            missed += 1
    return missed, int(asked_cpu.size)


def requests_of(trace: PodTrace, row: int) -> Requests:
    """Return the requests of a pod row."""
    there = slice(int(trace.row_requests[row]), int(trace.row_requests[row + 1]))
    return Requests(trace.arrival_offset_s[there], trace.duration_s[there], trace.cpu[there], trace.mem[there])


def score(
    trace: PodTrace,
    nodes: NodeTable,
    window: int,
    place: NDArray[np.integer],
    *,
    arrival: Arrival = "serial",
    threshold: float = 0.8,
    under_threshold: float = 0.2,
) -> Score:
    """Count a window of the trace with its pods on given nodes.

    Args:
        trace: The pods and requests.
        nodes: The nodes.
        window: Its number.
        place: The node of each of the window's pod rows; -1: nowhere, and none of its requests is satisfied.
        arrival: How requests meet.
        threshold: Share of a node above which a position is a violation.
        under_threshold: Share of a node below which a position counts as under-used.
    """
    first, stop = int(trace.window_rows[window]), int(trace.window_rows[window + 1])
    over = under = positions = missed = crowded = 0
    held: dict[int, list[Requests]] = {}
    for row in range(first, stop):
        held.setdefault(int(place[row - first]), []).append(requests_of(trace, row))
    for n, pods in held.items():
        if n < 0:
            missed += sum(pod.cpu.size for pod in pods)
            crowded += sum(pod.cpu.size for pod in pods)
            continue
        load = loads(pods, arrival)
        positions += load.cpu.size
        over += above(load, nodes.cpu[n], nodes.mem[n], threshold)
        under += below(load, nodes.cpu[n], nodes.mem[n], under_threshold)
        found = unmet(pods, nodes.cpu[n], nodes.mem[n], nodes.cpu.sum(), nodes.mem.sum())
        missed += found[0]
        crowded += found[1]
    requests = int(trace.row_requests[stop] - trace.row_requests[first])
    occupied = np.bincount(place[place >= 0], minlength=len(nodes)) > 0
    return Score(over, under, positions, missed, crowded, requests, occupied)
