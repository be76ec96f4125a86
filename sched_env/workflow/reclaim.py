"""Slack reclaimed: a finished plan of a workflow made cheaper without ending later.

HEFT puts every task where it ends first and asks for no price. Afterwards many tasks could wait, or run on a slower
node, and the workflow would end when it did. One after another, the last to end first, each task is taken out of the
plan and put where, and when, it adds least to the bill, all others staying as they are: not before its data is there,
not later than its children or the end of the plan allow. Sweeps are repeated until nothing is gained.

This needs the whole plan, so it is no heuristic of single decisions: a bar for policies that decide task by task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sched_env.jit import kernel
from sched_env.tables import Floats, Ints
from sched_env.workflow.features import FIT_TOLERANCE, HOURS_PER_SECOND
from sched_env.workflow.state import CPU, FINISH, INPUT, INVERSE_SPEED, MEM, NODE, PRICE, RUNTIME, SECONDS_PER_MB, START

if TYPE_CHECKING:
    from sched_env.workflow.vector import WorkflowVectorEnv

MOST_STARTS = 32
"""Starts that are tried on a node: earliest, latest, present, and those at which something else starts or ends."""
MOST_SWEEPS = 6
GAIN = 1e-9
"""Share of the bill below which a move is none."""


class Schedule(NamedTuple):
    """A plan of one workflow; tasks by their number in the order they are offered in."""

    node: NDArray[np.int64]
    start_s: Floats
    finish_s: Floats
    usd: float

    @property
    def makespan_s(self) -> float:
        """When its last task ends."""
        return float(self.finish_s.max())


class Work(NamedTuple):
    """What is placed: T tasks, then K of others that stay where they are; edges from both sides."""

    tasks: Floats
    need: Floats
    """[T + K, 2]"""
    parents: Ints
    parent: Ints
    parent_mb: Floats
    children: Ints
    child: Ints
    child_mb: Floats
    nodes: Floats
    room: Floats
    dispatch_s: float


def reclaimed(env: WorkflowVectorEnv, b: int) -> Schedule:
    """Reclaim the slack of the workflow whose last task environment b has just placed."""
    flow, plan = int(env.buffers.final_start[b]), env.plan
    first, last = plan.first[flow : flow + 2]
    others = plan.there[plan.there_first[flow] : plan.there_first[flow + 1]]
    placed = env.state.placed[b, : last - first]
    edges = slice(plan.parents[first], plan.parents[last])
    parent, mb = plan.parent[edges].astype(np.int64), plan.edge_mb[edges]
    into = np.repeat(np.arange(last - first), np.diff(plan.parents[first : last + 1]))
    by_parent = np.argsort(parent, kind="stable")
    work = Work(
        tasks=plan.tasks[first:last],
        need=np.concatenate([plan.tasks[first:last, CPU : MEM + 1], others[:, 2:4]]),
        parents=plan.parents[first : last + 1] - plan.parents[first],
        parent=parent,
        parent_mb=mb,
        children=np.concatenate([[0], np.cumsum(np.bincount(parent, minlength=last - first))]).astype(np.int64),
        child=into[by_parent],
        child_mb=mb[by_parent],
        nodes=plan.nodes,
        room=plan.room[plan.room_of[flow]],
        dispatch_s=plan.dispatch_s,
    )
    node = np.concatenate([placed[:, NODE], others[:, 0]]).astype(np.int64)
    start = np.concatenate([placed[:, START], np.zeros(len(others))])
    finish = np.concatenate([placed[:, FINISH], others[:, 1]])
    bill = usd_of(work, node, start, finish)
    for _ in range(MOST_SWEEPS):
        sweep(work, np.argsort(-finish[: last - first], kind="stable"), node, start, finish)
        before, bill = bill, usd_of(work, node, start, finish)
        if before - bill <= GAIN * before:
            break
    own = slice(0, last - first)
    return Schedule(node[own], start[own], finish[own], bill)


def usd_of(work: Work, node: Ints, start: Floats, finish: Floats) -> float:
    """Return the bill: every node's price for the time in which it runs tasks of this workflow and of nobody else."""
    total, size = 0.0, len(work.tasks)
    for n in range(len(work.nodes)):
        here = np.flatnonzero(node == n)
        until = finish[here[here >= size]].max(initial=0.0)
        mine = here[here < size]
        for task in mine[np.argsort(start[mine], kind="stable")]:
            if finish[task] > until:
                total += work.nodes[n, PRICE] * (finish[task] - max(start[task], until))
                until = finish[task]
    return float(total * HOURS_PER_SECOND)


