"""Replaying and counting a window, compiled: who is there, where, and what it costs.

Nothing is carried over from window to window but where the pods are: lists, sums and loads are made anew from the
trace. So nothing can leak, and demand falls as it rises.
"""

from __future__ import annotations

from typing import Any

from sched_env.jit import part
from sched_env.pods import features
from sched_env.pods.measure import NONE, add, link, work_out
from sched_env.pods.state import (
    ALL_CROWDED,
    ALL_OVER,
    ALL_POSITIONS,
    ALL_UNDER,
    ALL_UNMET,
    COST,
    CPU_REQUEST,
    CROWDED,
    DISPLACED,
    DOMAIN,
    HELD,
    HOT,
    MEM,
    MEM_DEPLOYED,
    MEM_REQUEST,
    MOVES_LEFT,
    NODE,
    OFFERED,
    OUTSIDE,
    OVER,
    PODS,
    POSITIONS,
    PREVIOUS,
    PRICE,
    REQUESTS,
    ROW,
    UNDER,
    UNMET,
    UNOFFERED,
    UNPLACED,
    WINDOW,
    WINDOWS,
    Cluster,
    Rules,
    Scratch,
    State,
)
from sched_env.pods.tables import WINDOW_S

fits = part(features.fits)

AWAITED = -2
"""Place of a pod that has none yet, while a window is entered."""
HOURS_PER_WINDOW = WINDOW_S / 3600.0


@part
def takes(cluster: Cluster, rules: Rules, state: State, b: int, n: int, r: int) -> bool:
    """Say whether a node has the memory and a place left for the pod of row r, by what it has taken so far."""
    return bool(
        fits(
            0.0,
            cluster.nodes[n, MEM],
            state.nodes[b, n, MEM_DEPLOYED],
            state.nodes[b, n, PODS],
            cluster.asks[r, MEM_REQUEST],
            1.0,
            rules.pod_limit,
        )
    )


@part
def is_open(cluster: Cluster, window: int, n: int, r: int) -> bool:
    """Say whether a node is up in a window and of the cluster of the pod of row r."""
    return bool(cluster.up[window, n] and cluster.domain[n] == cluster.pods[r, DOMAIN])


@part
def roomiest(cluster: Cluster, rules: Rules, state: State, b: int, r: int) -> int:
    """Return the node with the most memory left of those that can take the pod of row r, or NONE."""
    best, room = NONE, -1.0
    window = state.cursor[b, WINDOW]
    for n in range(cluster.nodes.shape[0]):
        left = cluster.nodes[n, MEM] - state.nodes[b, n, MEM_DEPLOYED]
        if left > room and is_open(cluster, window, n, r) and takes(cluster, rules, state, b, n, r):
            best, room = n, left
    return best


@part
def settle(cluster: Cluster, rules: Rules, state: State, b: int, n: int, r: int, window: int) -> None:
    """Give the pod of row r its node for the window."""
    row = r - cluster.window_rows[window]
    state.place[b, window & 1, row] = n
    if n != NONE:
        link(state, b, n, row)
        add(cluster, rules, state, b, n, r, 1.0)


@part
def place_before(cluster: Cluster, state: State, b: int, r: int, window: int, anew: bool) -> Any:
    """Return where the pod of row r was in the window before; NONE: nowhere."""
    previous = NONE if anew else cluster.pods[r, PREVIOUS]
    return NONE if previous == NONE else state.place[b, (window - 1) & 1, previous]


@part
def admit(cluster: Cluster, rules: Rules, state: State, b: int, r: int, window: int, anew: bool, recorded: bool) -> int:
    """Let the pod of row r in where the trace has it, or where there is most room; returns 1 if there is none.

    As ``recorded`` a node has all whom the trace has there, also more than fit: those who left it within the window
    made room for others.
    """
    stayed = place_before(cluster, state, b, r, window, anew) != NONE
    n = NONE if stayed else cluster.pods[r, NODE]
    if n == NONE or not (recorded or takes(cluster, rules, state, b, n, r)):
        belongs = stayed or n != NONE
        n = roomiest(cluster, rules, state, b, r)
        if belongs and n != NONE:
            state.totals[b, DISPLACED] += 1.0
    settle(cluster, rules, state, b, n, r, window)
    return int(n == NONE)


