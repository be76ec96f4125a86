"""The ending ``wait``: a queue first-in-first-out, departures in a heap, time that jumps from event to event."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sched_env.heap import ITEM, drop_first
from sched_env.heap import TIME as LEAVES
from sched_env.jit import part
from sched_env.vector import Buffers
from sched_env.vm.cluster import advance, ask, describe, enter, forget, release, settle, walk
from sched_env.vm.events import CPU, HALVES, MEM, TIME, Events
from sched_env.vm.state import NOWHERE, Params, State


@part
def _first_fit(S: State, b: int, need: NDArray[np.float64]) -> int:
    for half in range(2 * S.env[b].servers):
        if S.cpu[b, half] >= need[CPU] and S.mem[b, half] >= need[MEM]:
            other = half ^ 1
            if need[HALVES] == 1.0 or (S.cpu[b, other] >= need[CPU] and S.mem[b, other] >= need[MEM]):
                return half
    return NOWHERE


@part
def queue_size(S: State, P: Params, E: Events, out: Buffers, start: int) -> Any:
    """Return how many requests first_fit places from a row before its first misfit; measured once a row."""
    if S.queue_of[start] == 0:
        b = S.env.size - 1
        enter(S, P, E, b, start)
        placed = 0
        while S.env[b].row < S.env[b].stop:
            half = _first_fit(S, b, E.rows[S.env[b].row])
            if half < 0:
                break
            S.where[b, E.slot[S.env[b].row]] = half
            settle(S, P, E, out, b, half, False)
            placed += 1
            walk(S, P, E, out, b, False)
        S.queue_of[start] = placed
    return S.queue_of[start]


@part
def _depart(S: State, P: Params, E: Events, out: Buffers, b: int) -> None:
    """Let the VM that leaves first go, at its time."""
    heap = S.leaving[b]
    row, half = divmod(int(heap[0, ITEM]), S.cpu.shape[1])
    advance(S, b, heap[0, LEAVES])
    release(S, P, b, half, E.rows[row])
    if P.expects:
        forget(S, b, row)
    describe(S, P, out, b, half >> 1)
    drop_first(heap, S.env[b].leaving)
    S.env[b].leaving -= 1


@part
def _queue_up(S: State, E: Events, b: int, now: Any, until: Any) -> Any:
    """Return the seconds that requests of the queue wait in (now, until], counting in those that arrive."""
    seconds = S.env[b].waiting * (until - now)
    while S.env[b].arrived < S.env[b].queue_end and E.rows[S.env[b].arrived, TIME] <= until:
        seconds += until - max(E.rows[S.env[b].arrived, TIME], now)
        S.env[b].waiting += 1
        S.env[b].arrived = E.next_create[S.env[b].arrived + 1]
    return seconds


@part
def wait_for_fit(S: State, P: Params, E: Events, out: Buffers, b: int) -> Any:
    """Bring the next request of the queue to the front and wait until it fits; return the seconds waited by all."""
    now = out.time_s[b]
    until = max(now, E.rows[S.env[b].row, TIME])
    while S.env[b].leaving > 0 and S.leaving[b, 0, LEAVES] <= until:
        _depart(S, P, E, out, b)
    advance(S, b, until)
    while ask(S, E, out, b) == 0 and S.env[b].leaving > 0 and S.leaving[b, 0, LEAVES] < np.inf:
        until = S.leaving[b, 0, LEAVES]
        while S.env[b].leaving > 0 and S.leaving[b, 0, LEAVES] <= until:
            _depart(S, P, E, out, b)
    seconds = _queue_up(S, E, b, now, until)
    out.time_s[b] = until
    out.request[b, 5] = S.env[b].waiting  # those that came meanwhile wait too
    return seconds
