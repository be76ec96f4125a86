"""The clusters file: which clusters are watched, and which adapters answer for them.

.. code-block:: yaml

    clusters:
      lab: {kubeconfig: ~/.kube/config, context: lab, prices: {m5.large: 0.096}, prometheus: {url: http://prom:9090}}
    extender: {cluster: lab}
"""

from __future__ import annotations

import csv
import math
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import yaml

from sched_env import problems
from wire.contracts.feature_spec import ProblemName
from wire.contracts.place import Name
from wire.errors import ConfigError, legal

Seconds = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]


class PrometheusSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the use of nodes and pods is measured."""

    url: Annotated[str, msgspec.Meta(pattern="^https?://")]
    token_file: str | None = None
    """A bearer token, read at each question so that it can be rotated."""
    every_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    """How often it is asked; scrapes are usually that far apart."""
    timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    """Of one question; a slow Prometheus leaves what was known before."""
    window_s: Seconds = 300
    """What is looked at: the window that policies are trained on."""
    step_s: Seconds = 15
    """Between two samples of it."""
    queries: dict[Literal["pod_cpu", "pod_mem", "node_cpu", "node_mem", "node_net", "node_disk"], str] = {}
    """PromQL in place of ours (placement/kube/usage.py), where exporters are named otherwise."""


class ClusterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to reach one cluster."""

    kubeconfig: str | None = None
    """A file; without one and without a context, the service account of the pod that the service runs in."""
    context: str | None = None
    """Of the kubeconfig; its current one when not given."""
    prices: dict[str, Annotated[float, msgspec.Meta(ge=0)]] = {}
    """Instance type -> USD/hour, for nodes without the label ``loadmaster.dev/price-usd-per-hour``."""
    prices_file: str | None = None
    """The same as a CSV with the columns ``instance_type`` and ``usd_per_hour``; ``prices`` goes before it."""
    prometheus: PrometheusSettings | None = None
    """None: what nodes and pods use is not known, and defaults stand for it."""

    def price_table(self) -> dict[str, float]:
        """Return instance type -> USD/hour, of file and settings."""
        return (_read_prices(Path(self.prices_file).expanduser()) if self.prices_file else {}) | self.prices


class ExtenderSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whom the extender answers."""

    cluster: Name
    problem: ProblemName = "functions"


class GatesSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose gated pods are placed."""

    cluster: Name
    problem: ProblemName = "functions"
    namespace: str = "default"
    """Where the lease is that makes one replica the leader."""


class MigratorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose pods are moved, and how far the migrator may go."""

    cluster: Name
    apply: bool = False
    """False: every cycle is planned, checked against the API server and reported, and nothing is moved."""
    every_s: Seconds = 300
    """Cycles begin at whole multiples of it (UTC), as windows do: a new leader never adds a cycle."""
    namespace: str = "default"
    """Where the lease is that makes one replica the leader."""
    threshold: Share = 0.8
    """Of a node's cpu or memory: a node above it at any sample of the window is stressed, as in training."""
    budget: Share = 0.05
    """Share of the cluster's pods that may move in a cycle (at least one), as in training."""
    most_moves: Annotated[int, msgspec.Meta(ge=1)] = 20
    """In a cycle, however large the cluster is."""
    per_workload: Annotated[int, msgspec.Meta(ge=1)] = 1
    """Pods of one Deployment or StatefulSet that may move in a cycle."""
    least_saved: Annotated[int, msgspec.Meta(ge=0)] = 1
    """Samples above the threshold, on source and target together, that a move would have saved in the window just
    seen; one that saves fewer is not made, unless its node is above it all the time and the target stays well below
    (docs/results/migrator.md). 0: whatever the policy says."""
    min_age_s: Seconds = 900
    """Younger pods stay. A pod that was moved comes back as a new one, so this is its cool-down too, and it holds
    whoever leads: the API server keeps the time."""
    retry_s: Seconds = 1800
    """A pod whose move was refused (by a PDB, or for want of a reservation) is not offered again for so long."""
    owner_kinds: tuple[str, ...] = ("ReplicaSet",)
    """Whose pods come back when evicted. StatefulSets may be added; bare pods, Jobs and DaemonSets never make sense."""
    skip_namespaces: tuple[str, ...] = ("kube-system",)
    reserve_s: Annotated[float, msgspec.Meta(gt=0)] = 15.0
    """How long the scheduler has to bind the placeholder that holds the room."""
    placeholder_image: str = "registry.k8s.io/pause:3.10"
    placeholder_priority_class: str = "loadmaster-placeholder"
    """Below everybody's, and never preempting (deploy/migrator.yaml makes it): held room is given up to real pods."""
    price_per_move_usd: Annotated[float, msgspec.Meta(ge=0)] = 0.01


class ClustersFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    clusters: dict[Name, ClusterSettings] = {}
    extender: ExtenderSettings | None = None
    gates: GatesSettings | None = None
    migrator: MigratorSettings | None = None


def load(path: Path | None) -> ClustersFile:
    """Read the file; without one no cluster is watched."""
    if path is None:
        return ClustersFile()
    try:
        found = msgspec.convert(yaml.safe_load(path.read_text()) or {}, ClustersFile)
    except (OSError, yaml.YAMLError, msgspec.ValidationError) as error:
        said = str(error).replace("\n", " ")
        raise ConfigError(f"{path}: {said}", "a clusters file as docs/kubernetes.md shows it") from error
    if found.migrator is not None:
        _check_migrator(path, found, found.migrator)
    for one in found.clusters.values():
        one.price_table()  # a table that cannot be read is said now, not when the first node comes
    for name, asked in (("extender", found.extender), ("gates", found.gates)):
        if asked is not None and asked.cluster not in found.clusters:
            raise ConfigError(f"{path}: {name}.cluster is {asked.cluster!r}", legal(found.clusters))
        if asked is not None and asked.problem not in node_problems():
            expected = legal(node_problems())
            raise ConfigError(f"{path}: {name}.problem is {asked.problem!r}, whose candidates are no nodes", expected)
    return found


def _check_migrator(path: Path, found: ClustersFile, asked: MigratorSettings) -> None:
    if asked.cluster not in found.clusters:
        raise ConfigError(f"{path}: migrator.cluster is {asked.cluster!r}", legal(found.clusters))
    if found.clusters[asked.cluster].prometheus is None:
        raise ConfigError(f"{path}: migrator.cluster {asked.cluster!r} has no prometheus", "what its pods use")
    never = {"DaemonSet", "Job", "Node"} & set(asked.owner_kinds)
    if never:
        raise ConfigError(f"{path}: migrator.owner_kinds has {sorted(never)}", "owners whose pods come back elsewhere")


def _read_prices(path: Path) -> dict[str, float]:
    try:
        with path.open(newline="") as file:
            rows = [(row["instance_type"], float(row["usd_per_hour"])) for row in csv.DictReader(file)]
    except (OSError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise ConfigError(f"{path}: {error!r}", "a CSV with the columns instance_type and usd_per_hour") from error
    for kind, price in rows:
        if not 0.0 <= price < math.inf:
            raise ConfigError(f"{path}: {kind} costs {price}", "a finite number, 0 or more")
    return dict(rows)


@lru_cache(maxsize=1)
def node_problems() -> list[ProblemName]:
    """Return the problems whose candidates are the nodes of a cluster, as a watch sees them."""
    return [name for name in problems.names() if problems.get(name).state_fields.keys() >= NODE]


NODE = {"cpu_capacity", "mem_capacity", "cpu_deployed", "mem_deployed", "active"}
"""What a problem must know of a candidate for a node to be one."""
