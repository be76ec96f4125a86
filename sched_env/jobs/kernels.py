"""The kernel of ``jobs``: placements, events until the next decision, observations, ends and beginnings of episodes.

Time moves from event to event: a submission, the start or end of an attempt (``sched_env.jobs.execution``), a user who
withdraws a job (``sched_env.jobs.cancel``). At one instant ends come first, since what has ended cannot be withdrawn,
and withdrawals last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sched_env.jit import filled_in, inline, part
from sched_env.jobs.cancel import expect, next_cancel_s, withdraw, withdraw_due
from sched_env.jobs.execution import HOURS_PER_SECOND, happen, lose, place, put_back
from sched_env.jobs.observing import observe, show
from sched_env.jobs.queueing import join, offer, rearrange
from sched_env.jobs.state import (
    ARRIVAL,
    ARRIVED,
    BEGAN,
    CANCEL,
    CANCELLED,
    CARD,
    CARD_SECONDS,
    FAILED,
    FINISHED,
    FIRST,
    GPU_FREE,
    HEAD,
    HELD_FROM,
    HOLDS,
    JOB_SECONDS,
    JOBS,
    LAST_CARD,
    LAST_END,
    LATE,
    LONGEST_WAIT,
    MEM,
    MOVED_GB,
    NEXT_CANCEL,
    NONE,
    NOW,
    OFFERED,
    OOM,
    OUTCOME,
    OUTSIDE,
    PAID,
    PLACED,
    POSSIBLE,
    RETRIES,
    RETURN,
    SHAPE,
    SIZE,
    STARTED,
    STEPS,
    UNCOUNTED,
    USD,
    WAITED,
    WAITING,
    Cards,
    Queue,
    Rules,
    Runtimes,
    State,
)
from sched_env.jobs.tables import Bools
from sched_env.stepping import RUNNING, Dynamics, dynamics
from sched_env.vector import END_OF_TRACE, FULL, HORIZON, SHEET, Buffers

METRICS = (
    *SHEET,
    "makespan_s",
    "mean_completion_s",
    "mean_wait_s",
    "max_wait_s",
    "oom",
    "failed",
    "cancelled",
    "retries",
    "moved_gb",
    "card_hours",
)
WITHDRAW = -2
"""The action, where actions are not checked, that withdraws job 0 for its user; one less withdraws job 1, and on."""

REARRANGE = -(2**62)
"""The action, where actions are not checked, that runs the queue by another discipline from now on (``State.way``)."""


@part
def next_card(state: State, b: int) -> int:
    """Return the card with the next event."""
    times = state.next_s[b]
    best = 0
    for c in range(1, times.size):
        if times[c] < times[best]:
            best = c
    return best


@inline
def run(
    cards: Cards, queue: Queue, runtimes: Runtimes, rules: Rules, state: State, mask: Bools, b: int, waits: bool
) -> int:
    """Let events happen (with ``waits`` at least one) until a job can be placed.

    Returns:
        On how many cards, or 0 when nothing is left.
    """
    count, total = state.tally[b], state.total[b]
    c = next_card(state, b)
    while True:
        if not waits:
            feasible = offer(cards, queue, runtimes, rules, state, mask, b)
            if feasible > 0:
                return feasible
        waits = False
        time = state.next_s[b, c]
        if count[ARRIVED] < count[SIZE]:
            time = min(time, queue.rows[count[FIRST] + count[ARRIVED], ARRIVAL])
        if total[NEXT_CANCEL] < time:
            time = min(time, next_cancel_s(state, b))
        if time == np.inf:
            return 0
        in_system = count[ARRIVED] - count[FINISHED] - count[FAILED] - count[CANCELLED]
        total[JOB_SECONDS] += in_system * (time - total[NOW])
        total[NOW] = time
        while state.next_s[b, c] <= time:
            happen(cards, queue, runtimes, rules, state, b, c)
            c = next_card(state, b)
        while count[ARRIVED] < count[SIZE] and queue.rows[count[FIRST] + count[ARRIVED], ARRIVAL] <= time:
            j = count[ARRIVED]
            count[ARRIVED] += 1
            if queue.shapes[queue.links[count[FIRST] + j, SHAPE], POSSIBLE] > 0.0:
                join(queue, state, b, j)
                if queue.rows[count[FIRST] + j, CANCEL] < np.inf:
                    expect(queue, state, b, j)
            else:
                lose(state, b, j)
        if total[NEXT_CANCEL] <= time:
            withdraw_due(cards, queue, runtimes, rules, state, b)
            c = next_card(state, b)


@part
def _observe_offered(arguments: Any, out: Buffers, b: int) -> int:
    """Observe the offered job; return how many candidates there are beside its own."""
    cards, queue, runtimes, rules, state = arguments
    observe(cards, queue, runtimes, rules, state, out.candidates, out.request, b)
    return 0


@part
def _place_offered(arguments: Any, out: Buffers, b: int, card: int, seed: int) -> bool:
    """Place the offered job; return whether to wait."""
    cards, queue, runtimes, rules, state = arguments
    place(cards, queue, runtimes, rules, state, out.wait_s, b, card, seed)
    return False


@part
def _place_shown(arguments: Any, out: Buffers, b: int, pair: int, seed: int) -> bool:
    """Place one of the jobs shown, or none; return whether to wait."""
    cards, queue, runtimes, rules, state = arguments
    slot, card = divmod(pair, cards.type.size)
    if slot == rules.pairs:
        out.wait_s[b] = 0.0
        return True
    state.tally[b, OFFERED] = state.shown[b, slot]
    place(cards, queue, runtimes, rules, state, out.wait_s, b, card, seed)
    return False


def _go_on(arguments: Any, out: Buffers, b: int, waits: bool) -> int:
    """Let events happen (with ``waits`` at least one) until a job can be placed, and observe.

    Returns:
        How many candidates there are, or 0 when nothing is left.
    """
    cards, queue, runtimes, rules, state = arguments
    feasible = run(cards, queue, runtimes, rules, state, out.mask, b, waits)
    out.time_s[b] = state.total[b, NOW]
    if feasible > 0:
        feasible += view(arguments, out, b)  # type: ignore[name-defined]  # noqa: F821 - filled in
    out.feasible[b] = feasible
    return int(feasible)


@part
def start_range(arguments: Any) -> tuple[int, int]:
    """Return the rows between which starts are drawn."""
    _, _, _, rules, _ = arguments
    return rules.start_min, rules.start_max


@part
def find_recorded(cards: Cards, queue: Queue, runtimes: Runtimes, state: State, b: int, start: int) -> None:
    """Let an episode begin with what was there when its first row was submitted: jobs on their cards, and in line.

    Jobs in line are the episode's own; those on cards are not. A node that is down then is down for the whole of it.
    """
    first, now = state.tally[b, FIRST], state.total[b, NOW]
    window = min(max(int(now * cards.up_rate), 0), len(cards.up) - 1)
    for node in range(cards.node_mem.size):
        if not cards.up[window, node]:
            state.node[b, node, MEM] = -1.0
    for entry in range(queue.running_from[start], queue.running_from[start + 1]):
        put_back(cards, queue, runtimes, state, b, queue.running[entry])
    state.tally[b, ARRIVED] = start - first
    for j in range(start - first):
        record = queue.record[first + j]
        if record[CARD] >= 0.0 and record[BEGAN] > now and queue.shapes[queue.links[first + j, SHAPE], POSSIBLE] > 0.0:
            join(queue, state, b, j)
            state.queued_s[b, j] = queue.rows[first + j, ARRIVAL]
        else:
            state.job[b, j, OUTCOME] = OUTSIDE
            state.tally[b, FINISHED] += 1
            state.tally[b, UNCOUNTED] += 1


def _begin(arguments: Any, out: Buffers, b: int, start: int, _fresh: bool) -> bool:
    """Begin an episode at a row of the queue; return whether any of its jobs fits a card."""
    cards, queue, runtimes, rules, state = arguments
    state.card[b] = 0.0
    state.slot[b] = 0.0
    state.kind[b] = 0
    for c in range(cards.mem.size):
        state.card[b, c, GPU_FREE] = cards.mem[c]
    state.next_s[b] = np.inf
    state.node[b] = 0.0
    for node in range(cards.node_mem.size):
        state.node[b, node, MEM] = cards.node_mem[node]
    state.hold[b] = NONE
    state.line[b] = 0
    for q in range(state.line.shape[1]):
        state.line[b, q, HEAD] = state.line[b, q, HOLDS] = NONE
    state.job[b] = 0
    state.service[b] = 0.0
    state.tally[b] = 0
    state.total[b] = 0.0
    first = queue.backlog[start]
    state.tally[b, FIRST], state.tally[b, STARTED] = first, start
    state.tally[b, SIZE] = min(rules.episode_jobs, queue.rows.shape[0] - start) + start - first
    state.tally[b, LAST_CARD] = NONE
    state.total[b, NOW] = queue.rows[start, ARRIVAL]
    state.total[b, NEXT_CANCEL] = np.inf
    find_recorded(cards, queue, runtimes, state, b, start)
    return bool(go_on(arguments, out, b, False) > 0)  # type: ignore[name-defined]  # noqa: F821 - filled in


@part
def close(arguments: Any, out: Buffers, b: int) -> None:
    """Write the episode's metrics."""
    cards, queue, _, _, state = arguments
    count, total, metrics = state.tally[b], state.total[b], out.metrics[b]
    now = total[NOW]
    unfinished = count[SIZE] - count[FINISHED] - count[FAILED] - count[CANCELLED]
    for c in range(cards.type.size):
        if state.kind[b, c, JOBS] > 0:
            held = now - state.card[b, c, HELD_FROM]
            total[CARD_SECONDS] += held
            total[USD] += held * (cards.usd_per_hour[c] * HOURS_PER_SECOND)
    jobs = float(count[SIZE] - count[UNCOUNTED])
    metrics[0] = total[RETURN]
    metrics[1] = count[STEPS]
    metrics[2] = total[PLACED]
    metrics[3] = jobs
    metrics[4] = (total[LATE] + unfinished) / jobs
    metrics[5] = total[USD]
    metrics[6] = total[WAITED]
    metrics[7] = (total[LAST_END] if unfinished == 0 else now) - queue.rows[count[STARTED], ARRIVAL]
    metrics[8] = total[JOB_SECONDS] / jobs
    metrics[9] = total[WAITED] / jobs
    metrics[10] = total[LONGEST_WAIT]
    metrics[11] = count[OOM]
    metrics[12] = count[FAILED]
    metrics[13] = count[CANCELLED]
    metrics[14] = count[RETRIES]
    metrics[15] = total[MOVED_GB]
    metrics[16] = total[CARD_SECONDS] * (1.0 / 3600.0)


