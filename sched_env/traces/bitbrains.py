"""Bitbrains GWA-T-12: five-minute metrics of one VM a file, with all the dirt that was really there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sched_env.traces.mixed import Layout, read_table
from sched_env.traces.reader import Floats

KIB = 1024.0
KB = 1000.0
_TIME = "Timestamp [ms]"
_COLUMNS = (
    _TIME,
    "CPU cores",
    "CPU capacity provisioned [MHZ]",
    "CPU usage [MHZ]",
    "Memory capacity provisioned [KB]",
    "Memory usage [KB]",
    "Network received throughput [KB/s]",
    "Network transmitted throughput [KB/s]",
)


@dataclass(frozen=True)
class VmUsage:
    """Use of one VM, as recorded: values may be over capacity, capacity may be zero, times may repeat."""

    vm: str
    time_s: Floats
    """Seconds since 1970; the file's label says milliseconds and is wrong."""
    cpu_capacity: Floats
    """Cores; 0 where no cpu was provisioned."""
    cpu_used: Floats
    """Cores, from MHz by the VM's own clock rate; NaN when it never had one."""
    mem_capacity: Floats
    """Bytes."""
    mem_used: Floats
    net_used: Floats
    """Bytes/s, both directions."""
    skipped: int
    """Rows that could not be read, when told to skip them."""


def read_vm(path: Path, *, skip_bad: bool = False) -> VmUsage:
    """Read one VM's file; the VM is named after its folder and file."""
    table = read_table(path, Layout(numbers=_COLUMNS, delimiter=";"), skip_bad=skip_bad)
    time, cores, mhz, used, mem, mem_used, received, sent = (table.numbers[name] for name in _COLUMNS)
    provisioned = (cores > 0) & (mhz > 0)
    clock = float(np.median(mhz[provisioned] / cores[provisioned])) if provisioned.any() else np.nan
    return VmUsage(
        vm=f"{path.parent.name}/{path.name.partition('.')[0]}",
        time_s=time,
        cpu_capacity=np.where(provisioned, cores, 0.0),
        cpu_used=used / clock,
        mem_capacity=mem * KIB,
        mem_used=mem_used * KIB,
        net_used=(received + sent) * KB,
        skipped=table.skipped,
    )
