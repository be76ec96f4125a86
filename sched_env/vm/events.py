"""A VM trace made ready for kernels: what each row asks of a half, where the walk goes next, who leaves when."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sched_env.jit import kernel
from sched_env.tables import Floats, Ints, listed
from sched_env.vm.scenario import VmScenario
from sched_env.vm.tables import VmTrace
from wire.errors import TraceError

CPU, MEM, HALVES, TIME = 0, 1, 2, 3
"""Columns of ``Events.rows``."""
STOP, SERVERS = range(2)
"""Columns of ``Events.parts``."""
CHECKPOINT_ROWS = 256
"""So many rows lie between two lists of the VMs that are there: what an episode begins with is found by reading the
list before its first row and the rows since."""
ROUNDING = 1e-9
"""Sums of fractions in another order differ by less: what fits by less than this may not fit."""


class Events(NamedTuple):
    """One row a creation or deletion, in log order."""

    rows: NDArray[np.float64]
    """[R, 4]: cores and GiB taken from each half used, halves used (1 or 2), seconds. A deletion repeats its VM's."""
    slot: NDArray[np.int32]
    """[R]: where an environment remembers the VM's placement between creation and deletion; of a deletion, its
    complement (``~slot``, negative). VMs that live at the same time in the trace never share a slot, so the peak
    number of live VMs is enough. Two more slots follow: one for VMs that are never deleted, and one that no creation
    uses, for deletions of unknown VMs."""
    next_create: NDArray[np.int32]
    """[R + 1]: first creation at or after a row; R when there is none."""
    next_start: NDArray[np.int32]
    """[R + 1]: first creation at or after a row that an empty cluster can hold; R when there is none."""
    life_s: NDArray[np.float64]
    """[R]: of a creation, seconds until its deletion; infinite when it has none."""
    gone: NDArray[np.int32]
    """[R]: of a creation, row of its deletion, or row after the last of its cluster."""
    home: NDArray[np.int32]
    """[R]: of a creation, the half that it was recorded on; -1: not known. The record names a server: of its halves
    it is the one with more free cores."""
    present: NDArray[np.int32]
    """Rows of the VMs that are on a recorded half when row 0, ``CHECKPOINT_ROWS``, 2 x … comes."""
    present_from: Ints
    """Where each list begins in ``present``; one entry more than lists."""
    parts: Ints
    """[D, 2]: row after the last of each cluster, and its servers."""
    up: NDArray[np.bool_]
    """[D, windows, servers]"""
    up_rate: float
    """Windows a second."""
    expected: Floats
    """[R, Q]: what is expected of a creation's life (``VmTrace.expected``); [0, 0] where nothing is, of any."""
    lived_s: Floats
    """[R]: how long its VM had lived before."""


