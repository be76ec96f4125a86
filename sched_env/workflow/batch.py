"""Heuristics of workflows on whole batches, compiled, on the environments' own float64 state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sched_env.choosing import bind, chooser
from sched_env.jit import part
from sched_env.tables import Floats
from sched_env.workflow import heuristics
from sched_env.workflow.features import HOURS_PER_SECOND
from sched_env.workflow.heuristics import FIRST_FIT, NAMES, ORDERS
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
    TAIL,
)

if TYPE_CHECKING:
    from sched_env.problem import BatchRule
    from sched_env.workflow.vector import WorkflowVectorEnv

node_score = part(heuristics.node_score)


@part
def prepare(_rule: int, arguments: Any, b: int) -> Any:
    """Gather what the task's parents left; return its row and how many they are."""
    plan, _, state = arguments
    row = state.cursor[b, FIRST] + state.cursor[b, NEXT]
    return row, gather(plan, state, b, row)


@part
def value_of(rule: int, arguments: Any, _table: Floats, b: int, n: int, prepared: Any) -> Any:
    """Score one node."""
    plan, _, state = arguments
    row, parents = prepared
    flow = plan.flows[state.cursor[b, FLOW]]
    room = plan.room[plan.room_of[state.cursor[b, FLOW]]]
    _, start, run, billed, moved, _ = offer(plan, state, room, b, n, row, parents)
    return node_score(
        rule,
        n,
        plan.nodes.shape[0],
        float(state.cursor[b, NEXT]),
        (start + run) * flow[INVERSE_REFERENCE],
        ((start + run) + plan.tasks[row, TAIL]) * flow[INVERSE_REFERENCE],
        moved,
        plan.nodes[n, PRICE] * (billed * HOURS_PER_SECOND) * flow[INVERSE_LEAST],
        plan.nodes[n, PRICE] * plan.nodes[n, INVERSE_SPEED] / plan.nodes[n, CPU],
    )


choose = chooser(__name__, value_of, prepare)


def batch(name: str, env: WorkflowVectorEnv, _seed: int) -> BatchRule:
    """Bind a heuristic to a vector environment, which from then on offers tasks in the order the heuristic needs."""
    if name in ORDERS:
        env.use(ORDERS[name])
    rule = NAMES.index(name)
    return bind(choose, env, rule, first=rule == FIRST_FIT)
