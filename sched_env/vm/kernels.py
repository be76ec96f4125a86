"""The dynamics of ``vm``, compiled: B environments a call, arrays instead of objects, rows rewritten when touched.

Layout: a candidate is half ``2 * server + numa``; each environment's halves lie together, cpu and memory in arrays of
their own, so that the mask is one pass of vector instructions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sched_env.draws import below
from sched_env.features import vm as features
from sched_env.jit import inline, lean_kernel
from sched_env.vector import END_OF_TRACE, FULL, HORIZON, SHEET, Buffers
from sched_env.vm.events import CPU, HALVES, MEM, TIME, Events

METRICS = (*SHEET, "placed_cpu", "cpu_rate", "mem_rate", "servers", "end_row")
REWARD_ONE, REWARD_CPU, REWARD_WAIT = 0, 1, 2
NOWHERE = -1

candidate_features = inline(features.candidate_features)
request_features = inline(features.request_features)


class Params(NamedTuple):
    """A scenario as kernels read it."""

    half_cpu: float
    half_mem: float
    servers: int
    max_servers: int
    growing: int
    expand_threshold: float
    releases: bool
    waits: bool
    queue_extra: int
    reward: int
    horizon: int
    sla_wait_s: float
    price_usd_per_s: float
    start_min: int
    start_max: int


ENV = np.dtype(
    [
        ("row", np.int64),  # trace row of the present request
        ("servers", np.int64),
        ("occupied", np.int64),  # servers that hold a VM
        ("busy_s", np.float64),  # server-seconds of servers that hold a VM, up to clock
        ("clock", np.float64),
        ("total", np.float64),  # return so far
        ("steps", np.int64),
        ("placed_cpu", np.float64),
        ("used_cpu", np.float64),  # allocated cores; kept only for clusters that may grow
        ("used_mem", np.float64),
        # For the ending "wait":
        ("waited", np.float64),  # seconds that requests of the episode have waited, together
        ("late", np.int64),  # requests placed after more than sla_wait_s
        ("queue_end", np.int64),  # row after the queue's last request
        ("queue_size", np.int64),
        ("arrived", np.int64),  # first creation row whose request has not arrived yet
        ("waiting", np.int64),  # requests that have arrived and are not placed
        ("leaving", np.int64),  # size of the heap of departures
    ]
)
"""What an environment remembers beside its halves; one record, so that a step touches few cache lines."""


class State(NamedTuple):
    """State of B environments and, in row B, of a scratch one that measures queues for the ending ``wait``."""

    cpu: NDArray[np.float64]
    """[B + 1, C]: free cores of each half."""
    mem: NDArray[np.float64]
    vms: NDArray[np.int32]
    """[B + 1, C]: VMs on each half; a split VM counts on both."""
    where: NDArray[np.int32]
    """[B + 1, slots]: half that holds the VM of a slot, or -1."""
    env: Any
    """[B + 1] records of ``ENV``."""
    leave_s: NDArray[np.float64]
    """[B + 1, H]: heap of departure times (``wait``)."""
    leave_row: NDArray[np.int32]
    leave_half: NDArray[np.int32]
    queue_of: NDArray[np.int32]
    """[R + 1]: length of first_fit's run from a row, once measured; 0: not yet (``wait``)."""


@inline
def _advance(S: State, b: int, time_s: float) -> None:
    """Move the clock, adding up the time of servers that hold a VM; a clock never runs backwards."""
    if time_s > S.env[b].clock:
        S.env[b].busy_s += S.env[b].occupied * (time_s - S.env[b].clock)
        S.env[b].clock = time_s


@inline
def _occupy(S: State, b: int, half: int, cpu: float, mem: float) -> None:
    S.cpu[b, half] -= cpu
    S.mem[b, half] -= mem
    S.vms[b, half] += 1


