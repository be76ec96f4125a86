"""One node of an environment, compiled: pods put there and taken away, and what its loads then are.

Demands are whole multiples of ``counting.GRAIN``, so their sums are exact: what is taken away leaves no trace, and a
node that is kept up to date equals one that is worked out from nothing, bit for bit.
"""

from __future__ import annotations

from typing import Any

from sched_env.jit import part
from sched_env.pods import foresight
from sched_env.pods.counting import P95_ABOVE, SLACK
from sched_env.pods.state import (
    ALL_CPU,
    ALL_MEM,
    CPU,
    CPU_CHANGE,
    CPU_DEMAND,
    CPU_INVERSE,
    CPU_MAX,
    CPU_MEAN,
    CPU_P95,
    CPU_REQUEST,
    CPU_SHARES,
    CROWDED,
    HEAT,
    MEM,
    MEM_CHANGE,
    MEM_DEMAND,
    MEM_DEPLOYED,
    MEM_INVERSE,
    MEM_MAX,
    MEM_MEAN,
    MEM_P95,
    MEM_REQUEST,
    NEXT,
    OVER,
    PODS,
    POSITIONS,
    UNDER,
    UNMET,
    WINDOW,
    Cluster,
    Rules,
    Scratch,
    State,
)
from sched_env.sorting import sort
from sched_env.tables import Floats

stakes = part(foresight.stakes)

NONE = -1
"""No row or no node: the end of a list, a pod that is nowhere."""


@part
def link(state: State, b: int, n: int, row: int) -> None:
    """Put a pod into the list of a node, which begins with the last row, the largest pod."""
    links = state.links[b]
    if state.head[b, n] < row:
        links[row, NEXT] = state.head[b, n]
        state.head[b, n] = row
        return
    before = state.head[b, n]
    while links[before, NEXT] > row:
        before = links[before, NEXT]
    links[row, NEXT] = links[before, NEXT]
    links[before, NEXT] = row


@part
def unlink(state: State, b: int, n: int, row: int) -> None:
    """Take a pod out of the list of a node."""
    links = state.links[b]
    if state.head[b, n] == row:
        state.head[b, n] = links[row, NEXT]
        return
    before = state.head[b, n]
    while links[before, NEXT] != row:
        before = links[before, NEXT]
    links[before, NEXT] = links[row, NEXT]


@part
def add(cluster: Cluster, rules: Rules, state: State, b: int, n: int, r: int, sign: float) -> None:
    """Add what the pod of row r brings to a node (sign 1), or take it away (-1)."""
    node, book, ask = state.nodes[b, n], state.books[b, n], cluster.asks[r]
    node[CPU_SHARES] += sign * ask[CPU_REQUEST]
    node[MEM_DEPLOYED] += sign * ask[MEM_REQUEST]
    node[PODS] += sign
    book[ALL_CPU] += sign * ask[CPU_DEMAND]
    book[ALL_MEM] += sign * ask[MEM_DEMAND]
    for column in range(cluster.ahead.shape[1]):
        state.ahead[b, n, column] += sign * cluster.ahead[r, column]
    if rules.parallel:
        return
    begin = cluster.row_requests[r]
    count = cluster.row_requests[r + 1] - begin
    load = state.loads[b, n]
    for k in range(2 * count):
        load[k] += sign * cluster.demands[2 * begin + k]
    state.counts[b, n, count] += int(sign)


@part
def gather(cluster: Cluster, state: State, scratch: Scratch, numbers: Any, b: int, n: int) -> int:
    """Collect a number of every request on a node, in order; returns how many there are."""
    first = cluster.window_rows[state.cursor[b, WINDOW]]
    count, row = 0, state.head[b, n]
    while row != NONE:
        for q in range(cluster.row_requests[first + row], cluster.row_requests[first + row + 1]):
            scratch.numbers[count] = numbers[q]
            count += 1
        row = state.links[b, row, NEXT]
    sort(scratch.numbers, count)
    return count


@part
def parallel_load(cluster: Cluster, state: State, scratch: Scratch, b: int, n: int) -> int:
    """Work out a node's load at every instant at which a request arrives there; returns how many there are."""
    size = 0
    for k in range(gather(cluster, state, scratch, cluster.instant, b, n)):
        if size == 0 or scratch.numbers[k] != scratch.numbers[size - 1]:
            scratch.numbers[size] = scratch.numbers[k]
            size += 1
    for k in range(2 * size):
        scratch.load[k] = 0.0
    first, row = cluster.window_rows[state.cursor[b, WINDOW]], state.head[b, n]
    while row != NONE:
        for q in range(cluster.row_requests[first + row], cluster.row_requests[first + row + 1]):
            low, high = 0, size
            while low < high:  # the first instant at which the request is there
                middle = (low + high) >> 1
                if scratch.numbers[middle] < cluster.instant[q]:
                    low = middle + 1
                else:
                    high = middle
            while low < size and scratch.numbers[low] < cluster.until[q]:
                scratch.load[2 * low] += cluster.demands[2 * q]
                scratch.load[2 * low + 1] += cluster.demands[2 * q + 1]
                low += 1
        row = state.links[b, row, NEXT]
    return size


