"""Alibaba GenTD26: pods of an image-generation service, scraped every 57 s, and its user requests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sched_env.traces.mixed import Layout, Table, Texts, read_table
from sched_env.traces.reader import Floats

STEP_S = 57.0


@dataclass(frozen=True)
class PodSamples:
    """One metric of many pods, as recorded; a pod may be unknown (empty)."""

    metric: str
    time_s: Floats
    value: Floats
    pod: Texts
    skipped: int


@dataclass(frozen=True)
class UserRequests:
    """One row a user request; its clock is not the metrics' clock."""

    time_s: Floats
    model: Texts
    status: Texts
    """SUCCEED, FAILED, PENDING or PROCESSING."""
    duration_s: Floats
    """NaN where the request never ended."""
    skipped: int


def read_metric(path: Path, *, skip_bad: bool = False) -> PodSamples:
    """Read one metric's file; columns are found by name, for their order differs between files."""
    layout = Layout(numbers=("timestamp_anon", "value"), texts=("container_ip",))
    table = read_table(path, layout, skip_bad=skip_bad)
    metric = path.name.partition(".")[0]
    numbers = table.numbers
    return PodSamples(metric, numbers["timestamp_anon"], numbers["value"], table.texts["container_ip"], table.skipped)


def read_requests(path: Path, *, skip_bad: bool = False) -> UserRequests:
    """Read the request trace."""
    layout = Layout(
        optional=("exec_time_seconds",),
        texts=("predict_status", "checkpoint_model_version_id"),
        times={"gmt_create": "iso"},
    )
    table = read_table(path, layout, _check_request, skip_bad=skip_bad)
    return UserRequests(
        table.numbers["gmt_create"],
        table.texts["checkpoint_model_version_id"],
        table.texts["predict_status"],
        table.numbers["exec_time_seconds"],
        table.skipped,
    )


def _check_request(table: Table) -> dict[str, NDArray[np.bool_]]:
    known = np.isin(table.texts["predict_status"].astype(str), ["SUCCEED", "FAILED", "PENDING", "PROCESSING"])
    return {"predict_status is unknown": ~known}
