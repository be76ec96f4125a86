"""What a policy is shown of ``jobs``, compiled: the offered job on every card, or several jobs, each on every card.

Where pairs of a job and a card are chosen, the first job shown is the one that the queue offers, with its very mask: a
heuristic that takes the queue's word for the job does the same in both views. The others follow in the queue's order,
those that fit nowhere left out. The last candidate is to wait for the next event, if there will be one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sched_env.jit import part
from sched_env.jobs import features, pairs
from sched_env.jobs.pairs import CARD_COLUMNS
from sched_env.jobs.queueing import mark, turn
from sched_env.jobs.state import (
    ARRIVAL,
    ATTEMPTS,
    BEST,
    BLOCKED,
    BUSY,
    CORES,
    CURSOR,
    DATA,
    DEADLINE,
    EPOCHS,
    FINISH,
    FIRST,
    FOLLOWING,
    GPU_FREE,
    HEAD,
    HELD_CARD,
    HELD_JOB,
    HOLDS,
    JOBS,
    LOOK,
    MEM,
    MODEL,
    NEED_CPU,
    NEED_GPU,
    NEED_MEM,
    NONE,
    NOW,
    OFFERED,
    OPEN,
    ORIGIN,
    SHAPE,
    WAITING,
    Cards,
    Queue,
    Rules,
    Runtimes,
    State,
)
from sched_env.jobs.whatif import busy_share, completion_s, delay_caused_s
from sched_env.vector import Buffers

estimate = part(features.estimate)
cost = part(features.cost)
told_s = part(pairs.told_s)


@part
def describe(
    cards: Cards,
    queue: Queue,
    runtimes: Runtimes,
    rules: Rules,
    state: State,
    candidates: Any,
    b: int,
    row: int,
    at: int,
    told: bool,
) -> None:
    """Write what each card would be to a job, from candidate ``at`` on; memory and price are written from outside.

    Times are written as pairs are told them where ``told``.
    """
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
        c, k = np.uint64(index), np.uint64(at + index)
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
        candidates[b, k, 2] = (cards.mem[c] if rules.total_memory else state.card[b, c, GPU_FREE]) - gpu_mem
        candidates[b, k, 3] = n
        candidates[b, k, 4] = busy_share(cards, node, state.node[b, node, CORES])
        candidates[b, k, 5] = state.node[b, node, MEM] - mem
        harm_s = harm_s if n < 3 else 0.0
        candidates[b, k, 6] = told_s(moving_s) if told else moving_s
        candidates[b, k, 7] = told_s(alone_s) if told else alone_s
        candidates[b, k, 8] = told_s(shared_s) if told else shared_s
        candidates[b, k, 9] = told_s(busy_s) if told else busy_s
        candidates[b, k, 10] = told_s(total_s) if told else total_s
        candidates[b, k, 11] = told_s(harm_s) if told else harm_s
        candidates[b, k, 12] = cost(cards.usd_per_hour[c], busy_s, total_s, gb * cards.usd_per_gb[origin, node])
        candidates[b, k, 13] = 1.0 if state.hold[b, node, HELD_CARD] == index else 0.0


@part
def reserves(queue: Queue, state: State, b: int, row: int) -> float:
    """Say whether a job holds a reservation."""
    holds = state.line[b, queue.links[row, SHAPE], HOLDS]
    return 1.0 if holds != NONE and state.hold[b, holds, HELD_JOB] == row - state.tally[b, FIRST] else 0.0


@part
def observe(
    cards: Cards, queue: Queue, runtimes: Runtimes, rules: Rules, state: State, candidates: Any, wanted: Any, b: int
) -> None:
    """Write the observation of the offered job."""
    row, now = state.tally[b, OFFERED], state.total[b, NOW]
    describe(cards, queue, runtimes, rules, state, candidates, b, row, 0, False)
    q, request = queue.links[row, SHAPE], wanted[b]
    request[0], request[1], request[2] = queue.shapes[q, NEED_GPU], queue.shapes[q, NEED_MEM], queue.shapes[q, NEED_CPU]
    request[3], request[4] = queue.rows[row, DATA], queue.rows[row, BEST]
    request[5] = now - queue.rows[row, ARRIVAL]
    request[6] = queue.rows[row, ARRIVAL] + queue.rows[row, DEADLINE] - now
    request[7], request[8] = state.tally[b, WAITING], state.job[b, row - state.tally[b, FIRST], ATTEMPTS]
    request[9] = reserves(queue, state, b, row)


@part
def show(arguments: Any, out: Buffers, b: int) -> int:
    """Choose the jobs to be shown beside the offered one; write masks and observations of all, and whether to wait.

    Returns:
        How many candidates there are beside those of the offered job.
    """
    cards, queue, runtimes, rules, state = arguments
    C, first, offered = cards.type.size, state.tally[b, FIRST], state.tally[b, OFFERED]
    state.shown[b] = NONE
    state.shown[b, 0] = offered
    for q in range(state.line.shape[1]):
        line = state.line[b, q]
        line[LOOK] = line[CURSOR] if line[HEAD] != NONE and line[BLOCKED] == OPEN else NONE
    count, feasible = 1, 0
    while count < rules.pairs:
        chosen, best = NONE, np.inf
        for q in range(state.line.shape[1]):
            if state.line[b, q, LOOK] != NONE:
                own = turn(queue, state, b, q, state.line[b, q, LOOK])
                if own < best:
                    chosen, best = q, own
        if chosen == NONE:
            break
        j = state.line[b, chosen, LOOK]
        state.line[b, chosen, LOOK] = state.job[b, j, FOLLOWING]
        if first + j == offered:
            continue
        allowed, possible = mark(cards, queue, runtimes, rules, state, out.mask, b, first + j, count * C)
        if allowed > 0:
            state.shown[b, count] = first + j
            feasible += allowed
            count += 1
        elif possible == 0:  # nor will others of its shape fit
            state.line[b, chosen, LOOK] = NONE
    out.mask[b, count * C :] = False
    out.candidates[b, count * C :, 2:] = np.float32(0.0)
    for slot in range(count):
        row = state.shown[b, slot]
        describe(cards, queue, runtimes, rules, state, out.candidates, b, row, slot * C, True)
        _describe_job(queue, state, out.candidates[b, slot * C : (slot + 1) * C, CARD_COLUMNS:], b, row, slot)
        for c in range(C):
            what_if = out.candidates[b, slot * C + c, CARD_COLUMNS + 11 :]
            what_if[0] = what_if[1] = np.float32(0.0)
            if out.mask[b, slot * C + c]:
                what_if[0] = told_s(completion_s(cards, queue, runtimes, rules, state, b, c, row))
                what_if[1] = told_s(delay_caused_s(state, b, c))
    waits = rules.pairs * C
    out.candidates[b, waits, CARD_COLUMNS + 10] = np.float32(1.0)
    if something_ahead(state, b):
        out.mask[b, waits] = True
        feasible += 1
    _describe_queue(cards, state, out.request[b], b, count)
    return int(feasible)


@part
def _describe_job(queue: Queue, state: State, columns: Any, b: int, row: int, slot: int) -> None:
    """Write what a job is, in all of its candidates."""
    now, q = state.total[b, NOW], queue.links[row, SHAPE]
    held = reserves(queue, state, b, row)
    for c in range(columns.shape[0]):
        job = columns[c]
        job[0], job[1], job[2] = queue.shapes[q, NEED_GPU], queue.shapes[q, NEED_MEM], queue.shapes[q, NEED_CPU]
        job[3], job[4] = queue.rows[row, DATA], told_s(queue.rows[row, BEST])
        job[5] = told_s(now - queue.rows[row, ARRIVAL])
        job[6] = queue.rows[row, ARRIVAL] + queue.rows[row, DEADLINE] - now
        job[7], job[8], job[9] = state.job[b, row - state.tally[b, FIRST], ATTEMPTS], held, slot
        job[10] = 0.0


@part
def _describe_queue(cards: Cards, state: State, request: Any, b: int, count: int) -> None:
    """Write what is the same for all candidates."""
    idle, soonest = 0, np.inf
    for c in range(cards.type.size):
        jobs = state.kind[b, c, JOBS]
        idle += jobs == 0
        for i in range(jobs):
            soonest = min(soonest, state.card[b, c, FINISH + i])
    request[0], request[1], request[2] = state.tally[b, WAITING], count, idle
    request[3] = told_s(max(soonest - state.total[b, NOW], 0.0)) if soonest < np.inf else 0.0


@part
def something_ahead(state: State, b: int) -> bool:
    """Say whether a start or an end will come if nothing more is placed.

    Submissions do not count, for nobody knows of them, and idle cards must not wait for users to give up.
    """
    soonest = np.inf
    for c in range(state.next_s.shape[1]):
        soonest = min(soonest, state.next_s[b, c])
    return bool(soonest < np.inf)
