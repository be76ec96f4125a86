"""GPU jobs: the queues of Philly and Helios, and measured speeds by model, batch and card (Gavel, Sia, Lambda)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sched_env.traces.mixed import Layout, Table, Texts, read_table
from sched_env.traces.reader import Floats, read_list
from wire.errors import TraceError

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
class RecordedJobs:
    """Jobs in order of the file; local time of the source, read as UTC."""

    submitted_s: Floats
    duration_s: Floats
    gpus: Floats
    cluster: Texts
    """Virtual cluster."""
    cancel_s: Floats
    """From submission: when the user withdrew the job; infinite: not, or the file does not say."""
    skipped: int


def read_philly(path: Path, *, skip_bad: bool = False) -> RecordedJobs:
    """Read ``philly_jobs``, which does not say how jobs ended."""
    layout = Layout(numbers=("duration", "num_gpus"), texts=("cluster",), times={"timestamp": "iso"})
    table = read_table(path, layout, _check_job, skip_bad=skip_bad)
    n = table.numbers
    never = np.full(len(table), np.inf)
    return RecordedJobs(n["timestamp"], n["duration"], n["num_gpus"], table.texts["cluster"], never, table.skipped)


def read_philly_log(path: Path, *, skip_bad: bool = False) -> RecordedJobs:
    """Read Philly's own ``cluster_job_log``: JSON, with the attempts of each job and how it ended (``Killed``).

    A job's duration is from the start of its first attempt to the end of its last; one that never started is bad.
    """
    document = read_list(path)
    jobs, skipped = [], 0
    for number, job in enumerate(document):
        try:
            jobs.append(_philly_job(job))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            if not skip_bad:
                raise TraceError(
                    f"{path}, job {number}: {type(error).__name__} {error}",
                    "status, vc, submitted_time and attempts with start_time, end_time and the gpus of each detail",
                    "mend the job, or have bad ones skipped (skip_bad)",
                ) from error
            skipped += 1
    if not jobs:
        raise TraceError(f"{path} has no usable jobs ({skipped} bad)")
    submitted, duration, gpus, cluster, cancel = zip(*jobs, strict=True)
    return RecordedJobs(
        np.array(submitted), np.array(duration), np.array(gpus), np.array(cluster, object), np.array(cancel), skipped
    )


def _philly_job(job: Any) -> tuple[float, float, float, str, float]:
    submitted, start, end = (
        datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
        for text in (job["submitted_time"], job["attempts"][0]["start_time"], job["attempts"][-1]["end_time"])
    )
    gpus = sum(len(machine["gpus"]) for machine in job["attempts"][0]["detail"])
    if not (submitted <= start <= end and gpus > 0):
        raise ValueError(f"submitted, start and end are {submitted}, {start} and {end} on {gpus} gpus")
    cancel = end - submitted if job["status"] == "Killed" else np.inf
    return submitted, end - start, float(gpus), str(job["vc"]), cancel


def read_helios_log(path: Path, *, skip_bad: bool = False) -> RecordedJobs:
    """Read a ``cluster_log.csv`` of Helios; a job whose state is ``CANCELLED`` was withdrawn at its end."""
    layout = Layout(numbers=("gpu_num", "duration", "queue"), texts=("vc", "state"), times={"submit_time": "iso"})
    table = read_table(path, layout, _check_helios, skip_bad=skip_bad)
    n = table.numbers
    cancel = np.where(table.texts["state"] == "CANCELLED", n["queue"] + n["duration"], np.inf)
    return RecordedJobs(n["submit_time"], n["duration"], n["gpu_num"], table.texts["vc"], cancel, table.skipped)


def read_speeds(path: Path, layout: Layout, *, skip_bad: bool = False) -> Table:
    """Read a table of measured speeds: :data:`GAVEL`, :data:`SIA_STEPS`, :data:`SIA_CURVES` or :data:`LAMBDA`."""
    return read_table(path, layout, skip_bad=skip_bad)


def _check_job(table: Table) -> dict[str, NDArray[np.bool_]]:
    n = table.numbers
    return {"duration is negative": n["duration"] < 0, "num_gpus is not positive": ~(n["num_gpus"] > 0)}


def _check_helios(table: Table) -> dict[str, NDArray[np.bool_]]:
    # Helios has jobs without a GPU too: 0 is no fault.
    return {f"{name} is negative": table.numbers[name] < 0 for name in ("gpu_num", "duration", "queue")}
