"""One node in one window, compiled: the loads of its pods, how they went and what is counted.

Equals ``sched_env.pods.counting`` bit for bit: sums run over the pods in the order of the window's rows.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from sched_env.jit import called, inline
from sched_env.pods.counting import P95_ABOVE, SLACK
from sched_env.pods.state import (
    CPU,
    CPU_DEMAND,
    CPU_INVERSE,
    CPU_MEAN,
    CPU_REQUEST,
    CPU_SHARES,
    CROWDED,
    HEAT,
    MEM,
    MEM_DEMAND,
    MEM_DEPLOYED,
    MEM_INVERSE,
    MEM_MEAN,
    MEM_REQUEST,
    NEXT,
    OFFERED,
    OVER,
    PODS,
    POSITIONS,
    UNDER,
    UNMET,
    UNOFFERED,
    Cluster,
    Rules,
    Scratch,
)
from sched_env.traces.tables import Floats

NONE = -1
"""No row: the end of a list, or nothing to add or leave out."""


@inline
def sort(values: NDArray[Any], size: int) -> None:
    """Sort the first entries in place (Shell's method: short lists, no memory)."""
    gap = 1
    while gap < size // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, size):
            value = values[i]
            j = i
            while j >= gap and values[j - gap] > value:
                values[j] = values[j - gap]
                j -= gap
            values[j] = value
        gap //= 3


@inline
def step_on(links: Any, row: int, extra: int, skip: int) -> tuple[int, int, int]:
    """Return the next pod of a list with ``extra`` put in and ``skip`` left out, and where the walk then stands."""
    if row == skip and row != NONE:
        row = links[row, NEXT]
    if extra != NONE and (row == NONE or extra < row):
        return extra, row, NONE
    if row == NONE:
        return NONE, NONE, NONE
    return row, links[row, NEXT], extra


@inline
def add_serial(cluster: Cluster, scratch: Scratch, begin: int, stop: int, size: int) -> int:
    """Add a pod's requests, the k-th at position k; returns how many positions there are now."""
    count = stop - begin
    for k in range(size, count):
        scratch.load[CPU, k] = scratch.load[MEM, k] = 0.0
    for k in range(count):
        scratch.load[CPU, k] += cluster.demands[begin + k, CPU]
        scratch.load[MEM, k] += cluster.demands[begin + k, MEM]
    return max(size, count)


@inline
def add_parallel(cluster: Cluster, scratch: Scratch, begin: int, stop: int, size: int) -> None:
    """Add a pod's requests at all instants at which they are there."""
    for q in range(begin, stop):
        low, high = 0, size
        while low < high:  # the first instant at which the request is there
            middle = (low + high) >> 1
            if scratch.numbers[middle] < cluster.instant[q]:
                low = middle + 1
            else:
                high = middle
        while low < size and scratch.numbers[low] < cluster.until[q]:
            scratch.load[CPU, low] += cluster.demands[q, CPU]
            scratch.load[MEM, low] += cluster.demands[q, MEM]
            low += 1


@called
def instants(cluster: Cluster, scratch: Scratch, links: Any, head: int, first: int, skip: int, extra: int) -> int:
    """Collect the instants at which requests arrive on a node, in order, each once; returns how many."""
    count, row, pending = 0, head, extra
    while True:
        row_now, row, pending = step_on(links, row, pending, skip)
        if row_now == NONE:
            break
        for q in range(cluster.row_requests[first + row_now], cluster.row_requests[first + row_now + 1]):
            scratch.numbers[count] = cluster.instant[q]
            count += 1
    sort(scratch.numbers, count)
    size = 0
    for k in range(count):
        if size == 0 or scratch.numbers[k] != scratch.numbers[size - 1]:
            scratch.numbers[size] = scratch.numbers[k]
            size += 1
    for k in range(size):
        scratch.load[CPU, k] = scratch.load[MEM, k] = 0.0
    return size


@called
def missed(
    cluster: Cluster, scratch: Scratch, links: Any, head: int, first: int, base: int, skip: int, extra: int, n: int
) -> tuple[int, int]:
    """Serve a node's requests smallest first; returns how many are not satisfied, and how many there are."""
    count, row, pending = 0, head, extra
    while True:
        row_now, row, pending = step_on(links, row, pending, skip)
        if row_now == NONE:
            break
        for q in range(cluster.row_requests[first + row_now], cluster.row_requests[first + row_now + 1]):
            scratch.numbers[count] = cluster.size_rank[q]
            count += 1
    sort(scratch.numbers, count)
    unserved, used_cpu, used_mem = 0, 0.0, 0.0
    most_cpu, most_mem = cluster.nodes[n, CPU] * SLACK, cluster.nodes[n, MEM] * SLACK
    for k in range(count):
        q = cluster.by_size[base + scratch.numbers[k]]
        if used_cpu + cluster.served[q, CPU] <= most_cpu and used_mem + cluster.served[q, MEM] <= most_mem:
            used_cpu += cluster.served[q, CPU]
            used_mem += cluster.served[q, MEM]
        else:
            unserved += 1
    return unserved, count


@inline
def describe_load(load: Floats, ordered: Floats, size: int, out: Floats, at: int) -> float:
    """Write mean, 95th percentile, maximum, first and last of a load; returns the maximum."""
    if size == 0:
        for column in range(at, at + 5):
            out[column] = 0.0
        return 0.0
    total, highest = 0.0, load[0]
    for k in range(size):
        total += load[k]
        highest = max(highest, load[k])
    higher = int(P95_ABOVE * size)
    p95 = highest
    if higher > 0:
        for k in range(size):
            ordered[k] = load[k]
        sort(ordered, size)
        p95 = ordered[size - 1 - higher]
    out[at], out[at + 1], out[at + 2], out[at + 3], out[at + 4] = total / size, p95, highest, load[0], load[size - 1]
    return float(highest)


@called
def measure(
    cluster: Cluster,
    rules: Rules,
    scratch: Scratch,
    links: Any,
    head: int,
    window: int,
    n: int,
    skip: int,
    extra: int,
    node: Floats,
    book: Floats,
) -> None:
    """Work a node out from its pods, from nothing.

    Args:
        cluster: Trace and nodes.
        rules: The scenario.
        scratch: Room.
        links: The lists of pods of one environment.
        head: First pod of this node's.
        window: The window whose requests they answer.
        n: The node.
        skip: A pod to leave out, or NONE.
        extra: A pod to put in, or NONE.
        node: Written: a row of ``State.nodes``.
        book: Written: a row of ``State.books``.
    """
    first = cluster.window_rows[window]
    size = 0
    if rules.parallel:
        size = instants(cluster, scratch, links, head, first, skip, extra)
    shares = memory = cpu_demand = mem_demand = 0.0
    pods = unoffered = 0
    row, pending = head, extra
    while True:
        row_now, row, pending = step_on(links, row, pending, skip)
        if row_now == NONE:
            break
        r = first + row_now
        pods += 1
        unoffered += 1 - links[row_now, OFFERED]
        shares += cluster.rows[r, CPU_REQUEST]
        memory += cluster.rows[r, MEM_REQUEST]
        cpu_demand += cluster.rows[r, CPU_DEMAND]
        mem_demand += cluster.rows[r, MEM_DEMAND]
        if rules.parallel:
            add_parallel(cluster, scratch, cluster.row_requests[r], cluster.row_requests[r + 1], size)
        else:
            size = add_serial(cluster, scratch, cluster.row_requests[r], cluster.row_requests[r + 1], size)
    cpu, mem = cluster.nodes[n, CPU], cluster.nodes[n, MEM]
    most_cpu, most_mem = rules.threshold * cpu * SLACK, rules.threshold * mem * SLACK
    least_cpu, least_mem = rules.under_threshold * cpu, rules.under_threshold * mem
    over = under = 0
    for k in range(size):
        load_cpu, load_mem = scratch.load[CPU, k], scratch.load[MEM, k]
        over += (load_cpu > most_cpu) | (load_mem > most_mem)
        under += (load_cpu * SLACK < least_cpu) | (load_mem * SLACK < least_mem)
    cpu_max = describe_load(scratch.load[CPU], scratch.ordered, size, node, CPU_MEAN)
    mem_max = describe_load(scratch.load[MEM], scratch.ordered, size, node, MEM_MEAN)
    node[CPU_SHARES], node[MEM_DEPLOYED], node[PODS] = shares, memory, pods
    unmet = crowded = 0
    if cpu_demand > cpu * SLACK or mem_demand > mem * SLACK:
        base = cluster.row_requests[first]
        unmet, crowded = missed(cluster, scratch, links, head, first, base, skip, extra, n)
    book[HEAT] = max(cpu_max * cluster.nodes[n, CPU_INVERSE], mem_max * cluster.nodes[n, MEM_INVERSE])
    book[OVER], book[UNDER], book[POSITIONS] = over, under, size
    book[UNMET], book[CROWDED], book[UNOFFERED] = unmet, crowded, unoffered