def _step(arguments: Any, out: Buffers, b: int, action: int, seed: int) -> int:
    """Place a job, wait, withdraw a job or run the queue otherwise, and go to the next decision."""
    cards, queue, runtimes, rules, state = arguments
    total, count = state.total[b], state.tally[b]
    before, waits = total[NOW], False
    if action == REARRANGE:
        rearrange(queue, state, b)
    elif action <= WITHDRAW:
        withdraw(cards, queue, runtimes, rules, state, b, WITHDRAW - action)
    else:
        waits = act(arguments, out, b, action, seed)  # type: ignore[name-defined]  # noqa: F821 - filled in
        count[STEPS] += 1
    ended = RUNNING
    if go_on(arguments, out, b, waits) == 0:  # type: ignore[name-defined]  # noqa: F821
        # Jobs left in line would mean that an empty network cannot hold what was found to be possible: the tests show
        # that this does not happen.
        ended = END_OF_TRACE if count[WAITING] == 0 else FULL
        out.terminated[b] = True
    elif rules.horizon > 0 and count[STEPS] >= rules.horizon:
        ended = HORIZON
    if rules.by_makespan:
        reward = -(total[NOW] - before) * rules.inverse_scale
    else:
        reward = -(total[JOB_SECONDS] - total[PAID]) * rules.inverse_scale / (count[SIZE] - count[UNCOUNTED])
        total[PAID] = total[JOB_SECONDS]
    out.reward[b] = reward
    total[RETURN] += reward
    return ended


def _dynamics(owner: str, view: Callable[..., int], act: Callable[..., bool]) -> Dynamics:
    """Compile the loops for one way to choose: two, because most need only one, and compiling takes a while."""
    go_on = part(filled_in(_go_on, owner, view=view))
    return dynamics(
        owner,
        start_range=start_range,
        begin=part(filled_in(_begin, owner, go_on=go_on)),
        step=inline(filled_in(_step, owner, go_on=go_on, act=act)),
        close=close,
    )


DYNAMICS = _dynamics(__name__, _observe_offered, _place_offered)
PAIR_DYNAMICS = _dynamics(f"{__name__}.pairs", show, _place_shown)
