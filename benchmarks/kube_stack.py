"""Days of a small cluster as a default kube-prometheus-stack would have scraped them, with the truth beside them.

Label sets are those of the exporters' own documentation (kube-state-metrics, node-exporter, cAdvisor through the
kubelet, dcgm-exporter, ingress-nginx) with what a ServiceMonitor adds. It imports nothing of Loadmaster: what it says
is to be found again from the outside. Response times come from a queue with processor sharing in each pod (M/M/1-PS):
with arrivals λ and service time s a pod answers after s / (1 − λs) on average, exponentially spread.

``python benchmarks/kube_stack.py --days 3 --out stack.om`` writes OpenMetrics text for ``promtool tsdb
create-blocks-from openmetrics`` and prints a JSON object with counts.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

F8 = NDArray[np.float64]
GIB = 2.0**30
WINDOW_S = 300
JOB_EVERY_S, JOB_RUNS_S, JOB_KEPT_S = 600, 150, 1800
TUNE_EVERY_S, NOTICED_S = 900, 3
"""Between two jobs on a card, and until the engine sees that a task of a workflow has ended."""
ROLLED_OUT_S = 60
"""How long old pods of a roll-out stay beside the new ones."""
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, np.inf)
MODES = {"user": 0.7, "system": 0.3}


@dataclass
class Machine:
    """A node and what is true of it."""

    name: str
    ip: str
    cores: int
    mem_gib: float
    instance_type: str
    cards: int = 0
    nic_bytes_s: float = -125000.0
    taint: tuple[str, str] | None = None
    cordoned_s: tuple[float, float] = (np.inf, np.inf)


@dataclass
class Pod:
    """One life of a pod."""

    namespace: str
    name: str
    node: str
    created_by: tuple[str, str]
    owner: tuple[str, str]
    """Kind and name of the top owner; ("", "") for none."""
    created_s: float
    ended_s: float = np.inf
    """When its containers end; its object may be kept."""
    shown_until_s: float = np.inf
    cpu_request: float = 0.1
    mem_request_gib: float = 0.125
    cards: int = 0
    card: int = 0
    """Which, where it has one."""
    cpu: float = 0.05
    """Cores that it uses beside what requests take."""
    uid: str = ""
    use: F8 = field(default_factory=lambda: np.empty(0))
    """Cores by window."""

    @property
    def key(self) -> str:
        """Its name in windows."""
        return f"{self.namespace}/{self.name}"


def with_uids(pods: list[Pod]) -> list[Pod]:
    """Give each life a uid of 36 characters, the same in every run."""
    for pod in pods:
        digest = f"{zlib.crc32(f'{pod.key}{pod.created_s}'.encode()):08x}"
        pod.uid = f"{digest}-0000-4000-8000-{digest}0000"
    return pods


class Stack:
    """The cluster, its truth, and its series."""

    flow_every_s = 600
    """Between two workflows."""
    flow_kept_s = JOB_KEPT_S
    """How long pods of a workflow are kept after they have completed."""

    def __init__(self, start_s: int, hours: float, scrape_s: int = 30, seed: int = 11) -> None:
        self.start_s, self.length_s, self.scrape_s = start_s, hours * 3600.0, scrape_s
        self.end_s = start_s + self.length_s
        self.windows = round(self.length_s / WINDOW_S)
        self.rng = np.random.default_rng(seed)
        at = self._at
        self.machines = [
            Machine(
                "cp-1", "10.0.1.10", 4, 16, "m5.xlarge", taint=("node-role.kubernetes.io/control-plane", "NoSchedule")
            ),
            Machine("worker-1", "10.0.1.11", 4, 16, "m5.xlarge"),
            Machine("worker-2", "10.0.1.12", 4, 16, "m5.xlarge"),
            Machine("worker-3", "10.0.1.13", 4, 16, "m5.xlarge", cordoned_s=(at(0.5), at(0.75))),
            Machine("gpu-1", "10.0.1.20", 8, 64, "g5.2xlarge", 2, 3.125e9, ("nvidia.com/gpu", "NoSchedule")),
        ]
        self.ksm_restart_s, self.controller_restart_s = at(0.4), at(0.6)
        self.pods = self._pods()
        self._load()

    def _at(self, share: float) -> float:
        """Return the whole minute after a share of the time."""
        return self.start_s + round(share * self.length_s / 60) * 60.0

    def _pods(self) -> list[Pod]:
        at = self._at
        before = self.start_s - 200_000.0
        pods = []
        for index, machine in enumerate(self.machines):
            made = ("DaemonSet", "kps-prometheus-node-exporter")
            pods.append(Pod("monitoring", f"{made[1]}-x{index}abc", machine.name, made, made, before, cpu=0.02))
        pods.append(Pod("kube-system", "kube-apiserver-cp-1", "cp-1", ("Node", "cp-1"), ("Node", "cp-1"), before,
                        cpu_request=0.25, cpu=0.3))  # fmt: skip
        pods.append(Pod("default", "debug", "worker-2", ("<none>", "<none>"), ("", ""), before, cpu=0.01))
        # A Deployment that is rolled out anew half-way, and another of the same name next door.
        for index, node in enumerate(("worker-1", "worker-2", "worker-3")):
            rolled = at(0.3) + 20 + index
            for hash_, born, dies in (("6c8d9f7b54", before, rolled + ROLLED_OUT_S), ("7f9c4b5d68", rolled, np.inf)):
                pods.append(Pod("shop", f"api-{hash_}-p{index}xyz", node, ("ReplicaSet", f"api-{hash_}"),
                                ("Deployment", "api"), born, dies, dies, 0.5, 0.5))  # fmt: skip
        pods.append(Pod("staging", "api-5b6f7c8d9d-q0xyz", "worker-1", ("ReplicaSet", "api-5b6f7c8d9d"),
                        ("Deployment", "api"), before, cpu_request=0.25, mem_request_gib=0.25))  # fmt: skip
        # db-0 dies and comes back under its name, on another node, larger.
        made = ("StatefulSet", "db")
        pods.append(Pod("shop", "db-0", "worker-2", made, made, before, at(0.45), at(0.45), 1.0, 2.0, cpu=0.4))
        pods.append(
            Pod("shop", "db-0", "worker-3", made, made, at(0.45) + 90, cpu_request=1.5, mem_request_gib=3.0, cpu=0.6)
        )
        pods.append(Pod("shop", "db-1", "worker-1", made, made, before, cpu_request=1.0, mem_request_gib=2.0, cpu=0.3))
        # A CronJob whose pods complete and are kept, and a Job on a card.
        for number, born in enumerate(np.arange(self.start_s + 60.0, self.end_s - 60, JOB_EVERY_S)):
            job = f"report-{(int(born) // 60):08d}"
            done = born + 4 + JOB_RUNS_S
            pods.append(Pod("batch", f"{job}-r{number:04d}", f"worker-{1 + number % 3}", ("Job", job),
                            ("CronJob", "report"),
                            float(born), float(done), float(done + JOB_KEPT_S), 0.5, 0.25, cpu=0.8))  # fmt: skip
        pods.append(Pod("ml", "train-abcde", "gpu-1", ("Job", "train"), ("Job", "train"), at(0.2), at(0.8), np.inf, 4.0,
                        16.0,
                        1, cpu=3.0))  # fmt: skip
        # A CronJob on the other card, one run after another.
        for number, born in enumerate(np.arange(self.start_s + 120.0, self.end_s - 900, TUNE_EVERY_S)):
            job, ran = f"tune-{(int(born) // 60):08d}", 400.0 + 60.0 * (number % 5)
            pods.append(Pod("ml", f"{job}-t{number:04d}", "gpu-1", ("Job", job), ("CronJob", "tune"), float(born),
                            float(born + ran), float(born + ran + JOB_KEPT_S), 1.0, 8.0, 1, 1, cpu=0.9))  # fmt: skip
        for born in np.arange(self.start_s + 240.0, self.end_s - 900, self.flow_every_s):
            pods += self._workflow(float(born))
        return with_uids(pods)

    def _workflow(self, born: float) -> list[Pod]:
        """An execution of an Argo workflow: one task, three beside each other, one; each a pod of its own."""
        name = f"etl-{int(born)}"
        pods: list[Pod] = []

        def ran(template: str, made: float, seconds: float) -> float:
            turn = len(pods) + int(born) // self.flow_every_s
            end = made + 2 + seconds
            pods.append(Pod("data", f"{name}-{template}-{3000 + len(pods)}", f"worker-{1 + turn % 3}",
                            ("Workflow", name), ("Workflow", "etl"), made, end, end + self.flow_kept_s, 0.25, 0.25,
                            cpu=0.2))  # fmt: skip
            return end

        drawn = np.random.default_rng(int(born)).integers(40, 120, 5).tolist()
        fetched = ran("fetch", born, drawn[0])
        mapped = max(ran("map", fetched + NOTICED_S, seconds) for seconds in drawn[1:4])
        ran("reduce", mapped + NOTICED_S, drawn[4])
        return pods

    def _load(self) -> None:
        """Requests and what they take: a rate a window, dealt evenly to the pods that are there."""
        phase = 2 * np.pi * np.arange(self.windows) / max(self.windows, 1)
        self.services = {"shop/api": (4.0 + 2.5 * np.sin(phase), 0.12), "staging/api": (0.5 + 0 * phase, 0.08)}
        """Requests a second by window, and seconds of a core that one takes."""
        self.requests = {name: np.round(rate * WINDOW_S) for name, (rate, _) in self.services.items()}
        self.response_s = {}
        for name, (_, service_s) in self.services.items():
            mine = [pod for pod in self.pods if f"{pod.namespace}/{pod.owner[1]}" == name]
            there = np.sum([self._present(pod) for pod in mine], axis=0)
            busy = self.requests[name] / WINDOW_S / np.maximum(there, 1e-9) * service_s
            self.response_s[name] = service_s / (1 - np.minimum(busy, 0.9))
        for pod in self.pods:
            pod.use = np.full(self.windows, pod.cpu)
            for name, (_, service_s) in self.services.items():
                if f"{pod.namespace}/{pod.owner[1]}" == name:
                    mine = [other for other in self.pods if f"{other.namespace}/{other.owner[1]}" == name]
                    there = np.sum([self._present(other) for other in mine], axis=0)
                    pod.use = pod.use + self.requests[name] / WINDOW_S * service_s / np.maximum(there, 1e-9)

    def _present(self, pod: Pod) -> F8:
        """Share of each window in which a pod's containers run."""
        low = self.start_s + WINDOW_S * np.arange(self.windows)
        overlap = np.minimum(pod.ended_s, low + WINDOW_S) - np.maximum(pod.created_s, low)
        return np.asarray(np.clip(overlap, 0, WINDOW_S) / WINDOW_S)

    def answered_within(self, name: str, bound_s: float) -> F8:
        """Calls of a service by window that took at most so long."""
        return np.asarray(self.requests[name] * (1 - np.exp(-bound_s / self.response_s[name])))

    def node_cpu(self, node: str) -> F8:
        """Cores busy by window: its pods, and 0.1 of the system."""
        mine = [pod.use * self._present(pod) for pod in self.pods if pod.node == node]
        return np.asarray(0.1 + np.sum(mine, axis=0))

    def requested_cores(self, node: str) -> F8:
        """Cores asked for by window: of pods that have not ended, each for its share of it."""
        asked = [pod.cpu_request * self._present(pod) for pod in self.pods if pod.node == node]
        return np.asarray(np.sum(asked, axis=0))

    def active(self, machine: Machine) -> NDArray[np.bool_]:
        """Whether ordinary pods may go there, by window; a taint for GPUs is none against those that want GPUs."""
        middle = self.start_s + WINDOW_S * (np.arange(self.windows) + 0.5)
        low, high = machine.cordoned_s
        tainted = machine.taint is not None and "nvidia" not in machine.taint[0]
        return np.asarray(~((middle >= low) & (middle < high)) & (not tainted))

    def scrapes(self, target: str, since: float = -np.inf, until: float = np.inf) -> F8:
        """When a target is scraped: at an offset of its own."""
        times = np.arange(
            self.start_s + zlib.crc32(target.encode()) % self.scrape_s, self.end_s, self.scrape_s, dtype=float
        )
        return np.asarray(times[(times >= since) & (times < until)])

    def _rising(self, rate: F8, times: F8) -> F8:
        """Integrate a rate that is constant within each window."""
        edges = np.concatenate([[0.0], np.cumsum(rate * WINDOW_S)])
        return np.asarray(np.interp(times - self.start_s, np.arange(self.windows + 1) * WINDOW_S, edges))

    def series(self) -> Iterator[tuple[str, str, F8, F8]]:
        """Yield (metric, labels, times, values); a metric's series follow each other."""
        found: dict[str, list[tuple[str, F8, F8]]] = {}

        def add(metric: str, labels: str, times: F8, values: F8 | float) -> None:
            if len(times):
                values = np.broadcast_to(np.asarray(values, dtype=float), times.shape)
                found.setdefault(metric, []).append((labels, times, values))

        for machine in self.machines:
            self._node_exporter(add, machine)
        # kube-state-metrics is started anew once: another instance, and its own pod's labels change.
        for number, (since, until) in enumerate(((-np.inf, self.ksm_restart_s), (self.ksm_restart_s, np.inf))):
            self._kube_state_metrics(add, number, self.scrapes("ksm", since, until))
        for pod in self.pods:
            self._cadvisor(add, pod)
        self._dcgm(add)
        self._ingress(add)
        for metric, listed in found.items():
            for labels, times, values in listed:
                yield metric, labels, times, values

    def _node_exporter(self, add, machine: Machine) -> None:  # type: ignore[no-untyped-def]
        [pod] = [p for p in self.pods if p.node == machine.name and p.owner[0] == "DaemonSet"]
        times = self.scrapes(f"ne-{machine.name}")
        base = (
            f'container="node-exporter",endpoint="http-metrics",instance="{machine.ip}:9100",job="node-exporter",'
            f'namespace="monitoring",pod="{pod.name}",service="kps-prometheus-node-exporter"'
        )
        busy = self._rising(self.node_cpu(machine.name), times) / machine.cores
        for cpu in range(machine.cores):
            for mode, share in MODES.items():
                add("node_cpu_seconds_total", f'{base},cpu="{cpu}",mode="{mode}"', times, 5000 + busy * share)
            idle = times - self.start_s - busy
            add("node_cpu_seconds_total", f'{base},cpu="{cpu}",mode="idle"', times, 90000 + idle)
            add("node_cpu_seconds_total", f'{base},cpu="{cpu}",mode="iowait"', times, 10 + idle * 0.01)
        add("node_memory_MemTotal_bytes", base, times, machine.mem_gib * GIB)
        add("node_memory_MemAvailable_bytes", base, times, machine.mem_gib * GIB * 0.75)
        for device, speed in (("eth0", machine.nic_bytes_s), ("lo", -125000.0), ("cali12ab", 1.25e9)):
            add("node_network_speed_bytes", f'{base},device="{device}"', times, speed)
            for way in ("receive", "transmit"):
                add(
                    f"node_network_{way}_bytes_total",
                    f'{base},device="{device}"',
                    times,
                    1e9 + 2e5 * (times - self.start_s),
                )
        uname = (
            f'domainname="(none)",machine="x86_64",nodename="{machine.name}",release="6.1",sysname="Linux",version="1"'
        )
        add("node_uname_info", f"{base},{uname}", times, 1)
        dmi = f'bios_vendor="Amazon EC2",product_name="{machine.instance_type}",system_vendor="Amazon EC2"'
        add("node_dmi_info", f"{base},{dmi}", times, 1)

    def _kube_state_metrics(self, add, number: int, times: F8) -> None:  # type: ignore[no-untyped-def]
        job = 'job="kube-state-metrics",service="kps-kube-state-metrics"'
        own = f'endpoint="http",instance="10.244.1.{5 + number}:8080",{job}'
        self_pod = f'{own},container="kube-state-metrics",namespace="monitoring",pod="kps-kube-state-metrics-{number}"'
        for machine in self.machines:
            node = f'{self_pod},node="{machine.name}"'
            add("kube_node_info", f'{node},internal_ip="{machine.ip}",kernel_version="6.1",kubelet_version="v1.31.0",'
                f'os_image="Debian",provider_id="aws:///{machine.name}",system_uuid="x"', times, 1)  # fmt: skip
            sizes = {
                "cpu": ("core", machine.cores, 0.2),
                "memory": ("byte", machine.mem_gib * GIB, GIB),
                "pods": ("integer", 110, 0),
            }
            if machine.cards:
                sizes["nvidia_com_gpu"] = ("integer", machine.cards, 0)
            for resource, (unit, size, kept) in sizes.items():
                add("kube_node_status_capacity", f'{node},resource="{resource}",unit="{unit}"', times, size)
                add("kube_node_status_allocatable", f'{node},resource="{resource}",unit="{unit}"', times, size - kept)
            for status in ("true", "false", "unknown"):
                add(
                    "kube_node_status_condition",
                    f'{node},condition="Ready",status="{status}"',
                    times,
                    float(status == "true"),
                )
            low, high = machine.cordoned_s
            cordoned = (times >= low) & (times < high)
            add("kube_node_spec_unschedulable", node, times, cordoned)
            if machine.taint:
                add(
                    "kube_node_spec_taint",
                    f'{node},effect="{machine.taint[1]}",key="{machine.taint[0]}",value=""',
                    times,
                    1,
                )
            taint = f'{node},effect="NoSchedule",key="node.kubernetes.io/unschedulable",value=""'
            add("kube_node_spec_taint", taint, times[cordoned], 1)
        seen: set[str] = set()
        for pod in self.pods:
            t = times[(times >= pod.created_s) & (times < pod.shown_until_s)]
            who = f'{own},namespace="{pod.namespace}",pod="{pod.name}",uid="{pod.uid}"'
            plain = f'{who},container="kube-state-metrics"'
            made = f'created_by_kind="{pod.created_by[0]}",created_by_name="{pod.created_by[1]}"'
            add("kube_pod_info", f'{plain},{made},host_ip="10.0.1.1",host_network="false",node="{pod.node}",'
                f'pod_ip="10.244.2.2",priority_class=""', t, 1)  # fmt: skip
            add("kube_pod_created", plain, t, pod.created_s)
            add("kube_pod_start_time", plain, t, pod.created_s + 2)
            for phase in ("Pending", "Running", "Succeeded", "Failed", "Unknown"):
                done = t >= pod.ended_s
                add("kube_pod_status_phase", f'{plain},phase="{phase}"', t, done if phase == "Succeeded" else
                    ~done if phase == "Running" else np.zeros(len(t)))  # fmt: skip
            if pod.shown_until_s > pod.ended_s:
                add("kube_pod_completion_time", plain, t[t >= pod.ended_s], pod.ended_s)
            for container, share in (("main", 0.75), ("sidecar", 0.25)):
                request = f'{who},container="{container}",node="{pod.node}"'
                for resource, unit, size in (
                    ("cpu", "core", pod.cpu_request),
                    ("memory", "byte", pod.mem_request_gib * GIB),
                ):
                    add(
                        "kube_pod_container_resource_requests",
                        f'{request},resource="{resource}",unit="{unit}"',
                        t,
                        size * share,
                    )
                if pod.cards and container == "main":
                    gpu = f'{request},resource="nvidia_com_gpu",unit="integer"'
                    add("kube_pod_container_resource_requests", gpu, t, pod.cards)
            kind, name = pod.created_by
            label = {"ReplicaSet": "replicaset", "Job": "job_name"}.get(kind)
            if label and f"{pod.namespace}/{name}" not in seen:
                seen.add(f"{pod.namespace}/{name}")
                owner = pod.owner if pod.owner[1] != name else ("<none>", "<none>")
                metric = "kube_replicaset_owner" if kind == "ReplicaSet" else "kube_job_owner"
                controls = "true" if owner[0] != "<none>" else "<none>"
                told = f'owner_is_controller="{controls}",owner_kind="{owner[0]}",owner_name="{owner[1]}"'
                add(metric, f'{self_pod.replace("monitoring", pod.namespace)},{label}="{name}",{told}', t, 1)

    def _cadvisor(self, add, pod: Pod) -> None:  # type: ignore[no-untyped-def]
        [machine] = [m for m in self.machines if m.name == pod.node]
        times = self.scrapes(f"kubelet-{machine.name}", pod.created_s + 3, pod.ended_s)
        base = (
            f'endpoint="https-metrics",instance="{machine.ip}:10250",job="kubelet",metrics_path="/metrics/cadvisor",'
            f'namespace="{pod.namespace}",node="{machine.name}",pod="{pod.name}",service="kps-kubelet"'
        )
        slice_ = f"/kubepods.slice/kubepods-pod{pod.uid.replace('-', '_')}.slice"
        whole = f'{base},container="",id="{slice_}",image="",name=""'
        used = self._rising(pod.use, times) - self._rising(pod.use, np.array([max(pod.created_s + 3, self.start_s)]))
        add("container_cpu_usage_seconds_total", f'{whole},cpu="total"', times, used)
        add("container_memory_working_set_bytes", whole, times, 0.5 * pod.mem_request_gib * GIB)
        part = f'{base},container="main",id="{slice_}/cri-1.scope",image="registry/app:1",name="abc"'
        add("container_cpu_usage_seconds_total", f'{part},cpu="total"', times, used * 0.9)
        add("container_memory_working_set_bytes", part, times, 0.4 * pod.mem_request_gib * GIB)
        for way in ("receive", "transmit"):
            add(f"container_network_{way}_bytes_total", f'{whole},interface="eth0"', times, 1e4 * (times - times[:1]))

    def _dcgm(self, add) -> None:  # type: ignore[no-untyped-def]
        [host] = [machine for machine in self.machines if machine.cards]
        times = self.scrapes("dcgm")
        for card in range(host.cards):
            base = (
                f'DCGM_FI_DRIVER_VERSION="550.54",Hostname="{host.name}",UUID="GPU-{card}",device="nvidia{card}",'
                f'endpoint="gpu-metrics",gpu="{card}",instance="10.244.4.9:9400",job="nvidia-dcgm-exporter",'
                f'modelName="NVIDIA A10G",namespace="gpu-operator",pci_bus_id="0000:{card}",'
                'pod="nvidia-dcgm-exporter-z",service="nvidia-dcgm-exporter"'
            )
            # While a pod holds a card the exporter adds its name, so the series is another one.
            holders = [pod for pod in self.pods if pod.cards and pod.card == card]
            running = {pod.name: (times >= pod.created_s) & (times < pod.ended_s) for pod in holders}
            idle = ~np.any([np.zeros(len(times), bool), *running.values()], axis=0)
            for held, at in (("", idle), *running.items()):
                mine = times[at]
                labels = f'{base},exported_container="main",exported_namespace="ml",exported_pod="{held}"'
                labels = labels if held else base
                add("DCGM_FI_DEV_GPU_UTIL", labels, mine, 80.0 if held else 0.0)
                add("DCGM_FI_DEV_FB_USED", labels, mine, 16000.0 if held else 0.0)
                add("DCGM_FI_DEV_FB_FREE", labels, mine, 6500.0 if held else 22500.0)

    def _ingress(self, add) -> None:  # type: ignore[no-untyped-def]
        for number, share in enumerate((0.6, 0.4)):
            times = self.scrapes(f"nginx-{number}")
            # The second controller's process starts again at zero, under its own name.
            zero = self.controller_restart_s if number else -np.inf
            for name in self.services:
                namespace, service = name.split("/")
                base = (
                    'canary="",container="controller",controller_class="k8s.io/ingress-nginx",controller_namespace="ingress-nginx",'
                    f'controller_pod="ingress-nginx-controller-{number}",endpoint="metrics",exported_namespace="{namespace}",'
                    f'exported_service="{service}",host="{namespace}.example",ingress="{service}",instance="10.244.1.2{number}:10254",'
                    'job="ingress-nginx-controller-metrics",method="GET",namespace="ingress-nginx",path="/",'
                    f'pod="ingress-nginx-controller-{number}",service="ingress-nginx-controller-metrics"'
                )
                for status, part in (("200", 0.95), ("500", 0.05)):
                    labels = f'{base},status="{status}"'

                    def counted(rate: F8, weight: float = share * part, times: F8 = times, zero: float = zero) -> F8:
                        total = self._rising(rate, times)
                        if np.isfinite(zero):
                            total = np.where(times >= zero, total - self._rising(rate, np.array([zero])), total)
                        return total * weight

                    rate = self.requests[name] / WINDOW_S
                    add("nginx_ingress_controller_requests", labels, times, counted(rate))
                    response = self.response_s[name]
                    add(
                        "nginx_ingress_controller_request_duration_seconds_sum", labels, times, counted(rate * response)
                    )
                    for bound in BUCKETS_S:
                        text = "+Inf" if np.isinf(bound) else f"{bound:g}"
                        below = counted(self.answered_within(name, bound) / WINDOW_S)
                        add(
                            "nginx_ingress_controller_request_duration_seconds_bucket",
                            f'{labels},le="{text}"',
                            times,
                            below,
                        )

    def write(self, path: Path) -> int:
        """Write OpenMetrics text; returns the number of samples."""
        count, known = 0, ""
        with path.open("w") as file:
            for metric, labels, times, values in self.series():
                if metric != known:
                    file.write(f"# TYPE {metric} unknown\n")
                    known = metric
                head = f"{metric}{{{labels}}} "
                file.write("".join(f"{head}{v!r} {t}\n" for t, v in zip(times.tolist(), values.tolist(), strict=True)))
                count += len(times)
            file.write("# EOF\n")
        return count


def main() -> None:
    """Write the text and say how much it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=float, default=3.0)
    parser.add_argument("--start", type=int, default=1767571200, help="second since 1970 (default: 2026-01-05)")
    parser.add_argument("--scrape", type=int, default=30, help="seconds")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    stack = Stack(options.start, options.days * 24, options.scrape)
    samples = stack.write(options.out)
    print(json.dumps({"samples": samples, "pods": len(stack.pods), "machines": len(stack.machines)}))


if __name__ == "__main__":
    main()
