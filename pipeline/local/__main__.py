"""One nightly run on this machine, watched: ``make run`` calls this.

Starts the placement service and Airflow, triggers ``nightly_retrain`` on the data source of ``params.yaml``, shows the
stages as they end, asks for the approval (or gives it, with ``--approve``) and shows the live policy answering.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import requests

from pipeline.local import servers
from pipeline.local.airflow_api import ENDED, TASK_ENDED, AirflowApi
from pipeline.local.answer import show_live_policy
from pipeline.local.servers import APPROVER
from pipeline.settings import var
from pipeline.workspace import PROBLEMS_ENV, offered, repository
from sched_env.problems import check
from wire.command import Verb
from wire.errors import ConfigError, LoadmasterError, run_cli

DAG = "nightly_retrain"
SETTLE_SECONDS = 10.0
"""Airflow 3.3 marks an approval failed when it is answered before the scheduler has booked the task's first half
(an executor event that arrives late); a person never is that quick, a program waits this long."""

LOOK_SECONDS = 2.0
"""Between two looks at a run: answering costs the API server a twentieth of a core's second."""

NEEDED_GIB = 2.0
"""A night of the sample, with its caches, Airflow's database and logs; a word now beats a full disk in the middle."""

MARKS = {"success": "✔", "failed": "✘", "upstream_failed": "✘", "skipped": "–"}


def say(text: str = "") -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Progress:
    """Prints each task as it ends, and what runs now on a line of its own where there is a terminal."""

    def __init__(self) -> None:
        self._shown: set[tuple[str, int]] = set()
        self._live = sys.stdout.isatty()

    def show(self, tasks: list[dict[str, Any]]) -> None:
        """Show what changed since the last call."""
        ended = [task for task in tasks if task["state"] in TASK_ENDED and _key(task) not in self._shown]
        for task in sorted(ended, key=lambda task: task["end_date"] or ""):
            self._shown.add(_key(task))
            self._clear()
            say(f"  {MARKS.get(task['state'], '·')} {_name(task):<42} {_seconds(task):>7}  {task['state']}")
        running = [_name(task) for task in tasks if task["state"] == "running"]
        if self._live and running:
            sys.stdout.write(f"\r\033[K  … {', '.join(running)}")
            sys.stdout.flush()

    def _clear(self) -> None:
        if self._live:
            sys.stdout.write("\r\033[K")


def _key(task: dict[str, Any]) -> tuple[str, int]:
    return task["task_id"], task["map_index"]


def _name(task: dict[str, Any]) -> str:
    return str(task.get("rendered_map_index") or task["task_id"])


def _seconds(task: dict[str, Any]) -> str:
    return f"{task['duration']:.0f} s" if task.get("duration") else ""


def follow(api: AirflowApi, run: str, *, approve: bool, announce: str) -> str:
    """Watch a run until it ends; at the approval tell a person where to answer, or answer.

    Args:
        api: Airflow, as the user who would approve.
        run: The run id.
        approve: Answer Approve as that user.
        announce: What to tell a person when the approval waits; ``{task}`` stands for the task that asks.
    """
    progress, waiting_since, answered = Progress(), {}, set()
    while True:
        tasks = api.tasks(DAG, run)
        progress.show(tasks)
        for task in tasks:
            if task["state"] not in ("awaiting_input", "deferred"):
                continue
            key = _key(task)
            if key not in waiting_since:
                waiting_since[key] = time.monotonic()
                say(
                    f"  ? {task['task_id']:<42} waits for a person"
                    + ("" if approve else "\n\n" + announce.format(task=task["task_id"]) + "\n")
                )
            if approve and key not in answered and time.monotonic() - waiting_since[key] > SETTLE_SECONDS:
                answered.add(key)
                api.answer(DAG, run, *key, "Approve", "make run APPROVE=yes")
                say(f"  ! {task['task_id']:<42} answered Approve as {APPROVER!r}")
        state = api.run_state(DAG, run)
        if state in ENDED:
            progress.show(api.tasks(DAG, run))
            return state
        time.sleep(LOOK_SECONDS)


def explain(api: AirflowApi, run: str) -> bool:
    """Say what became of each problem, and show the end of every failed task's log; returns whether one went live."""
    tasks = {task["task_id"]: task for task in api.tasks(DAG, run) if task["map_index"] < 0}
    live = False
    for name, task in tasks.items():
        group, dot, verb = name.rpartition(".")
        if verb != "report" or task["state"] == "skipped":
            continue
        promoted = tasks[f"{group}{dot}verify"]["state"] == "success"
        verdict = api.xcom(DAG, run, name, -1, "verdict") or "no verdict: a stage failed"
        say(f"  {group + ': ' if group else ''}{'live' if promoted else 'not live'}; gate: {verdict}")
        live = live or promoted
    for task in api.tasks(DAG, run):
        if task["state"] == "failed":
            tail = api.log(DAG, run, task["task_id"], task["map_index"], task["try_number"]).splitlines()[-25:]
            say(f"\n  {_name(task)} failed; the end of its log:\n    " + "\n    ".join(tail))
    return live


