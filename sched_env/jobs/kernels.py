"""The kernel of ``jobs``: placements, events until the next decision, observations, ends and beginnings of episodes.

Time moves from event to event: a submission, the start or end of an attempt (``sched_env.jobs.execution``), a user who
withdraws a job (``sched_env.jobs.cancel``). At one instant ends come first, since what has ended cannot be withdrawn,
and withdrawals last.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sched_env.jit import called, inline
from sched_env.jobs import features
from sched_env.jobs.cancel import expect, next_cancel_s, withdraw, withdraw_due
from sched_env.jobs.execution import HOURS_PER_SECOND, happen, lose, place
from sched_env.jobs.queueing import join, offer
from sched_env.jobs.state import (
    ARRIVAL,
    ARRIVED,
    ATTEMPTS,
    BEST,
    BUSY,
    CANCEL,
    CANCELLED,
    CARD_SECONDS,
    CORES,
    DATA,
    DEADLINE,
    EPOCHS,
    FAILED,
    FINISH,
    FINISHED,
    FIRST,
    GPU_FREE,
    HEAD,
    HELD_CARD,
    HELD_FROM,
    HELD_JOB,
    HOLDS,
    JOB_SECONDS,
    JOBS,
    LAST_CARD,
    LAST_END,
    LATE,
    LONGEST_WAIT,
    MEM,
    MODEL,
    MOVED_GB,
    NEED_CPU,
    NEED_GPU,
    NEED_MEM,
    NEXT_CANCEL,
    NONE,
    NOW,
    OFFERED,
    OOM,
    ORIGIN,
    PAID,
    PLACED,
    POSSIBLE,
    RETRIES,
    RETURN,
    SHAPE,
    SIZE,
    STEPS,
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
from sched_env.jobs.whatif import busy_share
from sched_env.stepping import RUNNING, dynamics
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

estimate = inline(features.estimate)
cost = inline(features.cost)


@inline
def observe(
    cards: Cards, queue: Queue, runtimes: Runtimes, rules: Rules, state: State, candidates: Any, wanted: Any, b: int
) -> None:
    """Write the observation of the offered job; memory and price of the cards are written once, from outside."""
    row = state.tally[b, OFFERED]
    now = state.total[b, NOW]
    q, model, origin = queue.links[row, SHAPE], queue.links[row, MODEL], queue.links[row, ORIGIN]
    gpu_mem, mem = queue.shapes[q, NEED_GPU], queue.shapes[q, NEED_MEM]
    epochs, gb = queue.rows[row, EPOCHS], queue.rows[row, DATA]
    belief, harm = runtimes.belief[model], runtimes.harm[model]
    fixed_s = rules.dispatch_s + rules.startup_s
    # No branches, which this mix of empty and shared cards would make unpredictable: an empty card has two co-runners
    # of kind 0, whose pace is that of running alone and whose harm is nothing. Unsigned indices spare numba's check
    # for negative ones. Together that makes the loop 1.6 times faster.
    for index in range(cards.type.size):
        c = np.uint64(index)
        t, node = np.uint64(cards.type[c]), np.uint64(cards.node[c])
        one, other = np.uint64(state.kind[b, c, 0]), np.uint64(state.kind[b, c, 1])
        n = state.kind[b, c, JOBS]
        moving_s = fixed_s + gb * cards.seconds_per_gb[origin, node]
        alone_s = belief[t, 0, 0] * epochs
        shared_s = belief[t, one, other] * epochs
        shared_s = shared_s if (n < 3) & (shared_s < np.inf) else alone_s
        harm_s = harm[t, one, other] * max(state.card[b, c, FINISH] - now, 0.0)
        harm_s += harm[t, other, one] * max(state.card[b, c, FINISH + 1] - now, 0.0)
        busy_s = max(state.card[b, c, BUSY] - now, 0.0)
        total_s = estimate(moving_s, alone_s, shared_s, busy_s)
        candidates[b, c, 2] = (cards.mem[c] if rules.total_memory else state.card[b, c, GPU_FREE]) - gpu_mem
        candidates[b, c, 3] = n
        candidates[b, c, 4] = busy_share(cards, node, state.node[b, node, CORES])
        candidates[b, c, 5] = state.node[b, node, MEM] - mem
        candidates[b, c, 6] = moving_s
        candidates[b, c, 7] = alone_s
        candidates[b, c, 8] = shared_s
        candidates[b, c, 9] = busy_s
        candidates[b, c, 10] = total_s
        candidates[b, c, 11] = harm_s if n < 3 else 0.0
        candidates[b, c, 12] = cost(cards.usd_per_hour[c], busy_s, total_s, gb * cards.usd_per_gb[origin, node])
        candidates[b, c, 13] = 1.0 if state.hold[b, node, HELD_CARD] == index else 0.0
    j = row - state.tally[b, FIRST]
    request = wanted[b]
    request[0], request[1], request[2] = gpu_mem, mem, queue.shapes[q, NEED_CPU]
    request[3], request[4] = gb, queue.rows[row, BEST]
    request[5] = now - queue.rows[row, ARRIVAL]
    request[6] = queue.rows[row, ARRIVAL] + queue.rows[row, DEADLINE] - now
    request[7], request[8] = state.tally[b, WAITING], state.job[b, j, ATTEMPTS]
    holds = state.line[b, q, HOLDS]
    request[9] = 1.0 if holds != NONE and state.hold[b, holds, HELD_JOB] == j else 0.0


@inline
def next_card(state: State, b: int) -> int:
    """Return the card with the next event."""
    times = state.next_s[b]
    best = 0
    for c in range(1, times.size):
        if times[c] < times[best]:
            best = c
    return best


@inline
def run(cards: Cards, queue: Queue, runtimes: Runtimes, rules: Rules, state: State, mask: Bools, b: int) -> int:
    """Let events happen until a job can be placed; return on how many cards, or 0 when nothing is left."""
    count, total = state.tally[b], state.total[b]
    c = next_card(state, b)
    while True:
        feasible = offer(cards, queue, runtimes, rules, state, mask, b)
        if feasible > 0:
            return feasible
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
                join(queue, rules, state, b, j)
                if queue.rows[count[FIRST] + j, CANCEL] < np.inf:
                    expect(queue, state, b, j)
            else:
                lose(state, b, j)
        if total[NEXT_CANCEL] <= time:
            withdraw_due(cards, queue, runtimes, rules, state, b)
            c = next_card(state, b)


@called
def go_on(arguments: Any, out: Buffers, b: int) -> int:
    """Let events happen until a job can be placed, and observe; return on how many cards, or 0."""
    cards, queue, runtimes, rules, state = arguments
    feasible = run(cards, queue, runtimes, rules, state, out.mask, b)
    out.feasible[b] = feasible
    out.time_s[b] = state.total[b, NOW]
    if feasible > 0:
        observe(cards, queue, runtimes, rules, state, out.candidates, out.request, b)
    return feasible


@inline
def start_range(arguments: Any) -> tuple[int, int]:
    """Return the rows between which starts are drawn."""
    _, _, _, rules, _ = arguments
    return rules.start_min, rules.start_max


@called
def begin(arguments: Any, out: Buffers, b: int, first: int, _fresh: bool) -> bool:
    """Begin an episode at a row of the queue, in an empty network; return whether any of its jobs fits a card."""
    cards, queue, _, rules, state = arguments
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
    state.tally[b, FIRST] = first
    state.tally[b, SIZE] = min(rules.episode_jobs, queue.rows.shape[0] - first)
    state.tally[b, LAST_CARD] = NONE
    state.total[b, NOW] = queue.rows[first, ARRIVAL]
    state.total[b, NEXT_CANCEL] = np.inf
    return bool(go_on(arguments, out, b) > 0)


@called
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
    jobs = float(count[SIZE])
    metrics[0] = total[RETURN]
    metrics[1] = count[STEPS]
    metrics[2] = total[PLACED]
    metrics[3] = jobs
    metrics[4] = (total[LATE] + unfinished) / jobs
    metrics[5] = total[USD]
    metrics[6] = total[WAITED]
    metrics[7] = (total[LAST_END] if unfinished == 0 else now) - queue.rows[count[FIRST], ARRIVAL]
    metrics[8] = total[JOB_SECONDS] / jobs
    metrics[9] = total[WAITED] / jobs
    metrics[10] = total[LONGEST_WAIT]
    metrics[11] = count[OOM]
    metrics[12] = count[FAILED]
    metrics[13] = count[CANCELLED]
    metrics[14] = count[RETRIES]
    metrics[15] = total[MOVED_GB]
    metrics[16] = total[CARD_SECONDS] * (1.0 / 3600.0)


@inline
def step(arguments: Any, out: Buffers, b: int, action: int, seed: int) -> int:
    """Place the offered job, or withdraw one, and go to the next decision."""
    cards, queue, runtimes, rules, state = arguments
    total, count = state.total[b], state.tally[b]
    before = total[NOW]
    if action <= WITHDRAW:
        withdraw(cards, queue, runtimes, rules, state, b, WITHDRAW - action)
    else:
        place(cards, queue, runtimes, rules, state, out.wait_s, b, action, seed)
        count[STEPS] += 1
    ended = RUNNING
    if go_on(arguments, out, b) == 0:
        # Jobs left in line would mean that an empty network cannot hold what was found to be possible: the tests show
        # that this does not happen.
        ended = END_OF_TRACE if count[WAITING] == 0 else FULL
        out.terminated[b] = True
    elif rules.horizon > 0 and count[STEPS] >= rules.horizon:
        ended = HORIZON
    if rules.by_makespan:
        reward = -(total[NOW] - before) * rules.inverse_scale
    else:
        reward = -(total[JOB_SECONDS] - total[PAID]) * rules.inverse_scale / count[SIZE]
        total[PAID] = total[JOB_SECONDS]
    out.reward[b] = reward
    total[RETURN] += reward
    return ended


DYNAMICS = dynamics(__name__, start_range=start_range, begin=begin, step=step, close=close)
