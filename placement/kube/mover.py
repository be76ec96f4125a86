"""One move, reserve first: a placeholder takes the room at the target, then the pod is evicted, then it may come back.

kube-scheduler itself binds the placeholder, with the pod's own affinity, selector and tolerations and the target's
name: that the target can take the pod is its word, not ours. Evictions go through the Eviction API, so that PDBs hold;
they are tried dry before anything is made. Who comes back is put on the held node by the extender or by the gates of
the placement service, which know the placeholder by the watch (``Cluster.reserved``).
"""

from __future__ import annotations

import time
from typing import Any, Literal

from kubernetes.client import ApiException

from placement.kube.cluster import RESERVES
from placement.kube.config import MigratorSettings
from placement.kube.eligible import pinned
from placement.kube.movable import PLACEHOLDER
from placement.kube.objects import Pod
from placement.kube.plan import Move
from placement.kube.rest import NOT_FOUND, Rest

Outcome = Literal["moved", "would_move", "refused_by_pdb", "no_room", "gone", "not_leading"]

POLL_S = 0.05
TOO_MANY = 429
LEFT_OVER_S = 120
"""After which a placeholder that nobody took away ends by itself."""


class Mover:
    """Moves pods of one cluster.

    Args:
        rest: Knows the server.
        settings: How long to wait, what placeholders are made of.
    """

    def __init__(self, rest: Rest, settings: MigratorSettings) -> None:
        self._rest, self._settings = rest, settings

    def move(self, move: Move, leading: Any) -> Outcome:
        """Move one pod, or say why not; whatever happens, no placeholder stays.

        Args:
            move: What to do.
            leading: Asked before anything is changed: another replica may have taken over meanwhile.
        """
        refused = self._evict(move.pod, dry=True)
        if refused is not None or not self._settings.apply:
            return refused or "would_move"
        if not leading():
            return "not_leading"
        path = self._hold(move)
        if path is None:
            return "no_room"
        try:
            if not self._bound(path, move.target):
                return "no_room"
            if not leading():
                return "not_leading"
            return self._evict(move.pod, dry=False) or "moved"
        finally:
            self._rest.delete(path, {"gracePeriodSeconds": 0})

    def sweep(self, pods: list[Pod], now: float) -> int:
        """Take placeholders away that a killed replica left behind; returns how many there were."""
        left = [
            pod
            for pod in pods
            if PLACEHOLDER in (pod.metadata.labels or {}) and now - pod.created > 2 * self._settings.reserve_s
        ]
        for pod in left:
            self._rest.delete(_path(pod), {"gracePeriodSeconds": 0})
        return len(left)

    def _evict(self, pod: Pod, *, dry: bool) -> Outcome | None:
        options: dict[str, Any] = {"preconditions": {"uid": pod.metadata.uid}}
        if dry:
            options["dryRun"] = ["All"]
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.metadata.name, "namespace": pod.metadata.namespace},
            "deleteOptions": options,
        }
        try:
            made = self._rest.post(f"{_path(pod)}/eviction{'?dryRun=All' if dry else ''}", body)
        except ApiException as error:
            if error.status == TOO_MANY:
                return "refused_by_pdb"
            if error.status == NOT_FOUND:
                return "gone"
            raise
        return "gone" if made is None else None  # 409: another pod has its name now

    def _hold(self, move: Move) -> str | None:
        placeholder = _placeholder(move, self._settings)
        made = self._rest.post(f"/api/v1/namespaces/{move.pod.metadata.namespace}/pods", placeholder)
        if made is None:
            return None  # one of that name is there: a move of the same pod that has not ended
        return f"/api/v1/namespaces/{move.pod.metadata.namespace}/pods/{made['metadata']['name']}"

    def _bound(self, path: str, target: str) -> bool:
        until = time.monotonic() + self._settings.reserve_s
        while time.monotonic() < until:
            found = self._rest.get(path, missing_ok=True)
            if found is None:
                return False  # preempted by somebody who needs the room
            if found["spec"].get("nodeName"):
                return bool(found["spec"]["nodeName"] == target)
            time.sleep(POLL_S)
        return False


def _path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"


def _placeholder(move: Move, settings: MigratorSettings) -> dict[str, Any]:
    pod = move.pod
    affinity = pod.spec.affinity or {}
    inner = {**(affinity.get("nodeAffinity") or {})}
    inner["requiredDuringSchedulingIgnoredDuringExecution"] = pinned(pod.spec.required_affinity, [move.target])
    requests = {"cpu": f"{round(pod.request('cpu') * 1000)}m", "memory": str(round(pod.request("memory")))}
    spec: dict[str, Any] = {
        "priorityClassName": settings.placeholder_priority_class,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 0,
        "activeDeadlineSeconds": LEFT_OVER_S,
        "restartPolicy": "Never",
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65535,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "affinity": {**affinity, "nodeAffinity": inner},
        "nodeSelector": pod.spec.node_selector or {},
        "tolerations": [
            {key: value for key, value in (
                ("key", one.key), ("operator", one.operator), ("value", one.value), ("effect", one.effect),
            ) if value}
            for one in pod.spec.tolerations or ()
        ],
        "containers": [
            {
                "name": "hold",
                "image": settings.placeholder_image,
                "resources": {"requests": requests},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
    }  # fmt: skip
    if pod.spec.scheduler_name:
        spec["schedulerName"] = pod.spec.scheduler_name
    # Not the pod's labels: its owner would take the placeholder for one of its own.
    metadata = {
        "name": f"loadmaster-hold-{pod.metadata.uid[:18]}",
        "labels": {PLACEHOLDER: "true"},
        "annotations": {RESERVES: pod.workload},
    }
    return {"metadata": metadata, "spec": spec}
