"""What-ifs, compiled: when would jobs end, and when could one start, if another were put on a card.

They work in ``State.draft`` and ``State.ends`` and leave the state as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sched_env.jit import part
from sched_env.jobs import features
from sched_env.jobs.state import (
    CAUTION,
    CORES,
    DATA,
    EPOCHS,
    FINISH,
    GPU_FREE,
    JOBS,
    LEFT,
    MEM,
    MODEL,
    MOST_JOBS,
    NEED_CPU,
    NEED_GPU,
    NEED_MEM,
    NOW,
    ORIGIN,
    PACE,
    ROW,
    RUNS,
    SHAPE,
    SINCE,
    START,
    Cards,
    Queue,
    Rules,
    Runtimes,
    State,
)
from sched_env.jobs.tables import Floats

card_fits = part(features.card_fits)
node_fits = part(features.node_fits)

D_LEFT, D_START, D_KIND, D_RUN, D_PACE, D_END = range(6)
"""Rows of ``State.draft``."""
E_TIME, E_SHAPE, E_HERE = range(3)
"""Columns of ``State.ends``."""


@part
def transfer_s(cards: Cards, queue: Queue, c: int, row: int) -> float:
    """Return the seconds a job's data take to the card's node."""
    return float(queue.rows[row, DATA] * cards.seconds_per_gb[queue.links[row, ORIGIN], cards.node[c]])


@part
def delay_s(cards: Cards, queue: Queue, rules: Rules, c: int, row: int) -> float:
    """Return the seconds from the decision for a card until the job computes there: dispatch, transfer, start-up."""
    return rules.dispatch_s + rules.startup_s + transfer_s(cards, queue, c, row)


@part
def busy_share(cards: Cards, node: Any, cores: float) -> float:
    """Return the share of a node's cores in use when jobs keep so many of them busy."""
    return float(cards.node_cpu_used[node] + cores * cards.share_per_core[node])


@part
def draft(state: State, b: int, c: int) -> int:
    """Copy the card's jobs, as they stand now, into the draft; return how many."""
    n = int(state.kind[b, c, JOBS])
    elapsed = state.total[b, NOW] - state.card[b, c, SINCE]
    for i in range(n):
        left = state.slot[b, c, i, LEFT]
        if state.slot[b, c, i, RUNS] > 0.0:
            left -= elapsed / state.slot[b, c, i, PACE]
        state.draft[D_LEFT, i] = max(left, 0.0)
        state.draft[D_START, i] = state.slot[b, c, i, START]
        state.draft[D_KIND, i] = state.kind[b, c, i]
    return n


@part
def add(state: State, n: int, kind: int, epochs: float, start_s: float) -> int:
    """Add a job to the draft; return how many there are now."""
    state.draft[D_LEFT, n] = epochs
    state.draft[D_START, n] = start_s
    state.draft[D_KIND, n] = kind
    return n + 1


@part
def simulate(work: Floats, seconds: Floats, card_type: int, n: int, now: float) -> float:
    """Run the draft's jobs to their ends, asking for the speed anew whenever one starts or ends.

    Returns:
        The last end; the ends are in row ``D_END``.
    """
    for i in range(3):
        work[D_RUN, i] = 0.0
        if i < n and work[D_START, i] <= now:
            work[D_RUN, i] = work[D_KIND, i]
    time, alive = now, n
    while alive > 0:
        soonest, who = np.inf, -1
        for i in range(n):
            kind = int(work[D_KIND, i])
            if kind == 0:
                continue
            if work[D_RUN, i] > 0.0:
                one, other = int(work[D_RUN, (i + 1) % 3]), int(work[D_RUN, (i + 2) % 3])
                work[D_PACE, i] = seconds[kind - 1, card_type, one, other]
                at = time + work[D_LEFT, i] * work[D_PACE, i]
            else:
                at = work[D_START, i]
            if at < soonest:
                soonest, who = at, i
        if who < 0:  # what is left cannot run together: it never ends
            for i in range(n):
                if work[D_KIND, i] > 0.0:
                    work[D_END, i] = np.inf
            return np.inf
        for i in range(n):
            if work[D_RUN, i] > 0.0:
                work[D_LEFT, i] = max(work[D_LEFT, i] - (soonest - time) / work[D_PACE, i], 0.0)
        time = soonest
        if work[D_RUN, who] > 0.0:
            work[D_END, who] = time
            work[D_KIND, who] = 0.0
            work[D_RUN, who] = 0.0
            alive -= 1
        else:
            work[D_RUN, who] = work[D_KIND, who]
    return time


