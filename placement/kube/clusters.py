"""Every watched cluster: its state, and the threads that keep it up to date."""

from __future__ import annotations

import logging
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
    from placement.kube.watch import Watch

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Watched:
    """A cluster and who follows it."""

    cluster: Cluster
    watches: tuple[Watch[Node], Watch[Pod]]

    def silent_s(self) -> float:
        """How long the older of nodes and pods has not been heard of."""
        return max(watch.silent_s for watch in self.watches)


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
        for name, one in settings.clusters.items():
            client = connect(name, one)
            gates = None
            if settings.gates is not None and settings.gates.cluster == name and decider is not None:
                gates = partial(self._gates, client, settings.gates, decider)
            self._watched[name] = watched = _watch(name, one, client, gates)
            metrics.show_cluster(name, watched.cluster.size, watched.silent_s)
            for watch in watched.watches:
                watch.start()

    def _gates(self, client: ApiClient, settings: GatesSettings, decider: Decider, cluster: Cluster) -> Gates:
        from placement.kube.gates import Gates
        from placement.kube.lease import Lease

        def choose(cluster: Cluster, pod: Pod, names: list[str]) -> str | None:
            if not names:
                return None
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
        if not all(watch.listed.is_set() for watch in watched.watches):
            raise PlaceRefusedError(503, f"cluster {name!r} has not answered yet", "its nodes and pods", "try again")
        return watched.cluster

    def names(self) -> list[str]:
        """Return the names of all."""
        return list(self._watched)

    def close(self) -> None:
        """Stop acting, then watching."""
        for adapter in self._adapters:
            adapter.stop()
        for watched in self._watched.values():
            for watch in watched.watches:
                watch.stop()


def _watch(
    name: str, settings: ClusterSettings, client: ApiClient, adapter: Callable[[Cluster], Gates] | None
) -> Watched:
    from placement.kube.cluster import Cluster
    from placement.kube.objects import Node, Pod
    from placement.kube.watch import Watch

    cluster = Cluster(name, settings.prices)
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
    return Watched(cluster, (nodes, pods))


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
