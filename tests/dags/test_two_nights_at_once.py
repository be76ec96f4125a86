"""Two nights at the same time on a real Airflow, one of them killed half-way and cleared: nothing of either is hurt.

A backfill is what starts nights beside each other: it does not count among the runs of which there may be but one. The
schedule adds last night's beside them, which nobody answers.
"""

import json
import re
import subprocess
import sys
import time
from urllib.parse import quote

import psutil
import pytest

from pipeline.local.__main__ import DAG, SETTLE_SECONDS
from pipeline.registry import dvc_objects, places, runs
from pipeline.registry.chain import Chain
from pipeline.registry.verify import verify
from pipeline.workspace import UNFINISHED
from tests.standing_night import APPROVER, ended, live, standing, state_of, until

pytestmark = [pytest.mark.airflow, pytest.mark.soak, pytest.mark.timeout(1800)]
DAYS = {"from_date": "2026-11-10T02:00:00Z", "to_date": "2026-11-11T02:00:00Z"}
KILLED_IN = "clean"


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    more = {"LOADMASTER_APPROVERS": APPROVER, "STAND_IN_SECONDS": "15", "STAND_IN_FILES": "100"}
    with standing(tmp_path_factory.mktemp("two"), more) as both:
        yield both


def at_work(run, stage):
    """Find the processes of a run's stage: in its workspace, with the stage in their command line."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.cwd() == str(places.workspace(run)) and stage in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def kill(processes):
    """Kill them, and the worker that waits for the outermost, as a machine does that runs out of memory."""
    workers = [process.parent() for process in processes]
    for process in [*processes, *(worker for worker in workers if worker is not None)]:
        if process.is_running() and process.pid != psutil.Process().pid:
            process.kill()


@pytest.fixture(scope="module")
def nights(local):
    """Start both, kill one in the middle of a stage while the other works, clear it, and answer both."""
    _settings, people = local
    api = people["adam"]
    api.call("PATCH", f"/dags/{DAG}", json={"is_paused": False})
    api.call("POST", "/backfills", json={"dag_id": DAG, **DAYS, "max_active_runs": 2})
    started = api.call("GET", f"/dags/{DAG}/dagRuns", params={"run_type": "backfill"})["dag_runs"]
    first, second = sorted(row["dag_run_id"] for row in started)

    def both_in(stage):
        working = {run: at_work(run, f"stages.py {stage}") for run in (first, second)}
        return all(working.values())

    until(lambda: both_in("ingest"), "the nights never worked at the same time")
    until(lambda: at_work(first, f"stages.py {KILLED_IN}"), f"{KILLED_IN} never began")
    kill(at_work(first, KILLED_IN))
    path = f"/dags/{DAG}/dagRuns/{quote(first, safe='')}"
    api.call("PATCH", path, json={"state": "failed"})
    killed = api.run_state(DAG, first)
    api.call("POST", f"{path}/clear", json={"dry_run": False, "only_failed": False})
    for run in (second, first):
        until(lambda run=run: state_of(api, run, "approve") in ("awaiting_input", "deferred"), f"{run} never asked")
    time.sleep(SETTLE_SECONDS)
    people[APPROVER].answer(DAG, second, "approve", -1, "Approve", "undisturbed")
    tasks = {second: ended(api, second)}
    people[APPROVER].answer(DAG, first, "approve", -1, "Reject", "its twin is live")
    tasks[first] = ended(api, first)
    return first, second, killed, tasks


def test_both_nights_end_and_the_answers_are_kept_apart(local, nights):
    settings, _ = local
    first, second, killed, tasks = nights
    assert killed == "failed"
    assert tasks[second]["verify"] == "success", tasks[second]
    assert tasks[first]["rejected"] == "success", tasks[first]
    records = [(one.run_id, one.state) for one in Chain.open().records]
    assert records == [(second, "approved"), (second, "live"), (first, "rejected")]
    assert live(settings) == Chain.open().live("functions").digest
    assert verify()[1] == []


def test_no_workspace_is_hurt(local, nights):
    settings, _ = local
    first, second, _, _ = nights
    for run in (first, second):
        folder = places.workspace(run)
        assert runs.recorded_run(runs.sync(), run), "raises if the workspace is not what was recorded"
        status = subprocess.run(
            [sys.executable, "-m", "dvc", "status", "--json"], cwd=folder, capture_output=True, text=True, check=True
        )
        assert json.loads(status.stdout.splitlines()[-1]) == {}, "every stage is as its lock says"
    made = [runs.outputs_of(runs.sync(), runs.recorded_run(runs.sync(), run).commit) for run in (first, second)]
    assert made[0] == made[1], "the killed night made what the undisturbed one made"
    assert not list((settings.var / "runs").glob(f"*{UNFINISHED}"))


def test_neither_cache_nor_remote_holds_a_broken_object(local, nights):
    for store in (places.dvc_cache(), dvc_objects.remote_folder()):
        objects = [path for path in (store / "files" / "md5").rglob("*") if path.is_file()]
        assert len(objects) > 400
        for path in objects:
            md5 = path.parent.name + path.name
            assert re.fullmatch(r"[0-9a-f]{32}(\.dir)?", md5), path
            assert dvc_objects.is_right(path, md5), path
