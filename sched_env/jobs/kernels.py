"""The dynamics of ``jobs``, compiled: placements, transfers, shared cards, failures and observations.

Time moves from event to event: a submission, the end of a transfer, the end of an attempt. An event touches one card:
the progress since the last event there is settled at the speeds that held, the speeds of the new set are looked up,
and the card's next event follows. A job computes only once its data are there; until then it holds memory, a slot and
cores, but slows nobody down.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sched_env import draws
from sched_env.features import jobs as features
from sched_env.jit import called, inline, lean_kernel
from sched_env.jobs.lines import join, leave, offer, release, reopen
from sched_env.jobs.state import (
    ARRIVAL,
    ARRIVED,
    ATTEMPTS,
    BEST,
    BUSY,
    CARD_SECONDS,
    CORES,
    CUT,
    DATA,
    DEADLINE,
    DONE,
    EPOCHS,
    FAILED,
    FINISH,
    FINISHED,
    FIRST,
    GPU_FREE,
    HEAD,
    HELD,
    HELD_CARD,
    HELD_FROM,
    HELD_JOB,
    HOLDS,
    JOB_SECONDS,
    JOBS,
    LAST_CARD,
    LAST_END,
    LATE,
    LEFT,
    LONGEST_WAIT,
    LOST,
    MEM,
    MODEL,
    MOVED_GB,
    NEED_CPU,
    NEED_GPU,
    NEED_MEM,
    NEXT_SLOT,
    NODE_JOBS,
    NONE,
    NOW,
    OFFERED,
    OOM,
    ORIGIN,
    OUTCOME,
    PACE,
    PAID,
    PLACED,
    POSSIBLE,
    RETRIES,
    RETURN,
    ROW,
    RUNS,
    SHAPE,
    SINCE,
    SIZE,
    START,
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
from sched_env.jobs.whatif import D_END, busy_share, draft, simulate, transfer_s
from sched_env.traces.tables_jobs import Bools, Floats
from sched_env.vector import END_OF_TRACE, FULL, HORIZON, SHEET, Buffers

METRICS = (
    *SHEET,
    "makespan_s",
    "mean_completion_s",
    "mean_wait_s",
    "max_wait_s",
    "oom",
    "failed",
    "retries",
    "moved_gb",
    "card_hours",
)
RUNNING = -1
"""The episode goes on (otherwise a code of ``sched_env.vector.ENDED``)."""
LEFT_OVER = 1e-9
"""Share of a job's epochs that rounding may leave at its end."""

HOURS_PER_SECOND = features.HOURS_PER_SECOND
estimate = inline(features.estimate)
cost = inline(features.cost)


@inline
def settle(state: State, b: int, c: int) -> None:
    """Bring the progress of a card's running jobs up to now."""
    now = state.total[b, NOW]
    elapsed = now - state.card[b, c, SINCE]
    state.card[b, c, SINCE] = now
    if elapsed > 0.0:
        for i in range(state.kind[b, c, JOBS]):
            slot = state.slot[b, c, i]
            if slot[RUNS] > 0.0:
                slot[LEFT] -= elapsed / slot[PACE]


@inline
def vacate(cards: Cards, queue: Queue, state: State, b: int, c: int, i: int) -> None:
    """Give back what the job in a slot held; the last slot moves into its place."""
    now, node = state.total[b, NOW], cards.node[c]
    row = int(state.slot[b, c, i, ROW])
    q = queue.links[row, SHAPE]
    state.service[b, queue.links[row, MODEL]] += max(now - state.slot[b, c, i, START], 0.0)
    kind = state.kind[b, c]
    last = kind[JOBS] - 1
    if i != last:
        kind[i] = kind[last]
        for column in range(state.slot.shape[3]):
            state.slot[b, c, i, column] = state.slot[b, c, last, column]
    kind[last] = 0
    kind[JOBS] = last
    state.slot[b, c, last, RUNS] = 0.0
    card, place = state.card[b, c], state.node[b, node]
    if last > 0:
        card[GPU_FREE] += queue.shapes[q, NEED_GPU]
    else:  # empty is exactly empty: rounding must not pile up
        card[GPU_FREE] = cards.mem[c]
        held = now - card[HELD_FROM]
        state.total[b, CARD_SECONDS] += held
        state.total[b, USD] += held * (cards.usd_per_hour[c] * HOURS_PER_SECOND)
    place[NODE_JOBS] -= 1.0
    if place[NODE_JOBS] > 0.0:
        place[CORES] -= queue.shapes[q, NEED_CPU]
        place[MEM] += queue.shapes[q, NEED_MEM]
    else:
        place[CORES], place[MEM] = 0.0, cards.node_mem[node]


@inline
def lose(state: State, b: int, j: int) -> None:
    """Give a job up."""
    state.job[b, j, OUTCOME] = LOST
    state.tally[b, FAILED] += 1
    state.total[b, LATE] += 1.0
    state.total[b, LAST_END] = state.total[b, NOW]


