"""Alibaba GPU clusters: nodes and pods of openb (2023), DLRM instances (2025), spot nodes (2026)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sched_env.traces.mixed import Check, Layout, Table, Texts, read_table
from sched_env.traces.reader import Floats

MILLI = 1000.0
MIB_PER_GIB = 1024.0


@dataclass(frozen=True)
class GpuNodes:
    """An inventory; no times."""

    name: Texts
    cpu: Floats
    """Cores."""
    mem: Floats
    """GiB; NaN where not told."""
    gpus: Floats
    model: Texts
    """Of the cards; empty: none."""
    skipped: int


@dataclass(frozen=True)
class GpuPods:
    """Pods with their lives; seconds from the start of the trace."""

    name: Texts
    app: Texts
    """Empty where not told."""
    cpu: Floats
    mem: Floats
    gpus: Floats
    """Cards; a shared card counts by its share."""
    created_s: Floats
    """NaN: there before the trace began."""
    deleted_s: Floats
    """NaN: still there at its end."""
    skipped: int


def read_openb_nodes(path: Path, *, skip_bad: bool = False) -> GpuNodes:
    """Read ``openb_node_list``."""
    layout = Layout(numbers=("cpu_milli", "memory_mib", "gpu"), texts=("sn", "model"))
    table = read_table(path, layout, _positive("cpu_milli", "memory_mib"), skip_bad=skip_bad)
    n = table.numbers
    return GpuNodes(
        table.texts["sn"],
        n["cpu_milli"] / MILLI,
        n["memory_mib"] / MIB_PER_GIB,
        n["gpu"],
        table.texts["model"],
        table.skipped,
    )


def read_spot_nodes(path: Path, *, skip_bad: bool = False) -> GpuNodes:
    """Read ``spot_gpu_node_info``; memory is not told."""
    layout = Layout(numbers=("cpu_num", "gpu_capacity_num"), texts=("node_name", "gpu_model"))
    table = read_table(path, layout, _positive("cpu_num"), skip_bad=skip_bad)
    n, unknown = table.numbers, np.full(len(table), np.nan)
    return GpuNodes(
        table.texts["node_name"], n["cpu_num"], unknown, n["gpu_capacity_num"], table.texts["gpu_model"], table.skipped
    )


def read_openb_pods(path: Path, *, skip_bad: bool = False) -> GpuPods:
    """Read ``openb_pod_list``."""
    layout = Layout(
        numbers=("cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "creation_time"),
        optional=("deletion_time",),
        texts=("name",),
    )
    table = read_table(path, layout, _lives, skip_bad=skip_bad)
    n = table.numbers
    gpus = np.where(n["num_gpu"] == 1, n["gpu_milli"] / MILLI, n["num_gpu"])
    return GpuPods(
        name=table.texts["name"],
        app=np.full(len(table), "", dtype=object),
        cpu=n["cpu_milli"] / MILLI,
        mem=n["memory_mib"] / MIB_PER_GIB,
        gpus=gpus,
        created_s=n["creation_time"],
        deleted_s=n["deletion_time"],
        skipped=table.skipped,
    )


def read_dlrm_instances(path: Path, *, skip_bad: bool = False) -> GpuPods:
    """Read ``dlrm_instances``."""
    layout = Layout(
        numbers=("cpu_request", "gpu_request", "memory_request"),
        optional=("creation_time", "deletion_time"),
        texts=("instance_sn", "app_name"),
    )
    table = read_table(path, layout, _lives, skip_bad=skip_bad)
    n = table.numbers
    return GpuPods(
        name=table.texts["instance_sn"],
        app=table.texts["app_name"],
        cpu=n["cpu_request"],
        mem=n["memory_request"],
        gpus=n["gpu_request"],
        created_s=n["creation_time"],
        deleted_s=n["deletion_time"],
        skipped=table.skipped,
    )


def _positive(*names: str) -> Check:
    def check(table: Table) -> dict[str, NDArray[np.bool_]]:
        return {f"{name} is not positive": ~(table.numbers[name] > 0) for name in names}

    return check


def _lives(table: Table) -> dict[str, NDArray[np.bool_]]:
    created, deleted = table.numbers["creation_time"], table.numbers["deletion_time"]
    sizes = {name: column < 0 for name, column in table.numbers.items()}
    return {
        "deleted before it was created": deleted < created,
        **{f"{name} is negative": bad for name, bad in sizes.items()},
    }
