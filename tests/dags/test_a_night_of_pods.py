"""A whole night through KubernetesPodOperator: a real Kubernetes, fake GPU nodes whose agent runs pods here, and S3.

On the way a pod is killed, one is evicted, and a node is lost. The stages are the real ones: functions of the size
`demo`, which gets to its question, all others as small as can be.
"""

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests
import yaml

from pipeline import workspace
from pipeline.local import servers
from pipeline.local.__main__ import DAG, SETTLE_SECONDS
from pipeline.local.airflow_api import ENDED, AirflowApi
from pipeline.local.servers import APPROVER
from pipeline.registry import nights, places
from pipeline.registry.chain import Chain
from pipeline.registry.verify import verify
from sched_env import problems
from tests.node_agent import NodeAgent
from tests.placement.kube import control_plane
from tests.servers import free_port, s3_server
from tests.tiny_night import tiny

pytest.importorskip("dvc_s3", reason="the s3 extra is not installed: pip install -e '.[s3]'")
pytestmark = [
    pytest.mark.airflow, pytest.mark.kube, pytest.mark.s3, pytest.mark.soak, pytest.mark.timeout(3500)
]  # fmt: skip
ROOT = Path(__file__).parents[2]
PROBLEMS = os.environ.get("LOADMASTER_SYSTEM_PROBLEMS", "functions,vm,pods,workflow,jobs").split(",")
"""What the night is about; one of them is a quicker look."""
NAMESPACE = "loadmaster"


def git(folder, *arguments):
    command = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The tree as it is now, committed in a place of its own, and an empty registry beside it."""
    home = tmp_path_factory.mktemp("pods")
    folder = home / "repository"
    for name in git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard").splitlines():
        if (ROOT / name).is_file() and not name.startswith(("data/metrics/", "dvc.lock")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    size = yaml.safe_load((folder / "sizes" / "demo.yaml").read_text())
    for problem in problems.names():
        for section, settings in tiny(problem).items() if problem != "functions" else ():
            size.setdefault(section, {})[problem] = settings
    (folder / "sizes" / "tiny.yaml").write_text(yaml.safe_dump(size))
    workspace.hand_on_kernels([ROOT], folder)  # as in the image, whose build ends with compiling
    git(home, "init", "-q", "-b", "main", str(folder))
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "the tree under test")
    git(home, "init", "-q", "--bare", str(home / "registry.git"))
    return home


@pytest.fixture(scope="module")
def cluster(home):
    """Kubernetes with two nodes of two GPUs each, and an S3 server; everybody finds it by the environment."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        s3 = stack.enter_context(s3_server(home / "s3", "loadmaster", patch))
        plane = stack.enter_context(control_plane.running(home / "kube"))
        plane.start_scheduler()
        plane.run(
            "kube-controller-manager", f"--kubeconfig={plane.kubeconfig}", "--leader-elect=false",
            f"--secure-port={free_port()}", "--bind-address=127.0.0.1", f"--cert-dir={home / 'kube' / 'manager-certs'}",
            "--controllers=node-lifecycle-controller,taint-eviction-controller,pod-garbage-collector-controller",
            f"--authentication-kubeconfig={plane.kubeconfig}", f"--authorization-kubeconfig={plane.kubeconfig}",
            "--node-monitor-grace-period=12s", "--node-monitor-period=1s",
        )  # fmt: skip
        plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        places = {"LOADMASTER_REGISTRY": str(home / "registry.git"), "LOADMASTER_DVC_REMOTE": "s3://loadmaster/dvc"}
        kept = {key: base64.b64encode(value.encode()).decode() for key, value in (places | s3.environment).items()}
        plane.call(
            "POST", f"/api/v1/namespaces/{NAMESPACE}/secrets", {"metadata": {"name": "loadmaster-stage"}, "data": kept}
        )
        for name, value in places.items():
            patch.setenv(name, value)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        amounts = {"cpu": "16", "memory": "128Gi", "pods": "50", "nvidia.com/gpu": "2"}
        agents = [NodeAgent(plane, f"gpu-{n}", home / f"gpu-{n}", path, **amounts) for n in range(2)]
        yield plane, agents
        for agent in agents:
            if not agent.gone.is_set():
                agent.lose()


