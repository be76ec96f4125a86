"""Snapshots of live clusters (``GET /v1/clusters/{name}/snapshot``), as traces start from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sched_env.tables import NodeTable
from wire.contracts import decode
from wire.contracts.snapshot import Snapshot, SnapshotNode
from wire.errors import ContractError, TraceError

NET_MB_S, DISK_IOPS = 1000.0, 5000.0
"""Of a node: a snapshot does not tell them."""


def is_snapshot(path: Path) -> bool:
    """Say whether a file is one, by its name."""
    return path.suffix == ".json" and path.is_file()


def read(path: Path) -> tuple[Snapshot, list[SnapshotNode]]:
    """Read a snapshot; returns it with the nodes that have something to give, in its order."""
    try:
        snapshot = decode(path.read_bytes(), Snapshot, source=str(path))
    except (OSError, ContractError) as error:
        raise TraceError(f"{path}: {error}", "what GET /v1/clusters/{name}/snapshot answered") from error
    nodes = [node for node in snapshot.nodes if node.cpu_cores > 0.0 and node.mem_gib > 0.0]
    if not nodes:
        raise TraceError(f"{path} has no node with cpu and memory", "one or more")
    return snapshot, nodes


def node_table(nodes: list[SnapshotNode]) -> NodeTable:
    """Return the nodes as a table."""
    size = len(nodes)
    return NodeTable(
        tuple(node.name for node in nodes),
        np.array([node.cpu_cores for node in nodes]),
        np.array([node.mem_gib for node in nodes]),
        np.full(size, NET_MB_S),
        np.full(size, DISK_IOPS),
        np.array([node.price_usd_per_hour for node in nodes]),
    )