@inline
def _place(S: State, P: Params, b: int, half: int, request: NDArray[np.float64]) -> None:
    """Take what the request needs from the half, or from both halves of its server."""
    if S.vms[b, half] + S.vms[b, half ^ 1] == 0:
        S.env[b].occupied += 1
    _occupy(S, b, half, request[CPU], request[MEM])
    if request[HALVES] == 2.0:
        _occupy(S, b, half ^ 1, request[CPU], request[MEM])
    if P.growing > 0:
        S.env[b].used_cpu += request[CPU] * request[HALVES]
        S.env[b].used_mem += request[MEM] * request[HALVES]


@inline
def _vacate(S: State, P: Params, b: int, half: int, cpu: float, mem: float) -> None:
    S.vms[b, half] -= 1
    if S.vms[b, half] == 0:  # exactly empty again, whatever rounding the sums of fractions left
        S.cpu[b, half] = P.half_cpu
        S.mem[b, half] = P.half_mem
    else:
        S.cpu[b, half] += cpu
        S.mem[b, half] += mem


@inline
def _release(S: State, P: Params, b: int, half: int, request: NDArray[np.float64]) -> None:
    """Give back what a VM held."""
    _vacate(S, P, b, half, request[CPU], request[MEM])
    if request[HALVES] == 2.0:
        _vacate(S, P, b, half ^ 1, request[CPU], request[MEM])
    if P.growing > 0:
        S.env[b].used_cpu -= request[CPU] * request[HALVES]
        S.env[b].used_mem -= request[MEM] * request[HALVES]
    if S.vms[b, half] + S.vms[b, half ^ 1] == 0:
        S.env[b].occupied -= 1


@inline
def _grow(S: State, P: Params, b: int) -> Any:
    """Buy servers while the allocated share is above the threshold; new halves are already free in the arrays."""
    before = S.env[b].servers
    while S.env[b].servers < P.max_servers and (
        max(
            S.env[b].used_cpu / (2.0 * P.half_cpu * S.env[b].servers),
            S.env[b].used_mem / (2.0 * P.half_mem * S.env[b].servers),
        )
        > P.expand_threshold
    ):
        S.env[b].servers = min(S.env[b].servers + P.growing, P.max_servers)
    return S.env[b].servers > before


@inline
def describe(S: State, P: Params, out: Buffers, b: int, server: int) -> None:
    """Write the feature rows of a server's two halves."""
    for half in range(2 * server, 2 * server + 2):
        other = half ^ 1
        values = candidate_features(
            S.cpu[b, half], S.mem[b, half], S.cpu[b, other], S.mem[b, other], P.half_cpu, P.half_mem
        )
        row = out.candidates[b, half]
        row[0] = values[0]
        row[1] = values[1]
        row[2] = values[2]
        row[3] = values[3]
        row[4] = values[4]
        row[5] = values[5]
        row[6] = values[6]


