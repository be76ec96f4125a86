"""The present decision of an environment in raw fields, worked out anew from where and when tasks were placed.

Nothing here looks at the calendars or offers that the kernels keep: what both say must be the same, bit for bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sched_env.tables import Floats
from sched_env.workflow.features import FIT_TOLERANCE, fits
from sched_env.workflow.state import (
    CPU,
    DEADLINE,
    FINISH,
    FIRST,
    FLOW,
    INPUT,
    INVERSE_SPEED,
    LEAST_USD,
    MEM,
    NEXT,
    NODE,
    PRICE,
    READ,
    REFERENCE,
    RUNTIME,
    SECONDS_PER_MB,
    SIZE,
    START,
    TAIL,
)

if TYPE_CHECKING:
    from sched_env.workflow.vector import WorkflowVectorEnv


def raw_fields(env: WorkflowVectorEnv, b: int) -> tuple[dict[str, Floats], dict[str, float]]:
    """Return the raw fields of nodes and task (``sched_env.workflow.features``)."""
    plan, table = env.plan, env.table
    flow, first, size, number = (int(env.state.cursor[b, column]) for column in (FLOW, FIRST, SIZE, NEXT))
    placed, row = env.state.placed[b, :number], first + number
    task, own = plan.tasks[row], plan.flows[flow]
    per_mb = plan.nodes[:, SECONDS_PER_MB]
    moved_mb = np.full(len(table), task[INPUT])
    ready_s = moved_mb * per_mb
    for edge in range(plan.parents[row], plan.parents[row + 1]):
        before, mb = placed[plan.parent[edge]], plan.edge_mb[edge]
        elsewhere = np.arange(len(table)) != int(before[NODE])
        moved_mb[elsewhere] += mb
        arrival = before[FINISH] + np.where(elsewhere, mb * np.maximum(per_mb, per_mb[int(before[NODE])]), 0.0)
        ready_s = np.maximum(ready_s, arrival)
    ready_s = ready_s + plan.dispatch_s
    room = plan.room[plan.room_of[flow]]
    holds = fits(room[:, CPU], room[:, MEM], task[CPU], task[MEM])
    others = plan.there[plan.there_first[flow] : plan.there_first[flow + 1]]
    run_s = task[RUNTIME] * plan.nodes[:, INVERSE_SPEED]
    start_s = ready_s.copy()
    billed_s = np.where(holds, (start_s + run_s) - start_s, 0.0)
    tasks = np.bincount(placed[:, NODE].astype(np.int64), minlength=len(table)).astype(np.float64)
    for n in np.flatnonzero(holds):
        mine, before = np.flatnonzero(placed[:, NODE] == n), others[others[:, 0] == n]
        if not len(mine) + len(before):
            continue
        # Others have begun before: at 0, as far as this workflow can tell.
        there = np.concatenate([np.insert(before[:, :2], 1, 0.0, axis=1), placed[mine]])
        needs = np.concatenate([before[:, 2:], plan.tasks[first + mine][:, [CPU, MEM]]])
        start_s[n] = _earliest(there, needs, ready_s[n], run_s[n], room[n] - task[[CPU, MEM]] + FIT_TOLERANCE)
        billed_s[n] = _unused(there, start_s[n], start_s[n] + run_s[n])
    return {
        "cpu_capacity": room[:, CPU].copy(),
        "mem_capacity": room[:, MEM].copy(),
        "price": plan.nodes[:, PRICE].copy(),
        "speed": table.speed,
        "net_capacity": table.net,
        "tasks": tasks,
        "moved_mb": moved_mb,
        "ready_s": ready_s,
        "start_s": start_s,
        "billed_s": billed_s,
    }, {
        "cpu": float(task[CPU]),
        "mem": float(task[MEM]),
        "runtime_s": float(task[RUNTIME]),
        "parents": float(plan.parents[row + 1] - plan.parents[row]),
        "read_mb": float(task[READ]),
        "tail_s": float(task[TAIL]),
        "makespan_s": float(placed[:, FINISH].max(initial=0.0)),
        "left": float(size - number),
        "tasks": float(size),
        "deadline_s": float(own[DEADLINE]),
        "reference_s": float(own[REFERENCE]),
        "least_usd": float(own[LEAST_USD]),
        "sequence": float(number),
    }


def _earliest(there: Floats, needs: Floats, ready_s: float, run_s: float, room: Floats) -> float:
    """Return the first of the times at which something ends from which the room lasts; ``there``: the node's tasks."""
    lasting = there[:, FINISH] > there[:, START]
    there, needs = there[lasting], needs[lasting]
    for start in sorted({ready_s, *there[there[:, FINISH] > ready_s, FINISH].tolist()}):
        # Use changes when something starts; at those times, and at the start itself, there must be room.
        moments = [start, *there[(there[:, START] > start) & (there[:, START] < start + run_s), START]]
        if all(
            (needs[(there[:, START] <= moment) & (moment < there[:, FINISH])].sum(axis=0) <= room).all()
            for moment in moments
        ):
            return float(start)
    raise AssertionError("an empty node can hold the task")


def _unused(there: Floats, start: float, finish: float) -> float:
    """Return for how long between two times no task runs."""
    total, until = 0.0, start
    for begin, end in sorted(zip(there[:, START].tolist(), there[:, FINISH].tolist(), strict=True)):
        if end <= until or end <= begin:
            continue
        if begin >= finish:
            break
        if begin > until:
            total += begin - until
        until = max(until, end)
    return total + (finish - until) if until < finish else total
