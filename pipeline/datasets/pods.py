"""Pods of every window and the requests dealt to them, as flat arrays that the ``pods`` environment can replay."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.contracts.windows import WINDOW_SECONDS
from pipeline.errors import DataError
from pipeline.windows import Arrays, files_of, frame_of, mapped, node_table, spelled
from sched_env.pods.tables import PodTrace, offsets
from sched_env.tables import NodeTable

_SIZES = ["cpu_request_cores", "mem_request_gib"]
_USED = ["cpu_used_mean_cores", "mem_used_mean_gib"]


def pod_windows(
    windows: Path, start: datetime, end: datetime, cluster: str | None = None
) -> tuple[PodTrace, NodeTable]:
    """Load the pods of ``[start, end)`` with their requests, and the nodes there were."""
    # A name alone must not put a pod of one cluster on the node of another.
    clusters = {
        name for table in ("nodes", "pods") for name in frame_of(windows, table, start, end, cluster, [])["cluster"]
    }
    several = len(clusters) > 1
    nodes = node_table(windows, start, end, cluster, several=several)
    files = [file for table in ("nodes", "pods", "demands") for file in files_of(windows, table, start, end)]
    arrays = mapped(
        "pod-windows", files, [start, end, cluster], lambda: _build(windows, start, end, cluster, nodes.names, several)
    )
    names = tuple(str(name) for name in arrays.pop("pod_names"))
    return PodTrace(**arrays, pod_names=names), nodes  # type: ignore[arg-type]


def _build(
    windows: Path, start: datetime, end: datetime, cluster: str | None, nodes: tuple[str, ...], several: bool
) -> Arrays:
    pods = frame_of(windows, "pods", start, end, cluster, ["pod", "node", *_SIZES, *_USED])
    # A pod that asks for nothing known cannot be placed.
    pods = pods.dropna(subset=_SIZES)
    if pods.empty:
        raise DataError(
            f"{windows} has no pod with a size between {start} and {end}",
            "requests of cpu and memory",
            "check the range",
        )
    pods = pods.assign(name=spelled(pods, "pod", several), host=spelled(pods, "node", several))
    pods = pods.sort_values(["window_start", "name"], ignore_index=True)
    names, numbers = np.unique(pods["name"].to_numpy(str), return_inverse=True)
    elapsed = (pods["window_start"] - pd.Timestamp(start)).dt.total_seconds().to_numpy(np.float64)
    moments, first = np.unique(elapsed, return_index=True)
    hosts = pd.Index(nodes).get_indexer(pd.Index(pods["host"]))

    columns = ["pod", "position", "arrival_offset_s", "duration_s", "cpu_cores", "mem_gib"]
    demands = frame_of(windows, "demands", start, end, cluster, columns)
    rows = pods[["window_start", "cluster", "pod"]].reset_index(names="row")
    demands = demands.merge(rows, on=["window_start", "cluster", "pod"]).sort_values(["row", "position"])
    counts = np.bincount(demands["row"].to_numpy(np.int64), minlength=len(pods))
    return {
        "window_s": moments,
        "window_rows": np.append(first, len(pods)).astype(np.int64),
        "pod": numbers.astype(np.int32),
        "node": hosts.astype(np.int32),
        "cpu_request": pods["cpu_request_cores"].to_numpy(np.float64),
        "mem_request": pods["mem_request_gib"].to_numpy(np.float64),
        "cpu_used": pods["cpu_used_mean_cores"].fillna(0.0).to_numpy(np.float64),
        "mem_used": pods["mem_used_mean_gib"].fillna(0.0).to_numpy(np.float64),
        "row_requests": offsets(counts),
        "arrival_offset_s": np.clip(demands["arrival_offset_s"].to_numpy(np.float64), 0.0, float(WINDOW_SECONDS)),
        "duration_s": demands["duration_s"].to_numpy(np.float64),
        "cpu": demands["cpu_cores"].to_numpy(np.float64),
        "mem": demands["mem_gib"].to_numpy(np.float64),
        "pod_names": names,
    }
