"""The thread, end to end: a real Airflow, a real service, three nights on the embedded sample.

The first night is rejected, the second approved, the third finds the same policy again. Stages run once: the second
and third night take everything that has not changed from the shared cache.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests
import yaml

from pipeline.local import servers
from pipeline.local.__main__ import DAG, SETTLE_SECONDS
from pipeline.local.airflow_api import ENDED, AirflowApi
from pipeline.local.servers import APPROVER
from pipeline.workspace import laid_over
from tests.servers import free_port

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1500)]
ROOT = Path(__file__).parents[1]
TRAINED_FROM = ("ingest", "clean", "calibrate", "train", "export")
"""Not validate: the day that the first night accepted is what the second compares with."""


def git(folder, *arguments):
    command = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """The tree as it is now, committed in a place of its own, with a shorter training."""
    folder = tmp_path_factory.mktemp("thread") / "repository"
    files = git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    for name in files:
        if (ROOT / name).is_file() and not name.startswith(("data/metrics/", "dvc.lock")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    # The way to production is tried here, not the policy; and so is SIZE=demo.
    params, demo = (yaml.safe_load((folder / name).read_text()) for name in ("params.yaml", "sizes/demo.yaml"))
    (folder / "params.yaml").write_text(yaml.safe_dump(laid_over(params, demo)))
    git(folder.parent, "init", "-q", "-b", "main", str(folder))
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "the tree under test")
    return folder


@pytest.fixture(scope="module")
def local(repository):
    settings = servers.LocalSettings(
        repository=repository, var=repository.parent / "var", service_port=free_port(), airflow_port=free_port()
    )
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        for name, value in servers.airflow_environment(settings).items():
            if name.startswith("LOADMASTER"):
                patch.setenv(name, value)
        # The tree under test, not the one that happens to be installed.
        patch.setenv("PYTHONPATH", str(repository))
        stack.enter_context(servers.placement_service(settings))
        stack.enter_context(servers.airflow(settings))
        api = AirflowApi(settings.airflow_url, APPROVER, servers.credentials(settings)[APPROVER])
        api.wait_for_dag(DAG)
        yield settings, api


def night(api, answer, comment):
    """Run one night, answering the approval if it is asked for; returns (state, task -> state)."""
    run = api.start(DAG)
    waiting_since = None
    while (state := api.run_state(DAG, run)) not in ENDED:
        for task in api.tasks(DAG, run):
            if task["state"] in ("awaiting_input", "deferred"):
                waiting_since = waiting_since or time.monotonic()
                if time.monotonic() - waiting_since > SETTLE_SECONDS:
                    api.answer(DAG, run, task["task_id"], task["map_index"], answer, comment)
        time.sleep(1)
    tasks = api.tasks(DAG, run)
    failed = [task for task in tasks if task["state"] == "failed"]
    for task in failed:
        print(api.log(DAG, run, task["task_id"], task["map_index"], task["try_number"])[-3000:])
    return run, state, {task["task_id"]: task["state"] for task in tasks}


def policies(settings):
    return requests.get(f"{settings.service_url}/v1/policies", timeout=10).json()["policies"]


def records(settings):
    registry = settings.var / "registry.git"
    names = git(registry, "ls-tree", "-r", "--name-only", "promotions", "records/").splitlines()
    documents = sorted(name for name in names if name.endswith(".json"))
    return [json.loads(git(registry, "show", f"promotions:{name}")) for name in documents]


@pytest.fixture(scope="module")
def rejected_night(local):
    _settings, api = local
    return night(api, "Reject", "not on a Friday")


@pytest.fixture(scope="module")
def approved_night(local, rejected_night):
    _settings, api = local
    return night(api, "Approve", "better on every slice")


def test_a_rejection_pushes_nothing_and_is_kept(local, rejected_night):
    settings, _api = local
    _, state, tasks = rejected_night
    assert state == "success"
    assert tasks["gate"] == tasks["approve"] == tasks["rejected"] == "success"
    assert tasks["promote"] == tasks["push"] == tasks["verify"] == "skipped"
    kept = records(settings)[0]  # further ones are of the nights after, if those tests ran first
    assert (kept["state"], kept["approver"], kept["reason"]) == ("rejected", APPROVER, "not on a Friday")
    assert kept["gate"]["outcome"] == "pass"


def test_an_approval_ends_with_the_live_digest_of_the_registry_answering(local, approved_night):
    settings, _api = local
    _, state, tasks = approved_night
    assert state == "success", tasks
    assert tasks["verify"] == "success"
    assert tasks["rejected"] == "skipped"
    assert [row["state"] for row in records(settings)] == ["rejected", "approved", "live"]
    live = records(settings)[-1]
    assert policies(settings)["functions"]["digest"] == live["digest"]
    body = {
        "problem": "functions",
        "candidates": [{"name": "a", "state": {"cpu_capacity": 8.0}}, {"name": "b", "state": {"cpu_capacity": 16.0}}],
        "requests": [{"id": "one", "fields": {"cpu": 1.0, "mem": 1.0}}],
    }
    answer = requests.post(f"{settings.service_url}/v1/place", json=body, timeout=10).json()
    assert answer["digest"] == live["digest"]
    assert answer["placements"][0]["fallback"] is False
    assert {ranked["name"] for ranked in answer["placements"][0]["ranked"]} == {"a", "b"}


def test_the_second_night_took_what_had_not_changed_from_the_cache(local, approved_night):
    settings, _ = local
    first, second = sorted(path for path in (settings.var / "runs").iterdir() if path.is_dir())[:2]
    locks = [yaml.safe_load((run / "dvc.lock").read_text())["stages"] for run in (first, second)]
    for name in locks[0]:
        if name.split("@")[0] in TRAINED_FROM:
            assert locks[0][name] == locks[1][name], name
    logs = settings.var / "airflow" / "logs" / f"dag_id={DAG}" / f"run_id={approved_night[0]}"
    assert "is cached" in next((logs / "task_id=clean").glob("**/*.log")).read_text()


def test_the_third_night_finds_nothing_new_and_asks_nobody(local, approved_night):
    settings, api = local
    before = policies(settings)
    run, state, tasks = night(api, "Approve", "should never be asked")
    assert state == "success"
    assert tasks["approve"] == tasks["promote"] == tasks["push"] == "skipped"
    assert str(api.xcom(DAG, run, "report", -1, "verdict")).startswith("unchanged")
    assert policies(settings) == before
    assert [row["state"] for row in records(settings)] == ["rejected", "approved", "live"]


def test_the_registry_verifies_and_leads_back_from_the_live_digest(local, approved_night):
    settings, _ = local
    environment = {**os.environ, "LOADMASTER_VAR": str(settings.var)}
    for arguments in (["verify"], ["lineage", policies(settings)["functions"]["digest"]]):
        result = subprocess.run(
            [sys.executable, "-m", "pipeline.registry", *arguments],
            cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert result.returncode == 0, result.stdout + result.stderr
    assert "2026-01-05" in result.stdout
