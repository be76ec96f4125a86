"""A watched cluster is a file, and ``loadmaster rollout`` replays it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sched_env.pods import trace as pod_trace
from sched_env.scenarios import load as scenario
from tests.placement.kube.conftest import ScriptedServer
from tests.placement.kube.playing import PlayedPrometheus, playing
from wire.contracts.snapshot import Snapshot
from wire.errors import TraceError

GIB = 2.0**30


def node(name: str, **spec: Any) -> dict[str, Any]:
    status = {"allocatable": {"cpu": "4", "memory": "16Gi"}}
    return {"metadata": {"name": name, "uid": name}, "spec": spec, "status": status}


def pod(name: str, where: str, owner: str = "ReplicaSet") -> dict[str, Any]:
    owners = [{"kind": owner, "name": f"{name}-owner", "controller": True}] if owner else []
    metadata = {"name": name, "namespace": "shop", "uid": name, "ownerReferences": owners}
    container = {"resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}
    return {
        "metadata": metadata, "spec": {"nodeName": where, "containers": [container]}, "status": {"phase": "Running"},
    }  # fmt: skip


@pytest.fixture
def lab(scripted: ScriptedServer, settings: Any, kit: Any, tmp_path: Path) -> Iterator[Any]:
    """Two nodes: one with six busy pods, one with nothing but a daemon."""
    scripted.items["nodes"] = [node("hot"), node("cold"), node("shut", unschedulable=True)]
    scripted.items["pods"] = [*(pod(f"p{index}", "hot") for index in range(6)), pod("daemon", "cold", "DaemonSet")]
    with playing() as prometheus:
        busy = {f"shop/p{index}": (lambda _: 0.6) for index in range(5)}  # of the sixth nothing is known
        prometheus.series = {"pod_cpu": busy, "pod_mem": {key: (lambda _: 0.5 * GIB) for key in busy}}
        path = tmp_path / "clusters.yaml"
        prom = {"url": prometheus.url, "queries": PlayedPrometheus.QUERIES, "every_s": 0.2}
        given = {"clusters": {"lab": {"kubeconfig": str(scripted.kubeconfig(tmp_path)), "prometheus": prom}}}
        path.write_text(json.dumps(given))
        with kit.running(msgspec.structs.replace(settings, clusters_file=path)) as client:
            yield client


def taken(client: Any) -> bytes:
    end = time.monotonic() + 30
    while True:
        answer = client.get("/v1/clusters/lab/snapshot")
        if answer.status_code == 200 and any(one["cpu_used"] for one in answer.json()["pods"]):
            return bytes(answer.content)
        assert time.monotonic() < end, answer.text
        time.sleep(0.05)


def test_a_snapshot_says_what_is_there_and_what_may_move(lab: Any) -> None:
    found = msgspec.json.decode(taken(lab), type=Snapshot)
    assert [(one.name, one.cpu_cores, one.mem_gib, one.active) for one in found.nodes] == [
        ("cold", 4.0, 16.0, True), ("hot", 4.0, 16.0, True), ("shut", 4.0, 16.0, False),
    ]  # fmt: skip
    pods = {one.name: one for one in found.pods}
    assert (pods["shop/p0"].movable, pods["shop/daemon"].movable) == (True, False)
    assert (len(pods["shop/p0"].cpu_used), pods["shop/p0"].cpu_used[0], pods["shop/p0"].mem_used[0]) == (21, 0.6, 0.5)
    assert pods["shop/p5"].cpu_used == pods["shop/p5"].mem_used == []
    assert lab.get("/v1/clusters").json() == {"clusters": ["lab"]}
    assert lab.get("/v1/clusters/other/snapshot").status_code == 404
    told = lab.get("/metrics").text
    assert 'loadmaster_cluster_usage_unknown_nodes{cluster="lab"} 3.0' in told
    assert 'loadmaster_cluster_unreadable_objects{cluster="lab"} 0.0' in told


@pytest.mark.parametrize(
    ("scenario_name", "policy", "key"),
    [("pods/deploy", "hottest_to_coolest", "migrations"), ("functions/serverless", "best_fit", "placed")],
)
def test_rollout_replays_it(lab: Any, tmp_path: Path, scenario_name: str, policy: str, key: str) -> None:
    file = tmp_path / "snapshot.json"
    file.write_bytes(taken(lab))
    command = [
        sys.executable, "-m", "sched_env.rollout", "--scenario", scenario_name, "--policy", policy,
        "--trace", str(file), "--episodes", "1", "--json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    episode = json.loads(done.stdout.splitlines()[0])
    assert episode[key] > 0, "the hot node's pods move to the cold one; or all pods find a place"


def test_the_replayed_state_is_that_of_the_cluster(lab: Any, tmp_path: Path) -> None:
    file = tmp_path / "snapshot.json"
    file.write_bytes(taken(lab))
    trace, nodes = pod_trace.load(str(file), scenario("pods/deploy", {}))  # type: ignore[arg-type]
    assert nodes.names == ("cold", "hot", "shut")
    first = trace.windows(0, 1)
    where = dict(zip(first.pod_names, first.node[first.pod.argsort()], strict=True))
    assert {name: int(number) for name, number in where.items()} == {
        "shop/daemon": 0, **{f"shop/p{index}": 1 for index in range(6)},
    }  # fmt: skip
    assert first.cpu_used.sum() == pytest.approx(5 * 0.6 + 0.5 + 0.5), "what is not known is taken to be the request"
    assert first.held.sum() == 1
    assert first.up.tolist() == [[True, True, False]]
    file.write_text('{"cluster": "lab"}')
    with pytest.raises(TraceError, match=r"snapshot\.json"):
        pod_trace.load(str(file), scenario("pods/deploy", {}))  # type: ignore[arg-type]
