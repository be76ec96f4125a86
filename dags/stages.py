"""Builds Airflow tasks out of pipeline commands: one task a DVC stage, run in the clone of the run."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import get_current_context, task

from pipeline.registry import places

PYTHON = os.environ.get("LOADMASTER_PYTHON", sys.executable)
"""The interpreter of the pipeline's environment; a thin Airflow environment can point it at a fat one."""

STAGES_WITH = os.environ.get("LOADMASTER_STAGES_WITH", "")
"""Put before every command that runs a stage, e.g. ``sudo -n -u trainer``: third-party training code gets a user of its
own, who cannot read the signing key."""

SIGNER_WITH = os.environ.get("LOADMASTER_SIGNER_WITH", "")
"""Put before every command that signs a record, e.g. ``sudo -n -u signer``."""

FOR_THE_SIGNER = ("LOADMASTER_SIGNING_KEY", "LOADMASTER_PUSH_TOKEN_FILE", "LOADMASTER_AIRFLOW_LOGIN_FILE")
"""Where keys and tokens are; no stage is told. Nor is it told Airflow's own settings, the secret of its tokens among
them."""

EVERY = "all"
"""In the Trigger form: every problem."""

MACROS = {"workspace_of": places.workspace}
"""For templates: a run works in the folder of its id, whatever an XCom says."""

WORKSPACE = "{{ workspace_of(run_id) }}"

REPRO = (
    f"unset ${{!AIRFLOW__@}} {' '.join(FOR_THE_SIGNER)}; "
    f'PATH="{Path(PYTHON).parent}:$PATH" {STAGES_WITH} "{PYTHON}" -m dvc repro --single-item -- "$STAGE" </dev/null'
)
"""Stages call the bare `python`. A task's input is a socket, at which bash, started by no other shell, takes itself for
a login by rsh and reads ~/.bashrc: that may put another python first, so ours is put before it once more."""


class DvcStage(BashOperator):
    """Reproduces a DVC stage; its assets get the lineage of what it wrote."""

    def execute(self, context: Any) -> Any:
        """Run the stage, then say what came out."""
        result = super().execute(context)
        for outlet in self.outlets:
            context["outlet_events"][outlet].extra = lineage(context["run_id"])
        return result


def lineage(run_id: str, **more: Any) -> dict[str, Any]:
    """Say what an asset comes from: run, commit of the code, hash of the lock."""
    folder = places.workspace(run_id)
    lock = folder / "dvc.lock"
    head = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    sha256 = hashlib.sha256(lock.read_bytes()).hexdigest() if lock.is_file() else None
    return {"run_id": run_id, "code_commit": head.stdout.strip(), "dvc_lock_sha256": sha256, **more}


def stage(name: str, **kwargs: Any) -> BashOperator:
    """Make the task that reproduces one DVC stage; task id and stage name are the same.

    Args:
        name: The stage in ``dvc.yaml``.
        **kwargs: More arguments of the operator.
    """
    return DvcStage(task_id=name, bash_command=REPRO, env={"STAGE": name}, append_env=True, cwd=WORKSPACE, **kwargs)


def problem_stage(name: str, problem: Any, **kwargs: Any) -> BashOperator:
    """Make the task of a stage that exists once a problem (``export@functions``), inside a mapped task group."""
    return DvcStage(
        task_id=name,
        bash_command=f'STAGE="{name}@$PROBLEM"; {REPRO}',
        env={"PROBLEM": problem},
        append_env=True,
        cwd=WORKSPACE,
        map_index_template=name + "@{{ task.env['PROBLEM'] }}",
        **kwargs,
    )


def mapped_stage(name: str, instances: Any, template: str = "{}", **kwargs: Any) -> Any:
    """Make the mapped task of a stage with many instances (``train@functions-maskable_ppo-0``).

    Args:
        name: The stage in ``dvc.yaml``.
        instances: A task's output: what to map over.
        template: How an instance of the stage is named after an item of them.
        **kwargs: More arguments of the operator.
    """
    return DvcStage.partial(
        task_id=name,
        bash_command=REPRO,
        append_env=True,
        cwd=WORKSPACE,
        map_index_template="{{ task.env['STAGE'] }}",
        **kwargs,
    ).expand(env=instances.map(lambda instance: {"STAGE": template.format(instance)}))


def call(module: str, *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run a pipeline command without keys and return the last line it printed; all of it goes to the task's log."""
    known = os.environ.items()
    told = {key: value for key, value in known if key not in FOR_THE_SIGNER and not key.startswith("AIRFLOW__")}
    return _run([*shlex.split(STAGES_WITH), PYTHON, "-m", module, *arguments], {**told, **(env or {})}, cwd)


def signed_call(module: str, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    """Run a pipeline command that signs: in its own process, as its own user if the deployment has one."""
    return _run([*shlex.split(SIGNER_WITH), PYTHON, "-m", module, *arguments], {**os.environ, **(env or {})}, None)


def _run(command: list[str], env: Mapping[str, str], cwd: Path | None) -> str:
    process = subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.PIPE, text=True)
    last = ""
    for line in process.stdout or ():
        print(line, end="", flush=True)  # noqa: T201 - a task's log is its standard output
        last = line.strip() or last
    if code := process.wait():
        raise RuntimeError(f"{shlex.join(command[:4])} ended with exit code {code}; its message is above")
    return last


@task
def workspace() -> dict[str, Any]:
    """Clone the code, share the DVC cache, write down what the run depends on; returns what to map over."""
    context = get_current_context()
    chosen = {name: context["params"].get(name) for name in ("from", "to", "problem", "source", "size")}
    options = [f"--{name}={value}" for name, value in chosen.items() if value and value != EVERY]
    plan: dict[str, Any] = json.loads(call("pipeline.workspace", f"--run-id={context['run_id']}", *options))
    return plan


@task(trigger_rule="all_done_min_one_success")
def record() -> str:
    """Commit params, lock and metrics on the branch of this run, and push data and branch."""
    run_id = get_current_context()["run_id"]
    return call("pipeline.registry", "record-run", f"--run-id={run_id}", cwd=places.workspace(run_id))
