"""Builds Airflow tasks out of pipeline commands: one task a DVC stage, run in the clone of the run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import get_current_context, task

from dags.calls import FOR_THE_SIGNER, PYTHON, STAGES_WITH, call, lineage
from pipeline.registry import places

RUNNER = os.environ.get("LOADMASTER_RUNNER", "local")
"""Where stages run: ``local``, as processes of this machine in the run's clone, or ``kubernetes``, each as a pod
(:mod:`dags.pods`, ``deploy/stages.yaml``)."""
if RUNNER not in ("local", "kubernetes"):
    raise ValueError(f"LOADMASTER_RUNNER is {RUNNER!r}; expected local or kubernetes")
IN_PODS = RUNNER == "kubernetes"

EVERY = "all"
"""In the Trigger form: every problem."""

CHOICES = ("from", "to", "problem", "source", "size", "density")
"""What the Trigger form hands to ``pipeline.workspace``."""

MACROS = {"workspace_of": places.workspace}
"""For templates: a run works in the folder of its id, whatever an XCom says."""

WORKSPACE = "{{ workspace_of(run_id) }}"

REPRO = (
    f"unset ${{!AIRFLOW__@}} {' '.join(FOR_THE_SIGNER)}; "
    f'reproduce() {{ PATH="{Path(PYTHON).parent}:$PATH" {STAGES_WITH} "{PYTHON}" "$@" </dev/null; }}; '
    'stage() { reproduce -m dvc --wait-for-lock repro --single-item -- "$STAGE"; }; '
    'if [ "${AIRFLOW_CTX_TRY_NUMBER:-1}" -gt 1 ]; then reproduce -m pipeline.dvc_lock; fi; '
    "stage || { reproduce -m pipeline.dvc_lock && stage; }"
)
"""Stages call the bare `python`. A task's input is a socket, at which bash, started by no other shell, takes itself for
a login by rsh and reads ~/.bashrc: that may put another python first, so ours is put before it once more. A lock that a
kill has cut short is mended, and the stage tried again."""


class DvcStage(BashOperator):
    """Reproduces a DVC stage; its assets get the lineage of what it wrote."""

    def execute(self, context: Any) -> Any:
        """Run the stage, then say what came out."""
        result = super().execute(context)
        for outlet in self.outlets:
            context["outlet_events"][outlet].extra = lineage(context["run_id"])
        return result


def stage(name: str, **kwargs: Any) -> Any:
    """Make the task that reproduces one DVC stage; task id and stage name are the same.

    Args:
        name: The stage in ``dvc.yaml``.
        **kwargs: More arguments of the operator.
    """
    if IN_PODS:
        from dags import pods

        return pods.stage(name, **kwargs)
    return DvcStage(task_id=name, bash_command=REPRO, env={"STAGE": name}, append_env=True, cwd=WORKSPACE, **kwargs)


def problem_stage(name: str, problem: Any, **kwargs: Any) -> Any:
    """Make the task of a stage that exists once a problem (``export@functions``), inside a mapped task group."""
    if IN_PODS:
        from dags import pods

        return pods.problem_stage(name, problem, **kwargs)
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
    """Make the mapped task of a stage with many instances (``train@functions-default-0``).

    Args:
        name: The stage in ``dvc.yaml``.
        instances: A task's output: what to map over.
        template: How an instance of the stage is named after an item of them.
        **kwargs: More arguments of the operator.
    """
    if IN_PODS:
        from dags import pods

        return pods.mapped_stage(name, instances, **kwargs)
    return DvcStage.partial(
        task_id=name,
        bash_command=REPRO,
        append_env=True,
        cwd=WORKSPACE,
        map_index_template="{{ task.env['STAGE'] }}",
        **kwargs,
    ).expand(env=instances.map(lambda instance: {"STAGE": template.format(instance)}))


@task
def workspace() -> dict[str, Any]:
    """Clone the code, share the DVC cache, write down what the run depends on; returns what to map over."""
    context = get_current_context()
    chosen = {name: context["params"].get(name) for name in CHOICES}
    options = [f"--{name}={value}" for name, value in chosen.items() if value and value != EVERY]
    plan: dict[str, Any] = json.loads(call("pipeline.workspace", f"--run-id={context['run_id']}", *options))
    if IN_PODS:
        call("pipeline.pods", "begin", f"--run-id={context['run_id']}")
    return plan


def made(what: str, offered: list[str]) -> list[str]:
    """List the problems for which a stage has left something: in the run's workspace, or published by its pods.

    Args:
        what: The folder under ``data/``.
        offered: The problems of the DAG, in order.
    """
    if IN_PODS:
        from dags import pods

        there = pods.published()
        return [
            problem for problem in offered if any(f"{path}/".startswith(f"data/{what}/{problem}/") for path in there)
        ]
    folder = places.workspace(get_current_context()["run_id"]) / "data" / what
    return [problem for problem in offered if any(folder.glob(f"{problem}/[!.]*"))]


@task(trigger_rule="all_done_min_one_success", retries=0)
def shadow() -> str:
    """Ask every candidate what it would have done with the calls that live traffic made; it answers nobody."""
    run_id = get_current_context()["run_id"]
    if IN_PODS:
        call("pipeline.pods", "merge", f"--run-id={run_id}")
    return call("pipeline.shadow", cwd=places.workspace(run_id))


@task(trigger_rule="all_done_min_one_success")
def record() -> str:
    """Commit params, lock and metrics on the branch of this run, and push data and branch."""
    run_id = get_current_context()["run_id"]
    if IN_PODS:
        call("pipeline.pods", "merge", f"--run-id={run_id}")
    recorded = call("pipeline.registry", "record-run", f"--run-id={run_id}", cwd=places.workspace(run_id))
    if IN_PODS:
        call("pipeline.pods", "end", f"--run-id={run_id}")
    return recorded