@pytest.fixture(scope="module")
def local(home, cluster):
    """Airflow, which starts pods there, and the placement service."""
    plane, _ = cluster
    stages = yaml.safe_load((ROOT / "deploy" / "stages.yaml").read_text())
    stages |= {"environment": {"LOADMASTER_PROBLEMS": ",".join(PROBLEMS), "NO_PROXY": "127.0.0.1",
                               "PYTHONPATH": str(home / "repository")},
               "poll_seconds": 1.0}  # fmt: skip
    # A lost node is given up after seconds, not minutes.
    patience = [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "tolerationSeconds": 2},
                {"key": "nvidia.com/gpu", "effect": "NoSchedule"}]  # fmt: skip
    for one in (stages["defaults"], *stages["stages"].values()):
        one["tolerations"] = patience
    (home / "stages.yaml").write_text(yaml.safe_dump(stages))
    settings = servers.LocalSettings(
        repository=home / "repository", var=home / "var", service_port=free_port(), airflow_port=free_port()
    )
    connection = {"conn_type": "kubernetes", "extra": {"kube_config_path": str(plane.kubeconfig)}}
    more = {
        "LOADMASTER_RUNNER": "kubernetes",
        "LOADMASTER_PODS": str(home / "stages.yaml"),
        "LOADMASTER_PROBLEMS": ",".join(PROBLEMS),
        "AIRFLOW_CONN_KUBERNETES_DEFAULT": json.dumps(connection),
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "250",
        # The files do not change here, and the provider takes seconds to load: on a machine with a load of 28 longer
        # than the 50 s after which Airflow takes a file for broken and leaves its runs where they are.
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
        "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "300",
    }
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        environment = servers.airflow_environment
        for name, value in environment(settings).items():
            if name.startswith("LOADMASTER"):
                patch.setenv(name, value)
        patch.setattr(servers, "airflow_environment", lambda chosen: environment(chosen) | more)
        patch.setenv("PYTHONPATH", str(home / "repository"))
        stack.enter_context(servers.placement_service(settings))
        stack.enter_context(servers.airflow(settings))
        api = AirflowApi(settings.airflow_url, APPROVER, servers.credentials(settings)[APPROVER])
        api.wait_for_dag(DAG)
        yield settings, api


class Trouble(threading.Thread):
    """Kills a pod, evicts another, and takes a node away, each once, as soon as there is one that works."""

    def __init__(self, plane, agents):
        super().__init__(daemon=True)
        self.plane, self.agents, self.done, self.over = plane, agents, {}, threading.Event()

    def run(self):
        while not self.over.wait(0.3) and len(self.done) < 3:
            for agent in [one for one in self.agents if not one.gone.is_set()]:
                for pod in list(agent.pods.values()):
                    self.meet(agent, pod)

    def meet(self, agent, pod):
        stage = pod.pod["metadata"]["labels"]["loadmaster/stage"]
        if pod.process is None or pod.ended.is_set() or not pod.lines:
            return  # it has said something, so it is in the middle of its work
        if stage == "clean" and "evicted" not in self.done:
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod.name}}
            self.plane.call("POST", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod.name}/eviction", body)
            self.done["evicted"] = stage
        elif stage == "train" and "killed" not in self.done:
            pod.kill(signal.SIGKILL)
            self.done["killed"] = stage
        elif stage == "export" and "lost" not in self.done:
            agent.lose()
            self.done["lost"] = stage


