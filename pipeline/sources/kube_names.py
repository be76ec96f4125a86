"""Who is who in a Kubernetes cluster: which machine an exporter speaks of, and whose pod a pod is in the end.

node-exporter, the kubelet and DCGM name machines by address or host name, kube-state-metrics by node name:
``kube_node_info`` (``internal_ip``), ``kube_node_status_addresses`` and ``node_uname_info`` join them. A pod's owner is
mostly a ReplicaSet or a Job, whose own owner ``kube_replicaset_owner`` and ``kube_job_owner`` tell.
"""

from __future__ import annotations

import bisect
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

DERIVED: dict[str, tuple[str, ...]] = {
    "machine": ("Hostname", "instance"),
    "workload": ("created_by_kind", "created_by_name", "namespace", "node", "pod"),
    "owner_kind": ("created_by_kind", "created_by_name", "namespace"),
}
"""Labels that templates may use though no exporter has them -> the exporters' labels that they are made of."""
NOTHING = ("", "<none>")
"""What kube-state-metrics writes where there is no owner."""
WORKLOAD_LABELS = ("label_faas_function", "label_serving_knative_dev_service")
"""Labels of pods that name the workload better than owners do; shown only where kube-state-metrics is told to."""

_HASH = re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{5,10}$")
_MINUTE = re.compile(r"-\d{8,10}$")
_ADDRESS = re.compile(r"[\d.]+|\[?[0-9a-fA-F:]*:[0-9a-fA-F:.]*\]?")


def host_of(instance: str) -> str:
    """Drop the port of an address."""
    host, _, port = instance.rpartition(":")
    return (host if port.isdigit() and host and (":" not in host or host.endswith("]")) else instance).strip("[]")


@dataclass
class Names:
    """What a span of time tells; empty, names are taken as exporters write them."""

    nodes: dict[str, list[tuple[float, str]]] = field(default_factory=lambda: defaultdict(list))
    """Address -> since when which node has it, in order of time."""
    known: set[str] = field(default_factory=set)
    """Names of nodes."""
    hosts: dict[str, str] = field(default_factory=dict)
    """Instance of a node-exporter -> the machine's own name."""
    owners: dict[tuple[str, str, str], tuple[str, str]] = field(default_factory=dict)
    """(namespace, kind, name) -> (kind, name) of the owner."""
    labelled: dict[tuple[str, str], str] = field(default_factory=dict)
    """(namespace, pod) -> the workload that a label of the pod names."""

    def learn(self, metric: str, labels: Mapping[str, str], times_s: Iterable[float] = (0.0,)) -> None:
        """Take in one series of kube-state-metrics or node-exporter, and when it was seen."""
        if metric in ("kube_node_info", "kube_node_status_addresses"):
            node = labels.get("node", "")
            address = labels.get("internal_ip") or labels.get("address") or ""
            if node:
                self.known.add(node)
            if node and address:
                for time_s in times_s:
                    bisect.insort(self.nodes[address.strip("[]")], (time_s, node))
        elif metric == "node_uname_info":
            self.hosts[labels.get("instance", "")] = labels.get("nodename", "")
        elif metric in ("kube_replicaset_owner", "kube_job_owner"):
            kind, name = ("ReplicaSet", "replicaset") if metric == "kube_replicaset_owner" else ("Job", "job_name")
            if labels.get("owner_kind", "") not in NOTHING and labels.get("owner_is_controller") != "false":
                key = (labels.get("namespace", ""), kind, labels.get(name, ""))
                self.owners[key] = (labels["owner_kind"], labels.get("owner_name", ""))
        elif metric == "kube_pod_labels":
            for label in WORKLOAD_LABELS:
                if labels.get(label):
                    self.labelled.setdefault((labels.get("namespace", ""), labels.get("pod", "")), labels[label])

    def settled(self) -> Names:
        """Keep of each address only when it changed hands."""
        for address, found in self.nodes.items():
            kept = [one for at, one in enumerate(found) if at == 0 or one[1] != found[at - 1][1]]
            self.nodes[address] = kept
        return self

    def changes(self, labels: Mapping[str, str]) -> list[float]:
        """Tell when the address of a series went to another node; mostly never."""
        return [since for since, _ in self.nodes.get(host_of(labels.get("instance", "")), [])[1:]]

    def machine(self, labels: Mapping[str, str], at_s: float) -> str:
        """Name the node that an exporter speaks of; what nobody knows keeps its own name."""
        instance = labels.get("instance", "")
        told = [labels.get("Hostname", ""), host_of(instance), self.hosts.get(instance, "")]
        for name in told:
            if name in self.known:
                return name
            if owners := self.nodes.get(name):
                place = bisect.bisect_right([since for since, _ in owners], at_s) - 1
                return owners[max(place, 0)][1]
        for name in told:
            short = name.partition(".")[0]
            same = [node for node in self.known if node.partition(".")[0] == short]
            if len(same) == 1 and not _ADDRESS.fullmatch(name):
                return same[0]
        # Without kube-state-metrics a machine's own name says more than its address.
        return next((name for name in (told[0], told[2], told[1]) if name), "")

    def owner(self, labels: Mapping[str, str]) -> tuple[str, str]:
        """Kind and name of what made a pod in the end; empty where nothing did."""
        kind, name = labels.get("created_by_kind", ""), labels.get("created_by_name", "")
        if kind in NOTHING and name in NOTHING:
            return "", ""
        namespace = labels.get("namespace", "")
        for _ in range(4):
            above = self.owners.get((namespace, kind, name))
            if above is None:
                break
            kind, name = above
        # Where nobody tells of owners their names do: Deployments and CronJobs hang a hash or a time on theirs.
        if kind == "Job" and _MINUTE.search(name):
            return "CronJob", _MINUTE.sub("", name)
        if kind in ("ReplicaSet", "") and _HASH.search(name):
            return "Deployment", _HASH.sub("", name)
        if kind == "Workflow":  # Argo names an execution by its template and a time or a hash
            return kind, _MINUTE.sub("", _HASH.sub("", name))
        return kind, name

    def workload(self, labels: Mapping[str, str]) -> str:
        """Name what a pod belongs to, as namespace/name: two teams may both have an ``api``."""
        namespace, pod = labels.get("namespace", ""), labels.get("pod", "")
        kind, name = self.owner(labels)
        if kind == "Node":  # a static pod has its node's name at its end
            name = pod.removesuffix(f"-{labels.get('node', '')}")
        name = self.labelled.get((namespace, pod)) or name or pod
        return f"{namespace}/{name}" if namespace else name

    def enriched(self, labels: Mapping[str, str], at_s: float) -> dict[str, str]:
        """Add the labels of :data:`DERIVED`."""
        more = {"machine": self.machine(labels, at_s)}
        if "created_by_name" in labels:
            more |= {"workload": self.workload(labels), "owner_kind": self.owner(labels)[0]}
        return {**labels, **more}
