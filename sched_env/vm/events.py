"""A VM trace made ready for kernels: what each row asks of a half, where the walk goes next, who leaves when."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sched_env.jit import kernel
from sched_env.vm.scenario import VmScenario
from sched_env.vm.tables import VmTrace
from wire.errors import TraceError

CPU, MEM, HALVES, TIME = 0, 1, 2, 3
"""Columns of ``Events.rows``."""


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
    fits = creates & (rows[:, CPU] <= scenario.half_cpu_cores) & (rows[:, MEM] <= scenario.half_mem_gib)
    if not fits.any():
        raise TraceError(
            f"none of the {int(creates.sum())} requests of the trace fits an empty server",
            f"at most {scenario.half_cpu_cores} cores and {scenario.half_mem_gib} GiB a half",
            "set double_threshold lower to split requests, or make the halves larger",
        )
    return Events(rows, slot, _next_true(creates), _next_true(fits), life)


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
