"""Heuristics of ``functions`` on whole batches, compiled, on the environments' own float64 state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sched_env.choosing import bind, chooser
from sched_env.functions import heuristics
from sched_env.functions.heuristics import FIRST_FIT, NAMES, ORACLE_GREEDY, TYPICAL_REQUESTS
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
)
from sched_env.jit import part
from wire.errors import ConfigError

if TYPE_CHECKING:
    from sched_env.functions.vector import ServerlessVectorEnv
    from sched_env.problem import BatchRule

node_score = part(heuristics.node_score)


@part
def value_of(rule: int, arguments: Any, shapes: NDArray[np.float64], b: int, n: int, _prepared: int) -> float:
    """Score one node."""
    cluster, rules, state = arguments
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


choose = chooser(__name__, value_of)


def batch(name: str, env: ServerlessVectorEnv, _seed: int) -> BatchRule:
    """Bind a heuristic to a vector environment."""
    rule = NAMES.index(name)
    if rule == ORACLE_GREEDY and env.user_reward is not None:
        raise ConfigError(
            f"oracle_greedy cannot look ahead with the reward {env.scenario.reward!r}", "latency_cost or slo_cost"
        )
    return bind(choose, env, rule, first=rule == FIRST_FIT, table=TYPICAL_REQUESTS)