@part
def serve(cluster: Cluster, state: State, scratch: Scratch, b: int, n: int, book: Floats) -> None:
    """Serve a node's requests smallest first and write how many are not satisfied, and how many there are."""
    base = cluster.row_requests[cluster.window_rows[state.cursor[b, WINDOW]]]
    count = gather(cluster, state, scratch, cluster.size_rank, b, n)
    unserved, used_cpu, used_mem = 0, 0.0, 0.0
    most_cpu, most_mem = cluster.nodes[n, CPU] * SLACK, cluster.nodes[n, MEM] * SLACK
    for k in range(count):
        q = cluster.by_size[base + scratch.numbers[k]]
        if used_cpu + cluster.served[q, CPU] <= most_cpu and used_mem + cluster.served[q, MEM] <= most_mem:
            used_cpu += cluster.served[q, CPU]
            used_mem += cluster.served[q, MEM]
        else:
            unserved += 1
    book[UNMET], book[CROWDED] = unserved, count


@part
def percentile(load: Floats, ordered: Floats, size: int, resource: int) -> float:
    """Return the lowest load that at most 5 % of the positions exceed."""
    for k in range(size):
        ordered[k] = load[2 * k + resource]
    sort(ordered, size)
    return float(ordered[size - 1 - int(P95_ABOVE * size)])


@part
def recount(
    cluster: Cluster, rules: Rules, state: State, scratch: Scratch, b: int, n: int, node: Floats, book: Floats
) -> None:
    """Write how a node's loads went, into a row as of ``State.nodes``, and what is counted, as of ``State.books``."""
    if rules.parallel:
        size, load = parallel_load(cluster, state, scratch, b, n), scratch.load
    else:
        size, load = state.counts.shape[2] - 1, state.loads[b, n]
        while size > 0 and state.counts[b, n, size] == 0:
            size -= 1
    cpu, mem = cluster.nodes[n, CPU], cluster.nodes[n, MEM]
    most_cpu, most_mem = rules.threshold * cpu * SLACK, rules.threshold * mem * SLACK
    least_cpu, least_mem = rules.under_threshold * cpu, rules.under_threshold * mem
    total_cpu = total_mem = max_cpu = max_mem = 0.0
    over = under = 0
    for k in range(size):
        load_cpu, load_mem = load[2 * k], load[2 * k + 1]
        total_cpu += load_cpu
        total_mem += load_mem
        max_cpu = max(max_cpu, load_cpu)
        max_mem = max(max_mem, load_mem)
        over += (load_cpu > most_cpu) | (load_mem > most_mem)
        under += (load_cpu * SLACK < least_cpu) | (load_mem * SLACK < least_mem)
    positions, last = max(size, 1), 2 * max(size, 1) - 2
    node[CPU_MEAN], node[MEM_MEAN] = total_cpu / positions, total_mem / positions
    node[CPU_MAX], node[MEM_MAX] = max_cpu, max_mem
    node[CPU_P95], node[MEM_P95] = max_cpu, max_mem
    if int(P95_ABOVE * size) > 0:
        node[CPU_P95] = percentile(load, scratch.ordered, size, 0)
        node[MEM_P95] = percentile(load, scratch.ordered, size, 1)
    node[CPU_CHANGE] = load[last] - load[0] if size > 0 else 0.0
    node[MEM_CHANGE] = load[last + 1] - load[1] if size > 0 else 0.0
    book[HEAT] = max(max_cpu * cluster.nodes[n, CPU_INVERSE], max_mem * cluster.nodes[n, MEM_INVERSE])
    book[OVER], book[UNDER], book[POSITIONS] = over, under, size
    book[UNMET] = book[CROWDED] = 0.0
    if state.books[b, n, ALL_CPU] > cpu * SLACK or state.books[b, n, ALL_MEM] > mem * SLACK:
        serve(cluster, state, scratch, b, n, book)


@part
def work_out(cluster: Cluster, rules: Rules, state: State, scratch: Scratch, b: int, n: int) -> None:
    """Bring a node's rows of the state up to date with its pods."""
    recount(cluster, rules, state, scratch, b, n, state.nodes[b, n], state.books[b, n])
    if rules.foresight:
        fixed, sums, kept = cluster.nodes[n], state.ahead[b, n], state.stakes[b, n]
        kept[0], kept[1], kept[2], kept[3] = stakes(
            sums[0], sums[1], sums[2], sums[3], sums[4], sums[5], sums[6], sums[7],
            fixed[CPU_INVERSE], fixed[MEM_INVERSE], rules.threshold,
        )  # fmt: skip


@part
def with_pod(
    cluster: Cluster, rules: Rules, state: State, scratch: Scratch, b: int, n: int, row: int, sign: float
) -> None:
    """Work out, into ``scratch``, a node with a pod more (sign 1) or less (-1); the state is as before."""
    r = cluster.window_rows[state.cursor[b, WINDOW]] + row
    following = state.links[b, row, NEXT]  # in the list of the node where the pod is
    if sign > 0.0:
        link(state, b, n, row)
    else:
        unlink(state, b, n, row)
    add(cluster, rules, state, b, n, r, sign)
    recount(cluster, rules, state, scratch, b, n, scratch.node, scratch.book)
    add(cluster, rules, state, b, n, r, -sign)
    if sign > 0.0:
        unlink(state, b, n, row)
        state.links[b, row, NEXT] = following
    else:
        link(state, b, n, row)
