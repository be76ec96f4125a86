"""A night of three problems with stages that take no time, run by Airflow: what fails, and what it takes along."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.airflow]
ROOT = Path(__file__).parents[2]

STAGES = """
import json, pathlib, sys
stage, problem, seed = (*sys.argv[1:], "", "")[:3]
if stage == "train" and (problem == "vm" or (problem, seed) == ("jobs", "1")):
    raise SystemExit(f"{problem} {seed} does not train")
outs = {"ingest": "data/raw", "clean": "data/windows", "validate": "data/validation"}
outs |= {"runtime_model": "data/models/jobs", "lifetime_model": "data/models/vm", "forecast": "data/models/pods"}
out = pathlib.Path(outs.get(stage) or {
    "calibrate": f"data/calibration/{problem}", "train": f"data/policies/{problem}/ppo-{seed}",
    "export": f"data/bundles/{problem}", "evaluate": f"data/evaluation/{problem}", "gate": f"data/gate/{problem}",
}[stage])
out.mkdir(parents=True, exist_ok=True)
outcome = {"functions": "fail", "jobs": "unchanged"}.get(problem, "fail")
report = {"outcome": outcome, "reason": "as told", "digest": "sha256:1", "champion_digest": None, "rules": []}
(out / "report.json").write_text(json.dumps(report))
(out / "report.md").write_text(f"the whole report of {problem}")
"""

DVC_YAML = """
stages:
  ingest: {cmd: python stages.py ingest, outs: [data/raw]}
  clean: {cmd: python stages.py clean, deps: [data/raw], outs: [data/windows]}
  validate: {cmd: python stages.py validate, deps: [data/windows], outs: [data/validation]}
  runtime_model: {cmd: python stages.py runtime_model, deps: [data/validation], outs: [data/models/jobs]}
  lifetime_model: {cmd: python stages.py lifetime_model, deps: [data/validation], outs: [data/models/vm]}
  forecast: {cmd: python stages.py forecast, deps: [data/validation], outs: [data/models/pods]}
  calibrate:
    matrix: {problem: "${problems}"}
    cmd: python stages.py calibrate ${item.problem}
    deps: [data/windows]
    outs: ["data/calibration/${item.problem}"]
  train:
    matrix: {problem: "${problems}", seed: [0, 1]}
    cmd: python stages.py train ${item.problem} ${item.seed}
    deps: ["data/calibration/${item.problem}"]
    outs: ["data/policies/${item.problem}/ppo-${item.seed}"]
  export:
    matrix: {problem: "${problems}"}
    cmd: python stages.py export ${item.problem}
    deps: ["data/policies/${item.problem}"]
    outs: ["data/bundles/${item.problem}"]
  evaluate:
    matrix: {problem: "${problems}"}
    cmd: python stages.py evaluate ${item.problem}
    deps: ["data/bundles/${item.problem}"]
    outs: ["data/evaluation/${item.problem}"]
  gate:
    matrix: {problem: "${problems}"}
    cmd: python stages.py gate ${item.problem}
    deps: ["data/evaluation/${item.problem}"]
    outs: ["data/gate/${item.problem}"]
"""

PROGRAM = """
import json
from datetime import timedelta
from dags import nightly_retrain
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.utils.db import initdb

initdb()
DagBundlesManager().sync_bundles_to_db()
bag = DagBag()
assert not bag.import_errors, bag.import_errors
sync_bag_to_db(bag, "dags-folder", None)
dag = bag.get_dag("nightly_retrain")
for task in dag.tasks:
    task.retries, task.retry_delay = 0, timedelta(0)
run = dag.test()
states = {}
for one in run.get_task_instances():
    states.setdefault(one.task_id, []).append(str(one.state))
print("\\nRESULT " + json.dumps({"run": str(run.state), "tasks": {name: sorted(all) for name, all in states.items()}}))
"""


def git(folder, *arguments):
    command = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments]
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture(scope="module")
def night(tmp_path_factory):
    """What Airflow says of the night, and everything it printed."""
    home = tmp_path_factory.mktemp("three")
    folder = home / "repository"
    (folder / ".dvc").mkdir(parents=True)
    (folder / ".dvc" / "config").write_text("[core]\n    analytics = false\n")
    (folder / ".gitignore").write_text("/data/\n")
    (folder / "stages.py").write_text(STAGES)
    (folder / "dvc.yaml").write_text(DVC_YAML)
    (folder / "params.yaml").write_text("problems: [functions, vm, jobs]\ndata: {from: null}\nnightly: {days: null}\n")
    git(home, "init", "-q", "-b", "main", str(folder))
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "three problems")
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(home / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__API__BASE_URL": "http://127.0.0.1:1",  # nobody is there: a note that cannot be written stops nothing
        "LOADMASTER_REPO": str(folder),
        "LOADMASTER_VAR": str(home / "var"),
        "LOADMASTER_APPROVERS": "ada",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert found, f"exit code {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-6000:]}"
    return json.loads(found[0].removeprefix("RESULT ")), done.stdout + done.stderr, home / "var"


def test_a_failed_seed_and_a_failed_problem_lose_themselves_alone(night):
    told, _, _ = night
    tasks = told["tasks"]
    assert tasks["train"] == ["failed"] * 3 + ["success"] * 3
    assert tasks["export"] == tasks["gate"] == ["success", "success"], "functions and jobs, not vm"
    assert tasks["record"] == ["success"]
    assert tasks["functions.report"] == tasks["jobs.report"] == ["success"]
    assert tasks["vm.report"] == ["failed"], "no verdict is no green end"
    assert told["run"] == "failed"


def test_nights_that_fail_the_gate_and_nights_that_change_nothing_end_elsewhere(night):
    tasks = night[0]["tasks"]
    assert (tasks["functions.not_passed"], tasks["functions.unchanged"]) == (["success"], ["skipped"])
    assert (tasks["jobs.not_passed"], tasks["jobs.unchanged"]) == (["skipped"], ["success"])
    for problem in ("functions", "jobs"):
        for name in ("approve", "promote", "push", "verify", "rejected"):
            assert tasks[f"{problem}.{name}"] == ["skipped"], f"{problem}.{name}: nobody was asked, nobody rejected"


def test_the_whole_report_is_in_the_log_every_night(night):
    _, printed, _ = night
    assert "the whole report of functions" in printed
    assert "the whole report of jobs" in printed


def test_what_was_judged_is_recorded_for_the_problems_that_got_there(night):
    _, _, var = night
    listing = subprocess.run(
        ["git", "-C", str(var / "registry.git"), "for-each-ref", "--format=%(refname)"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    branch = next(line for line in listing.splitlines() if "/runs/" in line)
    files = subprocess.run(
        ["git", "-C", str(var / "registry.git"), "ls-tree", "-r", "--name-only", branch, "reports/"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert {name.split("/")[2] for name in files} == {"functions", "jobs"}