@pytest.fixture(scope="module")
def night(local, cluster):
    """One night with everything that can befall it; returns the run, its state, and its tasks."""
    _settings, api = local
    trouble = Trouble(*cluster)
    run = api.start(DAG, {"size": "tiny"})
    trouble.start()
    waiting, answered = {}, set()
    began = time.monotonic()
    while (state := api.run_state(DAG, run)) not in ENDED:
        for task in api.tasks(DAG, run):
            name = task["task_id"]
            if task["state"] in ("awaiting_input", "deferred") and name not in answered:
                waiting.setdefault(name, time.monotonic())
                if time.monotonic() - waiting[name] > SETTLE_SECONDS:
                    api.answer(DAG, run, name, task["map_index"], "Approve", "seen")
                    answered.add(name)
        time.sleep(1)
    trouble.over.set()
    tasks = api.tasks(DAG, run)
    pods = [len(agent.started) for agent in cluster[1]]
    print(f"the night took {time.monotonic() - began:.0f} s, {pods} pods on its nodes; {trouble.done}")
    for task in tasks:
        name = f"{task['task_id']} {task['rendered_map_index'] or ''}"
        print(f"{name:60} {task['state']:10} try {task['try_number']} {task['duration'] or 0:6.0f} s")
    for task in tasks:
        if task["state"] == "failed":
            print(task["task_id"], task["map_index"])
            print(api.log(DAG, run, task["task_id"], task["map_index"], task["try_number"])[-3000:])
    return run, state, tasks, trouble.done


def test_the_night_ends_well_whatever_befell_its_pods(night):
    _, state, tasks, done = night
    assert done.keys() == {"evicted", "killed", "lost"}
    assert state == "success", [(task["task_id"], task["map_index"], task["state"]) for task in tasks]
    again = {task["task_id"] for task in tasks if task["try_number"] > 1}
    assert again >= {"clean", "train", "export"}, "each of them was done again"


def test_every_stage_ran_as_a_pod_that_asked_for_what_its_file_says(cluster, night):
    _, agents = cluster
    pods = [one.pod for agent in agents for one in agent.pods.values()]
    names = {pod["metadata"]["labels"]["loadmaster/stage"] for pod in pods}
    stages = set(yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"])
    assert names == stages
    for pod in pods:
        container, spec = pod["spec"]["containers"][0], pod["spec"]
        wants = container["resources"]["limits"].get("nvidia.com/gpu")
        assert wants == ("1" if pod["metadata"]["labels"]["loadmaster/stage"] == "train" else None)
        assert spec["serviceAccountName"] == "loadmaster-stage"
        assert spec["automountServiceAccountToken"] is False
        assert container["envFrom"] == [{"secretRef": {"name": "loadmaster-stage"}}]
        assert "not-a-secret" not in json.dumps(pod), "the key is in the Secret alone"
        assert spec["securityContext"]["runAsNonRoot"] is True


def test_every_problem_got_to_its_own_verdict_by_pods_of_its_own(cluster, night):
    _, agents = cluster
    run, _, _, _ = night
    commands = {" ".join(one.pod["spec"]["containers"][0]["args"]) for agent in agents for one in agent.pods.values()}
    ran = {command.partition("--stage=")[2] for command in commands}
    for problem in PROBLEMS:
        for stage in ("calibrate", "export", "evaluate", "gate"):
            assert f"{stage}@{problem}" in ran
        assert any(name.startswith(f"train@{problem}-") for name in ran)
        report = places.workspace(run) / "data" / "gate" / problem / "report.json"
        outcome = json.loads(report.read_text())["outcome"]
        print(f"{problem}: {outcome}")
        assert outcome in ("pass", "fail", "inconclusive", "unchanged")
    recorded = {one.problem for one in nights.all_nights(Chain.open()) if one.run_id == run}
    assert recorded == {*PROBLEMS}, "the registry has a verdict of each"


def test_what_was_promoted_is_live_recorded_and_leads_back(local, night):
    settings, _ = local
    run, _, tasks, _ = night
    promoted = [task["task_id"] for task in tasks if task["task_id"].endswith("verify") and task["state"] == "success"]
    assert promoted, "at least one problem went all the way"
    live = requests.get(f"{settings.service_url}/v1/policies", timeout=10).json()["policies"]
    records = Chain.open().records
    for record in records:
        if record.state == "live":
            assert live[record.problem]["digest"] == record.digest
            assert record.run_id == run
    assert verify()[1] == []
    branches = git(settings.repository.parent / "registry.git", "branch", "--list", "--format=%(refname:short)")
    assert not [name for name in branches.splitlines() if name.startswith("work/")], "the branch of the pods is gone"
