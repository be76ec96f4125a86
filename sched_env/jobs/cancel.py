"""Cancellations of ``jobs``, compiled: a user withdraws a job, wherever it is, and what it held is free.

Jobs that will be withdrawn are expected from their submission on, in a heap by time. One that ends before is dropped
when it comes to the top, so ends need not look for it there.
"""

from __future__ import annotations

import numpy as np

from sched_env.heap import ITEM, TIME, drop_first, push
from sched_env.jit import part
from sched_env.jobs.execution import foresee, late, settle, vacate, wait_until_now
from sched_env.jobs.queueing import leave, release, reopen
from sched_env.jobs.state import (
    CANCEL,
    CANCELLED,
    DATA,
    EXPECTED,
    FIRST,
    HELD,
    JOBS,
    LAST_END,
    MOVED_GB,
    NEXT_CANCEL,
    NONE,
    NOW,
    ORIGIN,
    OUTCOME,
    ROW,
    START,
    UNDECIDED,
    USD,
    WITHDRAWN,
    Cards,
    Queue,
    Rules,
    Runtimes,
    State,
)
from sched_env.jobs.whatif import transfer_s


@part
def expect(queue: Queue, state: State, b: int, j: int) -> None:
    """Add a job that has been submitted to those that will be withdrawn."""
    push(state.expected[b], state.tally[b, EXPECTED], queue.rows[state.tally[b, FIRST] + j, CANCEL], float(j))
    state.tally[b, EXPECTED] += 1
    state.total[b, NEXT_CANCEL] = state.expected[b, 0, TIME]


@part
def next_cancel_s(state: State, b: int) -> float:
    """Return when the next job that has not ended will be withdrawn; infinite: none will."""
    heap = state.expected[b]
    while state.tally[b, EXPECTED] > 0 and state.job[b, int(heap[0, ITEM]), OUTCOME] != UNDECIDED:
        drop_first(heap, state.tally[b, EXPECTED])
        state.tally[b, EXPECTED] -= 1
        state.total[b, NEXT_CANCEL] = heap[0, TIME] if state.tally[b, EXPECTED] > 0 else np.inf
    return float(state.total[b, NEXT_CANCEL])


@part
def withdraw_due(cards: Cards, queue: Queue, runtimes: Runtimes, rules: Rules, state: State, b: int) -> None:
    """Withdraw the jobs whose time has come."""
    while next_cancel_s(state, b) <= state.total[b, NOW]:
        withdraw(cards, queue, runtimes, rules, state, b, int(state.expected[b, 0, ITEM]))


@part
def withdraw(cards: Cards, queue: Queue, runtimes: Runtimes, rules: Rules, state: State, b: int, j: int) -> None:
    """Withdraw a job that has been submitted and has not ended."""
    row = state.tally[b, FIRST] + j
    c, i = _whereabouts(state, b, row)
    if c == NONE:
        leave(queue, state, b, j)
        wait_until_now(state, b, j)
        if state.tally[b, HELD] > 0:
            release(queue, state, b, j)
    else:
        _stop_transfer(cards, queue, rules, state, b, c, i)
        settle(state, b, c)
        vacate(cards, queue, state, b, c, i)
        foresee(cards, runtimes, state, b, c)
        reopen(cards, queue, runtimes, rules, state, b, cards.node[c])
    state.job[b, j, OUTCOME] = WITHDRAWN
    state.tally[b, CANCELLED] += 1
    late(queue, state, b, row)
    state.total[b, LAST_END] = state.queued_s[b, j] = state.total[b, NOW]


@part
def _whereabouts(state: State, b: int, row: int) -> tuple[int, int]:
    """Return the card and slot of a job; -1: it waits."""
    for c in range(state.kind.shape[1]):
        for i in range(state.kind[b, c, JOBS]):
            if state.slot[b, c, i, ROW] == row:
                return c, i
    return NONE, NONE


@part
def _stop_transfer(cards: Cards, queue: Queue, rules: Rules, state: State, b: int, c: int, i: int) -> None:
    """Take off the bill what has not come over the link yet."""
    row = int(state.slot[b, c, i, ROW])
    until_there = state.slot[b, c, i, START] - rules.startup_s - state.total[b, NOW]
    if until_there > 0.0:
        whole = transfer_s(cards, queue, c, row)
        gb = queue.rows[row, DATA] * (until_there / whole if until_there < whole else 1.0)
        state.total[b, MOVED_GB] -= gb
        state.total[b, USD] -= gb * cards.usd_per_gb[queue.links[row, ORIGIN], cards.node[c]]
