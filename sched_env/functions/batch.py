"""Heuristics of ``functions`` on whole batches, compiled, on the environments' own float64 state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sched_env.functions import heuristics
from sched_env.functions.heuristics import NAMES, ORACLE_GREEDY, TYPICAL_REQUESTS
from sched_env.functions.kernels import cost_change, judge, outcome, utilization_after
from sched_env.functions.state import (
    ARRIVAL,
    BILLED_UNTIL,
    CPU,
    CPU_INVERSE,
    DISK,
    DISK_INVERSE,
    DURATION,
    FUNCTION,
    IDLE,
    IDLE_UNTIL,
    MEM,
    MEM_INVERSE,
    NET,
    NET_INVERSE,
    PLACED,
    PRICE,
    ROW,
    Cluster,
    Rules,
    State,
)
from sched_env.jit import inline, lean_kernel
from sched_env.vector import Buffers
from wire.errors import ConfigError

if TYPE_CHECKING:
    from sched_env.functions.vector import ServerlessVectorEnv
    from sched_env.problem import BatchRule

node_score = inline(heuristics.node_score)


@inline
def value_of(
    cluster: Cluster, rules: Rules, state: State, b: int, n: int, rule: int, shapes: NDArray[np.float64]
) -> float:
    """Score one node of one environment."""
    row = state.cursor[b, ROW]
    if rule == ORACLE_GREEDY:
        r1, contended, r2, warm = outcome(cluster, rules, state, b, n)
        _, reward = judge(cluster, rules, row, r1, r2, contended, warm)
        return float(reward)
    now, f = cluster.tasks[row, ARRIVAL], int(cluster.tasks[row, FUNCTION])
    cpu_after, mem_after, _, _ = utilization_after(
        cluster.nodes[n, CPU_INVERSE], cluster.nodes[n, MEM_INVERSE],
        cluster.nodes[n, NET_INVERSE], cluster.nodes[n, DISK_INVERSE],
        state.nodes[b, n, CPU], state.nodes[b, n, MEM], state.nodes[b, n, NET], state.nodes[b, n, DISK],
        cluster.tasks[row, CPU], cluster.tasks[row, MEM], cluster.tasks[row, NET], cluster.tasks[row, DISK],
    )  # fmt: skip
    warm_containers = state.warm[b, f, n, IDLE] if state.warm[b, f, n, IDLE_UNTIL] > now else 0.0
    span = cluster.tasks[row, DURATION] + rules.cooldown_s
    added = cost_change(cluster.nodes[n, PRICE], max(state.nodes[b, n, BILLED_UNTIL] - now, 0.0), span, 1.0 / span)
    return float(
        node_score(
            rule, n, cluster.nodes.shape[0], state.totals[b, PLACED], cluster.nodes[n, CPU], cluster.nodes[n, MEM],
            cluster.nodes[n, PRICE], cpu_after, mem_after, warm_containers, added,
            cluster.tasks[row, CPU], cluster.tasks[row, MEM], shapes,
        )
    )  # fmt: skip


@lean_kernel
def choose(
    rule: int,
    cluster: Cluster,
    rules: Rules,
    state: State,
    out: Buffers,
    shapes: NDArray[np.float64],
    actions: NDArray[np.int64],
    scores: NDArray[np.float64],
) -> None:
    """Write each environment's best node and, when ``scores`` has room, the score of every feasible node."""
    for b in range(actions.size):
        actions[b] = 0
        if not out.active[b]:
            continue
        best = -np.inf
        for n in range(out.mask.shape[1]):
            if not out.mask[b, n]:
                continue
            value = value_of(cluster, rules, state, b, n, rule, shapes)
            if scores.size > 0:
                scores[b, n] = value
            if value > best:
                best = value
                actions[b] = n


def batch(name: str, env: ServerlessVectorEnv, _seed: int) -> BatchRule:
    """Bind a heuristic to a vector environment."""
    rule, actions, unwanted = NAMES.index(name), np.zeros(env.num_envs, np.int64), np.empty((0, 0))
    if rule == ORACLE_GREEDY and env.user_reward is not None:
        raise ConfigError(
            f"oracle_greedy cannot look ahead with the reward {env.scenario.reward!r}", "latency_cost or slo_cost"
        )

    def choose_all(scores: NDArray[np.float64] | None = None) -> NDArray[np.int64]:
        if scores is not None:
            scores[:] = -np.inf
        choose(
            rule, env.cluster, env.rules, env.state, env.buffers, TYPICAL_REQUESTS, actions,
            unwanted if scores is None else scores,
        )  # fmt: skip
        return actions

    return choose_all
