"""A day of exporter metrics with a known truth, and a real Prometheus that holds it."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.servers import free_port

GIB = 2**30
WINDOW_S = 300
FUNCTIONS = ("resize", "search", "invoice", "report")
LE_S = (0.5, 1.0, 2.0, 5.0, float("inf"))


@dataclass
class ExporterDay:
    """Load that is constant within each window, so that every statistic of a window is known exactly."""

    nodes: int
    pods_per_node: int
    start_s: int
    hours: float
    scrape_s: int
    seed: int = 3

    def __post_init__(self):
        rng = np.random.default_rng(self.seed)
        self.windows = round(self.hours * 3600 / WINDOW_S)
        pods = self.nodes * self.pods_per_node
        self.pod_node = np.arange(pods) // self.pods_per_node
        self.pod_function = np.arange(pods) % len(FUNCTIONS)
        self.pod_cpu = rng.uniform(0.05, 0.7, (pods, self.windows))
        self.pod_mem = np.round(rng.uniform(0.1, 0.9, (pods, self.windows)) * GIB)
        self.node_cpu = 0.2 + np.stack([self.pod_cpu[self.pod_node == n].sum(axis=0) for n in range(self.nodes)])
        self.node_mem_free = np.round(rng.uniform(4, 12, (self.nodes, self.windows)) * GIB)
        self.requests = rng.integers(20, 400, (len(FUNCTIONS), self.windows))
        self.response_s = rng.uniform(0.2, 1.5, (len(FUNCTIONS), self.windows))
        self.pods = [f"{FUNCTIONS[f]}-5d4f6b7c9-{i:05d}" for i, f in enumerate(self.pod_function)]
        self.names = [f"node-{n:03d}" for n in range(self.nodes)]
        # One pod is created and one deleted on the way, a third of the hours in.
        self.born, self.gone = pods - 1, pods - 2
        self.change_s = self.start_s + self.windows // 3 * WINDOW_S + 7

    def scrapes(self, phase, every=None):
        every = every or self.scrape_s
        return np.arange(self.start_s + phase, self.start_s + self.windows * WINDOW_S, every)

    def counter(self, rate, t):
        """Integrate a rate that is constant within windows."""
        total = np.concatenate([[0.0], np.cumsum(rate) * WINDOW_S])
        window = (t - self.start_s) // WINDOW_S
        return total[window] + rate[window] * (t - self.start_s - window * WINDOW_S)

    def at(self, level, t):
        return level[(t - self.start_s) // WINDOW_S]

    def series(self):
        """Yield (metric, labels, times, values); series of one metric follow each other."""
        by_metric = {}

        def add(metric, labels, t, values):
            values = np.broadcast_to(np.asarray(values, dtype=float), t.shape)
            by_metric.setdefault(metric, []).append((labels, t, values))

        for n, name in enumerate(self.names):
            t, slow = self.scrapes(n % self.scrape_s), self.scrapes(n % 60, 60)
            instance = f'instance="{name}:9100"'
            cpu = self.counter(self.node_cpu[n], t)
            add("node_cpu_seconds_total", f'{instance},cpu="0",mode="user"', t, cpu * 0.75)
            add("node_cpu_seconds_total", f'{instance},cpu="0",mode="system"', t, cpu * 0.25)
            add("node_cpu_seconds_total", f'{instance},cpu="0",mode="idle"', slow, slow - self.start_s)
            add("node_memory_MemTotal_bytes", instance, t, 16 * GIB)
            add("node_memory_MemAvailable_bytes", instance, t, self.at(self.node_mem_free[n], t))
            node = f'node="{name}"'
            add("kube_node_status_capacity", f'{node},resource="cpu"', slow, 8)
            add("kube_node_status_capacity", f'{node},resource="memory"', slow, 16 * GIB)
            add("kube_node_status_condition", f'{node},condition="Ready",status="true"', slow, 1)
            add("kube_node_labels", f'{node},label_node_kubernetes_io_instance_type="m5.2xlarge"', slow, 1)
            add("DCGM_FI_DEV_GPU_UTIL", f'Hostname="{name}",gpu="0",UUID="GPU-{n}",modelName="A10"', slow, 40)
            add("DCGM_FI_DEV_FB_USED", f'Hostname="{name}",gpu="0",UUID="GPU-{n}",modelName="A10"', slow, 1000)
            add("DCGM_FI_DEV_FB_FREE", f'Hostname="{name}",gpu="0",UUID="GPU-{n}",modelName="A10"', slow, 23000)
        for p, pod in enumerate(self.pods):
            node = self.names[self.pod_node[p]]
            who = f'namespace="fn",pod="{pod}"'
            alive = [self.change_s if p == self.born else 0, self.change_s if p == self.gone else np.inf]
            t, slow = (
                s[(s >= alive[0]) & (s < alive[1])]
                for s in (self.scrapes(self.pod_node[p] % self.scrape_s), self.scrapes(p % 60, 60))
            )
            labels = f'{who},node="{node}"'
            add("container_cpu_usage_seconds_total", f'{labels},container=""', t, self.counter(self.pod_cpu[p], t))
            add("container_cpu_usage_seconds_total", f'{labels},container="main"', slow, 1e6)
            add("container_memory_working_set_bytes", f'{labels},container=""', t, self.at(self.pod_mem[p], t))
            request = "kube_pod_container_resource_requests"
            add(request, f'{labels},container="main",resource="cpu"', slow, 0.5)
            add(request, f'{labels},container="main",resource="memory"', slow, GIB)
            owner = f"{FUNCTIONS[self.pod_function[p]]}-5d4f6b7c9"
            add("kube_pod_info", f'{labels},created_by_name="{owner}"', slow, 1)
            add("kube_pod_created", who, slow, self.change_s - 2 if p == self.born else self.start_s - 86_400)
        for f, name in enumerate(FUNCTIONS):
            t = self.scrapes(3)
            label = f'function_name="{name}.fn"'
            answered = np.floor(self.counter(self.requests[f] / WINDOW_S, t) + 1e-9)
            add("gateway_function_invocation_total", f'{label},code="200"', t, answered)
            seconds = self.counter(self.requests[f] * self.response_s[f] / WINDOW_S, t)
            add("gateway_functions_seconds_sum", f'{label},code="200"', t, seconds)
            for le in LE_S:
                text = "+Inf" if le == float("inf") else f"{le}"
                below = self.counter(self.requests[f] * (self.response_s[f] <= le) / WINDOW_S, t)
                add("gateway_functions_seconds_bucket", f'{label},code="200",le="{text}"', t, np.floor(below + 1e-9))
        for metric, found in by_metric.items():
            for labels, t, values in found:
                yield metric, labels, t, values

    def write(self, path):
        """Write OpenMetrics text; returns the number of samples."""
        count, known = 0, None
        with path.open("w") as file:
            for metric, labels, t, values in self.series():
                if metric != known:
                    file.write(f"# TYPE {metric} unknown\n")
                    known = metric
                head = f"{metric}{{{labels}}} "
                file.write("".join(f"{head}{v!r} {s}\n" for s, v in zip(t.tolist(), values.tolist(), strict=True)))
                count += len(t)
            file.write("# EOF\n")
        return count


@contextlib.contextmanager
def running_prometheus(folder: Path, text: Path, web: Path | None = None):
    """Load a text file into a Prometheus of our own and yield its address, once it is ready if it lets anybody in."""
    data = folder / "tsdb"
    subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "--max-block-duration=32h", "openmetrics", text, data],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (folder / "prometheus.yml").write_text("global: {}\n")
    port = free_port()
    with (folder / "prometheus.log").open("w") as log:
        server = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={data}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--storage.tsdb.retention.time=100y",
                *([f"--web.config.file={web}"] if web else []),
            ],
            stdout=log,
            stderr=log,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                if web:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                with urllib.request.urlopen(f"{address}/-/ready", timeout=1):
                    break
            except OSError:
                time.sleep(0.1)
        else:
            pytest.fail((folder / "prometheus.log").read_text()[-2000:])
        yield address
    finally:
        server.kill()
        server.wait()


@pytest.fixture(scope="session")
def need_prometheus():
    if not (shutil.which("prometheus") and shutil.which("promtool")):
        pytest.skip("prometheus and promtool are not installed (scripts/install-test-tools.sh)")


@pytest.fixture(scope="session")
def exporter_day():
    return ExporterDay


@pytest.fixture(scope="session")
def serve_prometheus(need_prometheus):
    return running_prometheus


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """A CA, a server certificate for 127.0.0.1 and a client certificate, also with its key in one file."""
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem",
            "-subj", "/CN=test-ca", "-addext", "keyUsage=critical,keyCertSign")  # fmt: skip
    for name in ("server", "client"):
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr",
                "-subj", f"/CN={name}")  # fmt: skip
        (folder / "ext").write_text("subjectAltName=IP:127.0.0.1\n")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-out", f"{name}.pem", "-extfile", "ext")  # fmt: skip
    (folder / "both.pem").write_bytes((folder / "client.pem").read_bytes() + (folder / "client.key").read_bytes())
    return folder


@pytest.fixture(autouse=True)
def _own_var(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path_factory.mktemp("var")))
    # A proxy of the machine must not stand between tests and servers of their own.
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
