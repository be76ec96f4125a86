"""What happens on a card of ``jobs``, compiled: a job comes, starts once its data are there, ends or fails, and leaves.

An event touches one card: the progress since the last event there is settled at the speeds that held, the speeds of
the new set are looked up, and the card's next event follows. A job computes only once its data are there; until then
it holds memory, a slot and cores, but slows nobody down.
"""

from __future__ import annotations

import numpy as np

from sched_env import draws
from sched_env.jit import part
from sched_env.jobs import features
from sched_env.jobs.queueing import join, leave, release, reopen
from sched_env.jobs.runtime import MOST_ON_A_CARD
from sched_env.jobs.state import (
    ARRIVAL,
    ATTEMPTS,
    BEGAN,
    BUSY,
    CARD,
    CARD_SECONDS,
    CORES,
    CUT,
    DATA,
    DEADLINE,
    DONE,
    ENDED,
    EPOCHS,
    FAILED,
    FINISH,
    FINISHED,
    FIRST,
    GPU_FREE,
    HELD,
    HELD_FROM,
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
    OUTSIDE,
    PACE,
    PLACED,
    RETRIES,
    ROW,
    RUNS,
    SHAPE,
    SINCE,
    START,
    USD,
    WAITED,
    Cards,
    Queue,
    Rules,
    Runtimes,
    State,
)
from sched_env.jobs.tables import Floats
from sched_env.jobs.whatif import D_END, delay_s, draft, simulate

LEFT_OVER = 1e-9
"""Share of a job's epochs that rounding may leave at its end."""
HOURS_PER_SECOND = features.HOURS_PER_SECOND


@part
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


@part
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


@part
def late(queue: Queue, state: State, b: int, row: int) -> None:
    """Count a job that leaves now if its deadline has passed."""
    if state.total[b, NOW] - queue.rows[row, ARRIVAL] > queue.rows[row, DEADLINE]:
        state.total[b, LATE] += 1.0


@part
def lose(state: State, b: int, j: int) -> None:
    """Give a job up."""
    state.job[b, j, OUTCOME] = LOST
    state.tally[b, FAILED] += 1
    state.total[b, LATE] += 1.0
    state.total[b, LAST_END] = state.queued_s[b, j] = state.total[b, NOW]


@part
def fail(queue: Queue, rules: Rules, state: State, b: int, j: int) -> None:
    """Count a failed attempt: back in line, or, after the last one, failed for good."""
    state.job[b, j, ATTEMPTS] += 1
    if state.job[b, j, ATTEMPTS] < rules.max_attempts:
        state.tally[b, RETRIES] += 1
        join(queue, state, b, j)
    else:
        lose(state, b, j)


@part
def end(cards: Cards, queue: Queue, rules: Rules, state: State, b: int, c: int, i: int) -> None:
    """End the attempt in a slot: finished, or failed on the way."""
    row = int(state.slot[b, c, i, ROW])
    failed = state.slot[b, c, i, CUT] > 0.0
    vacate(cards, queue, state, b, c, i)
    if row < state.tally[b, FIRST] or state.job[b, row - state.tally[b, FIRST], OUTCOME] == OUTSIDE:
        return  # it was there when the episode began
    if failed:
        fail(queue, rules, state, b, row - state.tally[b, FIRST])
        return
    state.job[b, row - state.tally[b, FIRST], OUTCOME] = DONE
    state.tally[b, FINISHED] += 1
    state.total[b, LAST_END] = state.queued_s[b, row - state.tally[b, FIRST]] = state.total[b, NOW]
    late(queue, state, b, row)


@part
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


@part
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


@part
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


@part
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


@part
def put_back(cards: Cards, queue: Queue, runtimes: Runtimes, state: State, b: int, row: int) -> None:
    """Put a job that ran when the episode begins on its recorded card, with what it then had left to do.

    What the card cannot hold, because the record names its node alone, or which node is down, is left out.
    """
    now, record, links = state.total[b, NOW], queue.record[row], queue.links[row]
    c = int(record[CARD])
    kind, card, node, shape = state.kind[b, c], state.card[b, c], cards.node[c], queue.shapes[links[SHAPE]]
    i = kind[JOBS]
    if i == MOST_ON_A_CARD or card[GPU_FREE] < shape[NEED_GPU] or state.node[b, node, MEM] < shape[NEED_MEM]:
        return
    if runtimes.truth[links[MODEL], cards.type[c], kind[0], kind[1]] == np.inf:
        return
    if i == 0:
        card[HELD_FROM] = now
    kind[i], kind[JOBS] = links[MODEL] + 1, i + 1
    slot = state.slot[b, c, i]
    slot[LEFT] = queue.rows[row, EPOCHS] * (record[ENDED] - now) / (record[ENDED] - record[BEGAN])
    slot[CUT], slot[START], slot[RUNS], slot[ROW] = 0.0, now, 1.0, row
    card[SINCE] = now
    card[GPU_FREE] -= shape[NEED_GPU]
    state.node[b, node, NODE_JOBS] += 1.0
    state.node[b, node, CORES] += shape[NEED_CPU]
    state.node[b, node, MEM] -= shape[NEED_MEM]
    foresee(cards, runtimes, state, b, c)


@part
def wait_until_now(state: State, b: int, j: int) -> float:
    """Count the wait of a job that leaves its line; return it."""
    waited = state.total[b, NOW] - state.queued_s[b, j]
    state.total[b, WAITED] += waited
    state.total[b, LONGEST_WAIT] = max(state.total[b, LONGEST_WAIT], waited)
    return float(waited)


@part
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
    wait_s[b] = wait_until_now(state, b, j)
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
    slot[START] = now + delay_s(cards, queue, rules, c, row)
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
