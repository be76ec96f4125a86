"""Every watched cluster: its state, and the threads that keep it up to date."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from os import getpid
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING

from placement.errors import PlaceRefusedError
from placement.kube.config import ClusterSettings, ClustersFile, GatesSettings
from placement.kube.request import request_of
from placement.metrics import Metrics
from wire.errors import ConfigError, legal

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

    from placement.decide import Decider
    from placement.kube.cluster import Cluster
    from placement.kube.gates import Gates
    from placement.kube.lease import Lease
    from placement.kube.objects import Node, Pod
    from placement.kube.usage import Usage
    from placement.kube.watch import Watch

log = logging.getLogger(__name__)

SWITCH_S = 0.0005
"""How long a thread of a watch may keep others from running: Python's own 5 ms are what a scheduler would wait for an
answer whenever a burst of events is read."""

NODE_USE = ("node_net", "node_disk")
"""What of a node's use policies of whole nodes see, beside what is deployed there."""


@dataclass(frozen=True)
class Watched:
    """A cluster and who follows it."""

    cluster: Cluster
    watches: tuple[Watch[Node], Watch[Pod]]
    usage: Usage | None = None

    def silent_s(self) -> float:
        """How long the older of nodes and pods has not been heard of."""
        return max(watch.silent_s for watch in self.watches)

    def unreadable(self) -> float:
        """How many objects could not be read."""
        return float(sum(watch.unreadable for watch in self.watches))

    def usage_silent_s(self) -> float:
        """How long the use of nodes and pods has not been told whole."""
        return float("inf") if self.usage is None else self.usage.silent_s

    def usage_rejected(self) -> float:
        """How many samples could not be true."""
        return 0.0 if self.usage is None else float(sum(self.usage.rejected.values()))

    def usage_unknown(self) -> float:
        """Of how many nodes the use is not known."""
        nodes, _ = self.cluster.contents()
        known = set() if self.usage is None else self.usage.keys("node_cpu") & self.usage.keys("node_mem")
        return float(sum(node.metadata.name not in known for node in nodes))

    def whole(self) -> bool:
        """Whether nodes and pods were seen at least once."""
        return all(watch.listed.is_set() for watch in self.watches)

    def stop(self) -> None:
        """Stop watching."""
        for watch in self.watches:
            watch.stop()
        if self.usage is not None:
            self.usage.stop()


class Clusters:
    """The clusters of the settings, by name, and the adapters that act on them.

    Args:
        settings: The clusters file.
        metrics: Where the clusters are shown.
        decider: Whom adapters ask; None where none is on.
    """

    def __init__(self, settings: ClustersFile, metrics: Metrics, decider: Decider | None = None) -> None:
        self._watched: dict[str, Watched] = {}
        self._adapters: list[Gates | Lease] = []
        if settings.clusters:
            sys.setswitchinterval(SWITCH_S)
        for name, one in settings.clusters.items():
            client = connect(name, one)
            gates = None
            if settings.gates is not None and settings.gates.cluster == name and decider is not None:
                gates = partial(self._gates, client, settings.gates, decider)
            self._watched[name] = watched = watch_cluster(name, one, client, gates)
            metrics.show_cluster(name, watched)
            for watch in watched.watches:
                watch.start()
            if watched.usage is not None:
                watched.usage.start()

    def _gates(self, client: ApiClient, settings: GatesSettings, decider: Decider, cluster: Cluster) -> Gates:
        from placement.kube.gates import Gates
        from placement.kube.lease import Lease

        def choose(cluster: Cluster, pod: Pod, names: list[str]) -> str | None:
            if not names:
                return None
            held = cluster.reserved(pod)
            if held in names:
                return held  # the migrator moved it there: that is decided
            state = cluster.state(settings.problem, names, offered=True)
            ranked = decider.decide(state, [request_of(pod, settings.problem)], 1).placements[0].ranked
            return ranked[0].name if ranked else None

        lease = Lease(client, settings.namespace, f"loadmaster-gates-{cluster.name}", f"{gethostname()}-{getpid()}")
        gates = Gates(client, cluster, lease, choose)
        self._adapters += [gates, lease]
        lease.start()
        gates.start()
        return gates

    def get(self, name: str) -> Cluster:
        """Return a cluster, if it is watched and was seen whole at least once."""
        watched = self._watched.get(name)
        if watched is None:
            raise PlaceRefusedError(422, f"cluster {name!r} is not watched", legal(self._watched) or "candidates")
        if not watched.whole():
            raise PlaceRefusedError(503, f"cluster {name!r} has not answered yet", "its nodes and pods", "try again")
        return watched.cluster

    def usage(self, name: str) -> Usage | None:
        """Return what is known of a cluster's use; None where nobody measures it."""
        self.get(name)
        return self._watched[name].usage

    def silent_s(self, name: str) -> float:
        """Return how long a cluster has not been heard of."""
        return self._watched[name].silent_s()

    def names(self) -> list[str]:
        """Return the names of all."""
        return list(self._watched)

    def close(self) -> None:
        """Stop acting, then watching."""
        for adapter in self._adapters:
            adapter.stop()
        for watched in self._watched.values():
            watched.stop()


def watch_cluster(
    name: str, settings: ClusterSettings, client: ApiClient, adapter: Callable[[Cluster], Gates] | None = None
) -> Watched:
    """Return a cluster with those who will follow it; they are not started yet."""
    from placement.kube.cluster import Cluster
    from placement.kube.objects import Node, Pod
    from placement.kube.watch import Watch

    cluster = Cluster(name, settings.price_table())
    gates = adapter(cluster) if adapter is not None else None

    def put_pod(pod: Pod) -> None:
        cluster.put_pod(pod)
        if gates is not None:
            gates.put(pod)

    def drop_pod(pod: Pod) -> None:
        cluster.drop_pod(pod.metadata.uid)
        if gates is not None:
            gates.drop(pod.metadata.uid)

    nodes = Watch(
        client,
        "/api/v1/nodes",
        Node,
        put=cluster.put_node,
        drop=lambda node: cluster.drop_node(node.metadata.name),
        only=lambda there: cluster.only_nodes(node.metadata.name for node in there),
    )
    pods = Watch(
        client,
        "/api/v1/pods",
        Pod,
        put=put_pod,
        drop=drop_pod,
        only=lambda there: cluster.only_pods(pod.metadata.uid for pod in there),
    )
    usage = None
    if settings.prometheus is not None:
        from placement.kube.usage import Usage

        usage = Usage(settings.prometheus, cluster.largest, lambda told: cluster.used(*map(told.means, NODE_USE)))
    return Watched(cluster, (nodes, pods), usage)


def connect(name: str, settings: ClusterSettings) -> ApiClient:
    """Return a client that knows the server and how to log in; nothing is asked of it yet."""
    from kubernetes import config
    from kubernetes.client import ApiClient, Configuration

    try:
        if settings.kubeconfig is None and settings.context is None:
            found = Configuration()
            config.load_incluster_config(client_configuration=found)
            return ApiClient(found)
        path = str(Path(settings.kubeconfig).expanduser()) if settings.kubeconfig else None
        return config.new_client_from_config(config_file=path, context=settings.context)
    except (config.ConfigException, OSError, ValueError) as error:
        raise ConfigError(f"cluster {name!r}: {error}", "a kubeconfig and a context that it has") from error
