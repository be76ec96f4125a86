"""A real Kubernetes on loopback: etcd, API server, and on demand a scheduler; no kubelet, nodes are objects only."""

from __future__ import annotations

import json
import shutil
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.servers import free_port, program

TOKEN = "test-admin-token"


class ControlPlane:
    """Runs the programs in a folder of their own."""

    token = TOKEN

    def __init__(self, folder: Path) -> None:
        self.bin, self.folder = program("kube-apiserver").parent, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.etcd_port, self.port = free_port(), free_port()
        self.kubeconfig = folder / "kubeconfig"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        key = self.folder / "sa.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        subprocess.run(
            ["openssl", "rsa", "-in", key, "-pubout", "-out", self.folder / "sa.pub"], check=True, capture_output=True
        )
        (self.folder / "tokens.csv").write_text(f'{TOKEN},admin,admin,"system:masters"\n')
        client, peer = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{free_port()}"
        self.run(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}", f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        )  # fmt: skip
        self.start_api_server()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": self.url, "certificate-authority": str(self.ca)}}],
            "users": [{"name": "admin", "user": {"token": TOKEN}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
            "current-context": "test",
        }
        self.kubeconfig.write_text(yaml.safe_dump(config))

    def start_api_server(self) -> None:
        self.run(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self.etcd_port}", "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1", f"--secure-port={self.port}", f"--cert-dir={self.folder / 'certs'}",
            "--service-cluster-ip-range=10.96.0.0/16", f"--service-account-key-file={self.folder / 'sa.pub'}",
            f"--service-account-signing-key-file={self.folder / 'sa.key'}",
            "--service-account-issuer=https://kubernetes.default.svc", "--authorization-mode=RBAC",
            f"--token-auth-file={self.folder / 'tokens.csv'}", "--endpoint-reconciler-type=none",
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
        )  # fmt: skip
        self._until(lambda: self.get("/readyz", raw=True) == b"ok", "the API server to be ready")
        self._until(lambda: bool(self.get("/api/v1/namespaces/default")), "the namespace default")

    def run(self, program: str, *arguments: str, name: str = "") -> None:
        log = (self.folder / f"{name or program}.log").open("ab")
        self._processes[name or program] = subprocess.Popen(
            [self.bin / program, *arguments], stdout=log, stderr=log, cwd=self.folder
        )

    def signal(self, name: str, number: int) -> None:
        self._processes[name].send_signal(number)

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait(30)

    def stop(self) -> None:
        for name in list(self._processes)[::-1]:
            self.kill(name)
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca(self) -> Path:
        return self.folder / "certs" / "apiserver.crt"

    def call(self, method: str, path: str, body: object = None, *, raw: bool = False, kind: str = "json") -> Any:
        context = ssl.create_default_context(cafile=str(self.ca))
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": f"application/{kind}"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            said = answer.read()
        return said if raw else json.loads(said)

    def get(self, path: str, *, raw: bool = False) -> Any:
        try:
            return self.call("GET", path, raw=raw)
        except (OSError, urllib.error.URLError, FileNotFoundError):
            return None

    def add_nodes(
        self, names: list[str], *, cpu: str = "4", memory: str = "16Gi", kubelet_port: int | None = None, **labels: str
    ) -> None:
        def add(name: str) -> None:
            amounts = {"cpu": cpu, "memory": memory, "pods": "500"}
            node: dict[str, Any] = {
                "metadata": {"name": name, "labels": labels},
                "status": {
                    "capacity": amounts,
                    "allocatable": amounts,
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }
            if kubelet_port is not None:  # where the API server asks for logs
                node["status"]["addresses"] = [{"type": "InternalIP", "address": "127.0.0.1"}]
                node["status"]["daemonEndpoints"] = {"kubeletEndpoint": {"Port": kubelet_port}}
            self.call("POST", "/api/v1/nodes", node)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(add, names))

    def add_pods(self, names: list[str], *, cpu: str = "100m", memory: str = "128Mi", **spec: object) -> None:
        def add(name: str) -> None:
            container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu, "memory": memory}}}
            pod = {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}
            self.call("POST", "/api/v1/namespaces/default/pods", pod)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(add, names))

    def pods(self) -> list[dict[str, Any]]:
        return list(self.call("GET", "/api/v1/namespaces/default/pods")["items"])

    def start_scheduler(self, extender: dict[str, object] | None = None) -> None:
        config: dict[str, object] = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(self.kubeconfig), "qps": 5000, "burst": 5000},
            "leaderElection": {"leaderElect": False},
            "percentageOfNodesToScore": 100,
        }
        if extender is not None:
            config["extenders"] = [extender]
        path = self.folder / "scheduler.yaml"
        path.write_text(yaml.safe_dump(config))
        self.run(
            "kube-scheduler", f"--config={path}", f"--secure-port={free_port()}", "--bind-address=127.0.0.1",
            f"--cert-dir={self.folder / 'scheduler-certs'}", f"--authentication-kubeconfig={self.kubeconfig}",
            f"--authorization-kubeconfig={self.kubeconfig}",
        )  # fmt: skip

    def start_controllers(
        self, names: str = "deployment-controller,replicaset-controller,disruption-controller"
    ) -> None:
        """What makes pods of Deployments and counts PDBs, or others by name."""
        self.run(
            "kube-controller-manager", f"--kubeconfig={self.kubeconfig}", "--leader-elect=false",
            f"--secure-port={free_port()}", "--bind-address=127.0.0.1", f"--cert-dir={self.folder / 'manager-certs'}",
            f"--controllers={names}",
            f"--authentication-kubeconfig={self.kubeconfig}", f"--authorization-kubeconfig={self.kubeconfig}",
            "--kube-api-qps=500", "--kube-api-burst=1000",
        )  # fmt: skip

    def start_kubelet(self) -> None:
        """kwok: pods that are bound run, pods that are deleted go."""
        program("kwok")
        self.run(
            "kwok", f"--kubeconfig={self.kubeconfig}", f"--config={Path(__file__).with_name('stages.yaml')}",
            "--manage-all-nodes=true", "--node-lease-duration-seconds=40",
            f"--server-address=127.0.0.1:{free_port()}",
        )  # fmt: skip

    def add_deployment(
        self, name: str, replicas: int, *, cpu: str = "100m", memory: str = "128Mi", **spec: Any
    ) -> None:
        labels = {"app": name}
        container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu, "memory": memory}}}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [container], **spec}}
        body = {
            "metadata": {"name": name},
            "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
        }
        self.call("POST", "/apis/apps/v1/namespaces/default/deployments", body)

    def add_budget(self, name: str, *, min_available: int) -> None:
        spec = {"minAvailable": min_available, "selector": {"matchLabels": {"app": name}}}
        path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
        self.call("POST", path, {"metadata": {"name": name}, "spec": spec})

    def add_placeholder_class(self) -> None:
        body = {"metadata": {"name": "loadmaster-placeholder"}, "value": -10, "preemptionPolicy": "Never"}
        self.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)

    @staticmethod
    def _until(true: Any, what: str, timeout_s: float = 120.0) -> None:
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            if true():
                return
            time.sleep(0.1)
        raise TimeoutError(f"waited {timeout_s:g} s for {what}")

    until = _until


@contextmanager
def running(folder: Path) -> Iterator[ControlPlane]:
    plane = ControlPlane(folder)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()