@part
def completion_s(
    cards: Cards, queue: Queue, runtimes: Runtimes, rules: Rules, state: State, b: int, c: int, row: int
) -> float:
    """Predict when a job would end if it were put on a card now, in seconds from now."""
    now = state.total[b, NOW]
    n = draft(state, b, c)
    kind = queue.links[row, MODEL] + 1
    add(state, n, kind, queue.rows[row, EPOCHS], now + delay_s(cards, queue, rules, c, row))
    simulate(state.draft, runtimes.belief, cards.type[c], n + 1, now)
    return float(state.draft[D_END, n] - now)


@part
def delay_caused_s(state: State, b: int, c: int) -> float:
    """Say by how much the jobs on a card would end later, together, by the what-if that was asked last of this card."""
    later = 0.0
    for i in range(state.kind[b, c, JOBS]):
        later += state.draft[D_END, i] - state.card[b, c, FINISH + i]
    return later


@part
def _enter(ends: Floats, count: int, time: float, shape: int, here: bool) -> None:
    """Insert an end, in order of time."""
    at = count
    while at > 0 and ends[at - 1, E_TIME] > time:
        ends[at, E_TIME], ends[at, E_SHAPE], ends[at, E_HERE] = (
            ends[at - 1, E_TIME],
            ends[at - 1, E_SHAPE],
            ends[at - 1, E_HERE],
        )
        at -= 1
    ends[at, E_TIME], ends[at, E_SHAPE], ends[at, E_HERE] = time, shape, 1.0 if here else 0.0


@part
def earliest_fit(
    cards: Cards,
    queue: Queue,
    runtimes: Runtimes,
    rules: Rules,
    state: State,
    b: int,
    c: int,
    shape: int,
    other_card: int,
    other_row: int,
) -> float:
    """Predict when a job of a shape could start on a card if, first, another went to ``other_card`` of its node.

    Without another (-1) the answer is for the node as it is.
    """
    now = state.total[b, NOW]
    node = cards.node[c]
    gpu_free, jobs = state.card[b, c, GPU_FREE], state.kind[b, c, JOBS]
    cores, mem = state.node[b, node, CORES], state.node[b, node, MEM]
    count = 0
    for k in range(cards.first[node], cards.first[node + 1]):
        n = state.kind[b, k, JOBS]
        if k == other_card:
            draft(state, b, k)
            start_s = now + delay_s(cards, queue, rules, k, other_row)
            added = queue.links[other_row, SHAPE]
            epochs = queue.rows[other_row, EPOCHS] * queue.rows[other_row, CAUTION]
            add(state, n, queue.links[other_row, MODEL] + 1, epochs, start_s)
            simulate(state.draft, runtimes.belief, cards.type[k], n + 1, now)
            _enter(state.ends, count, state.draft[D_END, n], added, k == c)
            count += 1
            if k == c:
                gpu_free -= queue.shapes[added, NEED_GPU]
                jobs += 1
            cores += queue.shapes[added, NEED_CPU]
            mem -= queue.shapes[added, NEED_MEM]
        for i in range(n):
            end = state.draft[D_END, i] if k == other_card else state.card[b, k, FINISH + i]
            _enter(state.ends, count, max(end, now), queue.links[int(state.slot[b, k, i, ROW]), SHAPE], k == c)
            count += 1
    time, most_jobs = now, state.way[b, MOST_JOBS]
    for e in range(count + 1):
        if card_fits(gpu_free, jobs, queue.shapes[shape, NEED_GPU], rules.gpu_mem_margin, most_jobs) and node_fits(
            busy_share(cards, node, cores), mem, queue.shapes[shape, NEED_MEM], rules.cpu_threshold, rules.mem_margin
        ):
            return float(time)
        if e == count:
            break
        time = state.ends[e, E_TIME]
        gone = int(state.ends[e, E_SHAPE])
        if state.ends[e, E_HERE] > 0.0:
            gpu_free += queue.shapes[gone, NEED_GPU]
            jobs -= 1
        cores -= queue.shapes[gone, NEED_CPU]
        mem += queue.shapes[gone, NEED_MEM]
    return np.inf
