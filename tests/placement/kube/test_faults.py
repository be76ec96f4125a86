"""Each fault of the list, on real parts: what is known stays, nothing is lost, and how long it takes is recorded.

Faults of Prometheus are in test_usage.py, of leases in test_gates.py and test_migrator.py, of the store in
test_s3_store.py; those with a figure of their own are here.
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import yaml

from tests.placement.kube import control_plane
from tests.placement.kube.control_plane import ControlPlane
from tests.placement.kube.playing import PlayedPrometheus, playing
from tests.placement.kube.wire_cut import Wire
from tests.servers import free_port, s3_server

pytestmark = [pytest.mark.kube, pytest.mark.timeout(600)]

GIB = 2.0**30
Recovery = Callable[[str, str, float], None]


class Place:
    """A control plane, a wire to it, a Prometheus and a placement service that looks at both."""

    def __init__(self, kube: ControlPlane, wire: Wire, prometheus: PlayedPrometheus, client: httpx.Client) -> None:
        self.kube, self.wire, self.prometheus, self.client = kube, wire, prometheus, client

    def nodes(self) -> set[str]:
        body = {"problem": "functions", "requests": [{"id": "r", "fields": {"cpu": 0.1, "mem": 0.1}}], "cluster": "lab"}
        answer = self.client.post("/v1/place", json=body | {"top_k": 1000})
        assert answer.status_code == 200, answer.text
        return {one["name"] for one in answer.json()["placements"][0]["ranked"]}

    def metric(self, name: str) -> float:
        for line in self.client.get("/metrics").text.splitlines():
            if line.startswith(f'{name}{{cluster="lab"}}'):
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no {name}")

    def until(self, nodes: set[str]) -> float:
        """Wait until exactly these nodes are known; returns the seconds it took."""
        began = time.monotonic()
        self.kube.until(lambda: self.nodes() == nodes, f"{sorted(nodes)} to be known", 90)
        return time.monotonic() - began


BASE = {"n0", "n1", "n2"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, workshop: Any, kit: Any) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("faults")
    with control_plane.running(folder / "kube") as kube, playing() as prometheus:
        wire = Wire(kube.port)
        config = yaml.safe_load(kube.kubeconfig.read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{wire.port}"
        through = folder / "through-the-wire"
        through.write_text(yaml.safe_dump(config))
        kube.add_nodes(sorted(BASE))
        prometheus.series = {
            name: {node: (lambda _, use=use: use) for node in BASE}
            for name, use in {"node_cpu": 1.0, "node_mem": GIB, "node_net": 10.0, "node_disk": 50.0}.items()
        }
        prom = {"url": prometheus.url, "every_s": 0.3, "timeout_s": 0.5, "queries": PlayedPrometheus.QUERIES}
        file = folder / "clusters.yaml"
        file.write_text(json.dumps({
            "clusters": {"lab": {"kubeconfig": str(through), "prometheus": prom}}, "extender": {"cluster": "lab"},
        }))  # fmt: skip
        settings = msgspec.structs.replace(kit.settings_in(folder, workshop), clusters_file=file)
        with kit.listening(settings) as url, httpx.Client(base_url=url, timeout=60) as client:
            assert kit.push(client, workshop.sample(1), counter=1).status_code == 200
            place = Place(kube, wire, prometheus, client)
            kube.until(lambda: client.get("/v1/clusters/lab/snapshot").status_code == 200, "the cluster to be seen")
            yield place
        wire.close()


@pytest.fixture
def place(running: Place) -> Iterator[Place]:
    """The same place for all, left as it was found."""
    running.until(BASE)
    yield running
    running.wire.up, running.prometheus.mood = True, "well"
    for name in {one["metadata"]["name"] for one in running.kube.call("GET", "/api/v1/nodes")["items"]} - BASE:
        running.kube.call("DELETE", f"/api/v1/nodes/{name}")


def test_a_watch_that_is_cut_goes_on_where_it_was(place: Place, recovery: Recovery) -> None:
    lists = place.client.get("/metrics").text  # the last state goes on answering meanwhile
    assert lists
    place.wire.up = False
    place.wire.cut()
    place.kube.add_nodes(["late"])
    assert place.nodes() == BASE
    time.sleep(1)
    place.wire.up = True
    recovery("watch cut for 1 s", "what happened meanwhile is known", place.until(BASE | {"late"}))


def test_a_version_that_the_server_has_forgotten_is_listed_anew(place: Place, recovery: Recovery) -> None:
    """410 Gone, as etcd's compaction makes it: the versions after ours are gone, and so is the server's cache."""
    place.wire.up = False
    place.wire.cut()
    kube = place.kube
    kube.add_nodes(["new"])
    for _ in range(3):
        kube.call("PATCH", "/api/v1/nodes/n0", {"metadata": {"labels": {"at": str(time.monotonic())}}},
                  kind="merge-patch+json")  # fmt: skip
    revision = int(kube.call("GET", "/api/v1/nodes")["metadata"]["resourceVersion"])
    body = json.dumps({"revision": str(revision), "physical": True}).encode()
    urllib.request.urlopen(f"http://127.0.0.1:{kube.etcd_port}/v3/kv/compaction", body, timeout=30).read()
    kube.kill("kube-apiserver")
    kube.start_api_server()
    assert place.nodes() == BASE
    place.wire.up = True
    recovery("410 Gone after a compaction", "listed anew", place.until(BASE | {"new"}))


def test_the_api_server_is_killed_and_comes_back(place: Place, recovery: Recovery) -> None:
    place.kube.kill("kube-apiserver")
    for _ in range(5):
        assert place.nodes() == BASE, "what was known last is still answered"
        time.sleep(0.2)
    place.kube.start_api_server()
    place.kube.add_nodes(["after"])
    recovery("API server killed, back after some seconds", "the watch is back", place.until(BASE | {"after"}))


def test_etcd_stands_still(place: Place, recovery: Recovery) -> None:
    place.kube.signal("etcd", signal.SIGSTOP)
    try:
        for _ in range(10):
            assert place.nodes() == BASE
            time.sleep(0.2)
    finally:
        place.kube.signal("etcd", signal.SIGCONT)
    place.kube.until(lambda: place.kube.get("/api/v1/nodes/n0") is not None, "etcd")
    place.kube.add_nodes(["after"])
    recovery("etcd paused for 2 s", "the next change is known", place.until(BASE | {"after"}))


@pytest.mark.parametrize("mood", ["dead", "slow", "garbage"])
def test_prometheus_is_unwell_and_comes_back(place: Place, recovery: Recovery, mood: str) -> None:
    kube = place.kube
    kube.until(lambda: place.metric("loadmaster_cluster_usage_silent_seconds") < 3, "use to be told")
    place.prometheus.mood = mood
    kube.until(lambda: place.metric("loadmaster_cluster_usage_silent_seconds") > 3, "it to be silent", 60)
    assert place.nodes() == BASE
    assert place.metric("loadmaster_cluster_usage_unknown_nodes") == 0, "what was known last still counts"
    place.prometheus.mood = "well"
    began = time.monotonic()
    kube.until(lambda: place.metric("loadmaster_cluster_usage_silent_seconds") < 2, "it to be back", 60)
    recovery(f"Prometheus {mood} for some seconds", "every question is answered again", time.monotonic() - began)


def test_a_node_that_goes_between_filter_and_bind_gets_no_pod(place: Place) -> None:
    """The scheduler has filtered with the node there; before it asks for scores the node is gone."""
    kube, service = place.kube, str(place.client.base_url)
    kube.add_nodes(["doomed"], cpu="64", memory="256Gi")
    place.until(BASE | {"doomed"})
    asked: list[str] = []

    class Between(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked.append(self.path)
            if self.path.endswith("prioritize") and "doomed" in place.nodes():
                kube.call("DELETE", "/api/v1/nodes/doomed")
                place.until(BASE)
            answer = httpx.post(f"{service.rstrip('/')}/extender{self.path}", content=body, timeout=30)
            self.send_response(answer.status_code)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, *arguments: object) -> None:
            pass

    between = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Between)
    between.daemon_threads = True
    threading.Thread(target=between.serve_forever, daemon=True).start()
    try:
        kube.start_scheduler({
            "urlPrefix": f"http://127.0.0.1:{between.server_address[1]}", "filterVerb": "filter",
            "prioritizeVerb": "prioritize", "weight": 100, "enableHTTPS": False, "httpTimeout": "30s",
            "nodeCacheCapable": True, "ignorable": True,
        })  # fmt: skip
        kube.add_pods(["traveller", "next"])
        kube.until(lambda: all(one["spec"].get("nodeName") for one in kube.pods()), "both to be bound")
    finally:
        kube.kill("kube-scheduler")
        between.shutdown()
        between.server_close()
    assert {one["spec"]["nodeName"] for one in kube.pods()} <= BASE
    assert {"/filter", "/prioritize"} <= set(asked)
    kube.call("DELETE", "/api/v1/namespaces/default/pods?gracePeriodSeconds=0")


def test_the_scheduler_goes_on_when_the_extender_is_killed(
    place: Place, recovery: Recovery, tmp_path: Path, workshop: Any, kit: Any
) -> None:
    kube, port = place.kube, free_port()
    file = tmp_path / "clusters.yaml"
    file.write_text(f"clusters: {{lab: {{kubeconfig: {kube.kubeconfig}}}}}\nextender: {{cluster: lab}}\n")
    environ = os.environ | {"LOADMASTER_VAR": str(tmp_path / "var"), "LOADMASTER_CLUSTERS_FILE": str(file)}
    command = [sys.executable, "-m", "placement", "--port", str(port), "--log-level", "warning"]
    service = subprocess.Popen(command, env=environ)
    try:
        kube.until(lambda: _answers(port), "the service to start", 120)
        kube.start_scheduler({
            "urlPrefix": f"http://127.0.0.1:{port}/extender", "prioritizeVerb": "prioritize", "weight": 100,
            "enableHTTPS": False, "httpTimeout": "2s", "nodeCacheCapable": True, "ignorable": True,
        })  # fmt: skip
        kube.add_pods([f"before-{index}" for index in range(5)])
        kube.until(lambda: sum(bool(one["spec"].get("nodeName")) for one in kube.pods()) == 5, "pods with it")
        service.send_signal(signal.SIGKILL)
        service.wait(30)
        began = time.monotonic()
        kube.add_pods([f"after-{index}" for index in range(5)])
        kube.until(lambda: sum(bool(one["spec"].get("nodeName")) for one in kube.pods()) == 10, "pods without it")
        recovery("extender killed", "five pods are bound without it", time.monotonic() - began)
    finally:
        service.kill()
        service.wait(30)
        kube.kill("kube-scheduler")
        kube.call("DELETE", "/api/v1/namespaces/default/pods?gracePeriodSeconds=0")


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.soak
@pytest.mark.s3
def test_the_store_is_gone_for_a_minute(
    tmp_path: Path, settings: Any, kit: Any, workshop: Any, recovery: Recovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = msgspec.structs.replace(settings, store_url="s3://policies/live", follow_s=1.0, retry_s=5)
    second = msgspec.structs.replace(first, log_dir=tmp_path / "second-log")
    one, two = workshop.sample(1), workshop.sample(2)

    def live(client: Any) -> str | None:
        entry = client.get("/v1/policies").json()["policies"]["functions"]
        return entry and entry["digest"]

    with (
        s3_server(tmp_path / "s3", "policies", monkeypatch) as server,
        kit.running(first) as a,
        kit.running(second) as b,
    ):
        assert kit.push(a, one, counter=1).status_code == 200
        ControlPlane.until(lambda: live(b) == kit.digest_of(one), "the other replica to follow", 30)
        server.process.send_signal(signal.SIGSTOP)
        gone = time.monotonic()
        while time.monotonic() - gone < 60:
            for client in (a, b):
                assert kit.place(client).json()["digest"] == kit.digest_of(one), "what is live answers on"
            time.sleep(1)
        server.process.send_signal(signal.SIGCONT)
        began = time.monotonic()

        def pushed() -> bool:
            said: int = kit.push(a, two, counter=2, live=kit.digest_of(one)).status_code
            return said == 200

        ControlPlane.until(pushed, "a push to be taken", 60)
        ControlPlane.until(lambda: live(b) == kit.digest_of(two), "the other replica to follow", 60)
        recovery("S3 gone for a minute", "a push is taken and the other replica follows", time.monotonic() - began)
