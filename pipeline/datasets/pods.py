"""Pods of every window and the requests dealt to them, as flat arrays that the ``pods`` environment can replay."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline import windows
from pipeline.datasets.dataset import Dataset, Rows
from pipeline.errors import DataError
from sched_env.pods.tables import PodTrace, offsets
from sched_env.scenarios import Scenario
from sched_env.tables import NodeTable
from wire.contracts.window import WINDOW_SECONDS

_SIZES = ["cpu_request_cores", "mem_request_gib"]
_USED = ["cpu_used_mean_cores", "mem_used_mean_gib"]


Trace = tuple[PodTrace, NodeTable]


def load(folder: Path, start: datetime, end: datetime) -> Trace:
    """Load the pods of ``[start, end)`` with their requests, and the nodes of their clusters."""
    clusters = sorted(set(windows.frame_of(folder, "pods", start, end, [])["cluster"]))
    nodes = windows.node_table(folder, start, end, clusters)
    files = [file for table in ("nodes", "pods", "demands") for file in windows.files_of(folder, table, start, end)]
    # A name alone must not put a pod of one cluster on the node of another.
    several = len(clusters) > 1
    arrays = windows.mapped(__name__, files, [start, end], lambda: _build(folder, start, end, nodes.names, several))
    names = tuple(str(name) for name in arrays.pop("pod_names"))
    return PodTrace(**arrays, pod_names=names), nodes  # type: ignore[arg-type]


def _build(folder: Path, start: datetime, end: datetime, nodes: tuple[str, ...], several: bool) -> windows.Arrays:
    pods = windows.frame_of(folder, "pods", start, end, ["pod", "node", *_SIZES, *_USED])
    # A pod that asks for nothing known cannot be placed.
    pods = pods.dropna(subset=_SIZES)
    if pods.empty:
        raise DataError(
            f"{folder} has no pod with a size between {start} and {end}",
            "requests of cpu and memory",
            "check the range",
        )
    pods = pods.assign(name=windows.spelled(pods, "pod", several), host=windows.spelled(pods, "node", several))
    pods = pods.sort_values(["window_start", "name"], ignore_index=True)
    names, numbers = np.unique(pods["name"].to_numpy(str), return_inverse=True)
    elapsed = (pods["window_start"] - pd.Timestamp(start)).dt.total_seconds().to_numpy(np.float64)
    moments, first = np.unique(elapsed, return_index=True)
    hosts = pd.Index(nodes).get_indexer(pd.Index(pods["host"]))

    columns = ["pod", "position", "arrival_offset_s", "duration_s", "cpu_cores", "mem_gib"]
    demands = windows.frame_of(folder, "demands", start, end, columns)
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


def starts(trace: Trace, scenario: Scenario) -> Rows:
    """Windows with something to decide (a node above the threshold) and a whole episode after them."""
    from sched_env.pods.vector import make

    env = make(scenario, 1, trace=trace)
    first = np.arange(max(len(trace[0]) - env.scenario.episode_windows, 0))
    stressed: Rows = first[env.cluster.next_stress[first] == first]
    return stressed


def times_s(trace: Trace, rows: Rows) -> NDArray[np.float64]:
    """When windows begin."""
    return trace[0].window_s[rows]


def scaled(trace: Trace, load: float) -> Trace:
    """Let every request take ``load`` times as much: requests are dealt to pods, so there is no arrival to speed up."""
    pods, nodes = trace
    more = {name: getattr(pods, name) * load for name in ("cpu", "mem", "cpu_used", "mem_used")}
    return dataclasses.replace(pods, **more), nodes


DATASET = Dataset(load, starts, times_s, scaled)
