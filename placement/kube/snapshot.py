"""A watched cluster as a document that simulators can start from."""

from __future__ import annotations

from datetime import UTC, datetime

from placement.kube.cluster import Cluster
from placement.kube.config import MigratorSettings
from placement.kube.movable import why_not
from placement.kube.objects import GIB, Pod
from placement.kube.usage import STEP_S, Usage
from wire.contracts.snapshot import Snapshot, SnapshotNode, SnapshotPod


def take(cluster: Cluster, usage: Usage | None, settings: MigratorSettings | None = None) -> Snapshot:
    """Write down nodes, pods and their use in the last window.

    Args:
        cluster: What is watched.
        usage: What is known of its use, if anybody measures it.
        settings: Which pods may move; the usual ones when no migrator is set up.
    """
    rules = settings or MigratorSettings(cluster.name)
    nodes, pods = cluster.contents()
    return Snapshot(
        cluster=cluster.name,
        taken_at=datetime.now(UTC).isoformat(timespec="seconds"),
        step_s=usage.step_s if usage else STEP_S,
        nodes=[
            SnapshotNode(
                node.metadata.name,
                node.resource("cpu"),
                node.resource("memory") / GIB,
                cluster.price(node),
                node.open,
            )
            for node in sorted(nodes, key=lambda node: node.metadata.name)
        ],
        pods=[_pod(pod, usage, rules) for pod in sorted(pods, key=lambda pod: pod.key)],
    )


def _pod(pod: Pod, usage: Usage | None, settings: MigratorSettings) -> SnapshotPod:
    cpu, mem = (usage.get(name, pod.key) if usage else None for name in ("pod_cpu", "pod_mem"))
    known = cpu is not None and mem is not None
    return SnapshotPod(
        name=pod.key,
        workload=pod.workload,
        node=pod.spec.node_name,
        cpu_cores=pod.request("cpu"),
        mem_gib=pod.request("memory") / GIB,
        movable=why_not(pod, settings) is None,
        cpu_used=cpu.tolist() if cpu is not None and known else [],
        mem_used=mem.tolist() if mem is not None and known else [],
    )