@part
def enter(
    cluster: Cluster, rules: Rules, state: State, scratch: Scratch, b: int, window: int, anew: bool, recorded: bool
) -> None:
    """Replay a window: pods that stay, those that come, and what all of them do to their nodes.

    With ``anew`` nobody was there before: all pods are where the trace has them, if they fit; as ``recorded`` anyway.
    """
    first, stop = cluster.window_rows[window], cluster.window_rows[window + 1]
    state.cursor[b, WINDOW], state.cursor[b, ROW], state.cursor[b, HOT] = window, 0, NONE
    state.cursor[b, MOVES_LEFT] = max(int(rules.budget * (stop - first)), 1)
    state.head[b] = NONE
    state.nodes[b] = 0.0
    state.books[b] = 0.0
    state.ahead[b] = 0.0
    state.loads[b] = 0.0
    state.counts[b] = 0
    newcomers = outside = 0
    for r in range(first, stop):  # who was there keeps its place, unless its request has outgrown the node
        n = place_before(cluster, state, b, r, window, anew)
        state.links[b, r - first, OFFERED] = cluster.pods[r, HELD]
        if n != NONE and takes(cluster, rules, state, b, n, r):
            settle(cluster, rules, state, b, n, r, window)
        else:
            state.place[b, window & 1, r - first] = AWAITED
            newcomers += 1
    if newcomers > 0:
        for r in range(first, stop):
            if state.place[b, window & 1, r - first] == AWAITED:
                outside += admit(cluster, rules, state, b, r, window, anew, recorded)
    state.cursor[b, OUTSIDE] = outside
    for n in range(cluster.nodes.shape[0]):
        work_out(cluster, rules, state, scratch, b, n)
        state.books[b, n, UNOFFERED] = state.nodes[b, n, PODS]
    for r in range(first, stop):
        n = state.place[b, window & 1, r - first]
        if n != NONE:
            state.books[b, n, UNOFFERED] -= cluster.pods[r, HELD]


@part
def count_window(cluster: Cluster, rules: Rules, state: State, b: int) -> float:
    """Enter the present window into the accounts and return its reward."""
    window = state.cursor[b, WINDOW]
    first, stop = cluster.window_rows[window], cluster.window_rows[window + 1]
    over = under = positions = unmet = crowded = cost = 0.0
    for n in range(cluster.nodes.shape[0]):
        over += state.books[b, n, OVER]
        under += state.books[b, n, UNDER]
        positions += state.books[b, n, POSITIONS]
        unmet += state.books[b, n, UNMET]
        crowded += state.books[b, n, CROWDED]
        if state.nodes[b, n, PODS] > 0.0:
            cost += cluster.nodes[n, PRICE] * HOURS_PER_WINDOW
    if state.cursor[b, OUTSIDE] > 0:
        for r in range(first, stop):
            if state.place[b, window & 1, r - first] == NONE:
                requests = cluster.row_requests[r + 1] - cluster.row_requests[r]
                unmet += requests
                crowded += requests
        state.totals[b, UNPLACED] += state.cursor[b, OUTSIDE]
    totals = state.totals[b]
    totals[ALL_OVER] += over
    totals[ALL_UNDER] += under
    totals[ALL_POSITIONS] += positions
    totals[ALL_UNMET] += unmet
    totals[ALL_CROWDED] += crowded
    totals[REQUESTS] += cluster.row_requests[stop] - cluster.row_requests[first]
    totals[COST] += cost
    state.cursor[b, WINDOWS] += 1
    return float(-weighted(rules, over, under, unmet) / cluster.nodes.shape[0])


@part
def weighted(rules: Rules, over: Any, under: Any, unmet: Any) -> Any:
    """Weigh what is counted."""
    return rules.weight_over * over + rules.weight_under * under + rules.weight_unmet * unmet


@part
def moved_weight(cluster: Cluster, rules: Rules, r: int) -> Any:
    """Return what moving the pod of row r takes from the reward of a cluster of one node."""
    return rules.weight_moved * (cluster.asks[r, CPU_REQUEST] + cluster.asks[r, MEM_REQUEST])
