"""A night whose stages are stand-ins that end in a moment; Airflow, registry, DVC, signatures, service are real."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import requests

from pipeline.local import servers
from pipeline.local.__main__ import DAG, SETTLE_SECONDS
from pipeline.local.airflow_api import ENDED, AirflowApi
from tests.servers import free_port

ROOT = Path(__file__).parents[1]
APPROVER = "otto"
ACCOUNTS = {"vera": "viewer", "ursula": "user", APPROVER: "op", "olga": "op", "adam": "admin"}

STAGES = """
import json, os, pathlib, sys, time, zlib
from sched_env import problems
from sched_env.view import live, page
from wire import sample_bundle
from wire.contracts.decision import DecisionLine
stage, out = sys.argv[1], pathlib.Path(sys.argv[2])
out.mkdir(parents=True)
standing = pathlib.Path("champions/functions/standing.json")
champion = json.loads(standing.read_text())["digest"] if standing.exists() else None
if stage == "export":
    seed = zlib.crc32((champion or "").encode())
    for name, data in sample_bundle.build(problems.spec("functions"), seed=seed, hidden=8).items():
        (out / name).write_bytes(data)
elif stage == "gate":
    digest = json.loads(pathlib.Path("data/bundles/functions/manifest.json").read_text())["digest"]
    report = {"outcome": "pass", "reason": "better by 2 %", "digest": digest, "champion_digest": champion, "rules": []}
    (out / "report.json").write_text(json.dumps(report))
    (out / "report.md").write_text("# Better by 2 %\\n")
    (out / "report.html").write_text(f"<h1>Better by 2 %</h1><p>{digest}</p><a href='worst-1.html'>replay of both</a>")
    lines = [DecisionLine(
        at=f"2026-11-16T08:{at:02}:00Z", problem="functions", digest=digest, counter=1, request=f"call {at}",
        features="0" * 16, candidates=2, feasible=2, chosen="a", runner_up="b", top=[("a", 0.9), ("b", 0.4)],
        propensity=1.0, fallback=None, reason="the best of 2",
    ) for at in range(9)]
    runs = [live.of_lines(lines, "worst")]
    (out / "worst-1.html").write_text(page.html(runs, "Worst episode 1"))
else:
    time.sleep(float(os.environ.get("STAND_IN_SECONDS", "0")))
    (out / "done").write_text(stage)
    for number in range(int(os.environ.get("STAND_IN_FILES", "0"))):
        (out / f"part-{number}").write_bytes(f"{stage} {number} ".encode() * 10_000)
"""

DVC_YAML = """
stages:
  ingest: {cmd: python stages.py ingest data/raw, outs: [data/raw]}
  clean: {cmd: python stages.py clean data/windows, deps: [data/raw], outs: [data/windows]}
  validate: {cmd: python stages.py validate data/validation, deps: [data/windows], outs: [data/validation]}
  runtime_model: {cmd: python stages.py runtime_model data/models, deps: [data/validation], outs: [data/models]}
  lifetime_model: {cmd: python stages.py lifetime_model data/lives, deps: [data/validation], outs: [data/lives]}
  forecast: {cmd: python stages.py forecast data/forecast, deps: [data/validation], outs: [data/forecast]}
  calibrate:
    foreach: [functions]
    do:
      cmd: python stages.py calibrate data/calibration/functions
      deps: [data/validation]
      outs: [data/calibration/functions]
  train:
    foreach: [functions]
    do:
      cmd: python stages.py train data/policies/functions
      deps: [data/calibration/functions, data/models]
      outs: [data/policies/functions]
  export:
    foreach: [functions]
    do:
      cmd: python stages.py export data/bundles/functions
      deps: [data/policies/functions, champions/functions]
      outs: [data/bundles/functions]
  evaluate:
    foreach: [functions]
    do: {cmd: python stages.py evaluate data/evaluation, deps: [data/bundles/functions], outs: [data/evaluation]}
  gate:
    foreach: [functions]
    do:
      cmd: python stages.py gate data/gate/functions
      deps: [data/evaluation, data/bundles/functions, champions/functions]
      outs: [data/gate/functions]
