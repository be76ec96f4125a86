"""A snapshot of a live cluster as a pod trace: its window, and the same one again.

The second window is what the decisions at the end of the first are scored by: *if the load goes on like this*.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sched_env.pods.tables import WINDOW_S, PodTrace, offsets
from sched_env.tables import NodeTable
from sched_env.traces import snapshot as snapshots
from wire.errors import TraceError

WINDOWS = 2


def read(path: Path) -> tuple[PodTrace, NodeTable]:
    """Read a snapshot; a pod whose use is not known is taken to use what it requests."""
    snapshot, nodes = snapshots.read(path)
    number = {node.name: index for index, node in enumerate(nodes)}
    pods = [pod for pod in snapshot.pods if pod.node in number]
    if not pods:
        raise TraceError(f"{path} has no pod on a node", "one or more")
    cpu = [np.array(pod.cpu_used or [pod.cpu_cores]) for pod in pods]
    mem = [np.array(pod.mem_used or [pod.mem_gib]) for pod in pods]
    counts = np.array([one.size for one in cpu])
    if any(one.size != other.size for one, other in zip(cpu, mem, strict=True)):
        raise TraceError(f"{path} has a pod with more samples of cpu than of memory, or fewer", "as many of both")
    step = np.concatenate([np.full(n, min(WINDOW_S / n, snapshot.step_s) if n > 1 else WINDOW_S) for n in counts])
    arrival = np.concatenate([np.arange(n) * WINDOW_S / n for n in counts])
    rows = {
        "pod": np.arange(len(pods)),
        "node": np.array([number[pod.node] for pod in pods]),
        "held": np.array([not pod.movable for pod in pods]),
        "domain": np.zeros(len(pods)),
        "cpu_request": np.array([pod.cpu_cores for pod in pods]),
        "mem_request": np.array([pod.mem_gib for pod in pods]),
        "cpu_used": np.array([one.mean() for one in cpu]),
        "mem_used": np.array([one.mean() for one in mem]),
    }
    requests = {
        "arrival_offset_s": arrival, "duration_s": step, "cpu": np.concatenate(cpu), "mem": np.concatenate(mem),
    }  # fmt: skip
    trace = PodTrace(
        window_s=np.arange(WINDOWS, dtype=np.float64) * WINDOW_S,
        window_rows=np.arange(WINDOWS + 1) * len(pods),
        row_requests=offsets(np.tile(counts, WINDOWS)),
        pod_names=tuple(pod.name for pod in pods),
        up=np.tile([node.active for node in nodes], (WINDOWS, 1)),
        **{name: np.tile(values, WINDOWS) for name, values in (rows | requests).items()},
    )
    return trace, snapshots.node_table(nodes)
