"""The dynamics of ``pods``, compiled: offers, moves, episodes and observations of all environments."""

from __future__ import annotations

from typing import Any

import numpy as np

from sched_env.jit import inline, lean_kernel, part
from sched_env.pods import features
from sched_env.pods.measure import NONE, add, stakes, unlink, with_pod, work_out
from sched_env.pods.state import (
    ALL_CROWDED,
    ALL_OVER,
    ALL_POSITIONS,
    ALL_UNDER,
    ALL_UNMET,
    COST,
    CPU_INVERSE,
    CPU_REQUEST,
    CPU_SHARES,
    DISPLACED,
    DOMAIN,
    HEAT,
    HOT,
    MEM,
    MEM_CHANGE,
    MEM_DEPLOYED,
    MEM_INVERSE,
    MEM_MEAN,
    MEM_REQUEST,
    MOVES,
    MOVES_LEFT,
    NEXT,
    OFFERED,
    OVER,
    PODS,
    REQUESTS,
    RETURN,
    ROW,
    STEPS,
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
from sched_env.pods.windows import count_window, enter, moved_weight, settle
from sched_env.stepping import RUNNING, dynamics
from sched_env.vector import END_OF_TRACE, HORIZON, Buffers

after = part(features.after)
fits = part(features.fits)

FORESEEN = len(features.BEFORE.candidate)
"""The first column that is there with foresight alone."""


@part
def coolest(cluster: Cluster, state: State, b: int) -> int:
    """Return the node whose pods were offered last while any of them is left, then the coolest; -1: none is left."""
    last = state.cursor[b, HOT]
    if last != NONE and state.books[b, last, UNOFFERED] > 0.0:
        return int(last)
    cool, heat = NONE, np.inf
    for n in range(cluster.nodes.shape[0]):
        book = state.books[b, n]
        if book[HEAT] < heat and book[UNOFFERED] > 0.0:
            cool, heat = n, book[HEAT]
    return cool


@part
def pick(cluster: Cluster, rules: Rules, state: State, b: int, anyway: bool) -> bool:
    """Offer the next pod: the largest that was not offered yet on the hottest stressed node; False: there is none.

    Where ``calm`` nodes are offered too, those come behind, the coolest first: it is the easiest to empty. With
    ``anyway`` a node need not be stressed: at the end of an episode there must be something to show.
    """
    hot = state.cursor[b, HOT]
    if hot == NONE or state.books[b, hot, OVER] <= 0.0 or state.books[b, hot, UNOFFERED] <= 0.0:
        hot, heat = NONE, -1.0
        for n in range(cluster.nodes.shape[0]):
            book = state.books[b, n]
            if book[HEAT] > heat and book[UNOFFERED] > 0.0 and (anyway or book[OVER] > 0.0):
                hot, heat = n, book[HEAT]
        if hot == NONE and rules.calm:
            hot = coolest(cluster, state, b)
        if hot == NONE:
            return False
        state.cursor[b, HOT] = hot
    row = state.head[b, hot]
    while state.links[b, row, OFFERED] != 0:
        row = state.links[b, row, NEXT]
    state.links[b, row, OFFERED] = 1
    state.books[b, hot, UNOFFERED] -= 1.0
    state.cursor[b, ROW] = row
    return True


@part
def foresee(cluster: Cluster, rules: Rules, state: State, candidates: Any, b: int, r: int) -> None:
    """Write what having the pod of row r adds to what is at stake on each node.

    A node as it is has the pod, or has it not; only the other side is worked out.
    """
    pod, hot = cluster.ahead[r], state.cursor[b, HOT]
    for n in range(candidates.shape[0]):
        sign = -1.0 if n == hot else 1.0
        sums, kept, fixed = state.ahead[b, n], state.stakes[b, n], cluster.nodes[n]
        other = stakes(
            sums[0] + sign * pod[0], sums[1] + sign * pod[1], sums[2] + sign * pod[2], sums[3] + sign * pod[3],
            sums[4] + sign * pod[4], sums[5] + sign * pod[5], sums[6] + sign * pod[6], sums[7] + sign * pod[7],
            fixed[CPU_INVERSE], fixed[MEM_INVERSE], rules.threshold,
        )  # fmt: skip
        for column in range(len(other)):
            added = kept[column] - other[column] if n == hot else other[column] - kept[column]
            candidates[n, FORESEEN + column] = added


@part
def observe(cluster: Cluster, rules: Rules, state: State, out: Buffers, b: int) -> None:
    """Write the observation of the offered pod.

    The columns that never change (both capacities, price) are written once, when the environment is made.
    """
    r = cluster.window_rows[state.cursor[b, WINDOW]] + state.cursor[b, ROW]
    cpu, mem, use = cluster.asks[r, CPU_REQUEST], cluster.asks[r, MEM_REQUEST], cluster.use[r]
    hot, moves_left = state.cursor[b, HOT], float(state.cursor[b, MOVES_LEFT])
    request = out.request[b]
    request[0], request[1] = cpu, mem
    for column in range(MEM_CHANGE + 1):
        request[2 + column] = use[column]
    request[10], request[11] = moves_left, rules.price_per_move
    fixed, nodes = cluster.nodes, state.nodes[b]
    up, domain = cluster.up[state.cursor[b, WINDOW]], cluster.pods[r, DOMAIN]
    candidates, mask = out.candidates[b], out.mask[b]
    count = 0
    for n in range(mask.size):
        here = 1.0 if n == hot else 0.0
        moved = 1.0 - here
        node, seen = nodes[n], candidates[n]
        cpu_inverse, mem_inverse = fixed[n, CPU_INVERSE], fixed[n, MEM_INVERSE]
        fit = fits(here, fixed[n, MEM], node[MEM_DEPLOYED], node[PODS], mem, moves_left, rules.pod_limit)
        fit &= (n == hot) | (up[n] & (cluster.domain[n] == domain))  # is_open, without branches
        mask[n] = fit
        count += fit
        seen[3] = here
        seen[4] = node[PODS] + moved
        seen[5] = after(node[CPU_SHARES], cpu, moved, cpu_inverse)
        seen[6] = after(node[MEM_DEPLOYED], mem, moved, mem_inverse)
        for column in range(MEM_MEAN):
            seen[7 + column] = after(node[column], use[column], moved, cpu_inverse)
        for column in range(MEM_MEAN, MEM_CHANGE + 1):
            seen[7 + column] = after(node[column], use[column], moved, mem_inverse)
    if rules.foresight:
        foresee(cluster, rules, state, candidates, b, r)
    out.feasible[b] = count
    out.time_s[b] = cluster.window_s[state.cursor[b, WINDOW]] + WINDOW_S  # windows are decided at their end


@part
def move(cluster: Cluster, rules: Rules, state: State, scratch: Scratch, b: int, target: int) -> float:
    """Move the offered pod to another node and return the reward of that."""
    window, row, source = state.cursor[b, WINDOW], state.cursor[b, ROW], state.cursor[b, HOT]
    r = cluster.window_rows[window] + row
    unlink(state, b, source, row)
    add(cluster, rules, state, b, source, r, -1.0)
    settle(cluster, rules, state, b, target, r, window)
    work_out(cluster, rules, state, scratch, b, source)
    work_out(cluster, rules, state, scratch, b, target)
    state.cursor[b, MOVES_LEFT] -= 1
    state.totals[b, MOVES] += 1.0
    state.totals[b, COST] += rules.price_per_move
    return float(-moved_weight(cluster, rules, r) / cluster.nodes.shape[0])


@inline
def next_offer(
    cluster: Cluster, rules: Rules, state: State, scratch: Scratch, out: Buffers, b: int
) -> tuple[int, float]:
    """Go to the next offer, replaying windows until there is one; returns how the episode stands, and the reward."""
    reward, ended = 0.0, RUNNING
    offered = state.cursor[b, MOVES_LEFT] > 0 and pick(cluster, rules, state, b, False)
    while ended == RUNNING and not offered:
        window = state.cursor[b, WINDOW] + 1
        enter(cluster, rules, state, scratch, b, window, False, False)
        reward += count_window(cluster, rules, state, b)
        if state.cursor[b, WINDOWS] >= rules.episode_windows:
            ended = HORIZON
        elif window + 2 >= cluster.window_rows.size:  # what is decided in the last window changes nothing
            ended = END_OF_TRACE
        else:
            offered = pick(cluster, rules, state, b, False)
    if ended == RUNNING and 0 < rules.horizon <= state.cursor[b, STEPS]:
        ended = HORIZON
    if not offered:
        pick(cluster, rules, state, b, True)
    observe(cluster, rules, state, out, b)
    return ended, reward


@part
def start_range(arguments: Any) -> tuple[int, int]:
    """Return the windows between which starts are drawn."""
    cluster, rules, _, _ = arguments
    windows = cluster.window_rows.size - 1
    stop = min(rules.start_max, windows) if rules.start_max > 0 else max(windows - rules.episode_windows, 1)
    return min(rules.start_min, stop - 1), stop


@part
def begin(arguments: Any, out: Buffers, b: int, start: int, _fresh: bool) -> bool:
    """Begin an episode at the first window from its start on in which a node is stressed."""
    cluster, rules, state, scratch = arguments
    state.totals[b] = 0.0
    state.cursor[b] = 0
    window = cluster.next_stress[start]
    if window == NONE:
        window = cluster.next_stress[min(rules.start_min, cluster.next_stress.size - 1)]
    enter(cluster, rules, state, scratch, b, window, True, False)
    state.totals[b, DISPLACED] = 0.0
    pick(cluster, rules, state, b, False)
    observe(cluster, rules, state, out, b)
    return True


@part
def close(arguments: Any, out: Buffers, b: int) -> None:
    """Write the episode's metrics."""
    _, _, state, _ = arguments
    totals, metrics, steps = state.totals[b], out.metrics[b], float(state.cursor[b, STEPS])
    metrics[0] = totals[RETURN]
    metrics[1] = metrics[2] = metrics[3] = steps
    metrics[4] = totals[ALL_OVER] / max(totals[ALL_POSITIONS], 1.0)
    metrics[5] = totals[COST]
    metrics[6] = 0.0
    metrics[7] = totals[ALL_UNMET] / max(totals[REQUESTS], 1.0)
    metrics[8] = totals[MOVES]
    metrics[9] = totals[ALL_OVER]
    metrics[10] = totals[ALL_POSITIONS]
    metrics[11] = totals[ALL_UNMET]
    metrics[12] = totals[ALL_CROWDED]
    metrics[13] = totals[REQUESTS]
    metrics[14] = totals[ALL_UNDER] / max(totals[ALL_POSITIONS], 1.0)
    metrics[15] = float(state.cursor[b, WINDOWS])
    metrics[16] = totals[DISPLACED]
    metrics[17] = totals[UNPLACED]


@lean_kernel
def describe(cluster: Cluster, rules: Rules, state: State, scratch: Scratch) -> None:
    """Fill in how each pod of the trace alone goes in each of its windows."""
    state.head[0] = NONE
    for window in range(cluster.window_rows.size - 1):
        first = cluster.window_rows[window]
        state.cursor[0, WINDOW] = window
        for row in range(cluster.window_rows[window + 1] - first):
            with_pod(cluster, rules, state, scratch, 0, 0, row, 1.0)
            for column in range(MEM_CHANGE + 1):
                cluster.use[first + row, column] = scratch.node[column]


@lean_kernel
def survey(cluster: Cluster, rules: Rules, state: State, scratch: Scratch) -> None:
    """Find the windows that begin with a decision, pods being where the trace has them."""
    following = NONE
    for window in range(cluster.window_rows.size - 3, -1, -1):  # in the last there is nothing left to decide
        enter(cluster, rules, state, scratch, 0, window, True, False)
        if pick(cluster, rules, state, 0, False):
            following = window
        cluster.next_stress[window] = following


@lean_kernel
def look(cluster: Cluster, rules: Rules, state: State, scratch: Scratch, nodes: Any, books: Any) -> None:
    """Write how every window goes with pods where the trace has them: rows as ``State.nodes`` and ``State.books``."""
    for window in range(cluster.window_rows.size - 1):
        enter(cluster, rules, state, scratch, 0, window, True, True)
        for n in range(nodes.shape[1]):
            for column in range(nodes.shape[2]):
                nodes[window, n, column] = state.nodes[0, n, column]
            for column in range(books.shape[2]):
                books[window, n, column] = state.books[0, n, column]


@inline
def step(arguments: Any, out: Buffers, b: int, n: int, _seed: int) -> int:
    """Move the offered pod, or let it stay, and go to the next offer."""
    cluster, rules, state, scratch = arguments
    reward = 0.0
    if n != state.cursor[b, HOT]:
        reward = move(cluster, rules, state, scratch, b, n)
    state.cursor[b, STEPS] += 1
    ended, counted = next_offer(cluster, rules, state, scratch, out, b)
    out.reward[b] = reward + counted
    state.totals[b, RETURN] += out.reward[b]
    return ended


DYNAMICS = dynamics(__name__, start_range=start_range, begin=begin, step=step, close=close)
