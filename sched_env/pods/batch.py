"""Heuristics of ``pods`` on whole batches, compiled, on the environments' own float64 state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sched_env.choosing import bind, chooser
from sched_env.jit import lean_kernel, part
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

if TYPE_CHECKING:
    from sched_env.pods.vector import DeployVectorEnv
    from sched_env.problem import BatchRule

node_score = part(heuristics.node_score)
is_high = part(heuristics.is_high)


@part
def costs(rules: Rules, book: Floats) -> Any:
    """Weigh what is counted on one node."""
    return weighted(rules, book[OVER], book[UNDER], book[UNMET])


@part
def all_costs(rules: Rules, state: State, b: int) -> Any:
    """Weigh what is counted on all nodes."""
    total = 0.0
    for n in range(state.books.shape[1]):
        total += costs(rules, state.books[b, n])
    return total


@part
def what_if(
    cluster: Cluster, rules: Rules, state: State, scratch: Scratch, b: int, n: int, row: int, sign: float
) -> Any:
    """Return the costs of a node with a pod more or less."""
    with_pod(cluster, rules, state, scratch, b, n, row, sign)
    return costs(rules, scratch.book)


@part
def left_behind(cluster: Cluster, rules: Rules, state: State, scratch: Scratch, b: int) -> Any:
    """Return the weighted counts of the window, the price of the move included, if the pod went to an unused node."""
    hot, row = state.cursor[b, HOT], state.cursor[b, ROW]
    r = cluster.window_rows[state.cursor[b, WINDOW]] + row
    without = what_if(cluster, rules, state, scratch, b, hot, row, -1.0)
    return all_costs(rules, state, b) - costs(rules, state.books[b, hot]) + without + moved_weight(cluster, rules, r)


@part
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


@part
def prepare(rule: int, arguments: Any, b: int) -> Any:
    """Return the pod's row of the trace, the cluster's mean loads, whether the pod is evicted, and a move's costs."""
    cluster, rules, state, scratch = arguments
    N, hot = cluster.nodes.shape[0], state.cursor[b, HOT]
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
    row = cluster.window_rows[state.cursor[b, WINDOW]] + state.cursor[b, ROW]
    return row, mean_cpu, mean_mem, evicts, moved


@part
def value_of(rule: int, arguments: Any, _table: Floats, b: int, n: int, prepared: Any) -> float:
    """Score one node."""
    cluster, rules, state, scratch = arguments
    row, mean_cpu, mean_mem, evicts, moved = prepared
    pod, mem = cluster.use[row], cluster.asks[row, MEM_REQUEST]
    node, here = state.nodes[b, n], 1.0 if n == state.cursor[b, HOT] else 0.0
    cpu_inverse, mem_inverse = cluster.nodes[n, CPU_INVERSE], cluster.nodes[n, MEM_INVERSE]
    penalty = 0.0
    if rule == SINGLE_MOVE:
        penalty = penalty_at(cluster, rules, state, scratch, b, n, moved)
    return float(
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


choose = chooser(__name__, value_of, prepare)


def batch(name: str, env: DeployVectorEnv, _seed: int) -> BatchRule:
    """Bind a heuristic to a vector environment."""
    return bind(choose, env, NAMES.index(name))