@kernel
def sweep(work: Work, order: Ints, node: Ints, start: Floats, finish: Floats) -> None:
    """Put every task where it adds least to the bill, in place."""
    end, everything = finish[: order.size].max(), node.size
    times, change = np.empty(2 * everything), np.empty((2 * everything, 2))
    used = np.empty((2 * everything + 1, 2))
    starts = np.empty(MOST_STARTS)
    for task in order:
        if finish[task] <= start[task]:
            continue
        cheapest, best_node, best_start, best_run = np.inf, node[task], start[task], finish[task] - start[task]
        for turn in range(work.nodes.shape[0]):
            # Where it is comes first: among equals it stays.
            n = node[task] if turn == 0 else turn - 1 if turn - 1 < node[task] else turn
            need_cpu, need_mem = work.need[task, 0], work.need[task, 1]
            room_cpu, room_mem = work.room[n, 0] + FIT_TOLERANCE, work.room[n, 1] + FIT_TOLERANCE
            if need_cpu > room_cpu or need_mem > room_mem:
                continue
            run, per_mb = work.tasks[task, RUNTIME] * work.nodes[n, INVERSE_SPEED], work.nodes[n, SECONDS_PER_MB]
            earliest = work.tasks[task, INPUT] * per_mb
            for edge in range(work.parents[task], work.parents[task + 1]):
                other = work.parent[edge]
                moving = 0.0
                if node[other] != n:
                    moving = work.parent_mb[edge] * max(per_mb, work.nodes[node[other], SECONDS_PER_MB])
                earliest = max(earliest, finish[other] + moving)
            earliest += work.dispatch_s
            latest = end - run
            for edge in range(work.children[task], work.children[task + 1]):
                other = work.child[edge]
                moving = 0.0
                if node[other] != n:
                    moving = work.child_mb[edge] * max(per_mb, work.nodes[node[other], SECONDS_PER_MB])
                latest = min(latest, start[other] - work.dispatch_s - moving - run)
            count = 0
            if turn == 0:  # where it is it may stay, whatever rounding says
                earliest, latest = min(earliest, start[task]), max(latest, start[task])
                starts[0] = start[task]
                count = 1
            if earliest > latest:
                continue
            starts[count], starts[count + 1] = earliest, latest
            count += 2
            events = 0
            base_cpu, base_mem = 0.0, 0.0
            for other in range(everything):
                if other == task or node[other] != n or finish[other] <= start[other]:
                    continue
                if start[other] >= latest + run or finish[other] <= earliest:
                    continue
                if start[other] <= earliest:
                    base_cpu += work.need[other, 0]
                    base_mem += work.need[other, 1]
                else:
                    times[events], change[events] = start[other], work.need[other]
                    events += 1
                times[events], change[events] = finish[other], -work.need[other]
                events += 1
                for moment in (start[other], finish[other], start[other] - run, finish[other] - run):
                    if count < MOST_STARTS and earliest < moment < latest:
                        starts[count] = moment
                        count += 1
            sorted_events = np.argsort(times[:events])
            used[0, 0], used[0, 1] = base_cpu, base_mem
            for e in range(events):
                used[e + 1] = used[e] + change[sorted_events[e]]
            for s in range(count):
                begin, stop, busy, fits = starts[s], starts[s] + run, 0.0, True
                for e in range(events + 1):
                    left = times[sorted_events[e - 1]] if e > 0 else -np.inf
                    right = times[sorted_events[e]] if e < events else np.inf
                    span = min(right, stop) - max(left, begin)
                    if span <= 0.0:
                        continue
                    if used[e, 0] + need_cpu > room_cpu or used[e, 1] + need_mem > room_mem:
                        fits = False
                        break
                    if used[e, 0] > FIT_TOLERANCE:
                        busy += span
                if not fits:
                    continue
                cost = work.nodes[n, PRICE] * (run - busy)
                if cost < cheapest - GAIN * end:
                    cheapest, best_node, best_start, best_run = cost, n, begin, run
        node[task], start[task], finish[task] = best_node, best_start, best_start + best_run
