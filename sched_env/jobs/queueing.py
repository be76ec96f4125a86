"""The waiting jobs and their reservations, compiled.

There is one line for each shape of job, so that what fits nowhere is tried once, not job by job. A line is *open*
while its next job may fit somewhere. It is *full up* when no card can hold its shape, and *refused* when the cards
that could are kept for a reserved job; only a departure, or the end of a reservation, opens it again.
"""

from __future__ import annotations

import numpy as np

from sched_env.jit import part
from sched_env.jobs.state import (
    BEST,
    BLOCKED,
    CORES,
    CURSOR,
    EASY,
    EPOCHS,
    FIRST,
    FOLLOWING,
    FULL_UP,
    GPU_FREE,
    HEAD,
    HELD,
    HELD_CARD,
    HELD_JOB,
    HOLDS,
    JOBS,
    LEAST_ATTAINED,
    MEM,
    MOST_JOBS,
    NEED_GPU,
    NEED_MEM,
    NO_RESERVATION,
    NONE,
    NOW,
    OFFERED,
    OPEN,
    ORDER,
    PROMISE,
    REFUSED,
    RESERVATION,
    SHAPE,
    SHORTEST,
    TAIL,
    WAITING,
    Cards,
    Queue,
    Rules,
    Runtimes,
    State,
)
from sched_env.jobs.tables import Bools
from sched_env.jobs.whatif import busy_share, card_fits, delay_s, earliest_fit, node_fits

PUNCTUAL_S = 1e-6
"""A predicted start this much after the promise is on time: sums of times round."""


@part
def rank(queue: Queue, state: State, b: int, j: int) -> float:
    """Return a job's place within its line: smaller is earlier."""
    if state.way[b, ORDER] == SHORTEST:
        return float(queue.rows[state.tally[b, FIRST] + j, BEST])
    return float(j)


@part
def insert(queue: Queue, state: State, b: int, q: int, j: int) -> bool:
    """Enter a job into its line where its rank belongs; return whether that is at the end."""
    line, jobs = state.line[b, q], state.job[b]
    own = rank(queue, state, b, j)
    if line[HEAD] == NONE:
        jobs[j, FOLLOWING] = NONE
        line[HEAD] = line[TAIL] = j
        return True
    if rank(queue, state, b, line[TAIL]) <= own:
        jobs[line[TAIL], FOLLOWING] = j
        jobs[j, FOLLOWING] = NONE
        line[TAIL] = j
        return True
    before, at = NONE, line[HEAD]
    while rank(queue, state, b, at) <= own:
        before, at = at, jobs[at, FOLLOWING]
    jobs[j, FOLLOWING] = at
    if before == NONE:
        line[HEAD] = j
    else:
        jobs[before, FOLLOWING] = j
    return False


@part
def rearrange(queue: Queue, state: State, b: int) -> None:
    """Bring the lines into the order that now holds, end every reservation and try all jobs anew."""
    for node in range(state.hold.shape[1]):
        state.hold[b, node, HELD_CARD] = state.hold[b, node, HELD_JOB] = NONE
    state.tally[b, HELD] = 0
    for q in range(state.line.shape[1]):
        line = state.line[b, q]
        line[HOLDS] = NONE
        j = line[HEAD]
        line[HEAD] = NONE
        while j != NONE:
            after = state.job[b, j, FOLLOWING]
            insert(queue, state, b, q, j)
            j = after
        line[CURSOR], line[BLOCKED] = line[HEAD], OPEN


@part
def join(queue: Queue, state: State, b: int, j: int) -> None:
    """Put a job in line, by its rank."""
    q = queue.links[state.tally[b, FIRST] + j, SHAPE]
    line = state.line[b, q]
    state.tally[b, WAITING] += 1
    state.queued_s[b, j] = state.total[b, NOW]
    if line[HEAD] == NONE:
        line[CURSOR], line[BLOCKED] = NONE, OPEN
    if not insert(queue, state, b, q, j):
        line[CURSOR] = line[HEAD]
    elif line[CURSOR] == NONE:
        line[CURSOR] = j
    if line[BLOCKED] == REFUSED:
        line[BLOCKED] = OPEN


@part
def leave(queue: Queue, state: State, b: int, j: int) -> None:
    """Take a job out of its line."""
    q = queue.links[state.tally[b, FIRST] + j, SHAPE]
    line, jobs = state.line[b, q], state.job[b]
    state.tally[b, WAITING] -= 1
    before, at = NONE, line[HEAD]
    while at != j:
        before, at = at, jobs[at, FOLLOWING]
    after = jobs[j, FOLLOWING]
    if before == NONE:
        line[HEAD] = after
    else:
        jobs[before, FOLLOWING] = after
    if line[TAIL] == j:
        line[TAIL] = before
    if line[CURSOR] == j:
        line[CURSOR] = after
        if after == NONE and line[BLOCKED] == OPEN:
            line[BLOCKED] = REFUSED  # whoever is left has been refused; an empty line opens when someone joins


