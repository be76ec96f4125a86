"""What the service reads of nodes and pods: a few fields of a large JSON, decoded straight into these and nothing else.

The client's own models would take some hundred times as long and as much memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec

GIB = 2**30
MILLI = 1000


class Read(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Base of all: keys as Kubernetes writes them; what is not named here is passed over."""


class Owner(Read, frozen=True):
    """Who made a pod."""

    kind: str
    name: str
    controller: bool = False


class Metadata(Read, frozen=True):
    """What every object has."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[Owner] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None


class Taint(Read, frozen=True):
    """Why a node takes not everybody."""

    key: str
    effect: str
    value: str = ""


class Condition(Read, frozen=True):
    """One of the things a node says of itself."""

    type: str
    status: str


class NodeSpec(Read, frozen=True):
    """What was decided about a node."""

    unschedulable: bool = False
    taints: list[Taint] | None = None


class NodeStatus(Read, frozen=True):
    """What a node has."""

    allocatable: dict[str, str | int | float] | None = None
    capacity: dict[str, str | int | float] | None = None
    conditions: list[Condition] | None = None


class Node(Read, frozen=True):
    """A machine."""

    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    def resource(self, name: str) -> float:
        """Return what pods may ask for, in base units; 0 when the node does not say."""
        for said in (self.status.allocatable, self.status.capacity):
            if said and name in said:
                return quantity(said[name])
        return 0.0

    @property
    def ready(self) -> bool:
        """Whether its kubelet is alive and nobody has cordoned it."""
        conditions = {condition.type: condition.status for condition in self.status.conditions or ()}
        return not self.spec.unschedulable and conditions.get("Ready", "True") == "True"

    @property
    def open(self) -> bool:
        """Whether a pod without tolerations may go there."""
        return self.ready and not any(taint.effect in ("NoSchedule", "NoExecute") for taint in self.spec.taints or ())


class Resources(Read, frozen=True):
    """What a container asks for."""

    requests: dict[str, str | int | float] | None = None


class Container(Read, frozen=True):
    """A container, or an init container."""

    resources: Resources = Resources()
    restart_policy: str = ""
    """``Always`` makes an init container a sidecar, which stays."""


class Requirement(Read, frozen=True):
    """One demand on a node's labels or fields."""

    key: str
    operator: str
    values: list[str] | None = None


class Term(Read, frozen=True):
    """Demands that must all hold."""

    match_expressions: list[Requirement] | None = None
    match_fields: list[Requirement] | None = None


class NodeSelector(Read, frozen=True):
    """Terms of which one must hold."""

    node_selector_terms: list[Term] = msgspec.field(default_factory=list)


class Toleration(Read, frozen=True):
    """A taint that a pod does not mind."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class Gate(Read, frozen=True):
    """What keeps a pod from being scheduled."""

    name: str


class Volume(Read, frozen=True):
    """What a pod keeps on its node, and would lose by moving."""

    empty_dir: dict[str, Any] | None = None
    host_path: dict[str, Any] | None = None


class LabelSelector(Read, frozen=True):
    """Which pods are meant."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[Requirement] | None = None


class PodTerm(Read, frozen=True):
    """Pods to be near to, or far from."""

    topology_key: str
    label_selector: LabelSelector | None = None
    namespaces: list[str] | None = None
    namespace_selector: LabelSelector | None = None


class Spread(Read, frozen=True):
    """How evenly pods are to lie."""

    topology_key: str
    max_skew: int = 1
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: LabelSelector | None = None


class PodSpec(Read, frozen=True):
    """What a pod shall be."""

    node_name: str = ""
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    overhead: dict[str, str | int | float] | None = None
    scheduler_name: str = ""
    node_selector: dict[str, str] | None = None
    tolerations: list[Toleration] | None = None
    scheduling_gates: list[Gate] | None = None
    volumes: list[Volume] | None = None
    priority_class_name: str = ""
    topology_spread_constraints: list[Spread] | None = None
    affinity: dict[str, Any] | None = None
    """As it was written: what is not read here is written back as it was."""

    @property
    def required_affinity(self) -> NodeSelector | None:
        """The node affinity that must hold."""
        said = ((self.affinity or {}).get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
        return msgspec.convert(said, NodeSelector) if said else None

    def required_near(self, kind: str) -> list[PodTerm]:
        """Return the terms of ``podAffinity`` or ``podAntiAffinity`` that must hold."""
        said = ((self.affinity or {}).get(kind) or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
        return msgspec.convert(said or [], list[PodTerm])


class PodStatus(Read, frozen=True):
    """What became of a pod."""

    phase: str = ""


class Pod(Read, frozen=True):
    """Something to place, or placed."""

    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    def request(self, name: str) -> float:
        """Return what the scheduler counts for a resource: containers and sidecars, or the largest init step."""
        running: float = sum(_asked(container, name) for container in self.spec.containers or ())
        largest = 0.0
        for container in self.spec.init_containers or ():
            asked = _asked(container, name)
            if container.restart_policy == "Always":
                running += asked
            else:
                largest = max(largest, _sidecars(self.spec.init_containers or (), container, name) + asked)
        overhead = self.spec.overhead or {}
        return max(running, largest) + (quantity(overhead[name]) if name in overhead else 0.0)

    @property
    def holds(self) -> bool:
        """Whether it takes resources of a node."""
        return bool(self.spec.node_name) and self.status.phase not in ("Succeeded", "Failed")

    def gated_by(self, name: str) -> bool:
        """Whether this gate keeps it."""
        return any(gate.name == name for gate in self.spec.scheduling_gates or ())

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def created(self) -> float:
        """Seconds since 1970 by the API server's clock; 0 when it does not say."""
        said = self.metadata.creation_timestamp
        try:
            return datetime.fromisoformat(said).timestamp() if said else 0.0
        except ValueError:
            return 0.0

    @property
    def owner_kind(self) -> str:
        """Kind of the controller that would make it anew; empty for a bare pod."""
        return next((one.kind for one in self.metadata.owner_references or () if one.controller), "")

    @property
    def workload(self) -> str:
        """``namespace/name`` of what the pod is one of: its Deployment rather than that one's ReplicaSet."""
        owner = next((one for one in self.metadata.owner_references or () if one.controller), None)
        name = owner.name if owner else self.metadata.name
        labels = self.metadata.labels or {}
        if owner and owner.kind == "ReplicaSet" and "pod-template-hash" in labels:
            name = name.removesuffix("-" + labels["pod-template-hash"])
        return f"{self.metadata.namespace}/{name}"


def _sidecars(steps: Iterable[Container], step: Container, name: str) -> float:
    """Sum up the sidecars that run already when an init step begins."""
    total = 0.0
    for one in steps:
        if one is step:
            break
        if one.restart_policy == "Always":
            total += _asked(one, name)
    return total


def _asked(container: Container, name: str) -> float:
    requests = container.resources.requests
    return quantity(requests[name]) if requests and name in requests else 0.0


@lru_cache(maxsize=4096)
def quantity(text: str | int | float) -> float:
    """Read a Kubernetes quantity (``250m``, ``2Gi``, ``1e3``); clusters repeat a few of them thousands of times."""
    from kubernetes.utils import parse_quantity  # a second, which a service without clusters need not wait

    try:
        value = float(parse_quantity(text))
    except (ValueError, ArithmeticError) as error:
        raise ValueError(f"{text!r} is no quantity") from error
    if not math.isfinite(value) or value < 0.0:
        raise ValueError(f"{text!r} is no amount")
    return value
