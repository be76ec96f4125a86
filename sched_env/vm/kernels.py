"""The dynamics of ``vm``, compiled: B environments a call, arrays instead of objects, rows rewritten when touched.

The outer loop is its own, not that of ``sched_env.stepping``: at 5 servers a step takes 0.1 µs, and the shared loop,
which has the arguments in one tuple, made it a tenth slower.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sched_env.draws import below
from sched_env.jit import lean_kernel, part
from sched_env.stepping import keep_final, rest
from sched_env.vector import END_OF_TRACE, FULL, HORIZON, SHEET, Buffers
from sched_env.vm.cluster import ask, describe, enter, enter_departure, foresee, grow_older, settle, walk
from sched_env.vm.events import CPU, HALVES, TIME, Events
from sched_env.vm.state import REWARD_ONE, REWARD_WAIT, Params, State
from sched_env.vm.waiting import queue_size, wait_for_fit

METRICS = (*SHEET, "placed_cpu", "cpu_rate", "mem_rate", "servers", "end_row")


@part
def begin(S: State, P: Params, E: Events, out: Buffers, b: int, start: Any, seed: int) -> None:
    """Start an episode at the first placeable creation at or after ``start``; -1 draws it."""
    if start < 0:
        start = P.start_min + below(P.start_max - P.start_min, seed, out.stream[b], out.episode[b])
    out.episode[b] += 1
    out.start[b] = start
    row = E.next_start[start]
    enter(S, P, E, b, row)
    out.time_s[b] = S.env[b].clock
    if P.waits:
        wanted = queue_size(S, P, E, out, row) + P.queue_extra
        end, size = row, 0
        while size < wanted and end < S.env[b].stop:
            size += 1
            end = E.next_create[end + 1]
        S.env[b].queue_size = size
        S.env[b].queue_end = min(end, S.env[b].stop)
        S.env[b].arrived = E.next_create[row + 1]
        S.env[b].waiting = 1
    out.candidates[b, :, :] = np.float32(0.0)
    out.mask[b, :] = False
    for server in range(S.env[b].servers):
        describe(S, P, out, b, server)
    S.env[b].shown = S.env[b].clock
    if P.expects:
        foresee(S, E, out, b)
    ask(S, E, out, b)


@part
def _record(S: State, P: Params, out: Buffers, b: int, ended: int) -> None:
    """Write the metrics of an episode that is over; columns as ``METRICS``."""
    never = 0
    if ended == FULL:
        never = S.env[b].queue_size - S.env[b].steps if P.waits else 1
    requests = S.env[b].steps + never
    metrics = out.metrics[b]
    metrics[0] = S.env[b].total
    metrics[1] = S.env[b].steps
    metrics[2] = S.env[b].steps
    metrics[3] = requests
    metrics[4] = (S.env[b].late + never) / max(requests, 1)
    metrics[5] = S.env[b].busy_s * P.price_usd_per_s
    metrics[6] = S.env[b].waited
    metrics[7] = S.env[b].placed_cpu
    width = 2 * S.env[b].servers
    cpu, mem = 0.0, 0.0
    for half in range(width):
        cpu += P.half_cpu - S.cpu[b, half]
        mem += P.half_mem - S.mem[b, half]
    metrics[8] = cpu / (P.half_cpu * width)
    metrics[9] = mem / (P.half_mem * width)
    metrics[10] = S.env[b].servers
    metrics[11] = S.env[b].row
    out.ended[b] = ended
    out.terminated[b] = ended == FULL or (P.waits and ended == HORIZON and S.env[b].row >= S.env[b].queue_end)
    out.truncated[b] = not out.terminated[b]


@part
def _step_one(S: State, P: Params, E: Events, out: Buffers, b: int, half: int) -> int:
    """Place one environment's request and go to its next decision; return how the episode ended, or -1."""
    row = S.env[b].row
    need = E.rows[row]
    cpu = need[CPU] * need[HALVES]
    S.where[b, E.slot[row]] = half
    settle(S, P, E, out, b, half, True)
    S.env[b].steps += 1
    S.env[b].placed_cpu += cpu
    reward = 1.0 if P.reward == REWARD_ONE else cpu
    ended = -1
    if P.waits:
        now = out.time_s[b]
        out.wait_s[b] = now - need[TIME]
        S.env[b].late += out.wait_s[b] > P.sla_wait_s
        S.env[b].waiting -= 1
        enter_departure(S, b, now + E.life_s[row], row, half)
        S.env[b].row = E.next_create[row + 1]
        seconds = 0.0
        if S.env[b].row < S.env[b].queue_end:
            seconds = wait_for_fit(S, P, E, out, b)
            if out.feasible[b] == 0:
                ended = FULL
        else:
            ended = END_OF_TRACE if S.env[b].queue_end >= S.env[b].stop else HORIZON
        S.env[b].waited += seconds
        if P.reward == REWARD_WAIT:
            reward = -seconds
    else:
        walk(S, P, E, out, b, True)
        if S.env[b].row >= S.env[b].stop:
            ended = END_OF_TRACE
        else:
            out.time_s[b] = S.env[b].clock
            if ask(S, E, out, b) == 0:
                ended = FULL
        if P.reward == REWARD_WAIT:
            reward = 0.0
    grow_older(S, out, b)
    if P.expects:
        foresee(S, E, out, b)
    if ended < 0 and P.horizon > 0 and S.env[b].steps >= P.horizon:
        ended = HORIZON
    out.reward[b] = reward
    S.env[b].total += reward
    return ended


@part
def _finish(S: State, P: Params, out: Buffers, b: int, ended: int) -> None:
    """Keep the last observation and the metrics of an episode that is over."""
    if S.env[b].row >= S.env[b].stop or (P.waits and S.env[b].row >= S.env[b].queue_end):  # nothing more was asked for
        out.request[b, :] = np.float32(0.0)
        out.mask[b, :] = False
    keep_final(out, b)
    _record(S, P, out, b, ended)


@lean_kernel
def close_all(S: State, P: Params, out: Buffers) -> None:
    """Close the accounts of every environment, wherever its episode stands."""
    for b in range(out.reward.size):
        keep_final(out, b)
        _record(S, P, out, b, HORIZON)


@lean_kernel
def reset(S: State, P: Params, E: Events, out: Buffers, starts: NDArray[np.int64], seed: int) -> None:
    """Begin an episode in every environment."""
    for b in range(out.reward.size):
        begin(S, P, E, out, b, starts[b], seed)


@lean_kernel
def step(
    S: State, P: Params, E: Events, out: Buffers, actions: NDArray[np.int64], seed: int, park: bool, restart: bool
) -> int:
    """Step every active environment; see ``PlacementVectorEnv._step``. Without ``restart`` ended ones stay as is."""
    width = out.mask.shape[1]
    for b in range(actions.size):
        if out.active[b] and (actions[b] < 0 or actions[b] >= width or not out.mask[b, actions[b]]):
            return -1 - b
    finished = 0
    for b in range(actions.size):
        out.terminated[b] = False
        out.truncated[b] = False
        if not out.active[b]:
            out.reward[b] = 0.0
            out.wait_s[b] = 0.0
            continue
        ended = _step_one(S, P, E, out, b, actions[b])
        if ended >= 0:
            finished += 1
            _finish(S, P, out, b, ended)
            if park:
                rest(out, b)
            elif restart:
                begin(S, P, E, out, b, -1, seed)
    return finished