@part
def node_takes(cards: Cards, queue: Queue, rules: Rules, state: State, b: int, node: int, q: int) -> bool:
    """Say whether a node can take a job of a shape now, whatever its cards say."""
    cpu, mem = busy_share(cards, node, state.node[b, node, CORES]), state.node[b, node, MEM]
    return bool(node_fits(cpu, mem, queue.shapes[q, NEED_MEM], rules.cpu_threshold, rules.mem_margin))


@part
def card_takes(
    cards: Cards, queue: Queue, runtimes: Runtimes, rules: Rules, state: State, b: int, c: int, q: int
) -> bool:
    """Say whether a card can take a job of a shape now, reservations and its node aside."""
    free = cards.mem[c] if rules.total_memory else state.card[b, c, GPU_FREE]
    kind = state.kind[b, c]
    runs = runtimes.belief[queue.shape_model[q], cards.type[c], kind[0], kind[1]] < np.inf
    fits = card_fits(free, kind[JOBS], queue.shapes[q, NEED_GPU], rules.gpu_mem_margin, state.way[b, MOST_JOBS])
    return bool(fits & runs)


@part
def reopen(cards: Cards, queue: Queue, runtimes: Runtimes, rules: Rules, state: State, b: int, node: int) -> None:
    """After a departure, open the lines whose shape the node can now take."""
    for q in range(state.line.shape[1]):
        line = state.line[b, q]
        if line[HEAD] == NONE or line[BLOCKED] == OPEN:
            continue
        if not node_takes(cards, queue, rules, state, b, node, q):
            continue
        for c in range(cards.first[node], cards.first[node + 1]):
            if card_takes(cards, queue, runtimes, rules, state, b, c, q):
                line[BLOCKED], line[CURSOR] = OPEN, line[HEAD]
                break


@part
def release(queue: Queue, state: State, b: int, j: int) -> None:
    """End the reservation of a job, if it has one."""
    line = state.line[b, queue.links[state.tally[b, FIRST] + j, SHAPE]]
    node = line[HOLDS]
    if node == NONE or state.hold[b, node, HELD_JOB] != j:
        return
    state.hold[b, node, HELD_CARD] = state.hold[b, node, HELD_JOB] = NONE
    line[HOLDS] = NONE
    state.tally[b, HELD] -= 1
    for q in range(state.line.shape[1]):
        other = state.line[b, q]
        if other[BLOCKED] == REFUSED and other[HEAD] != NONE:
            other[BLOCKED], other[CURSOR] = OPEN, other[HEAD]


@part
def reserve(cards: Cards, queue: Queue, runtimes: Runtimes, rules: Rules, state: State, b: int, q: int, j: int) -> None:
    """Reserve a card for a job: where it can start first (easy), or end first (big); one reservation a node."""
    row = state.tally[b, FIRST] + j
    now = state.total[b, NOW]
    best, chosen, promise = np.inf, NONE, np.inf
    for c in range(cards.type.size):
        if state.hold[b, cards.node[c], HELD_CARD] != NONE:
            continue
        alone = runtimes.belief[queue.shape_model[q], cards.type[c], 0, 0]
        if cards.mem[c] - rules.gpu_mem_margin < queue.shapes[q, NEED_GPU] or alone == np.inf:
            continue
        start = earliest_fit(cards, queue, runtimes, rules, state, b, c, q, NONE, NONE)
        value = start - now + delay_s(cards, queue, rules, c, row) + alone * queue.rows[row, EPOCHS]
        if state.way[b, RESERVATION] == EASY:
            value = start - now
        if value < best:
            best, chosen, promise = value, c, start
    if chosen != NONE:
        node = cards.node[chosen]
        state.hold[b, node, HELD_CARD], state.hold[b, node, HELD_JOB] = chosen, j
        state.node[b, node, PROMISE] = promise
        state.line[b, q, HOLDS] = node
        state.tally[b, HELD] += 1


@part
def reserve_where_due(cards: Cards, queue: Queue, runtimes: Runtimes, rules: Rules, state: State, b: int) -> None:
    """Reserve for those that fit nowhere: with easy the first job of the queue, with big the first of each big line."""
    first, first_rank = NONE, np.inf
    for q in range(state.line.shape[1]):
        line = state.line[b, q]
        if line[HEAD] == NONE:
            continue
        if state.way[b, RESERVATION] == EASY:
            own = rank(queue, state, b, line[HEAD])
            if own < first_rank:
                first, first_rank = q, own
        elif line[BLOCKED] != OPEN and line[HOLDS] == NONE and queue.shapes[q, NEED_GPU] >= rules.big_gpu_mem:
            reserve(cards, queue, runtimes, rules, state, b, q, line[HEAD])
    if first != NONE and state.tally[b, HELD] == 0 and state.line[b, first, BLOCKED] != OPEN:
        reserve(cards, queue, runtimes, rules, state, b, first, state.line[b, first, HEAD])


