"""On a real API server: replicas that share PostgreSQL, cards measured by benchmark Jobs, finished jobs as profiles."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from pipeline.runtime_model import profiles
from placement.cpn import config, manifests
from placement.cpn.gateway import KubeGateway
from placement.cpn.records import Attempt
from placement.cpn.store import read_only
from placement.cpn.submission import read as read_job
from placement.cpn.topology import read as read_network
from placement.kube.clusters import connect
from placement.kube.config import ClusterSettings
from sched_env.jobs import synthetic
from tests import servers
from tests.placement.cpn.conftest import MODELS, known, manifest
from tests.placement.cpn.live_parts import benchmark_module, nodes, played, topology
from tests.placement.kube.control_plane import ControlPlane

pytestmark = [pytest.mark.kube, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[3]
SCALE = 10.0
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


def until(true: Callable[[], Any], what: str, seconds: float = 120.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := true():
            return found
        time.sleep(0.1)
    raise TimeoutError(f"waited {seconds:g} s for {what}")


def leads(service: Any) -> bool:
    try:
        with urllib.request.urlopen(f"{service.url}/metrics", timeout=5) as answer:
            return b"loadmaster_cpn_ready 1.0" in answer.read()
    except OSError:
        return False


def starts(service: Any) -> int:
    """Say how often a service has got as far as to lead, if it may."""
    return int((service.folder / "service.log").read_text().count("compiled in"))


def loadmaster(*arguments: str) -> str:
    command = [sys.executable, "-m", "wire.cli", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def body(name: str, model: str, seconds: float) -> dict[str, Any]:
    """A job that takes about so many seconds of the controller's clock alone."""
    epochs = round(seconds * 0.7 / MODELS[model].seconds)
    return manifest(name, model, epochs=epochs, gpu_memory_mb=MODELS[model].gpu_mem * 1024)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Start services; all that were started are killed at the end."""
    live, started = benchmark_module("cpn_live"), []

    def make(name: str, settings: dict[str, Any]) -> Any:
        (tmp_path / name).mkdir()
        started.append(live.Service(tmp_path / name, settings))
        started[-1].start()
        return started[-1]

    yield make
    for one in started:
        one.kill()


@pytest.mark.soak
def test_a_replica_goes_on_when_the_leader_is_killed_and_every_job_runs_exactly_once(
    kube: ControlPlane, running: Callable[..., Any], tmp_path: Path, recovery: Callable[[str, str, float], None]
) -> None:
    nodes(kube)
    with servers.postgres(tmp_path / "pg", "jobs") as address, played(kube, SCALE) as driver:
        store = f"postgresql+psycopg://{address}"
        settings = {
            "topology": str(topology(kube, tmp_path / "topology.yaml")), "store": store, "time_scale": SCALE,
            "lease": {"cluster": {"kubeconfig": str(kube.kubeconfig)}, "namespace": "default", "name": "jobs"},
            "strategy": "fifo", "patience_s": 1e9,
        }  # fmt: skip
        pair = [running("one", settings), running("two", settings)]
        until(lambda: all(starts(one) == 1 for one in pair) and any(map(leads, pair)), "a leader", 300)
        bodies = [body(f"job-{row}", ("cnn-small", "cnn-large")[row % 2], 150.0) for row in range(40)]
        for number, one in enumerate(bodies):  # to whoever answers, leader or not; every fourth one to both
            assert pair[number % 2].post(one)
            assert number % 4 or not pair[1 - number % 2].post(one)
        for _ in range(3):
            (leader,) = [one for one in pair if leads(one)]
            other = pair[1 - pair.index(leader)]
            started = len(driver.finished)
            until(lambda already=started: len(driver.finished) > already, "work under this leader")
            leader.kill()
            began = time.monotonic()
            until(lambda heir=other: leads(heir), "the other to lead", 60)
            recovery("leader of the job controller killed", "another replica leads", time.monotonic() - began)
            # The lease's 15 s and a try every 2, on a machine that others use.
            assert time.monotonic() - began < 40
            before = starts(leader)
            leader.start()
            until(lambda who=leader, n=before: starts(who) > n, "the one that was killed to stand by", 120)
        with read_only(store) as kept:
            until(lambda: kept.counts() == {"finished": 40}, "all jobs to end", 300)
            jobs, attempts, _ = kept.everything()
        assert {job.name for job in jobs} == {f"job-{row}" for row in range(40)}
        # One that a leader decided and was killed before announcing is decided anew if its heir does not hear of the
        # cluster yet: nothing of it was ever asked of anybody.
        unsent = [one for one in attempts if one.outcome != "finished"]
        assert all(one.outcome == "not_submitted" and one.tried_at is None for one in unsent), unsent
        assert sorted(one.job for one in attempts if one.outcome == "finished") == sorted(job.id for job in jobs)
        assert sorted(driver.finished.values()) == [1] * 40
        assert not driver.together
        assert [name for name, count in driver.made.items() if count > 1] == []


def test_finished_jobs_become_profiles_that_the_fit_reads_and_a_report(
    kube: ControlPlane, running: Callable[..., Any], tmp_path: Path
) -> None:
    nodes(kube)
    store, network = f"sqlite:///{tmp_path}/jobs.db", topology(kube, tmp_path / "topology.yaml")
    with played(kube, SCALE) as driver:
        settings = {"topology": str(network), "store": store, "time_scale": SCALE, "strategy": "fifo_exclusive"}
        service = running("one", settings)
        service.until_ready()
        names = ("cnn-small", "cnn-large", "detector-small", "transformer")
        for row in range(8):
            service.post(body(f"job-{row}", names[row % 4], 150.0))
        with read_only(store) as kept:
            until(lambda: kept.counts() == {"finished": 8}, "all jobs to end", 300)
        assert len(driver.finished) == 8
    out = tmp_path / "finished.csv"
    said = loadmaster("jobs", "profiles", "--store", store, "--topology", str(network), "--out", str(out))
    assert "8 sets of 8 attempts" in said
    read, table = profiles.read([out]), synthetic.runtime(("P100",))
    for (card, (model,)), seconds in zip(read.sets, read.seconds, strict=True):
        assert card == "P100"
        true = float(table.seconds[table.model_names.index(model), 0, 0, 0])
        # What a controller sees begins and ends when it hears of it: 0.3 s of the wall's clock are 2 % here.
        assert seconds[0] == pytest.approx(true, rel=0.1), model
    report = loadmaster("jobs", "report", "--store", store)
    assert "8 finished" in report


@pytest.mark.soak
def test_a_card_is_measured_by_a_benchmark_job_whose_log_comes_through_the_api_server(
    kube: ControlPlane, tmp_path: Path
) -> None:
    logged = tmp_path / "benchmark.log"
    measured_nodes(kube, logged)
    kube.start_scheduler()
    kube.start_controllers("job-controller")
    settings = tmp_path / "cpn.yaml"
    about = {"topology": str(topology(kube, tmp_path / "topology.yaml")), "store": f"sqlite:///{tmp_path}/jobs.db"}
    settings.write_text(yaml.safe_dump(about))
    stopped = threading.Event()
    kubelet = threading.Thread(target=run_containers, args=(kube, logged, stopped), daemon=True)
    kubelet.start()
    try:
        said = loadmaster(
            "jobs", "benchmark", "--config", str(settings), "--image", "loadmaster-workload:1", "--seconds", "1"
        )
    finally:
        stopped.set()
        kubelet.join(60)
    found = yaml.safe_load(said)
    # llama3 has eight billion weights: more than this container may have.
    assert found["fingerprints"]["P100"].keys() == {"resnet50", "yolov8m"}
    assert all(0.001 < seconds < 60 for seconds in found["fingerprints"]["P100"].values())
    settings.write_text(settings.read_text() + said)
    assert config.load(settings).fingerprints == found["fingerprints"]
    until(lambda: not kube.get("/apis/batch/v1/namespaces/default/jobs")["items"], "the Job to be removed")
    again = loadmaster("jobs", "benchmark", "--config", str(settings), "--image", "loadmaster-workload:1")
    assert again == ""


@pytest.mark.parametrize("mode", ["direct", "hami"])
def test_a_real_api_server_takes_the_jobs_of_both_gpu_modes_and_says_what_is_missing(
    kube: ControlPlane, tmp_path: Path, mode: str
) -> None:
    network = read_network(topology(kube, tmp_path / "topology.yaml").read_text(), "here")
    card, cluster = network.cards["here/n1/gpu1"], network.clusters["here"]
    cluster = msgspec.structs.replace(cluster, gpu_mode=mode, hami_pool="poc" if mode == "hami" else "")
    job, kept = read_job(body("one", "cnn-small", 10.0), known(network), now=1.0, tenant=None, key=None)
    attempt = Attempt(job.id, 1, job.model, "here", card.node, card.name, "fifo", 1.0, 1.0, None, "")
    gateway = KubeGateway(connect("here", ClusterSettings(str(kube.kubeconfig), "test")), "default")
    made = manifests.build(msgspec.json.decode(kept), job, attempt, card, cluster, "cpn")
    gateway.create(made)
    gateway.create(made)  # the same again is the same Job
    there = gateway.find(attempt.kube_name)
    assert there is not None
    container = there["spec"]["template"]["spec"]["containers"][0]
    limits = container.get("resources", {}).get("limits", {})
    assert ("nvidia.com/gpu" in limits) == (mode == "hami")
    assert there["spec"]["backoffLimit"] == 0
    assert gateway.ping() == {}
    client = connect("here", ClusterSettings(str(kube.kubeconfig), "test"))
    assert KubeGateway(client, "nowhere").ping().keys() == {"namespace"}


def measured_nodes(kube: ControlPlane, logged: Path) -> None:
    """Add nodes whose kubelet is kwok, which serves a file as the log of every container called benchmark."""
    servers.program("kwok")
    port = servers.free_port()
    for name in ("n0", "n1"):
        kube.add_nodes([name], cpu="32", memory="128Gi", kubelet_port=port, **{"kubernetes.io/hostname": name})
    log = {
        "apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "ClusterLogs", "metadata": {"name": "benchmark"},
        "spec": {"logs": [{"containers": ["benchmark"], "logsFile": str(logged), "follow": False}]},
    }  # fmt: skip
    config_file = kube.folder / "kwok.yaml"
    config_file.write_text((ROOT / "tests/placement/kube/stages.yaml").read_text() + "---\n" + yaml.safe_dump(log))
    kube.run(
        "kwok", f"--kubeconfig={kube.kubeconfig}", f"--config={config_file}", "--manage-all-nodes=true",
        "--node-lease-duration-seconds=40", f"--server-address=127.0.0.1:{port}", "--node-ip=127.0.0.1",
        f"--node-port={port}", f"--tls-cert-file={kube.ca}", f"--tls-private-key-file={kube.ca.with_suffix('.key')}",
    )  # fmt: skip


def as_runtime_log(text: str) -> str:
    """Write lines as a container runtime keeps them, which is what a kubelet reads."""
    at = time.strftime("%Y-%m-%dT%H:%M:%S.000000000Z", time.gmtime())
    return "".join(f"{at} stdout F {line}\n" for line in text.splitlines())


def run_containers(kube: ControlPlane, logged: Path, stopped: threading.Event) -> None:
    """Do what a kubelet would: run the program that the pod asks for, and say how it ended."""
    while not stopped.wait(0.2):
        for pod in kube.pods():
            container = pod["spec"]["containers"][0]
            if pod.get("status", {}).get("phase") != "Running" or container["name"] != "benchmark":
                continue
            env = {one["name"]: one["value"] for one in container["env"]}
            command = [
                "prlimit",
                f"--as={8 * 2**30}",
                sys.executable,
                str(ROOT / "docker/workload.py"),
                *container["args"],
            ]
            ran = subprocess.run(
                command, capture_output=True, text=True, env=ONE_THREAD | env, timeout=300, check=False
            )
            logged.write_text(as_runtime_log(ran.stdout + ran.stderr))
            end = {"exitCode": ran.returncode, "finishedAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
            status = {
                "phase": "Failed" if ran.returncode else "Succeeded",
                "containerStatuses": [
                    {"name": "benchmark", "image": container["image"], "imageID": "", "ready": False, "restartCount": 0,
                     "state": {"terminated": end}}
                ],
            }  # fmt: skip
            path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/status"
            kube.call("PATCH", path, {"status": status}, kind="merge-patch+json")
