"""The ending ``wait``: a queue first-in-first-out, departures in a heap, time that jumps from event to event."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sched_env.jit import inline
from sched_env.vector import Buffers
from sched_env.vm.cluster import advance, ask, clear, describe, release, settle, walk
from sched_env.vm.events import CPU, HALVES, MEM, TIME, Events
from sched_env.vm.state import NOWHERE, Params, State


@inline
def _first_fit(S: State, b: int, need: NDArray[np.float64]) -> int:
    for half in range(2 * S.env[b].servers):
        if S.cpu[b, half] >= need[CPU] and S.mem[b, half] >= need[MEM]:
            other = half ^ 1
            if need[HALVES] == 1.0 or (S.cpu[b, other] >= need[CPU] and S.mem[b, other] >= need[MEM]):
                return half
    return NOWHERE


@inline
def queue_size(S: State, P: Params, E: Events, out: Buffers, start: int) -> Any:
    """Return how many requests first_fit places from a row before its first misfit; measured once a row."""
    if S.queue_of[start] == 0:
        b = S.env.size - 1
        clear(S, P, b)
        S.env[b].row = start
        S.env[b].clock = E.rows[start, TIME]
        placed = 0
        while S.env[b].row < E.slot.size:
            half = _first_fit(S, b, E.rows[S.env[b].row])
            if half < 0:
                break
            S.where[b, E.slot[S.env[b].row]] = half
            settle(S, P, E, out, b, half, False)
            placed += 1
            walk(S, P, E, out, b, False)
        S.queue_of[start] = placed
    return S.queue_of[start]


@inline
def push(S: State, b: int, time_s: float, row: int, half: int) -> None:
    """Add a departure to the heap."""
    leave, rows, halves = S.leave_s[b], S.leave_row[b], S.leave_half[b]
    at = S.env[b].leaving
    S.env[b].leaving += 1
    while at > 0 and leave[(at - 1) // 2] > time_s:
        up = (at - 1) // 2
        leave[at], rows[at], halves[at] = leave[up], rows[up], halves[up]
        at = up
    leave[at], rows[at], halves[at] = time_s, row, half


@inline
def _depart(S: State, P: Params, E: Events, out: Buffers, b: int) -> None:
    """Let the VM that leaves first go, at its time."""
    leave, rows, halves = S.leave_s[b], S.leave_row[b], S.leave_half[b]
    advance(S, b, leave[0])
    release(S, P, b, halves[0], E.rows[rows[0]])
    describe(S, P, out, b, halves[0] >> 1)
    S.env[b].leaving -= 1
    last = S.env[b].leaving
    time_s, row, half = leave[last], rows[last], halves[last]
    at, down = 0, 1
    while down < last:
        if down + 1 < last and leave[down + 1] < leave[down]:
            down += 1
        if leave[down] >= time_s:
            break
        leave[at], rows[at], halves[at] = leave[down], rows[down], halves[down]
        at = down
        down = 2 * at + 1
    leave[at], rows[at], halves[at] = time_s, row, half


@inline
def _queue_up(S: State, E: Events, b: int, now: Any, until: Any) -> Any:
    """Return the seconds that requests of the queue wait in (now, until], counting in those that arrive."""
    seconds = S.env[b].waiting * (until - now)
    while S.env[b].arrived < S.env[b].queue_end and E.rows[S.env[b].arrived, TIME] <= until:
        seconds += until - max(E.rows[S.env[b].arrived, TIME], now)
        S.env[b].waiting += 1
        S.env[b].arrived = E.next_create[S.env[b].arrived + 1]
    return seconds


@inline
def wait_for_fit(S: State, P: Params, E: Events, out: Buffers, b: int) -> Any:
    """Bring the next request of the queue to the front and wait until it fits; return the seconds waited by all."""
    now = out.time_s[b]
    until = max(now, E.rows[S.env[b].row, TIME])
    while S.env[b].leaving > 0 and S.leave_s[b, 0] <= until:
        _depart(S, P, E, out, b)
    advance(S, b, until)
    while ask(S, E, out, b) == 0 and S.env[b].leaving > 0 and S.leave_s[b, 0] < np.inf:
        until = S.leave_s[b, 0]
        while S.env[b].leaving > 0 and S.leave_s[b, 0] <= until:
            _depart(S, P, E, out, b)
    seconds = _queue_up(S, E, b, now, until)
    out.time_s[b] = until
    return seconds
