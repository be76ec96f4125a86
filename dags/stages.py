"""Builds Airflow tasks out of pipeline commands: one task a DVC stage, run in the clone of the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import get_current_context, task

PYTHON = os.environ.get("LOADMASTER_PYTHON", sys.executable)
"""The interpreter of the pipeline's environment; a thin Airflow environment can point it at a fat one."""

WORKSPACE = "{{ ti.xcom_pull(task_ids='workspace')['path'] }}"

REPRO = f'PATH="{Path(PYTHON).parent}:$PATH" "{PYTHON}" -m dvc repro --single-item "$STAGE" </dev/null'
"""Stages call the bare `python`. A task's input is a socket, at which bash, started by no other shell, takes itself for
a login by rsh and reads ~/.bashrc: that may put another python first, so ours is put before it once more."""


def stage(name: str, **kwargs: Any) -> BashOperator:
    """Make the task that reproduces one DVC stage; task id and stage name are the same.

    Args:
        name: The stage in ``dvc.yaml``.
        **kwargs: More arguments of the operator.
    """
    return BashOperator(task_id=name, bash_command=REPRO, env={"STAGE": name}, append_env=True, cwd=WORKSPACE, **kwargs)


def problem_stage(name: str, problem: Any) -> BashOperator:
    """Make the task of a stage that exists once a problem (``export@functions``), inside a mapped task group."""
    return BashOperator(
        task_id=name,
        bash_command=f'STAGE="{name}@$PROBLEM"; {REPRO}',
        env={"PROBLEM": problem},
        append_env=True,
        cwd=WORKSPACE,
        map_index_template=name + "@{{ task.env['PROBLEM'] }}",
    )


def mapped_stage(name: str, instances: Any, **kwargs: Any) -> Any:
    """Make the mapped task of a stage with many instances (``train@functions-maskable_ppo-0``)."""
    return BashOperator.partial(
        task_id=name,
        bash_command=REPRO,
        append_env=True,
        cwd=WORKSPACE,
        map_index_template="{{ task.env['STAGE'] }}",
        **kwargs,
    ).expand(env=instances.map(lambda instance: {"STAGE": instance}))


def call(module: str, *arguments: str, cwd: str | None = None) -> str:
    """Run a pipeline command and return the last line it printed; its whole output goes to the task's log."""
    process = subprocess.Popen([PYTHON, "-m", module, *arguments], cwd=cwd, stdout=subprocess.PIPE, text=True)
    last = ""
    for line in process.stdout or ():
        print(line, end="", flush=True)  # noqa: T201 - a task's log is its standard output
        last = line.strip() or last
    if code := process.wait():
        raise RuntimeError(f"python -m {module} ended with exit code {code}; its message is above")
    return last


@task
def workspace() -> dict[str, Any]:
    """Clone the code, share the DVC cache, write down what the run depends on; returns what to map over."""
    context = get_current_context()
    days = [f"--{end}={context['params'][end]}" for end in ("from", "to") if context["params"].get(end)]
    plan: dict[str, Any] = json.loads(call("pipeline.workspace", "--run-id", context["run_id"], *days))
    return plan


@task
def record(plan: dict[str, Any]) -> str:
    """Commit params, lock and metrics on the branch of this run, and push data and branch."""
    return call("pipeline.registry", "record-run", "--run-id", get_current_context()["run_id"], cwd=plan["path"])
