"""Helios: GPUs of a virtual cluster, minute by minute: how many there are, run and are waited for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sched_env.traces.mixed import Layout, Table, read_table
from sched_env.traces.reader import Floats

_COLUMNS = ("total_gpu_num", "running_gpu_num", "pending_gpu_num", "running_job_num", "pending_job_num")


@dataclass(frozen=True)
class VcMinutes:
    """One virtual cluster; times of the source, read as UTC."""

    vc: str
    time_s: Floats
    gpus: Floats
    gpus_running: Floats
    """Allocated, which is not the same as busy."""
    gpus_pending: Floats
    jobs_running: Floats
    jobs_pending: Floats
    skipped: int


def read_vc(path: Path, *, skip_bad: bool = False) -> VcMinutes:
    """Read one virtual cluster's file; it is named after the file."""
    table = read_table(path, Layout(numbers=_COLUMNS, times={"time": "iso"}), _check, skip_bad=skip_bad)
    n = table.numbers
    gpus, running, pending, jobs_running, jobs_pending = (n[name] for name in _COLUMNS)
    vc = path.name.partition(".")[0]
    return VcMinutes(vc, n["time"], gpus, running, pending, jobs_running, jobs_pending, table.skipped)


def _check(table: Table) -> dict[str, NDArray[np.bool_]]:
    return {f"{name} is negative": table.numbers[name] < 0 for name in _COLUMNS}