def compile_events(trace: VmTrace, scenario: VmScenario) -> Events:
    """Prepare a trace for a scenario.

    Raises:
        TraceError: When not one request of the trace fits an empty server.
    """
    count = len(trace)
    creates = trace.kind == 0
    created_by = creation_of(trace)
    known = np.where(creates | (created_by < 0), np.arange(count), created_by)
    cpu, mem = trace.cpu[known], trace.mem[known]
    halves = 1.0 + ((mem if scenario.double_resource == "mem" else cpu) > scenario.double_threshold)
    rows = np.stack([cpu / halves, mem / halves, halves, trace.time], axis=1)
    life = np.full(count, np.inf)
    deletions = np.flatnonzero(created_by >= 0)
    if scenario.releases:
        life[created_by[deletions]] = np.maximum(trace.time[deletions] - trace.time[created_by[deletions]], 0.0)
    else:
        created_by[:] = -1
    slot = np.full(count, -1, np.int32)
    slots = _assign_slots(created_by, slot)
    slot = np.where(creates, np.where(slot < 0, slots, slot), np.where(slot < 0, ~(slots + 1), ~slot)).astype(np.int32)
    stop = trace.stop.repeat(np.diff(trace.stop, prepend=0))
    gone = stop.copy()
    known_ends = np.flatnonzero(created_by >= 0)
    gone[created_by[known_ends]] = known_ends
    size = float(scenario.half_cpu_cores), float(scenario.half_mem_gib)
    fits = creates & (rows[:, CPU] <= size[0]) & (rows[:, MEM] <= size[1])
    home = np.full(count, -1, np.int32)
    servers = np.full(trace.stop.size, scenario.servers)
    if starts_as_recorded(trace, scenario):
        servers = trace.servers
        _recall(
            rows, creates, created_by, trace.node, trace.stop, servers, trace.up, 1.0 / trace.up_s, size, home, fits
        )
        fits &= ~trace.there_before
    kept = np.flatnonzero(home >= 0)
    lists = -(-count // CHECKPOINT_ROWS)
    present, present_from = listed(kept, kept // CHECKPOINT_ROWS + 1, -(-gone[kept] // CHECKPOINT_ROWS), lists)
    if not fits.any():
        raise TraceError(
            f"none of the {int(creates.sum())} requests of the trace fits an empty server",
            f"at most {scenario.half_cpu_cores} cores and {scenario.half_mem_gib} GiB a half",
            "set double_threshold lower to split requests, or make the halves larger",
        )
    return Events(
        rows=rows,
        slot=slot,
        next_create=_next_true(creates),
        next_start=_next_true(fits),
        life_s=life,
        gone=gone.astype(np.int32),
        home=home,
        present=present,
        present_from=present_from,
        parts=np.stack([trace.stop, servers], axis=1),
        up=np.ascontiguousarray(trace.up),
        up_rate=1.0 / trace.up_s,
        expected=trace.expected,
        lived_s=trace.time - trace.born_s,
    )


def starts_as_recorded(trace: VmTrace, scenario: VmScenario) -> bool:
    """Say whether episodes begin with what was recorded: the scenario has the servers of the record, and keeps them."""
    same = int(trace.servers.max()) == scenario.servers and not scenario.growing_servers
    return same and bool((trace.node >= 0).any())


@kernel
def _recall(
    rows: Floats,
    creates: NDArray[np.bool_],
    created_by: Ints,
    node: Ints,
    stop: Ints,
    servers: Ints,
    up: NDArray[np.bool_],
    up_rate: float,
    size: tuple[float, float],
    home: NDArray[np.int32],
    fits: NDArray[np.bool_],
) -> None:
    """Go through the record: find the half of each VM on its server, and which requests had room somewhere."""
    row = 0
    for part in range(stop.size):
        cpu, mem = np.full(2 * servers[part], size[0]), np.full(2 * servers[part], size[1])
        while row < stop[part]:
            need_cpu, need_mem, halves = rows[row, CPU], rows[row, MEM], rows[row, HALVES]
            if creates[row]:
                window = min(max(int(rows[row, TIME] * up_rate), 0), up.shape[1] - 1)
                fits[row] = False
                best = -1
                for half in range(cpu.size):
                    room_cpu, room_mem = cpu[half] - need_cpu, mem[half] - need_mem
                    if halves == 2.0:
                        room_cpu, room_mem = (
                            min(room_cpu, cpu[half ^ 1] - need_cpu),
                            min(room_mem, mem[half ^ 1] - need_mem),
                        )
                    if min(room_cpu, room_mem) >= ROUNDING and up[part, window, half >> 1]:
                        fits[row] = True
                    if (
                        half >> 1 == node[row]
                        and min(room_cpu, room_mem) >= -ROUNDING
                        and (best < 0 or cpu[half] > cpu[best])
                    ):
                        best = half
                home[row] = best
                sign, half = -1.0, best
            else:
                sign, half = 1.0, home[created_by[row]] if created_by[row] >= 0 else -1
            if half >= 0:
                cpu[half] += sign * need_cpu
                mem[half] += sign * need_mem
                if halves == 2.0:
                    cpu[half ^ 1] += sign * need_cpu
                    mem[half ^ 1] += sign * need_mem
            row += 1


def creation_of(trace: VmTrace) -> NDArray[np.int64]:
    """Return, for each deletion, the row that created its VM; -1 for creations and for deletions of unknown VMs."""
    order = np.argsort(trace.vmid, kind="stable")
    before = np.full(len(trace), -1, np.int64)
    same = trace.vmid[order[1:]] == trace.vmid[order[:-1]]
    pairs = same & (trace.kind[order[1:]] == 1) & (trace.kind[order[:-1]] == 0)
    before[order[1:][pairs]] = order[:-1][pairs]
    return before


def _next_true(flags: NDArray[np.bool_]) -> NDArray[np.int32]:
    positions = np.where(flags, np.arange(flags.size), flags.size)
    following = np.minimum.accumulate(positions[::-1])[::-1]
    return np.append(following, flags.size).astype(np.int32)


@kernel
def _assign_slots(created_by: NDArray[np.int64], slot: NDArray[np.int32]) -> int:
    """Give every VM that is deleted the slot freed last, or a new one; return how many slots that takes."""
    count = created_by.size
    deleted = np.zeros(count, np.bool_)
    for row in range(count):
        if created_by[row] >= 0:
            deleted[created_by[row]] = True
    free = np.empty(count, np.int32)
    idle, slots = 0, 0
    for row in range(count):
        origin = created_by[row]
        if origin >= 0:
            slot[row] = slot[origin]
            free[idle] = slot[row]
            idle += 1
        elif deleted[row]:
            if idle > 0:
                idle -= 1
                slot[row] = free[idle]
            else:
                slot[row] = slots
                slots += 1
    return slots
