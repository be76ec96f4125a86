"""Heuristics of ``pods`` on whole batches, compiled, on the environments' own float64 state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sched_env.jit import inline, lean_kernel
from sched_env.pods import heuristics
from sched_env.pods.heuristics import DESCHEDULER, NAMES, SINGLE_MOVE
from sched_env.pods.kernels import after
from sched_env.pods.measure import with_pod
from sched_env.pods.state import (
    CPU,
    CPU_INVERSE,
    CPU_MAX,
    CPU_MEAN,
    HOT,
    MEM,
    MEM_DEPLOYED,
    MEM_INVERSE,
    MEM_MAX,
    MEM_MEAN,
    MEM_REQUEST,
    OVER,
    ROW,
    UNDER,
    UNMET,
    WINDOW,
    Cluster,
    Rules,
    Scratch,
    State,
)
from sched_env.pods.windows import moved_weight, weighted
from sched_env.tables import Floats
from sched_env.vector import Buffers

if TYPE_CHECKING:
    from sched_env.pods.vector import DeployVectorEnv
    from sched_env.problem import BatchRule

node_score = inline(heuristics.node_score)
is_high = inline(heuristics.is_high)


@inline
def costs(rules: Rules, book: Floats) -> Any:
    """Weigh what is counted on one node."""
    return weighted(rules, book[OVER], book[UNDER], book[UNMET])


@inline
def all_costs(rules: Rules, state: State, b: int) -> Any:
    """Weigh what is counted on all nodes."""
    total = 0.0
    for n in range(state.books.shape[1]):
        total += costs(rules, state.books[b, n])
    return total


@inline
def what_if(
    cluster: Cluster, rules: Rules, state: State, scratch: Scratch, b: int, n: int, row: int, sign: float
) -> Any:
    """Return the costs of a node with a pod more or less."""
    with_pod(cluster, rules, state, scratch, b, n, row, sign)
    return costs(rules, scratch.book)


@inline
def left_behind(cluster: Cluster, rules: Rules, state: State, scratch: Scratch, b: int) -> Any:
    """Return the weighted counts of the window, the price of the move included, if the pod went to an unused node."""
    hot, row = state.cursor[b, HOT], state.cursor[b, ROW]
    r = cluster.window_rows[state.cursor[b, WINDOW]] + row
    without = what_if(cluster, rules, state, scratch, b, hot, row, -1.0)
    return all_costs(rules, state, b) - costs(rules, state.books[b, hot]) + without + moved_weight(cluster, rules, r)


@inline
def penalty_at(cluster: Cluster, rules: Rules, state: State, scratch: Scratch, b: int, n: int, moved: float) -> Any:
    """Return what the window would have cost in reward with the offered pod on node n, by exact simulation."""
    if n == state.cursor[b, HOT]:
        return all_costs(rules, state, b) / cluster.nodes.shape[0]
    there = what_if(cluster, rules, state, scratch, b, n, state.cursor[b, ROW], 1.0)
    return max(moved - costs(rules, state.books[b, n]) + there, 0.0) / cluster.nodes.shape[0]


@lean_kernel
def penalties(cluster: Cluster, rules: Rules, state: State, scratch: Scratch, b: int, out: Floats) -> None:
    """Write the penalty of every node for the offered pod of environment b."""
    moved = left_behind(cluster, rules, state, scratch, b)
    for n in range(out.size):
        out[n] = penalty_at(cluster, rules, state, scratch, b, n, moved)


@lean_kernel
def choose(
    rule: int,
    cluster: Cluster,
    rules: Rules,
    state: State,
    scratch: Scratch,
    out: Buffers,
    actions: NDArray[np.int64],
    scores: NDArray[np.float64],
) -> None:
    """Write each environment's best node and, when ``scores`` has room, the score of every feasible node."""
    N = cluster.nodes.shape[0]
    for b in range(actions.size):
        actions[b] = 0
        if not out.active[b]:
            continue
        hot = state.cursor[b, HOT]
        r = cluster.window_rows[state.cursor[b, WINDOW]] + state.cursor[b, ROW]
        pod, mem = cluster.use[r], cluster.asks[r, MEM_REQUEST]
        mean_cpu, mean_mem, evicts, moved = 0.0, 0.0, False, 0.0
        if rule == DESCHEDULER:
            for n in range(N):
                mean_cpu += state.nodes[b, n, CPU_MEAN] / cluster.nodes[n, CPU]
                mean_mem += state.nodes[b, n, MEM_MEAN] / cluster.nodes[n, MEM]
            mean_cpu, mean_mem = mean_cpu / N, mean_mem / N
            hot_cpu = state.nodes[b, hot, CPU_MEAN] / cluster.nodes[hot, CPU]
            hot_mem = state.nodes[b, hot, MEM_MEAN] / cluster.nodes[hot, MEM]
            evicts = is_high(hot_cpu, hot_mem, mean_cpu, mean_mem)
        elif rule == SINGLE_MOVE:
            moved = left_behind(cluster, rules, state, scratch, b)
        best = -np.inf
        for n in range(N):
            if not out.mask[b, n]:
                continue
            node, here = state.nodes[b, n], 1.0 if n == hot else 0.0
            cpu_inverse, mem_inverse = cluster.nodes[n, CPU_INVERSE], cluster.nodes[n, MEM_INVERSE]
            penalty = 0.0
            if rule == SINGLE_MOVE:
                penalty = penalty_at(cluster, rules, state, scratch, b, n, moved)
            value = float(
                node_score(
                    rule,
                    here,
                    node[CPU_MEAN] / cluster.nodes[n, CPU],
                    node[MEM_MEAN] / cluster.nodes[n, MEM],
                    after(node[CPU_MEAN], pod[CPU_MEAN], 1.0 - here, cpu_inverse),
                    after(node[MEM_MEAN], pod[MEM_MEAN], 1.0 - here, mem_inverse),
                    after(node[CPU_MAX], pod[CPU_MAX], 1.0 - here, cpu_inverse),
                    after(node[MEM_MAX], pod[MEM_MAX], 1.0 - here, mem_inverse),
                    after(node[MEM_DEPLOYED], mem, 1.0 - here, mem_inverse),
                    mean_cpu,
                    mean_mem,
                    evicts,
                    penalty,
                )
            )
            if scores.size > 0:
                scores[b, n] = value
            if value > best:
                best = value
                actions[b] = n


def batch(name: str, env: DeployVectorEnv, _seed: int) -> BatchRule:
    """Bind a heuristic to a vector environment."""
    rule, actions, unwanted = NAMES.index(name), np.zeros(env.num_envs, np.int64), np.empty((0, 0))

    def choose_all(scores: NDArray[np.float64] | None = None) -> NDArray[np.int64]:
        if scores is not None:
            scores[:] = -np.inf
        choose(rule, *env.arguments, env.buffers, actions, unwanted if scores is None else scores)
        return actions

    return choose_all
