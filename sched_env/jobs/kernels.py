"""The kernel of ``jobs``: placements, events until the next decision, observations, ends and beginnings of episodes.

Time moves from event to event: a submission, the start or end of an attempt (``sched_env.jobs.execution``), a user who
withdraws a job (``sched_env.jobs.cancel``). At one instant ends come first, since what has ended cannot be withdrawn,
and withdrawals last.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sched_env import draws
from sched_env.jit import called, inline, lean_kernel
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
RUNNING = -1
"""The episode goes on (otherwise a code of ``sched_env.vector.ENDED``)."""

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
            time = min(time, next_cancel_s(queue, state, b))
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
def begin(cards: Cards, queue: Queue, rules: Rules, state: State, b: int, first: int) -> None:
    """Begin an episode at a row of the queue, in an empty network."""
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


@called
def close(cards: Cards, queue: Queue, state: State, out: Buffers, b: int, ended: int) -> None:
    """Keep the final observation and write the episode's metrics."""
    for c in range(cards.type.size):
        out.final_mask[b, c] = out.mask[b, c]
        for f in range(out.candidates.shape[2]):
            out.final_candidates[b, c, f] = out.candidates[b, c, f]
    for f in range(out.request.shape[1]):
        out.final_request[b, f] = out.request[b, f]
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
    out.ended[b] = ended
    out.final_start[b] = out.start[b]


@lean_kernel
def advance(
    cards: Cards,
    queue: Queue,
    runtimes: Runtimes,
    rules: Rules,
    state: State,
    out: Buffers,
    actions: NDArray[np.int64],
    starts: NDArray[np.int64],
    cancels: NDArray[np.int64],
    seed: int,
    park: bool,
) -> int:
    """Place, let events happen and, at an episode's end, restart or park; see ``PlacementVectorEnv._step``.

    With ``starts`` (not empty) an episode begins in every environment instead; a start of -1 is drawn. With ``cancels``
    (not empty) a job is withdrawn in each environment instead, and the next decision sought; -1: nothing happens there.
    All are one kernel because compiling the dynamics twice would double the wait for the first step.
    """
    B, C = out.mask.shape
    fresh, withdrawing = starts.size > 0, cancels.size > 0
    if not fresh and not withdrawing:
        for b in range(B):
            if out.active[b] and not (0 <= actions[b] < C and out.mask[b, actions[b]]):
                return -1 - b
    finished = 0
    for b in range(B):
        out.reward[b] = 0.0
        out.terminated[b] = out.truncated[b] = False
        if not out.active[b] or (withdrawing and cancels[b] == NONE):
            continue
        total, count = state.total[b], state.tally[b]
        before = total[NOW]
        begins = fresh
        if withdrawing:
            withdraw(cards, queue, runtimes, rules, state, b, cancels[b])
        elif not fresh:
            place(cards, queue, runtimes, rules, state, out.wait_s, b, actions[b], seed)
            count[STEPS] += 1
        while True:
            if begins:
                first = starts[b] if fresh else NONE
                if first < 0:
                    span = rules.start_max - rules.start_min
                    first = rules.start_min + draws.below(span, seed, b, out.episode[b])
                out.start[b] = first
                out.episode[b] += 1
                begin(cards, queue, rules, state, b, first)
            feasible = run(cards, queue, runtimes, rules, state, out.mask, b)
            out.feasible[b] = feasible
            out.time_s[b] = total[NOW]
            ended = RUNNING
            if feasible > 0:
                observe(cards, queue, runtimes, rules, state, out.candidates, out.request, b)
                if rules.horizon > 0 and count[STEPS] >= rules.horizon:
                    ended = HORIZON
            elif begins:
                # Nothing of this episode fits anywhere: draw again, or leave a start that was asked for to the caller.
                if fresh and starts[b] >= 0:
                    break
                continue
            else:
                # Jobs left in line would mean that an empty network cannot hold what was found to be possible: the
                # tests show that this does not happen.
                ended = END_OF_TRACE if count[WAITING] == 0 else FULL
            if begins:
                break
            if rules.by_makespan:
                reward = -(total[NOW] - before) * rules.inverse_scale
            else:
                reward = -(total[JOB_SECONDS] - total[PAID]) * rules.inverse_scale / count[SIZE]
                total[PAID] = total[JOB_SECONDS]
            out.reward[b] = reward
            total[RETURN] += reward
            if ended == RUNNING:
                break
            finished += 1
            out.truncated[b] = ended == HORIZON
            out.terminated[b] = ended != HORIZON
            close(cards, queue, state, out, b, ended)
            if park:
                out.active[b] = False
                out.mask[b] = False
                out.feasible[b] = 0
                break
            begins = True
    return finished
