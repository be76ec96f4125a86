"""GPU jobs: the Philly queue, and measured speeds by model, batch and card (Gavel, Sia, Lambda)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sched_env.traces.mixed import Layout, Table, Texts, read_table
from sched_env.traces.reader import Floats

GAVEL = Layout(
    numbers=("num_gpus", "steps_per_s"),
    optional=("batch_size", "co_batch_size", "co_num_gpus", "co_steps_per_s"),
    texts=("gpu", "model", "co_model"),
)
"""``co_model`` empty: alone. No ``batch_size``: the model has none. Speed 0 beside another: the pair did not run."""
SIA_STEPS = Layout(
    numbers=("num_nodes", "num_gpus", "local_batch_size", "step_time_s"),
    optional=("sync_time_s",),
    texts=("source_file", "gpu", "model", "dataset", "placement"),
)
"""Profiles of different ``source_file`` must not be mixed."""
SIA_CURVES = Layout(numbers=("batch_size", "progress", "iteration", "metric"), texts=("model", "dataset"))
LAMBDA = Layout(
    numbers=("num_gpu", "throughput"),
    optional=("batch_size", "watt", "price"),
    texts=("precision", "name_gpu", "model"),
)
"""Throughput 0: did not run."""


@dataclass(frozen=True)
class PhillyJobs:
    """Jobs in order of the file; local time of the source, read as UTC."""

    submitted_s: Floats
    duration_s: Floats
    gpus: Floats
    cluster: Texts
    """Virtual cluster."""
    skipped: int


def read_philly(path: Path, *, skip_bad: bool = False) -> PhillyJobs:
    """Read ``philly_jobs``."""
    layout = Layout(numbers=("duration", "num_gpus"), texts=("cluster",), times={"timestamp": "iso"})
    table = read_table(path, layout, _check_job, skip_bad=skip_bad)
    n = table.numbers
    return PhillyJobs(n["timestamp"], n["duration"], n["num_gpus"], table.texts["cluster"], table.skipped)


def read_speeds(path: Path, layout: Layout, *, skip_bad: bool = False) -> Table:
    """Read a table of measured speeds: :data:`GAVEL`, :data:`SIA_STEPS`, :data:`SIA_CURVES` or :data:`LAMBDA`."""
    return read_table(path, layout, skip_bad=skip_bad)


def _check_job(table: Table) -> dict[str, NDArray[np.bool_]]:
    n = table.numbers
    return {"duration is negative": n["duration"] < 0, "num_gpus is not positive": ~(n["num_gpus"] > 0)}
