"""``GET /v1/clusters/{name}/snapshot``: a watched cluster as it is, as a file that ``loadmaster rollout`` replays."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from wire.contracts.place import Name

Amount = Annotated[float, msgspec.Meta(ge=0)]


class SnapshotNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node that is part of it."""

    name: Name
    cpu_cores: Amount
    mem_gib: Amount
    price_usd_per_hour: Amount
    active: bool
    """Ready, not cordoned, not tainted against everybody."""


class SnapshotPod(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pod on a node, and what it used in the window."""

    name: str
    """``namespace/name``."""
    workload: str
    node: str
    cpu_cores: Amount
    """Requested."""
    mem_gib: Amount
    movable: bool
    """Whether a migrator with the usual settings could move it."""
    cpu_used: list[Amount]
    """Cores, one for each sample of the window; empty when it is not known."""
    mem_used: list[Amount]
    """GiB, as many."""


class Snapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cluster at one moment."""

    cluster: Name
    taken_at: str
    """RFC 3339, UTC."""
    step_s: Annotated[int, msgspec.Meta(ge=1)]
    """Between two samples of the window."""
    nodes: list[SnapshotNode]
    pods: list[SnapshotPod]
    schema: Literal[1] = 1
