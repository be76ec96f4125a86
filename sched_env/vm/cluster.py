"""What happens to one cluster: placements, departures, growth; its feature rows and mask; the walk along the trace."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sched_env.heap import push
from sched_env.jit import part
from sched_env.vector import Buffers
from sched_env.vm import features, lives
from sched_env.vm.events import CHECKPOINT_ROWS, CPU, HALVES, MEM, SERVERS, STOP, TIME, Events
from sched_env.vm.state import BORN, HALF, KEY, NOWHERE, ROW, UNTIL, Params, State

candidate_features = part(features.candidate_features)
request_features = part(features.request_features)
occupied_for = part(features.occupied_for)
outlasting = part(lives.outlasting)
left_s = part(lives.left_s)


@part
def advance(S: State, b: int, time_s: float) -> None:
    """Move the clock, adding up the time of servers that hold a VM; a clock never runs backwards."""
    if time_s > S.env[b].clock:
        S.env[b].busy_s += S.env[b].occupied * (time_s - S.env[b].clock)
        S.env[b].clock = time_s


@part
def _occupy(S: State, b: int, half: int, cpu: float, mem: float) -> None:
    S.cpu[b, half] -= cpu
    S.mem[b, half] -= mem
    S.vms[b, half] += 1


@part
def place(S: State, P: Params, b: int, half: int, request: NDArray[np.float64]) -> None:
    """Take what the request needs from the half, or from both halves of its server."""
    if S.vms[b, half] + S.vms[b, half ^ 1] == 0:
        S.env[b].occupied += 1
        S.since[b, half >> 1] = S.env[b].clock
    _occupy(S, b, half, request[CPU], request[MEM])
    if request[HALVES] == 2.0:
        _occupy(S, b, half ^ 1, request[CPU], request[MEM])
    if P.growing > 0:
        S.env[b].used_cpu += request[CPU] * request[HALVES]
        S.env[b].used_mem += request[MEM] * request[HALVES]


@part
def _vacate(S: State, P: Params, b: int, half: int, cpu: float, mem: float) -> None:
    S.vms[b, half] -= 1
    if S.vms[b, half] == 0:  # exactly empty again, whatever rounding the sums of fractions left
        S.cpu[b, half] = P.half_cpu
        S.mem[b, half] = P.half_mem
    else:
        S.cpu[b, half] += cpu
        S.mem[b, half] += mem


@part
def release(S: State, P: Params, b: int, half: int, request: NDArray[np.float64]) -> None:
    """Give back what a VM held."""
    _vacate(S, P, b, half, request[CPU], request[MEM])
    if request[HALVES] == 2.0:
        _vacate(S, P, b, half ^ 1, request[CPU], request[MEM])
    if P.growing > 0:
        S.env[b].used_cpu -= request[CPU] * request[HALVES]
        S.env[b].used_mem -= request[MEM] * request[HALVES]
    if S.vms[b, half] + S.vms[b, half ^ 1] == 0:
        S.env[b].occupied -= 1
        S.since[b, half >> 1] = np.inf


@part
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


@part
def describe(S: State, P: Params, out: Buffers, b: int, server: int) -> None:
    """Write the feature rows of a server's two halves."""
    occupied_s = occupied_for(S.env[b].clock, S.since[b, server])
    for half in range(2 * server, 2 * server + 2):
        other = half ^ 1
        values = candidate_features(
            S.cpu[b, half], S.mem[b, half], S.cpu[b, other], S.mem[b, other], P.half_cpu, P.half_mem, occupied_s, 0.0
        )  # of lives foresee writes
        row = out.candidates[b, half]
        row[0] = values[0]
        row[1] = values[1]
        row[2] = values[2]
        row[3] = values[3]
        row[4] = values[4]
        row[5] = values[5]
        row[6] = values[6]
        row[7] = values[7]


@part
def grow_older(S: State, out: Buffers, b: int) -> None:
    """Write how long servers have been occupied, if time went on: the one feature that changes by itself."""
    clock = S.env[b].clock
    if clock == S.env[b].shown:
        return
    S.env[b].shown = clock
    since, seen = S.since[b], out.candidates[b]
    for server in range(S.env[b].servers):
        age = np.float32(occupied_for(clock, since[server]))
        seen[2 * server, 7] = age
        seen[2 * server + 1, 7] = age


@part
def foresee(S: State, E: Events, out: Buffers, b: int) -> None:
    """Write when the last VM of each server is expected to be gone; expectations move as VMs outlive them."""
    clock, living, ends, seen = S.env[b].clock, S.living[b], S.ends[b], out.candidates[b]
    ends[:] = 0.0
    for k in range(S.env[b].living):
        age = clock - living[k, BORN]
        if age >= living[k, UNTIL]:
            living[k, UNTIL] = outlasting(age, E.expected[int(living[k, ROW])])
        server = int(living[k, HALF]) >> 1
        ends[server] = max(ends[server], left_s(age, living[k, UNTIL]))
    for server in range(S.env[b].servers):
        left = np.float32(ends[server])
        seen[2 * server, 8] = left
        seen[2 * server + 1, 8] = left


@part
def _expect(S: State, P: Params, E: Events, b: int, row: int, half: int, born: float) -> None:
    """Remember a VM whose life something is expected of."""
    if E.expected[row, 0] > 0.0:
        vm = S.living[b, S.env[b].living]
        vm[ROW] = row
        vm[KEY] = row if P.waits else E.slot[row]
        vm[HALF] = half
        vm[BORN] = born
        vm[UNTIL] = E.expected[row, 0]
        S.env[b].living += 1