@inline
def _ask(S: State, E: Events, out: Buffers, b: int) -> int:
    """Write request and mask of the present row; return how many halves are feasible."""
    need = E.rows[S.env[b].row]
    cpu_need, mem_need, halves = need[CPU], need[MEM], need[HALVES]
    values = request_features(cpu_need * halves, mem_need * halves, halves - 1.0)
    request = out.request[b]
    request[0] = values[0]
    request[1] = values[1]
    request[2] = values[2]
    request[3] = values[3]
    request[4] = values[4]
    width = 2 * S.env[b].servers
    cpu, mem, mask = S.cpu[b, :width], S.mem[b, :width], out.mask[b, :width]
    feasible = 0
    for half in range(width):
        fits = (cpu[half] >= cpu_need) & (mem[half] >= mem_need)
        mask[half] = fits
        feasible += fits
    if halves == 2.0:
        feasible = 0
        for server in range(width // 2):
            both = mask[2 * server] & mask[2 * server + 1]
            mask[2 * server] = both
            mask[2 * server + 1] = both
            feasible += 2 * both
    out.feasible[b] = feasible
    return feasible


@inline
def _clear(S: State, P: Params, b: int) -> None:
    """Empty an environment: every half free, nobody placed, all sums zero."""
    S.cpu[b, :] = P.half_cpu
    S.mem[b, :] = P.half_mem
    S.vms[b, :] = 0
    S.where[b, :] = NOWHERE
    S.env[b].servers = P.servers
    S.env[b].used_cpu = 0.0
    S.env[b].used_mem = 0.0
    S.env[b].occupied = 0
    S.env[b].busy_s = 0.0
    S.env[b].total = 0.0
    S.env[b].steps = 0
    S.env[b].placed_cpu = 0.0
    S.env[b].waited = 0.0
    S.env[b].late = 0
    S.env[b].leaving = 0


@inline
def _first_fit(S: State, b: int, need: NDArray[np.float64]) -> int:
    for half in range(2 * S.env[b].servers):
        if S.cpu[b, half] >= need[CPU] and S.mem[b, half] >= need[MEM]:
            other = half ^ 1
            if need[HALVES] == 1.0 or (S.cpu[b, other] >= need[CPU] and S.mem[b, other] >= need[MEM]):
                return half
    return NOWHERE


@inline
def _walk(S: State, P: Params, E: Events, out: Buffers, b: int, visible: bool) -> None:
    """Go to the next creation in log order, applying the deletions on the way when the scenario releases."""
    row = S.env[b].row + 1
    count = E.slot.size
    if P.releases:
        while row < count and E.slot[row] < 0:
            slot = ~E.slot[row]
            half = S.where[b, slot]
            if half >= 0:
                S.where[b, slot] = NOWHERE
                _advance(S, b, E.rows[row, TIME])
                _release(S, P, b, half, E.rows[row])
                if visible:
                    describe(S, P, out, b, half >> 1)
            row += 1
    else:
        row = E.next_create[row]
    S.env[b].row = row
    if row < count:
        _advance(S, b, E.rows[row, TIME])


@inline
def _settle(S: State, P: Params, E: Events, out: Buffers, b: int, half: int, visible: bool) -> None:
    """Place the present request, remember where, and let the cluster grow."""
    row = S.env[b].row
    _place(S, P, b, half, E.rows[row])
    if visible:
        describe(S, P, out, b, half >> 1)
    if P.growing > 0:
        before = S.env[b].servers
        if _grow(S, P, b) and visible:
            for server in range(before, S.env[b].servers):
                describe(S, P, out, b, server)


@inline
def _queue_size(S: State, P: Params, E: Events, out: Buffers, start: int) -> Any:
    """Return how many requests first_fit places from a row before its first misfit; measured once a row."""
    if S.queue_of[start] == 0:
        b = S.env.size - 1
        _clear(S, P, b)
        S.env[b].row = start
        S.env[b].clock = E.rows[start, TIME]
        placed = 0
        while S.env[b].row < E.slot.size:
            half = _first_fit(S, b, E.rows[S.env[b].row])
            if half < 0:
                break
            S.where[b, E.slot[S.env[b].row]] = half
            _settle(S, P, E, out, b, half, False)
            placed += 1
            _walk(S, P, E, out, b, False)
        S.queue_of[start] = placed
    return S.queue_of[start]


@inline
def begin(S: State, P: Params, E: Events, out: Buffers, b: int, start: Any, seed: int) -> None:
    """Start an episode at the first placeable creation at or after ``start``; -1 draws it."""
    if start < 0:
        start = P.start_min + below(P.start_max - P.start_min, seed, b, out.episode[b])
    out.episode[b] += 1
    out.start[b] = start
    row = E.next_start[start]
    _clear(S, P, b)
    S.env[b].row = row
    S.env[b].clock = E.rows[row, TIME]
    out.time_s[b] = S.env[b].clock
    if P.waits:
        wanted = _queue_size(S, P, E, out, row) + P.queue_extra
        end, size = row, 0
        while size < wanted and end < E.slot.size:
            size += 1
            end = E.next_create[end + 1]
        S.env[b].queue_size = size
        S.env[b].queue_end = end
        S.env[b].arrived = E.next_create[row + 1]
        S.env[b].waiting = 1
    out.candidates[b, :, :] = np.float32(0.0)
    out.mask[b, :] = False
    for server in range(P.servers):
        describe(S, P, out, b, server)
    _ask(S, E, out, b)


@inline
def _push(S: State, b: int, time_s: float, row: int, half: int) -> None:
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
    _advance(S, b, leave[0])
    _release(S, P, b, halves[0], E.rows[rows[0]])
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
def _wait_for_fit(S: State, P: Params, E: Events, out: Buffers, b: int) -> Any:
    """Bring the next request of the queue to the front and wait until it fits; return the seconds waited by all."""
    now = out.time_s[b]
    until = max(now, E.rows[S.env[b].row, TIME])
    while S.env[b].leaving > 0 and S.leave_s[b, 0] <= until:
        _depart(S, P, E, out, b)
    _advance(S, b, until)
    while _ask(S, E, out, b) == 0 and S.env[b].leaving > 0 and S.leave_s[b, 0] < np.inf:
        until = S.leave_s[b, 0]
        while S.env[b].leaving > 0 and S.leave_s[b, 0] <= until:
            _depart(S, P, E, out, b)
    seconds = _queue_up(S, E, b, now, until)
    out.time_s[b] = until
    return seconds


@inline
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
    metrics[4] = (S.env[b].late + never) / requests
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
    out.final_start[b] = out.start[b]
    out.terminated[b] = ended == FULL or (P.waits and ended == HORIZON and S.env[b].row >= S.env[b].queue_end)
    out.truncated[b] = not out.terminated[b]


@inline
def _step_one(S: State, P: Params, E: Events, out: Buffers, b: int, half: int) -> int:
    """Place one environment's request and go to its next decision; return how the episode ended, or -1."""
    row = S.env[b].row
    need = E.rows[row]
    cpu = need[CPU] * need[HALVES]
    S.where[b, E.slot[row]] = half
    _settle(S, P, E, out, b, half, True)
    S.env[b].steps += 1
    S.env[b].placed_cpu += cpu
    reward = 1.0 if P.reward == REWARD_ONE else cpu
    ended = -1
    if P.waits:
        now = out.time_s[b]
        out.wait_s[b] = now - need[TIME]
        S.env[b].late += out.wait_s[b] > P.sla_wait_s
        S.env[b].waiting -= 1
        _push(S, b, now + E.life_s[row], row, half)
        S.env[b].row = E.next_create[row + 1]
        seconds = 0.0
        if S.env[b].row < S.env[b].queue_end:
            seconds = _wait_for_fit(S, P, E, out, b)
            if out.feasible[b] == 0:
                ended = FULL
        else:
            ended = END_OF_TRACE if S.env[b].queue_end >= E.slot.size else HORIZON
        S.env[b].waited += seconds
        if P.reward == REWARD_WAIT:
            reward = -seconds
    else:
        _walk(S, P, E, out, b, True)
        if S.env[b].row >= E.slot.size:
            ended = END_OF_TRACE
        else:
            out.time_s[b] = S.env[b].clock
            if _ask(S, E, out, b) == 0:
                ended = FULL
        if P.reward == REWARD_WAIT:
            reward = 0.0
    if ended < 0 and P.horizon > 0 and S.env[b].steps >= P.horizon:
        ended = HORIZON
    out.reward[b] = reward
    S.env[b].total += reward
    return ended


@inline
def _finish(S: State, P: Params, E: Events, out: Buffers, b: int, ended: int) -> None:
    """Keep the last observation and the metrics of an episode that is over."""
    if S.env[b].row >= E.slot.size or (P.waits and S.env[b].row >= S.env[b].queue_end):  # nothing more was asked for
        out.request[b, :] = np.float32(0.0)
        out.mask[b, :] = False
    for half in range(out.mask.shape[1]):
        out.final_mask[b, half] = out.mask[b, half]
        for k in range(out.candidates.shape[2]):
            out.final_candidates[b, half, k] = out.candidates[b, half, k]
    for k in range(out.request.shape[1]):
        out.final_request[b, k] = out.request[b, k]
    _record(S, P, out, b, ended)


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
            _finish(S, P, E, out, b, ended)
            if park:
                out.active[b] = False
                out.mask[b, :] = False
                out.feasible[b] = 0
            elif restart:
                begin(S, P, E, out, b, -1, seed)
    return finished