@part
def delays(
    cards: Cards, queue: Queue, runtimes: Runtimes, rules: Rules, state: State, b: int, c: int, row: int
) -> bool:
    """Say whether a placement would make the job reserved on the card's node start later than promised."""
    node = cards.node[c]
    held, j = state.hold[b, node, HELD_CARD], state.hold[b, node, HELD_JOB]
    first = state.tally[b, FIRST]
    if held == NONE or first + j == row:
        return False
    q = queue.links[first + j, SHAPE]
    due = max(state.node[b, node, PROMISE], earliest_fit(cards, queue, runtimes, rules, state, b, held, q, NONE, NONE))
    return bool(earliest_fit(cards, queue, runtimes, rules, state, b, held, q, c, row) > due + PUNCTUAL_S)


@part
def mark(
    cards: Cards, queue: Queue, runtimes: Runtimes, rules: Rules, state: State, mask: Bools, b: int, row: int, at: int
) -> tuple[int, int]:
    """Write the mask of a job, from candidate ``at`` on.

    Returns:
        How many cards may take it, and how many could but for a reservation.
    """
    q = queue.links[row, SHAPE]
    possible = 0
    gpu_mem, mem, most_jobs = queue.shapes[q, NEED_GPU], queue.shapes[q, NEED_MEM], state.way[b, MOST_JOBS]
    belief = runtimes.belief[queue.shape_model[q]]
    # As node_takes and card_takes, without branches and with unsigned indices: see kernels.observe.
    for index in range(cards.type.size):
        c = np.uint64(index)
        node = np.uint64(cards.node[c])
        free = cards.mem[c] if rules.total_memory else state.card[b, c, GPU_FREE]
        fit = card_fits(free, state.kind[b, c, JOBS], gpu_mem, rules.gpu_mem_margin, most_jobs)
        cpu = busy_share(cards, node, state.node[b, node, CORES])
        fit &= node_fits(cpu, state.node[b, node, MEM], mem, rules.cpu_threshold, rules.mem_margin)
        one, other = np.uint64(state.kind[b, c, 0]), np.uint64(state.kind[b, c, 1])
        fit &= belief[np.uint64(cards.type[c]), one, other] < np.inf
        mask[b, at + index] = fit
        possible += fit
    allowed = possible
    if state.tally[b, HELD] > 0:
        for index in range(cards.type.size):
            if mask[b, at + index] and delays(cards, queue, runtimes, rules, state, b, index, row):
                mask[b, at + index] = False
                allowed -= 1
    return allowed, possible


@part
def offer_reserved(
    cards: Cards, queue: Queue, runtimes: Runtimes, rules: Rules, state: State, mask: Bools, b: int
) -> int:
    """Offer a job whose reserved card can take it now, if there is one; return how many cards can take it."""
    for q in range(state.line.shape[1]):
        node = state.line[b, q, HOLDS]
        if node == NONE or not node_takes(cards, queue, rules, state, b, node, q):
            continue
        if not card_takes(cards, queue, runtimes, rules, state, b, state.hold[b, node, HELD_CARD], q):
            continue
        row = state.tally[b, FIRST] + state.hold[b, node, HELD_JOB]
        allowed, _ = mark(cards, queue, runtimes, rules, state, mask, b, row, 0)
        if allowed > 0:
            state.tally[b, OFFERED] = row
            return allowed
    return 0


@part
def turn(queue: Queue, state: State, b: int, q: int, j: int) -> float:
    """Return a job's place among those of all lines: smaller is earlier."""
    if state.way[b, ORDER] == LEAST_ATTAINED:
        return float(state.service[b, queue.shape_model[q]])
    return rank(queue, state, b, j)


@part
def offer(cards: Cards, queue: Queue, runtimes: Runtimes, rules: Rules, state: State, mask: Bools, b: int) -> int:
    """Find the job to be placed next and write its mask; return how many cards can take it, 0 when no job fits."""
    first = state.tally[b, FIRST]
    lines = state.line.shape[1]
    if state.tally[b, WAITING] == 0:
        return 0
    if state.tally[b, HELD] > 0:
        allowed = offer_reserved(cards, queue, runtimes, rules, state, mask, b)
        if allowed > 0:
            return allowed
    while True:
        if state.way[b, RESERVATION] != NO_RESERVATION:
            reserve_where_due(cards, queue, runtimes, rules, state, b)
        chosen, best = NONE, np.inf
        for q in range(lines):
            line = state.line[b, q]
            if line[HEAD] == NONE or line[BLOCKED] != OPEN:
                continue
            own = turn(queue, state, b, q, line[CURSOR])
            if own < best:
                chosen, best = q, own
        if chosen == NONE:
            return 0
        line = state.line[b, chosen]
        row = first + line[CURSOR]
        allowed, possible = mark(cards, queue, runtimes, rules, state, mask, b, row, 0)
        if allowed > 0:
            state.tally[b, OFFERED] = row
            return allowed
        if possible > 0:
            line[CURSOR] = state.job[b, line[CURSOR], FOLLOWING]
            if line[CURSOR] == NONE:
                line[BLOCKED] = REFUSED
        else:
            line[BLOCKED] = FULL_UP