@part
def forget(S: State, b: int, key: int) -> None:
    """Expect nothing more of a VM that is gone."""
    living = S.living[b]
    for k in range(S.env[b].living):
        if living[k, KEY] == key:
            S.env[b].living -= 1
            for column in range(living.shape[1]):
                living[k, column] = living[S.env[b].living, column]
            return


@part
def ask(S: State, E: Events, out: Buffers, b: int) -> int:
    """Write request and mask of the present row; return how many halves are feasible."""
    need = E.rows[S.env[b].row]
    cpu_need, mem_need, halves = need[CPU], need[MEM], need[HALVES]
    life_s = E.expected[S.env[b].row, 0] if E.expected.size > 0 else 0.0
    values = request_features(cpu_need * halves, mem_need * halves, halves - 1.0, float(S.env[b].waiting), life_s)
    request = out.request[b]
    request[0] = values[0]
    request[1] = values[1]
    request[2] = values[2]
    request[3] = values[3]
    request[4] = values[4]
    request[5] = values[5]
    request[6] = values[6]
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


@part
def clear(S: State, P: Params, b: int) -> None:
    """Empty an environment: every half free, nobody placed, all sums zero."""
    S.cpu[b, :] = P.half_cpu
    S.mem[b, :] = P.half_mem
    S.vms[b, :] = 0
    S.since[b, :] = np.inf
    S.where[b, :] = NOWHERE
    S.env[b].used_cpu = 0.0
    S.env[b].used_mem = 0.0
    S.env[b].occupied = 0
    S.env[b].busy_s = 0.0
    S.env[b].total = 0.0
    S.env[b].steps = 0
    S.env[b].placed_cpu = 0.0
    S.env[b].waited = 0.0
    S.env[b].late = 0
    S.env[b].waiting = 0
    S.env[b].leaving = 0
    S.env[b].living = 0


@part
def enter_departure(S: State, b: int, time_s: float, row: int, half: int) -> None:
    """Remember when a VM leaves; its row and its half are one number."""
    push(S.leaving[b], S.env[b].leaving, time_s, float(row * S.cpu.shape[1] + half))
    S.env[b].leaving += 1


@part
def _put_back(S: State, P: Params, E: Events, b: int, row: int, now: int, part: int, window: int) -> None:
    """Place the VM of a row where it was recorded, if it is there when row ``now`` comes and its server is up."""
    half = E.home[row]
    if E.gone[row] > now and E.up[part, window, half >> 1]:
        place(S, P, b, half, E.rows[row])
        # Who is there came at different times; before the first of them it was empty, as far as is known.
        S.since[b, half >> 1] = min(S.since[b, half >> 1], E.rows[row, TIME])
        S.where[b, E.slot[row]] = half
        if P.expects:
            _expect(S, P, E, b, row, half, E.rows[row, TIME] - E.lived_s[row])
        if P.waits:
            enter_departure(S, b, E.rows[row, TIME] + E.life_s[row], row, half)


@part
def enter(S: State, P: Params, E: Events, b: int, row: int) -> None:
    """Bring an environment to a row: the servers of its cluster, with the VMs that were recorded there, if any were.

    A server that is down when the row comes is down for the whole episode: it has no room.
    """
    clear(S, P, b)
    part = 0
    while E.parts[part, STOP] <= row:
        part += 1
    S.env[b].row = row
    S.env[b].clock = E.rows[row, TIME]
    S.env[b].stop = E.parts[part, STOP]
    S.env[b].servers = E.parts[part, SERVERS]
    if not P.recorded:
        return
    window = min(max(int(E.rows[row, TIME] * E.up_rate), 0), E.up.shape[1] - 1)
    first = row // CHECKPOINT_ROWS
    for entry in range(E.present_from[first], E.present_from[first + 1]):
        _put_back(S, P, E, b, E.present[entry], row, part, window)
    for earlier in range(first * CHECKPOINT_ROWS, row):
        if E.home[earlier] >= 0:
            _put_back(S, P, E, b, earlier, row, part, window)
    for half in range(2 * S.env[b].servers):
        if not E.up[part, window, half >> 1]:
            S.cpu[b, half] = S.mem[b, half] = 0.0


@part
def walk(S: State, P: Params, E: Events, out: Buffers, b: int, visible: bool) -> None:
    """Go to the next creation in log order, applying the deletions on the way when the scenario releases."""
    row = S.env[b].row + 1
    count = S.env[b].stop
    if P.releases:
        while row < count and E.slot[row] < 0:
            slot = ~E.slot[row]
            half = S.where[b, slot]
            if half >= 0:
                S.where[b, slot] = NOWHERE
                advance(S, b, E.rows[row, TIME])
                release(S, P, b, half, E.rows[row])
                if visible:
                    if P.expects:
                        forget(S, b, slot)
                    describe(S, P, out, b, half >> 1)
            row += 1
    else:
        row = E.next_create[row]
    S.env[b].row = row
    if row < count:
        advance(S, b, E.rows[row, TIME])


@part
def settle(S: State, P: Params, E: Events, out: Buffers, b: int, half: int, visible: bool) -> None:
    """Place the present request, remember where, and let the cluster grow."""
    row = S.env[b].row
    place(S, P, b, half, E.rows[row])
    if visible:
        if P.expects:
            _expect(S, P, E, b, row, half, S.env[b].clock - E.lived_s[row])
        describe(S, P, out, b, half >> 1)
    if P.growing > 0:
        before = S.env[b].servers
        if _grow(S, P, b) and visible:
            for server in range(before, S.env[b].servers):
                describe(S, P, out, b, server)
