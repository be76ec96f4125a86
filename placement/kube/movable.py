"""Whether a pod may be moved at all: who made it, how old it is, what it would lose."""

from __future__ import annotations

from placement.kube.config import MigratorSettings
from placement.kube.objects import Pod

PLACEHOLDER = "loadmaster.dev/placeholder"
"""Label of the pods that hold room for a move."""

_REFUSALS = {
    "descheduler.alpha.kubernetes.io/prefer-no-eviction": "true",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "loadmaster.dev/move": "false",
    "kubernetes.io/config.mirror": "",
}
"""Annotations by which owners say no; an empty value stands for any."""


def why_not(pod: Pod, settings: MigratorSettings) -> str | None:
    """Say why a pod stays whatever its node is like; None when it may move."""
    metadata, spec = pod.metadata, pod.spec
    annotations = metadata.annotations or {}
    if metadata.deletion_timestamp or pod.status.phase != "Running":
        return "it is not running"
    if metadata.namespace in settings.skip_namespaces:
        return f"namespace {metadata.namespace} is left alone"
    if PLACEHOLDER in (metadata.labels or {}):
        return "it is a placeholder"
    if pod.owner_kind not in settings.owner_kinds:
        return f"its owner is {pod.owner_kind or 'nobody'}"
    if spec.priority_class_name.startswith("system-"):
        return "it is critical"
    if any(volume.empty_dir is not None or volume.host_path is not None for volume in spec.volumes or ()):
        return "it keeps data on its node"
    for key, value in _REFUSALS.items():
        if key in annotations and value in ("", annotations[key]):
            return f"annotation {key}"
    return None
