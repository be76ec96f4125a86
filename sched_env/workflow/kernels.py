"""The dynamics of workflows, compiled: a calendar for each node, placements and observations of all environments.

A workflow is planned at its start. Its tasks are offered one after another, parents first; each is fixed, when it is
placed, to the earliest time at which all its data is on the node and the node has cores and memory for the whole of
its run, given what was placed there before (which is never moved: a later task may fill a gap, no more). Data of a
task on another node moves when that task ends, over the slower of the two links, and each edge has the link for
itself; nothing moves between tasks on one node. Data from outside comes over the node's own link, from time 0.
Where the record tells, nodes are not empty: tasks of others run on until they end, and what else the nodes hold is no
room at all.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sched_env.jit import inline, part
from sched_env.stepping import RUNNING, dynamics
from sched_env.tables import Floats
from sched_env.vector import END_OF_TRACE, HORIZON, SHEET, Buffers
from sched_env.workflow import features
from sched_env.workflow.features import FIT_TOLERANCE, HOURS_PER_SECOND
from sched_env.workflow.state import (
    CPU,
    DEADLINE,
    FINISH,
    FIRST,
    FLOW,
    FOLLOWING,
    FREE,
    INPUT,
    INVERSE_LEAST,
    INVERSE_REFERENCE,
    INVERSE_SPEED,
    MAKESPAN,
    MEM,
    MOVED_MB,
    NEXT,
    NODE,
    PRICE,
    REFERENCE,
    RETURN,
    RUNTIME,
    SECONDS_PER_MB,
    SIZE,
    SOURCE_MB,
    SOURCE_PER_MB,
    START,
    TAIL,
    TASKS,
    TIME,
    UNTIL,
    USD,
    USED_CPU,
    USED_MEM,
    WAITED,
    Plan,
    Rules,
    State,
)

METRICS = (*SHEET, "makespan_s", "response_ratio", "moved_mb", "nodes_used", "cost_ratio")
NONE = -1

outlook = part(features.outlook)
lateness = part(features.lateness)
slack_of = part(features.slack_of)
fits = part(features.fits)


@part
def gather(plan: Plan, state: State, b: int, row: int) -> int:
    """Put what a task's parents left where all nodes will look at it; return how many parents there are."""
    first = plan.parents[row]
    count = plan.parents[row + 1] - first
    for k in range(count):
        before, source = state.placed[b, plan.parent[first + k]], state.sources[k]
        source[NODE], source[SOURCE_MB], source[FINISH] = before[NODE], plan.edge_mb[first + k], before[FINISH]
        source[SOURCE_PER_MB] = plan.nodes[int(before[NODE]), SECONDS_PER_MB]
    return int(count)


@part
def data_there(plan: Plan, state: State, n: int, row: int, parents: int) -> tuple[float, float]:
    """Return when the data of a task can be on a node, and how many MB would have to move."""
    per_mb = plan.nodes[n, SECONDS_PER_MB]
    moved = plan.tasks[row, INPUT]
    ready = moved * per_mb
    for k in range(parents):
        source = state.sources[k]
        arrival = source[FINISH]
        if source[NODE] != n:
            moved += source[SOURCE_MB]
            arrival += source[SOURCE_MB] * max(per_mb, source[SOURCE_PER_MB])
        ready = max(ready, arrival)
    return ready + plan.dispatch_s, moved


@part
def first_gap(state: State, b: int, n: int, ready: float, run: float, cpu: float, mem: float) -> tuple[float, float]:
    """Return when a node first has this much room for so long, and how much of that time nothing else runs there."""
    if state.nodes[b, n, UNTIL] <= ready:  # most often; saves the walk
        return ready, (ready + run) - ready
    segments = state.segments[b]
    k = n
    following = int(segments[k, FOLLOWING])
    while following >= 0 and segments[following, TIME] <= ready:
        k = following
        following = int(segments[k, FOLLOWING])
    start, idle = ready, 0.0
    while True:
        if segments[k, USED_CPU] <= cpu and segments[k, USED_MEM] <= mem:
            end = segments[following, TIME] if following >= 0 else np.inf
            if segments[k, USED_CPU] == 0.0:
                idle += min(end, start + run) - max(segments[k, TIME], start)
            if end >= start + run:
                return start, idle
        else:
            start, idle = segments[following, TIME], 0.0
        k = following
        following = int(segments[k, FOLLOWING])


