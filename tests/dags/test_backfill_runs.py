"""backfill_windows on a real Airflow: three days, one of them killed in the middle, and all of it once more."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import yaml

from pipeline.local import servers
from pipeline.local.__main__ import APPROVER
from pipeline.local.airflow_api import ENDED, AirflowApi
from pipeline.registry import places
from tests.servers import free_port

pytestmark = [pytest.mark.airflow, pytest.mark.soak, pytest.mark.timeout(1500)]
ROOT = Path(__file__).parents[2]
DAG = "backfill_windows"
DAYS = {"from": "2026-02-02", "to": "2026-02-04"}
SAMPLE = {"nodes": 3, "functions": 4}


def git(folder, *arguments):
    command = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """The tree as it is now, committed in a place of its own, with a small sample."""
    folder = tmp_path / "repository"
    for name in git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard").splitlines():
        if (ROOT / name).is_file() and not name.startswith(("data/", "dvc.lock")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    params = yaml.safe_load((folder / "params.yaml").read_text())
    params["ingest"]["sample"] = SAMPLE
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    git(tmp_path, "init", "-q", "-b", "main", str(folder))
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "the tree under test")
    return folder


@pytest.fixture
def local(repository, monkeypatch):
    settings = servers.LocalSettings(repository=repository, var=repository.parent / "var", airflow_port=free_port())
    # The tree under test, not the one that happens to be installed.
    monkeypatch.setenv("PYTHONPATH", str(repository))
    with servers.airflow(settings):
        api = AirflowApi(settings.airflow_url, APPROVER, servers.credentials(settings)[APPROVER])
        api.wait_for_dag(DAG)
        yield settings, api


def kill_cleaning(kept):
    """Kill ``clean`` as soon as its first day is done; tells whether it was found at work."""
    if not list(kept.glob("2026-02-02-*/account.json")):
        return False
    for process in psutil.Process().children(recursive=True):
        try:
            command = process.cmdline()
        except psutil.NoSuchProcess:
            continue
        if command[1:3] == ["-m", "pipeline.clean"]:
            os.kill(process.pid, signal.SIGKILL)
            return True
    return False


def backfill(settings, api, *, kill):
    """Run the DAG to its end; returns the workspace and how often each task was tried."""
    run = api.start(DAG, DAYS)
    killed = not kill
    while (state := api.run_state(DAG, run)) not in ENDED:
        killed = killed or kill_cleaning(settings.var / "cache" / "clean")
        time.sleep(0.1 if not killed else 1)
    tasks = api.tasks(DAG, run)
    for task in tasks:
        if task["state"] == "failed":
            print(api.log(DAG, run, task["task_id"], task["map_index"], task["try_number"])[-3000:])
    assert state == "success"
    assert killed
    return places.workspace(run, settings.var), {task["task_id"]: task["try_number"] for task in tasks}


def digests(folder):
    files = sorted(path for path in folder.rglob("*.parquet"))
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_days_come_out_the_same_whether_killed_or_cleaned_again(local):
    settings, api = local
    first, tries = backfill(settings, api, kill=True)
    assert tries["clean"] == 2, "the killed stage is tried again, by Airflow itself"
    assert tries["ingest"] == 1

    # Without what DVC remembers and the stages keep, the second run works instead of taking everything from there.
    for remembered in ("dvc/cache/runs", "cache"):
        shutil.rmtree(settings.var / remembered)
    second, tries = backfill(settings, api, kill=False)
    assert set(tries.values()) == {1}

    windows = digests(first / "data" / "windows")
    assert {name.split("/")[1] for name in windows} == {f"date=2026-02-0{day}" for day in (2, 3, 4)}
    assert digests(second / "data" / "windows") == windows
    account = json.loads((second / "data" / "metrics" / "clean.json").read_text())
    samples = account["rows"]["samples"]
    aside = sum(samples["quarantined"].values())
    assert samples["rows_in"] == samples["rows_out"] + samples["merged"] + aside
    assert json.loads((second / "data" / "metrics" / "validate.json").read_text())["passed"] == 1
