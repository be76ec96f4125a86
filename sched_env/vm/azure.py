"""Azure VM arrivals (2017): 5-minute bins, batches of one tenant, lifetimes known to a range or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sched_env.traces.reader import Floats, header, read_columns
from sched_env.vm.huawei import events_of
from sched_env.vm.tables import VmTrace

ARRIVALS = {"arrival_bin_s": "arrival", "vcpu": "cpu", "memory_gb": "mem"}
LIFETIMES = {"censored": "censored", "duration_lo_s": "low", "duration_hi_s": "high"}


def read_arrivals(path: Path, text: str, *, skip_bad: bool = False, before: int | None = None) -> tuple[VmTrace, int]:
    """Read arrivals as events; returns the trace and the number of bad rows skipped.

    A lifetime is the middle of its range. VMs still running at the end of the record (``censored``) and VMs of files
    without durations are never deleted. VMs have no names in the file; they are numbered, from ``before`` on.
    """
    timed = "duration_lo_s" in header(text)
    wanted = {**ARRIVALS, **LIFETIMES} if timed else ARRIVALS
    columns, skipped = read_columns(path, text, wanted, _check, skip_bad=skip_bad, before=before)
    arrival = columns["arrival"]
    leave = np.full(arrival.size, np.inf)
    if timed:
        middle = arrival + (columns["low"] + columns["high"]) / 2.0
        leave = np.where(columns["censored"] == 1, np.inf, middle)
    return events_of((before or 0) + np.arange(arrival.size), columns["cpu"], columns["mem"], arrival, leave), skipped


def _check(columns: Mapping[str, Floats]) -> dict[str, NDArray[np.bool_]]:
    bad = {"vcpu is not positive": ~(columns["cpu"] > 0), "memory_gb is not positive": ~(columns["mem"] > 0)}
    if "low" in columns:
        bad["duration_hi_s is below duration_lo_s"] = columns["high"] < columns["low"]
        bad["duration_lo_s is negative"] = columns["low"] < 0
    return bad