@part
def offer(
    plan: Plan, state: State, room: Floats, b: int, n: int, row: int, parents: int
) -> tuple[float, float, float, float, float, bool]:
    """Return what a node offers a task whose parents were gathered.

    When its data is there, when it would start, how long it would run, what it would add to the time the node is in
    use, the MB that would move, and whether the node can hold it at all.
    """
    ready, moved = data_there(plan, state, n, row, parents)
    run = plan.tasks[row, RUNTIME] * plan.nodes[n, INVERSE_SPEED]
    cpu, mem = plan.tasks[row, CPU], plan.tasks[row, MEM]
    if not fits(room[n, CPU], room[n, MEM], cpu, mem):
        return ready, ready, run, 0.0, moved, False
    room_cpu, room_mem = room[n, CPU] - cpu + FIT_TOLERANCE, room[n, MEM] - mem + FIT_TOLERANCE
    start, billed = first_gap(state, b, n, ready, run, room_cpu, room_mem)
    return ready, start, run, billed, moved, True


@part
def observe(plan: Plan, state: State, out: Buffers, b: int) -> int:
    """Write the observation of the present task and return how many nodes can hold it.

    Columns that never change (price, speed) are written once, when the environment is made.
    """
    row = state.cursor[b, FIRST] + state.cursor[b, NEXT]
    task, flow = plan.tasks[row], plan.flows[state.cursor[b, FLOW]]
    tail = task[TAIL]
    inverse, inverse_least, makespan = flow[INVERSE_REFERENCE], flow[INVERSE_LEAST], state.totals[b, MAKESPAN]
    candidates, mask, earliest, first_end, count = out.candidates[b], out.mask[b], np.inf, np.inf, 0
    parents, room = gather(plan, state, b, row), plan.room[plan.room_of[state.cursor[b, FLOW]]]
    for n in range(mask.size):
        ready, start, run, billed, _, fit = offer(plan, state, room, b, n, row, parents)
        mask[n] = fit
        count += fit
        if fit:
            earliest, first_end = min(earliest, start), min(first_end, start + run)
        state.ends[n] = start + run
        _, _, candidates[n, 2], _, candidates[n, 3], _, candidates[n, 4] = outlook(
            ready, start, run, billed, plan.nodes[n, PRICE], makespan, tail, inverse, inverse_least
        )
    for n in range(mask.size):
        candidates[n, 5] = lateness(state.ends[n], first_end, inverse)
    size = float(state.cursor[b, SIZE])
    request = out.request[b]
    request[0], request[1], request[2] = task[RUNTIME] * inverse, parents, tail * inverse
    request[3] = (size - state.cursor[b, NEXT]) * (1.0 / size)
    request[4] = slack_of(first_end, tail, inverse)
    out.time_s[b] = earliest
    out.feasible[b] = count
    return count


@part
def split(state: State, b: int, k: int, time: float) -> int:
    """Cut a segment at a time within it and return the later part."""
    free = state.cursor[b, FREE]
    state.cursor[b, FREE] = free + 1
    old, new = state.segments[b, k], state.segments[b, free]
    new[TIME], new[USED_CPU], new[USED_MEM], new[FOLLOWING] = time, old[USED_CPU], old[USED_MEM], old[FOLLOWING]
    old[FOLLOWING] = free
    return int(free)


@part
def book(state: State, b: int, n: int, start: float, finish: float, cpu: float, mem: float) -> None:
    """Enter a task into a node's calendar; one that takes no time leaves no trace."""
    if finish <= start:
        return
    segments = state.segments[b]
    k = n
    while segments[k, FOLLOWING] >= 0.0 and segments[int(segments[k, FOLLOWING]), TIME] <= start:
        k = int(segments[k, FOLLOWING])
    if segments[k, TIME] < start:
        k = split(state, b, k, start)
    while True:
        following = int(segments[k, FOLLOWING])
        if following < 0 or segments[following, TIME] > finish:
            following = split(state, b, k, finish)
        segments[k, USED_CPU] += cpu
        segments[k, USED_MEM] += mem
        if segments[following, TIME] == finish:
            return
        k = following