def require_repository(settings: servers.LocalSettings) -> None:
    """Raise where no night could be cloned: no git, a ZIP without history; nothing is started then."""
    if shutil.which("git") is None:
        raise ConfigError(
            "there is no git on this machine", "git: runs are clones, and the registry is one", "install it"
        )
    head = ["git", "-C", str(settings.repository), "rev-parse", "--quiet", "--verify", "HEAD"]
    if subprocess.run(head, check=False, capture_output=True).returncode:
        raise ConfigError(
            f"{settings.repository} is no git repository with a commit (a ZIP has none)",
            "a clone, because a night works on a commit",
            "git clone it, or: git init && git add -A && git commit -m first",
        )
    settings.var.mkdir(parents=True, exist_ok=True)
    free_gib = shutil.disk_usage(settings.var).free / 2**30
    if free_gib < NEEDED_GIB:
        raise ConfigError(
            f"{free_gib:.1f} GiB are free at {settings.var}", f"{NEEDED_GIB} GiB", "make room, or set LOADMASTER_VAR"
        )


@contextlib.contextmanager
def alone(settings: servers.LocalSettings) -> Iterator[None]:
    """Hold ``var/`` for this process: two at once would share Airflow's database. The lock goes with its process."""
    settings.var.mkdir(parents=True, exist_ok=True)
    with (settings.var / "run.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.seek(0)
            raise ConfigError(
                f"another make run works in {settings.var} (process {lock.read().strip() or 'unknown'})",
                "one at a time",
                "stop it with Ctrl-C, or set LOADMASTER_VAR and both ports to others",
            ) from error
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def uncommitted(settings: servers.LocalSettings) -> int:
    """Count files that differ from the commit a run would be cloned from."""
    command = ["git", "-C", str(settings.repository), "status", "--porcelain"]
    return len(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines())


def night(*, approve: bool, conf: dict[str, str] | None = None) -> int:
    """Run the nightly loop on this machine, one at a time.

    Args:
        approve: Answer Approve as the local approver.
        conf: What a person would choose in the Trigger form.
    """
    servers.stop_on_terminate()
    settings = servers.LocalSettings.from_environment(repository(), var())
    require_repository(settings)
    for problem in offered(settings.repository):
        check(problem)
    with alone(settings):
        return _night(settings, approve=approve, conf=conf or {})


def _night(settings: servers.LocalSettings, *, approve: bool, conf: dict[str, str]) -> int:
    servers.require_free(settings.service_port, "LOADMASTER_SERVICE_PORT")
    servers.require_free(settings.airflow_port, "LOADMASTER_AIRFLOW_PORT")
    if changed := uncommitted(settings):
        say(f"note: {changed} files differ from the last commit; a run works on the commit")
    password = servers.credentials(settings)[APPROVER]
    login = f"  address   {settings.airflow_url}\n  user      {APPROVER}\n  password  {password}"
    say(f"Airflow's page, when it is up:\n{login}")
    with ExitStack() as stack:
        began = time.monotonic()
        stack.enter_context(servers.placement_service(settings))
        say(f"placement service  {settings.service_url}  ready after {time.monotonic() - began:.0f} s")
        began = time.monotonic()
        say("Airflow            starting (half a minute)")
        stack.enter_context(servers.airflow(settings))
        say(f"Airflow            {settings.airflow_url}  ready after {time.monotonic() - began:.0f} s")
        api = AirflowApi(settings.airflow_url, APPROVER, password)
        api.wait_for_dag(DAG)
        run = api.start(DAG, conf)
        say(f"{DAG}    {run}")
        announce = (
            "The gate has passed. Read the table and decide:\n"
            f"  page      {settings.airflow_url}/dags/{DAG}/runs/{run}/tasks/{{task}}/required_actions\n{login}"
        )
        state = follow(api, run, approve=approve, announce=announce)
        say(f"run ended: {state} after {time.monotonic() - began:.0f} s")
        promoted = explain(api, run)
        if promoted:
            show_live_policy(settings, say)
        if approve:
            return 0 if promoted else 1
        say(f"\nBoth servers stay up until Ctrl-C.\n{login}")
        signal.pause()
    return 0


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("--approve", action="store_true", help="answer the approval as a named user, then stop")
    parser.add_argument("--size", default="full", help="full, or a file of sizes/: demo is the quick one")
    parser.add_argument("--problem", default="all", help="one problem only, of those that the night is about")
    parser.add_argument(
        "--problems", default="", help="what the night is about, in place of params.yaml: names with commas, or every"
    )


def run(options: argparse.Namespace) -> int:
    """Run the night; with --approve, 1: no policy went live."""
    if options.problems:
        os.environ[PROBLEMS_ENV] = options.problems
    try:
        return night(approve=options.approve, conf={"size": options.size, "problem": options.problem})
    except requests.RequestException as error:
        raise LoadmasterError(f"lost touch with a local server: {error}", fix="see var/log") from error


main = Verb("make run", __doc__, arguments, run)


if __name__ == "__main__":
    run_cli(main)
