"""Heuristics of workflows on whole batches, compiled, on the environments' own float64 state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sched_env.jit import inline, lean_kernel
from sched_env.vector import Buffers
from sched_env.workflow import heuristics
from sched_env.workflow.features import HOURS_PER_SECOND
from sched_env.workflow.heuristics import NAMES, ORDERS
from sched_env.workflow.kernels import gather, offer
from sched_env.workflow.state import (
    CPU,
    FIRST,
    FLOW,
    INVERSE_LEAST,
    INVERSE_REFERENCE,
    INVERSE_SPEED,
    NEXT,
    PRICE,
    Plan,
    State,
)

if TYPE_CHECKING:
    from sched_env.problem import BatchRule
    from sched_env.workflow.vector import WorkflowVectorEnv

node_score = inline(heuristics.node_score)


@lean_kernel
def choose(
    rule: int,
    plan: Plan,
    state: State,
    out: Buffers,
    actions: NDArray[np.int64],
    scores: NDArray[np.float64],
) -> None:
    """Write each environment's best node and, when ``scores`` has room, the score of every feasible node."""
    N = out.mask.shape[1]
    for b in range(actions.size):
        actions[b] = 0
        if not out.active[b]:
            continue
        row = state.cursor[b, FIRST] + state.cursor[b, NEXT]
        flow = plan.flows[state.cursor[b, FLOW]]
        parents, best = gather(plan, state, b, row), -np.inf
        for n in range(N):
            if not out.mask[b, n]:
                continue
            _, start, run, billed, moved, _ = offer(plan, state, b, n, row, parents)
            value = node_score(
                rule,
                n,
                N,
                float(state.cursor[b, NEXT]),
                (start + run) * flow[INVERSE_REFERENCE],
                moved,
                plan.nodes[n, PRICE] * (billed * HOURS_PER_SECOND) * flow[INVERSE_LEAST],
                plan.nodes[n, PRICE] * plan.nodes[n, INVERSE_SPEED] / plan.nodes[n, CPU],
            )
            if scores.size > 0:
                scores[b, n] = value
            if value > best:
                best = value
                actions[b] = n


def batch(name: str, env: WorkflowVectorEnv, _seed: int) -> BatchRule:
    """Bind a heuristic to a vector environment, which from then on offers tasks in the order the heuristic needs."""
    if name in ORDERS:
        env.use(ORDERS[name])
    rule, actions, unwanted = NAMES.index(name), np.zeros(env.num_envs, np.int64), np.empty((0, 0))

    def choose_all(scores: NDArray[np.float64] | None = None) -> NDArray[np.int64]:
        if scores is not None:
            scores[:] = -np.inf
        choose(rule, env.plan, env.state, env.buffers, actions, unwanted if scores is None else scores)
        return actions

    return choose_all