"""


def stand_ins(repository: Path, dags: tuple[str, ...] = (DAG,)) -> Path:
    """Make a repository whose stages end in a moment, with these DAGs of ours."""
    for name, text in {
        "stages.py": STAGES,
        "dvc.yaml": DVC_YAML,
        "params.yaml": "problems: [functions]\nnightly: {days: null}\ndata: {from: null, to: null}\n",
        "sizes/early.yaml": "seeds: [0, 1]\n",
        ".gitignore": "/data/\n",
        ".dvc/config": "[core]\n    analytics = false\n",
        ".dvc/.gitignore": "/config.local\n/tmp\n/cache\n",
        "champions/functions/standing.json": '{"digest": null, "live_since": null}\n',
    }.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
    (repository / "dags").mkdir()
    for name in dags:
        shutil.copy(ROOT / "dags" / f"{name}.py", repository / "dags")
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "stand-ins"]):
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *command], cwd=repository, check=True)
    return repository


@contextmanager
def standing(
    root: Path, more: Mapping[str, str], dags: tuple[str, ...] = (DAG,)
) -> Iterator[tuple[servers.LocalSettings, dict[str, AirflowApi]]]:
    """Run Airflow and the service on a repository of stand-ins; gives the settings and a log-in for each account.

    Args:
        root: An empty folder.
        more: Further environment of Airflow; STAND_IN_SECONDS and STAND_IN_FILES make stages last and write more.
        dags: Those that Airflow sees.
    """
    repository = stand_ins(root / "repository", dags)
    settings = servers.LocalSettings(
        repository=repository, var=root / "var", service_port=free_port(), airflow_port=free_port(), accounts=ACCOUNTS
    )
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        for name, value in servers.airflow_environment(settings).items():
            if name.startswith("LOADMASTER"):
                patch.setenv(name, value)
        environment = servers.airflow_environment
        patch.setattr(servers, "airflow_environment", lambda chosen: environment(chosen) | {**more})
        patch.setenv("PYTHONPATH", str(ROOT))
        stack.enter_context(servers.placement_service(settings))
        stack.enter_context(servers.airflow(settings))
        passwords = servers.credentials(settings)
        people = {name: AirflowApi(settings.airflow_url, name, passwords[name]) for name in ACCOUNTS}
        people["adam"].wait_for_dag(DAG)
        yield settings, people


def path_of(run: str, task: str = "approve") -> str:
    return f"/dags/{DAG}/dagRuns/{quote(run, safe='')}/taskInstances/{task}"


def state_of(api: AirflowApi, run: str, task: str) -> Any:
    return next(row["state"] for row in api.tasks(DAG, run) if row["task_id"] == task)


def until(condition: Callable[[], object], what: str, seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(1)


def asked(api: AirflowApi, conf: dict[str, Any] | None = None) -> str:
    """Start a night and wait until its question is put; returns the run."""
    run = api.start(DAG, conf)

    def waits() -> bool:
        assert api.run_state(DAG, run) not in ENDED, [(row["task_id"], row["state"]) for row in api.tasks(DAG, run)]
        return state_of(api, run, "approve") in ("awaiting_input", "deferred")

    until(waits, "the question was never put")
    time.sleep(SETTLE_SECONDS)
    return run


def ended(api: AirflowApi, run: str) -> dict[str, str]:
    until(lambda: api.run_state(DAG, run) in ENDED, "the run never ended")
    return {row["task_id"]: row["state"] for row in api.tasks(DAG, run)}


def log_of(api: AirflowApi, run: str, task: str) -> str:
    (row,) = [row for row in api.tasks(DAG, run) if row["task_id"] == task]
    return api.log(DAG, run, task, row["map_index"], row["try_number"])


def clear_and_force(api: AirflowApi, run: str) -> None:
    """Clear the approval and what follows, and set it to success before it can ask again."""
    body = {"dry_run": False, "task_ids": ["approve"], "dag_run_id": run, "include_downstream": True,
            "only_failed": False, "reset_dag_runs": True}  # fmt: skip
    api.call("POST", f"/dags/{DAG}/clearTaskInstances", json=body)
    api.call("PATCH", path_of(run), json={"new_state": "success"})


def ask_again(api: AirflowApi, run: str) -> None:
    body = {"dry_run": False, "task_ids": ["approve"], "dag_run_id": run, "include_downstream": True,
            "only_failed": False, "reset_dag_runs": True}  # fmt: skip
    api.call("POST", f"/dags/{DAG}/clearTaskInstances", json=body)
    until(lambda: state_of(api, run, "approve") in ("awaiting_input", "deferred"), "not asked again")
    time.sleep(SETTLE_SECONDS)


def live(settings: servers.LocalSettings) -> str | None:
    entry = requests.get(f"{settings.service_url}/v1/policies", timeout=10).json()["policies"].get("functions")
    return entry and entry["digest"]