@called
def fail(queue: Queue, rules: Rules, state: State, b: int, j: int) -> None:
    """Count a failed attempt: back in line, or, after the last one, failed for good."""
    state.job[b, j, ATTEMPTS] += 1
    if state.job[b, j, ATTEMPTS] < rules.max_attempts:
        state.tally[b, RETRIES] += 1
        join(queue, rules, state, b, j)
    else:
        lose(state, b, j)


@inline
def end(cards: Cards, queue: Queue, rules: Rules, state: State, b: int, c: int, i: int) -> None:
    """End the attempt in a slot: finished, or failed on the way."""
    now = state.total[b, NOW]
    row = int(state.slot[b, c, i, ROW])
    failed = state.slot[b, c, i, CUT] > 0.0
    vacate(cards, queue, state, b, c, i)
    if failed:
        fail(queue, rules, state, b, row - state.tally[b, FIRST])
        return
    state.job[b, row - state.tally[b, FIRST], OUTCOME] = DONE
    state.tally[b, FINISHED] += 1
    state.total[b, LAST_END] = now
    if now - queue.rows[row, ARRIVAL] > queue.rows[row, DEADLINE]:
        state.total[b, LATE] += 1.0


@called
def run_out(cards: Cards, queue: Queue, runtimes: Runtimes, rules: Rules, state: State, b: int, c: int, i: int) -> bool:
    """Say whether a job that starts finds too little memory, which only a wrong memory check lets happen; it fails."""
    used = 0.0
    for k in range(state.kind[b, c, JOBS]):
        if state.slot[b, c, k, RUNS] > 0.0:
            used += queue.shapes[queue.links[int(state.slot[b, c, k, ROW]), SHAPE], NEED_GPU]
    if used <= cards.mem[c]:
        return False
    row = int(state.slot[b, c, i, ROW])
    vacate(cards, queue, state, b, c, i)
    state.tally[b, OOM] += 1
    fail(queue, rules, state, b, row - state.tally[b, FIRST])
    reopen(cards, queue, runtimes, rules, state, b, cards.node[c])
    return True


@inline
def start_due(cards: Cards, queue: Queue, runtimes: Runtimes, rules: Rules, state: State, b: int, c: int) -> None:
    """Start the jobs whose data have arrived."""
    now = state.total[b, NOW]
    i = 0
    while i < state.kind[b, c, JOBS]:
        if state.slot[b, c, i, RUNS] == 0.0 and state.slot[b, c, i, START] <= now:
            state.slot[b, c, i, RUNS] = 1.0
            if rules.total_memory and run_out(cards, queue, runtimes, rules, state, b, c, i):
                continue
        i += 1


@inline
def foresee(cards: Cards, runtimes: Runtimes, state: State, b: int, c: int) -> None:
    """Look up the speeds of the card's present set, and from them its next event and the predicted ends."""
    now = state.total[b, NOW]
    kind = state.kind[b, c]
    n = kind[JOBS]
    soonest, which = np.inf, 0
    t = cards.type[c]
    for i in range(n):
        slot = state.slot[b, c, i]
        if slot[RUNS] > 0.0:
            one, other = (i + 1) % 3, (i + 2) % 3
            beside = kind[one] if state.slot[b, c, one, RUNS] > 0.0 else 0
            besides = kind[other] if state.slot[b, c, other, RUNS] > 0.0 else 0
            slot[PACE] = runtimes.truth[kind[i] - 1, t, beside, besides]
            at = now + max(slot[LEFT] - slot[CUT], 0.0) * slot[PACE]
        else:
            at = slot[START]
        if at < soonest:
            soonest, which = at, i
    card = state.card[b, c]
    state.next_s[b, c] = soonest
    card[NEXT_SLOT] = which
    card[BUSY] = now
    if n > 0:
        draft(state, b, c)
        card[BUSY] = simulate(state.draft, runtimes.belief, t, n, now)
        for i in range(n):
            card[FINISH + i] = state.draft[D_END, i]


@inline
def happen(cards: Cards, queue: Queue, runtimes: Runtimes, rules: Rules, state: State, b: int, c: int) -> None:
    """Let the card's next event, which is due now, happen."""
    settle(state, b, c)
    due = int(state.card[b, c, NEXT_SLOT]) if state.slot[b, c, int(state.card[b, c, NEXT_SLOT]), RUNS] > 0.0 else NONE
    left = False
    i = 0
    while i < state.kind[b, c, JOBS]:
        rest = state.slot[b, c, i, LEFT] - state.slot[b, c, i, CUT]
        over = rest <= LEFT_OVER * queue.rows[int(state.slot[b, c, i, ROW]), EPOCHS]
        if i == due or (over and state.slot[b, c, i, RUNS] > 0.0):
            last = state.kind[b, c, JOBS] - 1
            end(cards, queue, rules, state, b, c, i)
            left = True
            due = i if due == last and i != last else (NONE if due == i else due)
        else:
            i += 1
    start_due(cards, queue, runtimes, rules, state, b, c)
    foresee(cards, runtimes, state, b, c)
    if left:
        reopen(cards, queue, runtimes, rules, state, b, cards.node[c])


