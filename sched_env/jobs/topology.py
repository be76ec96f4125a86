"""Topologies: the upstream controller's test bed, generated ones, and files that describe the user's own.

A file (YAML or JSON) lists data centres with their clusters, nodes and cards, and the links between data centres:

.. code-block:: yaml

    datacenters:
      - name: hangzhou
        clusters:
          - name: c1
            nodes:
              - {name: n1, cpu_cores: 64, mem_gib: 256, bandwidth_mb_s: 1000,
                 cards: [{type: A100, mem_gib: 40, usd_per_hour: 1.8, count: 2}]}
      - {name: store}
    links:
      - {from: store, to: hangzhou, bandwidth_mb_s: 100, usd_per_gb: 0.02}
    default_link: {bandwidth_mb_s: 100, usd_per_gb: 0.02}
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import yaml

from sched_env.jobs import synthetic as synthetic_jobs
from sched_env.jobs.tables import Topology
from wire.errors import TraceError

TESTBED = {"RTX4090": 2, "A100": 1, "P100": 6}
"""One of upstream's: three clusters, 100 MB/s links."""
Size = Annotated[float, msgspec.Meta(gt=0)]
Amount = Annotated[float, msgspec.Meta(ge=0)]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class CardGroup(_Part, frozen=True, kw_only=True):
    """Cards of one type in a node."""

    type: str
    mem_gib: Size
    usd_per_hour: Amount = 1.0
    """1 USD when no price is known."""
    count: Annotated[int, msgspec.Meta(ge=1)] = 1


class Node(_Part, frozen=True, kw_only=True):
    """A server."""

    name: str
    cpu_cores: Size
    mem_gib: Size
    cpu_used: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    bandwidth_mb_s: Size = float("inf")
    cards: list[CardGroup]


class Cluster(_Part, frozen=True, kw_only=True):
    """A Kubernetes cluster."""

    name: str
    nodes: list[Node]


class Datacenter(_Part, frozen=True, kw_only=True):
    """A place; one without clusters only holds data."""

    name: str
    clusters: list[Cluster] = []


class DefaultLink(_Part, frozen=True, kw_only=True):
    """What connects two data centres that no link names; inside a data centre data take no time."""

    bandwidth_mb_s: Size = synthetic_jobs.LINK_MB_S
    usd_per_gb: Amount = synthetic_jobs.LINK_USD_PER_GB


class Link(_Part, frozen=True, kw_only=True, rename={"source": "from", "target": "to"}):
    """A link, in one direction."""

    source: str
    target: str
    bandwidth_mb_s: Size
    usd_per_gb: Amount = 0.0


class Description(_Part, frozen=True, kw_only=True):
    """The whole file."""

    datacenters: list[Datacenter]
    links: list[Link] = []
    default_link: DefaultLink = msgspec.field(default_factory=DefaultLink)


def load(name: str, cards: int) -> Topology:
    """Return a topology by name (``testbed``; ``mixed`` with so many cards) or from a file."""
    if name == "testbed":
        return synthetic_jobs.topology(TESTBED)
    if name == "mixed":
        return synthetic_jobs.mixed(cards)
    path = Path(name)
    try:
        return build(msgspec.convert(yaml.safe_load(path.read_text()), Description), name)
    except FileNotFoundError as error:
        raise TraceError(f"topology {name!r} does not exist", "testbed, mixed, or a YAML or JSON file") from error
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise TraceError(f"topology {path}: {error}") from error


def build(description: Description, source: str = "topology") -> Topology:
    """Turn a description into the table."""
    places = [place.name for place in description.datacenters]
    clusters = [(d, cluster) for d, place in enumerate(description.datacenters) for cluster in place.clusters]
    nodes = [(at, node) for at, (_, cluster) in enumerate(clusters) for node in cluster.nodes]
    groups = [
        (at, node.name, group) for at, (_, node) in enumerate(nodes) for group in node.cards for _ in range(group.count)
    ]
    types = tuple(dict.fromkeys(group.type for _, _, group in groups))
    link = np.full((len(places), len(places)), description.default_link.bandwidth_mb_s)
    price = np.full(link.shape, description.default_link.usd_per_gb)
    np.fill_diagonal(link, np.inf)
    np.fill_diagonal(price, 0.0)
    for each in description.links:
        for end in (each.source, each.target):
            if end not in places:
                raise TraceError(f"{source}: a link names {end!r}", f"one of {', '.join(places)}")
        at = places.index(each.source), places.index(each.target)
        link[at], price[at] = each.bandwidth_mb_s, each.usd_per_gb
    return Topology(
        datacenters=tuple(places),
        link_mb_s=link,
        link_usd_per_gb=price,
        clusters=tuple(cluster.name for _, cluster in clusters),
        cluster_datacenter=np.array([d for d, _ in clusters], np.int32),
        nodes=tuple(node.name for _, node in nodes),
        node_cluster=np.array([at for at, _ in nodes], np.int32),
        node_cpu=np.array([node.cpu_cores for _, node in nodes]),
        node_cpu_used=np.array([node.cpu_used for _, node in nodes]),
        node_mem=np.array([node.mem_gib for _, node in nodes]),
        node_mb_s=np.array([node.bandwidth_mb_s for _, node in nodes]),
        cards=tuple(f"{name}/{k}" for k, (_, name, _) in enumerate(groups)),
        card_node=np.array([at for at, _, _ in groups], np.int32),
        card_type=np.array([types.index(group.type) for _, _, group in groups], np.int32),
        card_mem=np.array([group.mem_gib for _, _, group in groups]),
        card_usd_per_hour=np.array([group.usd_per_hour for _, _, group in groups]),
        card_types=types,
    )
