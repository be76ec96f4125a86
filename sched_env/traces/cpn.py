"""The computing power network's own data: job queues, and measured times of one to three jobs on a card."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sched_env.traces.mixed import Layout, Texts, read_table
from sched_env.traces.reader import Floats, read_list
from wire.errors import TraceError

MIB_PER_GIB = 1024.0
SLOTS = (1, 2, 3)
"""Jobs that may share a card in the measurements."""


@dataclass(frozen=True)
class JobQueue:
    """Jobs in order; all are there from the start."""

    name: tuple[str, ...]
    model: tuple[str, ...]
    data_gb: Floats
    iterations: Floats
    skipped: int


@dataclass(frozen=True)
class Colocations:
    """Measurements of a card with one to three jobs."""

    time_s: Floats
    """Without a zone in the source; read as UTC."""
    gpu: Texts
    cpu_used: Floats
    """Share of the node, 0..1."""
    mem_total: Floats
    """Bytes, of the node."""
    mem_available: Floats
    gpu_used: Floats
    """Share, 0..1."""
    gpu_mem_free: Floats
    """GiB."""
    gpu_mem_used: Floats
    model: Texts
    """[rows, 3]; empty: no job."""
    seconds: Floats
    """[rows, 3]: seconds an iteration; NaN: no job."""
    flops: Floats
    """[rows, 3]; NaN: no job."""
    skipped: int


@dataclass(frozen=True)
class ModelBaseline:
    """What each model needs when it runs alone."""

    model: Texts
    gpu_mem: Floats
    """GiB."""
    seconds: Floats
    """An iteration."""
    skipped: int


def read_queue(path: Path, *, skip_bad: bool = False) -> JobQueue:
    """Read a queue: a JSON list of jobs whose numbers are written as texts."""
    document = read_list(path)
    jobs, skipped = [], 0
    for number, job in enumerate(document):
        try:
            jobs.append(_job(job))
        except (KeyError, TypeError, ValueError) as error:
            if not skip_bad:
                raise TraceError(
                    f"{path}, job {number}: {error}", "name, model_name, data_size ≥ 0 and epoch > 0"
                ) from error
            skipped += 1
    if not jobs:
        raise TraceError(f"{path} has no usable jobs ({skipped} bad)")
    names, models, data, iterations = zip(*jobs, strict=True)
    return JobQueue(names, models, np.array(data), np.array(iterations), skipped)


def _job(job: Any) -> tuple[str, str, float, float]:
    data, iterations = float(job["data_size"]), float(job["epoch"])
    if not (math.isfinite(data) and data >= 0 and math.isfinite(iterations) and iterations > 0):
        raise ValueError(f"data_size {data}, epoch {iterations}")
    return str(job["name"]), str(job["model_name"]), data, iterations


def read_colocations(path: Path, *, skip_bad: bool = False) -> Colocations:
    """Read the co-location profiles; a slot without a model, or without a positive time, is empty."""
    layout = Layout(
        # A controller that measured its own jobs may not have collected what the node and the card did.
        optional=(
            "cpu_usage",
            "mem_total",
            "mem_available",
            "gpu_util",
            "gpu_mem_free",
            "gpu_mem_used",
            *(f"{name}{slot}" for name in ("averagetime", "Flops") for slot in SLOTS),
        ),
        texts=("gpu", *(f"model{slot}" for slot in SLOTS)),
        times={"timestamp": "%Y/%m/%d %H:%M"},
    )
    table = read_table(path, layout, skip_bad=skip_bad)
    n, model = table.numbers, np.stack([table.texts[f"model{slot}"] for slot in SLOTS], axis=1)
    model = np.array([["" if name.strip() in {"", "nan"} else name.strip() for name in row] for row in model], object)
    seconds, flops = (np.stack([n[f"{name}{slot}"] for slot in SLOTS], axis=1) for name in ("averagetime", "Flops"))
    empty = (model == "") | ~(seconds > 0)
    model[empty] = ""
    return Colocations(
        time_s=n["timestamp"],
        gpu=table.texts["gpu"],
        cpu_used=n["cpu_usage"],
        mem_total=n["mem_total"],
        mem_available=n["mem_available"],
        gpu_used=n["gpu_util"] / 100.0,
        gpu_mem_free=n["gpu_mem_free"] / MIB_PER_GIB,
        gpu_mem_used=n["gpu_mem_used"] / MIB_PER_GIB,
        model=model,
        seconds=np.where(empty, np.nan, seconds),
        flops=np.where(empty, np.nan, flops),
        skipped=table.skipped,
    )


def read_baseline(path: Path, *, skip_bad: bool = False) -> ModelBaseline:
    """Read memory and time of each model alone."""
    table = read_table(path, Layout(numbers=("GPUMemoryReq", "BasicRuntime"), texts=("model_name",)), skip_bad=skip_bad)
    n = table.numbers
    return ModelBaseline(table.texts["model_name"], n["GPUMemoryReq"] / MIB_PER_GIB, n["BasicRuntime"], table.skipped)