@inline
def place(
    cards: Cards,
    queue: Queue,
    runtimes: Runtimes,
    rules: Rules,
    state: State,
    wait_s: Floats,
    b: int,
    c: int,
    seed: int,
) -> None:
    """Put the offered job on a feasible card."""
    row = state.tally[b, OFFERED]
    j = row - state.tally[b, FIRST]
    now, node = state.total[b, NOW], cards.node[c]
    q = queue.links[row, SHAPE]
    leave(queue, state, b, j)
    waited = now - state.queued_s[b, j]
    state.total[b, WAITED] += waited
    state.total[b, LONGEST_WAIT] = max(state.total[b, LONGEST_WAIT], waited)
    wait_s[b] = waited
    settle(state, b, c)
    kind, card = state.kind[b, c], state.card[b, c]
    i = kind[JOBS]
    if i == 0:
        card[HELD_FROM] = now
    kind[i] = queue.links[row, MODEL] + 1
    kind[JOBS] = i + 1
    slot = state.slot[b, c, i]
    slot[LEFT] = queue.rows[row, EPOCHS]
    slot[CUT] = 0.0
    if rules.failure_rate > 0.0:
        attempt = state.job[b, j, ATTEMPTS]
        if draws.uniform(seed, row, 2 * attempt) < rules.failure_rate:
            # It will stop somewhere on the way; never so late that it might count as finished.
            slot[CUT] = queue.rows[row, EPOCHS] * (1.0 - 0.999 * draws.uniform(seed, row, 2 * attempt + 1))
    slot[START] = now + transfer_s(cards, queue, c, row)
    slot[RUNS], slot[ROW] = 0.0, row
    card[GPU_FREE] -= queue.shapes[q, NEED_GPU]
    state.node[b, node, NODE_JOBS] += 1.0
    state.node[b, node, CORES] += queue.shapes[q, NEED_CPU]
    state.node[b, node, MEM] -= queue.shapes[q, NEED_MEM]
    gb = queue.rows[row, DATA]
    state.total[b, MOVED_GB] += gb
    state.total[b, USD] += gb * cards.usd_per_gb[queue.links[row, ORIGIN], node]
    state.total[b, PLACED] += 1.0
    state.tally[b, LAST_CARD] = c
    if state.tally[b, HELD] > 0:
        release(queue, state, b, j)
    start_due(cards, queue, runtimes, rules, state, b, c)
    foresee(cards, runtimes, state, b, c)


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
    # No branches, which this mix of empty and shared cards would make unpredictable: an empty card has two co-runners
    # of kind 0, whose pace is that of running alone and whose harm is nothing. Unsigned indices spare numba's check
    # for negative ones. Together that makes the loop 1.6 times faster.
    for index in range(cards.type.size):
        c = np.uint64(index)
        t, node = np.uint64(cards.type[c]), np.uint64(cards.node[c])
        one, other = np.uint64(state.kind[b, c, 0]), np.uint64(state.kind[b, c, 1])
        n = state.kind[b, c, JOBS]
        moving_s = gb * cards.seconds_per_gb[origin, node]
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
        if time == np.inf:
            return 0
        in_system = count[ARRIVED] - count[FINISHED] - count[FAILED]
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
            else:
                lose(state, b, j)


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
    unfinished = count[SIZE] - count[FINISHED] - count[FAILED]
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
    metrics[13] = count[RETRIES]
    metrics[14] = total[MOVED_GB]
    metrics[15] = total[CARD_SECONDS] * (1.0 / 3600.0)
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
    seed: int,
    park: bool,
) -> int:
    """Place, let events happen and, at an episode's end, restart or park; see ``PlacementVectorEnv._step``.

    With ``starts`` (not empty) an episode begins in every environment instead; a start of -1 is drawn. Reset and step
    are one kernel because compiling the dynamics twice would double the wait for the first step.
    """
    B, C = out.mask.shape
    fresh = starts.size > 0
    if not fresh:
        for b in range(B):
            if out.active[b] and not (0 <= actions[b] < C and out.mask[b, actions[b]]):
                return -1 - b
    finished = 0
    for b in range(B):
        out.reward[b] = 0.0
        out.terminated[b] = out.truncated[b] = False
        if not out.active[b]:
            continue
        total, count = state.total[b], state.tally[b]
        before = total[NOW]
        begins = fresh
        if not fresh:
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