@part
def place(plan: Plan, rules: Rules, state: State, out: Buffers, b: int, n: int) -> Any:
    """Put the present task on a node, as offered, and return the reward."""
    number = state.cursor[b, NEXT]
    row = state.cursor[b, FIRST] + number
    totals, flow = state.totals[b], plan.flows[state.cursor[b, FLOW]]
    room = plan.room[plan.room_of[state.cursor[b, FLOW]]]
    ready, start, run, billed, moved, _ = offer(plan, state, room, b, n, row, gather(plan, state, b, row))
    finish = start + run
    book(state, b, n, start, finish, plan.tasks[row, CPU], plan.tasks[row, MEM])
    placed = state.placed[b, number]
    placed[NODE], placed[START], placed[FINISH] = n, start, finish
    state.nodes[b, n, TASKS] += 1.0
    state.nodes[b, n, UNTIL] = max(state.nodes[b, n, UNTIL], finish)
    state.cursor[b, NEXT] = number + 1
    growth = max(finish - totals[MAKESPAN], 0.0)
    usd = plan.nodes[n, PRICE] * (billed * HOURS_PER_SECOND)
    totals[MAKESPAN] = max(totals[MAKESPAN], finish)
    totals[USD] += usd
    totals[WAITED] += start - ready
    totals[MOVED_MB] += moved
    out.wait_s[b] = start - ready
    return -(rules.beta * (growth * flow[INVERSE_REFERENCE]) + (1.0 - rules.beta) * (usd * flow[INVERSE_LEAST]))


@part
def start_range(arguments: Any) -> tuple[int, int]:
    """Return the workflows among which one is drawn."""
    _, rules, _ = arguments
    return rules.start_min, rules.start_max


@part
def begin(arguments: Any, out: Buffers, b: int, flow: int, _fresh: bool) -> bool:
    """Begin a workflow among what others still run on the nodes."""
    plan, _, state = arguments
    cursor, N = state.cursor[b], plan.nodes.shape[0]
    cursor[FLOW], cursor[FIRST], cursor[SIZE] = flow, plan.first[flow], plan.first[flow + 1] - plan.first[flow]
    cursor[NEXT], cursor[FREE] = 0, N
    for n in range(N):
        segment = state.segments[b, n]
        segment[TIME] = segment[USED_CPU] = segment[USED_MEM] = 0.0
        segment[FOLLOWING] = NONE
    state.nodes[b] = 0.0
    state.totals[b] = 0.0
    for k in range(plan.there_first[flow], plan.there_first[flow + 1]):
        n, until = int(plan.there[k, 0]), plan.there[k, 1]
        book(state, b, n, 0.0, until, plan.there[k, 2], plan.there[k, 3])
        state.nodes[b, n, UNTIL] = max(state.nodes[b, n, UNTIL], until)
    observe(plan, state, out, b)
    return True


@part
def close(arguments: Any, out: Buffers, b: int) -> None:
    """Write the episode's metrics."""
    plan, _, state = arguments
    used = 0.0
    for n in range(plan.nodes.shape[0]):
        used += state.nodes[b, n, TASKS] > 0.0
    cursor, totals, metrics, flow = state.cursor[b], state.totals[b], out.metrics[b], plan.flows[state.cursor[b, FLOW]]
    late = cursor[NEXT] < cursor[SIZE] or totals[MAKESPAN] > flow[DEADLINE]
    metrics[0] = totals[RETURN]
    metrics[1] = cursor[NEXT]
    metrics[2] = cursor[NEXT]
    metrics[3] = cursor[SIZE]
    metrics[4] = 1.0 if late else 0.0
    metrics[5] = totals[USD]
    metrics[6] = totals[WAITED]
    metrics[7] = totals[MAKESPAN]
    metrics[8] = totals[MAKESPAN] / flow[REFERENCE]
    metrics[9] = totals[MOVED_MB]
    metrics[10] = used
    metrics[11] = totals[USD] * flow[INVERSE_LEAST]


@inline
def step(arguments: Any, out: Buffers, b: int, n: int, _seed: int) -> int:
    """Place the present task and go to the next one."""
    plan, rules, state = arguments
    reward = place(plan, rules, state, out, b, n)
    out.reward[b] = reward
    state.totals[b, RETURN] += reward
    if state.cursor[b, NEXT] == state.cursor[b, SIZE]:
        out.terminated[b] = True
        return END_OF_TRACE
    observe(plan, state, out, b)
    return HORIZON if 0 < rules.horizon <= state.cursor[b, NEXT] else RUNNING


DYNAMICS = dynamics(__name__, start_range=start_range, begin=begin, step=step, close=close)
