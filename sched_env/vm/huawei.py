"""Huawei-East-1: the event log (``vmid,cpu,memory,time,type``) and the per-VM table (``…,arrival,lifetime``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sched_env.traces.reader import Floats, read_columns
from sched_env.vm.tables import VmTrace

EVENTS = {"vmid": "vmid", "cpu": "cpu", "memory": "mem", "time": "time", "type": "kind"}
VMS = {"vmid": "vmid", "cpu": "cpu", "memory": "mem", "arrival": "arrival", "lifetime": "lifetime"}


def read_events(path: Path, text: str, *, skip_bad: bool = False, before: int | None = None) -> tuple[VmTrace, int]:
    """Read the event log, in file order; returns the trace and the number of bad rows skipped."""
    columns, skipped = read_columns(path, text, EVENTS, _check_event, skip_bad=skip_bad, before=before)
    return VmTrace(**columns), skipped  # type: ignore[arg-type]


def read_vms(path: Path, text: str, *, skip_bad: bool = False, before: int | None = None) -> tuple[VmTrace, int]:
    """Read the per-VM table as events; order as in the event log: time, deletions first, vmid."""
    columns, skipped = read_columns(path, text, VMS, _check_vm, skip_bad=skip_bad, before=before)
    return events_of(
        columns["vmid"], columns["cpu"], columns["mem"], columns["arrival"], columns["arrival"] + columns["lifetime"]
    ), skipped


def events_of(vmid: NDArray[np.number], cpu: Floats, mem: Floats, arrival: Floats, leave: Floats) -> VmTrace:
    """Build the event log of VMs; an infinite ``leave`` has no deletion.

    Rows are sorted by time, deletions before creations, then vmid. A VM that leaves in the second it came (lifetime
    0) is deleted after it was created all the same, because a deletion before the creation would free nothing.
    """
    gone = np.flatnonzero(np.isfinite(leave))
    rows = np.concatenate([np.arange(vmid.size), gone])
    kind = np.concatenate([np.zeros(vmid.size, np.int8), np.ones(gone.size, np.int8)])
    time = np.concatenate([arrival, leave[gone]])
    rank = np.where(kind == 1, np.where(leave[rows] > arrival[rows], 0, 2), 1)
    order = np.lexsort((vmid[rows], rank, time))
    rows = rows[order]
    return VmTrace(vmid=vmid[rows], cpu=cpu[rows], mem=mem[rows], time=time[order], kind=kind[order])


def _check_sizes(columns: Mapping[str, Floats]) -> dict[str, NDArray[np.bool_]]:
    return {
        "cpu is not positive": ~(columns["cpu"] > 0),
        "memory is not positive": ~(columns["mem"] > 0),
        "vmid is not a whole number": columns["vmid"] != np.floor(columns["vmid"]),
    }


def _check_event(columns: Mapping[str, Floats]) -> dict[str, NDArray[np.bool_]]:
    kind = columns["kind"]
    return {**_check_sizes(columns), "type is neither 0 (create) nor 1 (delete)": (kind != 0) & (kind != 1)}


def _check_vm(columns: Mapping[str, Floats]) -> dict[str, NDArray[np.bool_]]:
    return {**_check_sizes(columns), "lifetime is negative": columns["lifetime"] < 0}
