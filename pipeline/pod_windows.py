"""Pods of every window and the requests dealt to them, as flat arrays that the ``pods`` environment can replay."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline.contracts.windows import WINDOW_SECONDS
from pipeline.errors import DataError
from pipeline.windows import Arrays, files_of, frame_of, mapped, node_table, spelled
from sched_env.traces.tables import NodeTable

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
Offsets = NDArray[np.int64]

_SIZES = ["cpu_request_cores", "mem_request_gib"]
_USED = ["cpu_used_mean_cores", "mem_used_mean_gib"]


@dataclass(frozen=True)
class PodWindows:
    """Three levels, each an index into the next: windows, the pods in a window, the requests of a pod in a window.

    Window ``w`` has the pod rows ``window_rows[w]:window_rows[w + 1]``; pod row ``r`` has the requests
    ``row_requests[r]:row_requests[r + 1]``, in the order they were dealt. Arrays are mapped read-only.
    """

    window_s: Floats
    """Start of each window, seconds from the start of the span."""
    window_rows: Offsets
    pod: Ints
    """Index into ``pod_names``."""
    node: Ints
    """Index into the nodes; -1 where it is not known."""
    cpu_request: Floats
    """Cores."""
    mem_request: Floats
    """GiB."""
    cpu_used: Floats
    mem_used: Floats
    row_requests: Offsets
    arrival_offset_s: Floats
    """Seconds from the start of the window."""
    duration_s: Floats
    cpu: Floats
    """Cores a request takes while it runs."""
    mem: Floats
    """GiB."""
    pod_names: tuple[str, ...]

    def __len__(self) -> int:
        return int(self.window_s.size)


def pod_windows(
    windows: Path, start: datetime, end: datetime, cluster: str | None = None
) -> tuple[PodWindows, NodeTable]:
    """Load the pods of ``[start, end)`` with their requests, and the nodes there were."""
    nodes = node_table(windows, start, end, cluster)
    files = [file for table in ("nodes", "pods", "demands") for file in files_of(windows, table, start, end)]
    arrays = mapped(
        "pod-windows", files, [start, end, cluster], lambda: _build(windows, start, end, cluster, nodes.names)
    )
    names = tuple(str(name) for name in arrays.pop("pod_names"))
    return PodWindows(**arrays, pod_names=names), nodes  # type: ignore[arg-type]


def _build(windows: Path, start: datetime, end: datetime, cluster: str | None, nodes: tuple[str, ...]) -> Arrays:
    pods = frame_of(windows, "pods", start, end, cluster, ["pod", "node", *_SIZES, *_USED])
    # A pod that asks for nothing known cannot be placed.
    pods = pods.dropna(subset=_SIZES)
    if pods.empty:
        raise DataError(
            f"{windows} has no pod with a size between {start} and {end}",
            "requests of cpu and memory",
            "check the range",
        )
    several = any("/" in name for name in nodes) and pods["cluster"].nunique() > 1
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
        "row_requests": np.append(0, np.cumsum(counts)).astype(np.int64),
        "arrival_offset_s": np.clip(demands["arrival_offset_s"].to_numpy(np.float64), 0.0, float(WINDOW_SECONDS)),
        "duration_s": demands["duration_s"].to_numpy(np.float64),
        "cpu": demands["cpu_cores"].to_numpy(np.float64),
        "mem": demands["mem_gib"].to_numpy(np.float64),
        "pod_names": names,
    }
