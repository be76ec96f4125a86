"""Generated pods: a stream of requests dealt round-robin to them, of equal duration and different size.

How large a pod's requests are is a matter of its function, whose load swings over the day and drifts. A function has a
few pods, spread over the nodes by chance, so that some nodes get more than others, and hot nodes cool down again.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sched_env.pods.tables import WINDOW_S, PodTrace, offsets
from sched_env.tables import Floats, NodeTable

DAY_WINDOWS = 288
DAY_SWING = 0.3
"""A function's load, and the number of requests, go up and down by this share of their mean in the course of a day."""
BASE_SPREAD = 0.5
"""Spread of the functions' mean sizes (of their logarithm)."""
PODS_PER_FUNCTION = 4
DRIFT = 0.9
"""How much of a function's deviation from its mean is left a window later."""
DEVIATION = 0.5
"""Spread of that deviation (of its logarithm)."""
SIZE_SPREAD = 0.25
"""Spread of the sizes of a function's requests (of their logarithm)."""
MEM_PER_CPU = 0.8
"""Mean share of the memory in use, over that of the cpu."""
REQUESTED = 0.5
"""Share of the nodes that the pods' requests fill: there is room to move."""


def nodes(count: int, cpu: float = 100.0, mem: float = 100.0, price_usd_per_hour: float = 1.0) -> NodeTable:
    """Return a table of equal nodes."""
    return NodeTable(
        names=tuple(f"node{index}" for index in range(1, count + 1)),
        cpu=np.full(count, cpu),
        mem=np.full(count, mem),
        net=np.full(count, 1000.0),
        disk=np.full(count, 5000.0),
        price_usd_per_hour=np.full(count, price_usd_per_hour),
    )


def generate(
    table: NodeTable,
    windows: int,
    *,
    pods_per_node: int = 10,
    load: float = 0.5,
    requests_per_pod: int = 5,
    churn: float = 0.01,
    seed: int = 0,
) -> PodTrace:
    """Generate a trace for equal nodes.

    Args:
        table: The nodes.
        windows: Length.
        pods_per_node: At the start.
        load: Mean share of the cpu that requests use.
        requests_per_pod: Mean number a window.
        churn: Share of the pods that is replaced in a window, the new ones on nodes drawn anew.
        seed: Names the trace.
    """
    rng = np.random.default_rng(seed)
    count, size = len(table), len(table) * pods_per_node
    functions = max(size // PODS_PER_FUNCTION, 1)
    function = np.arange(size) % functions
    pod, host = _lives(rng, windows, size, count, churn)
    level = _levels(rng, windows, functions)[:, function]
    day = 1.0 + DAY_SWING * np.sin(2.0 * np.pi * np.arange(windows) / DAY_WINDOWS)
    each = np.maximum(np.rint(requests_per_pod * day), 1).astype(np.int64)  # requests of a pod, window by window

    # A position of a node sees one request of each of its pods.
    typical_cpu = load * float(table.cpu[0]) / pods_per_node
    typical_mem = MEM_PER_CPU * load * float(table.mem[0]) / pods_per_node
    base_cpu, base_mem = (np.exp(rng.normal(-0.5 * BASE_SPREAD**2, BASE_SPREAD, functions))[function] for _ in range(2))
    per_row = np.repeat(each, size)
    of_row = np.repeat(np.arange(per_row.size), per_row)
    noise = rng.lognormal(-0.5 * SIZE_SPREAD**2, SIZE_SPREAD, (2, of_row.size))
    cpu = (typical_cpu * base_cpu * level).ravel()[of_row] * noise[0]
    mem = (typical_mem * base_mem * np.sqrt(level)).ravel()[of_row] * noise[1]
    first = offsets(per_row)
    turn = np.arange(of_row.size) - first[of_row]
    spacing = (WINDOW_S / per_row)[of_row]
    # The stream is even: the requests of a turn come one after another, in the order of the pods.
    within = (np.tile(np.arange(size), windows) / size)[of_row]
    return PodTrace(
        window_s=np.arange(windows, dtype=np.float64) * WINDOW_S,
        window_rows=np.arange(windows + 1, dtype=np.int64) * size,
        pod=pod.ravel(),
        node=host.ravel(),
        cpu_request=np.full(per_row.size, REQUESTED * float(table.cpu[0]) / pods_per_node),
        mem_request=np.full(per_row.size, REQUESTED * float(table.mem[0]) / pods_per_node),
        cpu_used=_mean(cpu, of_row, per_row),
        mem_used=_mean(mem, of_row, per_row),
        row_requests=first,
        arrival_offset_s=(turn + within) * spacing,
        duration_s=spacing,
        cpu=cpu,
        mem=mem,
        pod_names=tuple(f"pod-{index:05d}" for index in range(int(pod.max()) + 1)),
    )


def _lives(
    rng: np.random.Generator, windows: int, size: int, count: int, churn: float
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return pod and node of each place in each window; a place whose pod leaves gets a new one."""
    replaced = rng.random((windows, size)) < churn
    replaced[0] = False
    generation = np.cumsum(replaced, axis=0)
    drawn = rng.integers(count, size=(windows, size), dtype=np.int32)
    drawn[0] = rng.permutation(np.arange(size, dtype=np.int32) % count)
    last = np.maximum.accumulate(np.where(replaced, np.arange(windows)[:, None], 0), axis=0)
    host = drawn[last, np.arange(size)]
    _, pod = np.unique(generation * size + np.arange(size), return_inverse=True)
    return pod.reshape(windows, size).astype(np.int32), host


def _levels(rng: np.random.Generator, windows: int, functions: int) -> Floats:
    """Return each function's load over time, around 1: a day, and a deviation that comes and goes."""
    phase = rng.uniform(0.0, 2.0 * np.pi, functions)
    day = 1.0 + DAY_SWING * np.sin(2.0 * np.pi * np.arange(windows)[:, None] / DAY_WINDOWS + phase)
    deviation = np.empty((windows, functions))
    deviation[0] = rng.normal(0.0, DEVIATION, functions)
    fresh = rng.normal(0.0, DEVIATION * np.sqrt(1.0 - DRIFT**2), (windows, functions))
    for window in range(1, windows):
        deviation[window] = DRIFT * deviation[window - 1] + fresh[window]
    result: Floats = day * np.exp(deviation - 0.5 * DEVIATION**2)
    return result


def _mean(values: Floats, of_row: NDArray[np.int64], per_row: NDArray[np.int64]) -> Floats:
    result: Floats = np.bincount(of_row, values, per_row.size) / np.maximum(per_row, 1)
    return result
