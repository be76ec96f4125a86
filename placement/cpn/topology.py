"""The network as it is: data centres, clusters with how to reach them, nodes, cards and links; addressed by name.

The description is that of ``sched_env.jobs.topology``, with what only a live controller needs beside each cluster. It
is read from a file or over HTTP, checked as a whole, and read again when it changes: a description that is wrong leaves
the one before in place.
"""

from __future__ import annotations

import dataclasses
import hashlib
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import yaml

from sched_env.jobs import tables
from sched_env.jobs import topology as described
from wire.errors import ConfigError, LoadmasterError

GpuMode = Literal["direct", "hami"]
BENCHMARKS = ("resnet50", "yolov8m", "llama3")
"""What a card's fingerprint is made of: seconds a step of each."""
FETCH_S = 10.0


class CardGroup(described.CardGroup, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cards of one type in a node."""

    fingerprint: dict[Literal["resnet50", "yolov8m", "llama3"], described.Size] = msgspec.field(default_factory=dict)
    """Measured seconds a step; configured, or from benchmark Jobs."""


class Node(described.Node, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server, by its name in Kubernetes."""

    cards: list[CardGroup]  # type: ignore[assignment]


class Cluster(described.Cluster, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Kubernetes cluster and how to reach it."""

    nodes: list[Node]  # type: ignore[assignment]
    kubeconfig: str | None = None
    """A file; without one and without a context, the service account of the pod that the controller runs in."""
    context: str | None = None
    namespace: str = "default"
    """Where Jobs are made."""
    prometheus_url: str | None = None
    """Without one the loads of the description hold."""
    gpu_mode: GpuMode = "direct"
    """``direct``: cards are pinned by CUDA_VISIBLE_DEVICES and no nvidia.com/gpu is asked for; ``hami``: HAMi's
    scheduler shares them by MPS."""
    hami_pool: str = "default"
    """Value of the annotation ``hami.io/resource-pool``."""


class Datacenter(described.Datacenter, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A place; one without clusters only holds data."""

    clusters: list[Cluster] = msgspec.field(default_factory=list)  # type: ignore[assignment]


class Description(described.Description, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole document."""

    datacenters: list[Datacenter]  # type: ignore[assignment]


@dataclass(frozen=True)
class Card:
    """One card, by name."""

    name: str
    """``cluster/node/gpu0``"""
    cluster: str
    node: str
    number: int
    """On its node, as CUDA counts."""
    type: str


@dataclass(frozen=True)
class Network:
    """A checked description, and where everything is by name."""

    digest: str
    table: tables.Topology
    """For the kernels; its nodes are ``cluster/node``."""
    clusters: dict[str, Cluster]
    cards: dict[str, Card]
    """In the table's order."""
    card_index: dict[str, int]
    node_index: dict[str, int]
    datacenter_index: dict[str, int]


def read(text: str | bytes, source: str) -> Network:
    """Check a description (YAML or JSON).

    Raises:
        ConfigError: Naming the field, and what is legal there.
    """
    try:
        description = msgspec.convert(yaml.safe_load(text), Description)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise ConfigError(f"topology {source}: {' '.join(str(error).split())}", "see docs/cpn.md, Topology") from error
    return build(description, source)


def build(description: Description, source: str = "topology") -> Network:
    """Turn a description into a network."""
    _check_names(description, source)
    qualified = msgspec.structs.replace(
        description,
        datacenters=[
            msgspec.structs.replace(place, clusters=[_qualified(cluster) for cluster in place.clusters])
            for place in description.datacenters
        ],
    )
    try:
        table = described.build(qualified, source)
    except LoadmasterError as error:
        raise ConfigError(f"topology {source}: {error.found}", error.expected, error.fix) from error
    cards = [
        Card(f"{cluster.name}/{node.name}/gpu{number}", cluster.name, node.name, number, kind)
        for place in description.datacenters
        for cluster in place.clusters
        for node in cluster.nodes
        for number, kind in enumerate(group.type for group in node.cards for _ in range(group.count))
    ]
    table = dataclasses.replace(table, cards=tuple(card.name for card in cards))
    return Network(
        digest=hashlib.sha256(msgspec.json.encode(description)).hexdigest()[:16],
        table=table,
        clusters={cluster.name: cluster for place in description.datacenters for cluster in place.clusters},
        cards={card.name: card for card in cards},
        card_index={card.name: index for index, card in enumerate(cards)},
        node_index={name: index for index, name in enumerate(table.nodes)},
        datacenter_index={name: index for index, name in enumerate(table.datacenters)},
    )


def _qualified(cluster: Cluster) -> Cluster:
    """Name nodes with their cluster: two clusters may well have a node of one name."""
    nodes = [msgspec.structs.replace(node, name=f"{cluster.name}/{node.name}") for node in cluster.nodes]
    return msgspec.structs.replace(cluster, nodes=nodes)


def _check_names(description: Description, source: str) -> None:
    clusters = [cluster for place in description.datacenters for cluster in place.clusters]
    named = [("data centre", [place.name for place in description.datacenters])]
    named += [("cluster", [cluster.name for cluster in clusters])]
    named += [(f"node of cluster {cluster.name!r}", [node.name for node in cluster.nodes]) for cluster in clusters]
    for what, names in named:
        for name, count in Counter(names).items():
            if count > 1 or not name or "/" in name:
                raise ConfigError(
                    f"topology {source}: {what} {name!r}" + (f" is there {count} times" if count > 1 else ""),
                    "names that differ, are not empty and have no slash",
                )
    if not any(node.cards for cluster in clusters for node in cluster.nodes):
        raise ConfigError(f"topology {source}: there is no card", "at least one node with cards")
    addresses = Counter((cluster.kubeconfig, cluster.context, cluster.namespace) for cluster in clusters)
    for (kubeconfig, context, _), count in addresses.items():
        if count > 1 and (kubeconfig or context):
            raise ConfigError(
                f"topology {source}: {count} clusters are reached by kubeconfig {kubeconfig!r}, context {context!r}",
                "each cluster once: its jobs would be followed twice",
            )


class Source:
    """Where the description comes from: a file, or an address that answers with it."""

    def __init__(self, where: str) -> None:
        self.where = where
        self._seen = ""

    def read(self) -> Network:
        """Return the network as it is described now; raises as :meth:`changed` does."""
        return read(self._fetch(), self.where)

    def changed(self) -> Network | None:
        """Return the network if the description is another than the last time.

        Raises:
            ConfigError: When it cannot be read or is wrong; the same wrong one is told once.
        """
        text = self._fetch()
        digest = hashlib.sha256(text).hexdigest()
        if digest == self._seen:
            return None
        self._seen = digest
        return read(text, self.where)

    def _fetch(self) -> bytes:
        if not self.where.startswith(("http://", "https://")):
            try:
                return Path(self.where).expanduser().read_bytes()
            except OSError as error:
                raise ConfigError(f"topology {self.where}: {error.strerror}", "a readable file") from error
        try:
            with urllib.request.urlopen(self.where, timeout=FETCH_S) as answer:  # noqa: S310 - http or https, see above
                return bytes(answer.read())
        except (urllib.error.URLError, OSError, ValueError) as error:
            raise ConfigError(
                f"topology {self.where}: {error}", "an address that answers with a description"
            ) from error
