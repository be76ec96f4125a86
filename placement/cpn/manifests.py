"""The Kubernetes Job of an attempt: the user's own, with a name that follows from the attempt, and pinned."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from placement.cpn.records import Attempt, Job, fetch_name
from placement.cpn.submission import MB_PER_GIB
from placement.cpn.topology import Card, Cluster

OWNER, JOB, ATTEMPT = "loadmaster.dev/controller", "loadmaster.dev/job", "loadmaster.dev/attempt"
FETCH = "loadmaster.dev/prefetch"
HOSTNAME = "kubernetes.io/hostname"
GPU, GPU_MEM, POOL = "nvidia.com/gpu", "nvidia.com/gpumem", "hami.io/resource-pool"
VISIBLE = "CUDA_VISIBLE_DEVICES"


def build(
    manifest: dict[str, Any],
    job: Job,
    attempt: Attempt,
    card: Card,
    cluster: Cluster,
    owner: str,
    *,
    among: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return the Job to be made.

    Args:
        manifest: As the user submitted it.
        job: The job.
        attempt: Which try.
        card: Where it goes.
        cluster: Says how cards are shared there.
        owner: The controller's name.
        among: With ``kube_default`` the nodes that the cluster's own scheduler may choose from; whole cards are asked
            for.
    """
    pinned = among is None
    made = copy.deepcopy(manifest)
    labels = {OWNER: owner, JOB: job.id, ATTEMPT: str(attempt.number)}
    metadata, spec = made["metadata"], made["spec"]
    for gone in ("uid", "resourceVersion", "creationTimestamp", "ownerReferences", "generateName", "managedFields"):
        metadata.pop(gone, None)
    metadata |= {
        "name": attempt.kube_name,
        "namespace": cluster.namespace,
        "labels": {**(metadata.get("labels") or {}), **labels},
    }
    made.pop("status", None)
    for gone in ("selector", "manualSelector", "ttlSecondsAfterFinished", "podFailurePolicy", "suspend"):
        spec.pop(gone, None)
    # The controller owns retries; and it removes the Job itself, once the end of it is in the books.
    spec["backoffLimit"] = 0
    template = spec["template"]
    inner = template["metadata"] = template.get("metadata") or {}
    inner.pop("creationTimestamp", None)
    inner["labels"] = {**(inner.get("labels") or {}), **labels}
    inner["annotations"] = {str(k): str(v) for k, v in (inner.get("annotations") or {}).items()}
    pod = template["spec"]
    pod["restartPolicy"] = "Never"
    if pinned:
        pod["nodeSelector"] = {**(pod.get("nodeSelector") or {}), HOSTNAME: card.node}
    else:
        _limit_to(pod, among or ())
    hami = cluster.gpu_mode == "hami"
    if hami:
        inner["annotations"][POOL] = cluster.hami_pool
    for number, container in enumerate(pod["containers"]):
        resources = container["resources"] = container.get("resources") or {}
        limits = resources["limits"] = {**(resources.get("limits") or {})}
        requests = resources["requests"] = {**(resources.get("requests") or {})}
        for amounts in (limits, requests):
            amounts.pop(GPU, None)
            amounts.pop(GPU_MEM, None)
        env = [one for one in container.get("env") or [] if one.get("name") != VISIBLE]
        if hami or not pinned:
            if number == 0:
                limits[GPU] = "1"  # physical cards: HAMi shares them by MPS, kube_default gives whole ones
                if hami:
                    limits[GPU_MEM] = str(max(1, round(job.gpu_mem_gib * MB_PER_GIB)))
        else:
            env.append({"name": VISIBLE, "value": str(card.number)})
        container["env"] = env
        if number == 0:
            # What the books hold is what is reserved.
            requests.setdefault("cpu", limits.get("cpu", f"{round(job.cpu_cores * 1000)}m"))
            requests.setdefault("memory", limits.get("memory", f"{round(job.mem_gib * MB_PER_GIB)}Mi"))
        for empty in ("limits", "requests"):
            if not resources[empty]:
                resources.pop(empty)
    return made


def _limit_to(pod: dict[str, Any], nodes: Sequence[str]) -> None:
    """Add to every way in which a pod may be placed that its node is one of these."""
    affinity = pod["affinity"] = {**(pod.get("affinity") or {})}
    inner = affinity["nodeAffinity"] = {**(affinity.get("nodeAffinity") or {})}
    required = inner.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    one_of = {"key": HOSTNAME, "operator": "In", "values": list(nodes)}
    inner["requiredDuringSchedulingIgnoredDuringExecution"] = {
        "nodeSelectorTerms": [
            {**term, "matchExpressions": [*(term.get("matchExpressions") or []), one_of]}
            for term in required.get("nodeSelectorTerms") or [{}]
        ]
    }


def prefetch(job: Job, attempt: Attempt, card: Card, cluster: Cluster, owner: str, image: str) -> dict[str, Any]:
    """Return the Job that brings a job's data to its node before it starts."""
    # No label JOB: it is no attempt, and must not be counted as one.
    labels = {OWNER: owner, FETCH: job.id, ATTEMPT: str(attempt.number)}
    env = {"MODEL_NAME": job.model, "DATA_GB": f"{job.data_gb:g}", "DATA_CENTER": job.origin}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": fetch_name(attempt.job, attempt.number), "namespace": cluster.namespace, "labels": labels},
        "spec": {
            # A second pod would look like a second end; what failed here is tried on another node.
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": 3600,
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "restartPolicy": "Never",
                    "nodeSelector": {HOSTNAME: card.node},
                    "containers": [
                        {
                            "name": "prefetch",
                            "image": image,
                            "env": [{"name": name, "value": value} for name, value in env.items()],
                        }
                    ],
                },
            },
        },
    }
