"""Pods with our scheduling gate: a node is chosen, written into their affinity, and the gate is taken away.

For clusters whose control plane nobody can configure. The scheduler still binds, and checks everything again; affinity
may only be tightened, so that what the pod's owner demands stays.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from kubernetes.client import ApiClient, ApiException
from urllib3.exceptions import HTTPError

from placement.errors import PlaceRefusedError
from placement.kube.cluster import Cluster
from placement.kube.eligible import pinned
from placement.kube.lease import Lease
from placement.kube.objects import Pod
from placement.kube.rest import Rest

log = logging.getLogger(__name__)

GATE = "loadmaster.dev/place"
RETRY_S = 5.0
"""How often pods that fitted nowhere, or could not be patched, are tried again."""

Choose = Callable[[Cluster, Pod, list[str]], str | None]
"""Picks one of these nodes for a pod; None when it fits on none."""


class Gates(threading.Thread):
    """Places the gated pods of one cluster, while it leads.

    Args:
        client: Knows the server.
        cluster: What is watched of it.
        lease: Says whether this replica may act.
        choose: Asks the policy.
    """

    def __init__(self, client: ApiClient, cluster: Cluster, lease: Lease, choose: Choose) -> None:
        super().__init__(name=f"gates {cluster.name}", daemon=True)
        self._rest, self._cluster, self._lease, self._choose = Rest(client), cluster, lease, choose
        self._waiting: dict[str, Pod] = {}
        self._changed, self._stopped = threading.Condition(), False
        self.released = self.failures = 0

    def put(self, pod: Pod) -> None:
        """Hear of a pod from the watch."""
        with self._changed:
            if pod.gated_by(GATE) and not pod.metadata.deletion_timestamp:
                self._waiting[pod.metadata.uid] = pod
                self._changed.notify()
            else:
                self._waiting.pop(pod.metadata.uid, None)

    def drop(self, uid: str) -> None:
        """Hear of a pod that is gone."""
        with self._changed:
            self._waiting.pop(uid, None)

    def stop(self) -> None:
        """End the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def run(self) -> None:
        """Place whatever waits; again after a while what did not fit."""
        while True:
            with self._changed:
                if not self._stopped and not self._waiting:
                    self._changed.wait(RETRY_S)
                if self._stopped:
                    return
                waiting = list(self._waiting.values())
            left = sum(not self._release(pod) for pod in waiting) if self._lease.leading else len(waiting)
            if left:
                with self._changed:
                    self._changed.wait(RETRY_S)

    def _release(self, pod: Pod) -> bool:
        """Place one pod; tells whether it needs no further look."""
        path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"
        try:
            node = self._choose(self._cluster, pod, self._cluster.eligible(pod))
            if node is None:
                return False
            self._cluster.assume(pod, node)
            # Of the pod as it is now, and only if it is still the one that was looked at.
            self._rest.patch(path, _release_patch(pod, node))
        except (ApiException, HTTPError, OSError, PlaceRefusedError, ValueError) as error:
            self.failures += 1
            log.warning("%s: %s is not released: %s", self.name, path, str(error).split("\n")[0][:200])
            return False
        self.drop(pod.metadata.uid)
        self.released += 1
        return True


def _release_patch(pod: Pod, node: str) -> list[dict[str, object]]:
    affinity = pod.spec.affinity or {}
    inner = {**(affinity.get("nodeAffinity") or {})}
    inner["requiredDuringSchedulingIgnoredDuringExecution"] = pinned(pod.spec.required_affinity, [node])
    gates = [{"name": gate.name} for gate in pod.spec.scheduling_gates or () if gate.name != GATE]
    return [
        {"op": "test", "path": "/metadata/uid", "value": pod.metadata.uid},
        {"op": "test", "path": "/metadata/resourceVersion", "value": pod.metadata.resource_version},
        {"op": "add", "path": "/spec/affinity", "value": {**affinity, "nodeAffinity": inner}},
        {"op": "replace", "path": "/spec/schedulingGates", "value": gates},
    ]
