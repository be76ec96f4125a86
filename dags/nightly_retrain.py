"""nightly_retrain: from last night's metrics to a signed policy that a person approved.

workspace → ingest → clean → validate → calibrate → train (one a seed) → export → evaluate → gate → record
          → report → approve → promote → push → verify

Anything but a passed gate ends the run green with approve...verify skipped and the reason on ``report``.
A rejection, or nobody answering, never promotes; ``rejected`` keeps the record of it.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import Any

from airflow.sdk import CronTriggerTimetable, Param, TaskGroup, dag, get_current_context, task, task_group

from dags.airflow_reader import reader
from dags.approval_task import PolicyApproval
from dags.stages import MACROS, mapped_stage, problem_stage, record, signed_call, stage, workspace
from pipeline import workspace as workspace_of_run
from pipeline.registry import places

SERVICE_URL = os.environ.get("LOADMASTER_SERVICE_URL", "http://127.0.0.1:8100")
PROBLEMS = workspace_of_run.problems(workspace_of_run.repository())
"""Those of ``params.yaml``, each with its own approval. Static, because Airflow 3.3 does not skip downstream of an
approval or a short circuit inside mapped task groups (docs/decisions/0003)."""
APPROVAL_HOURS = float(os.environ.get("LOADMASTER_APPROVAL_HOURS", "12"))


@dag(
    schedule=CronTriggerTimetable("0 2 * * *", timezone="UTC", run_immediately=False),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 1, "retry_delay": timedelta(seconds=30)},
    user_defined_macros=MACROS,
    tags=["loadmaster"],
    doc_md=__doc__,
)
def nightly_retrain() -> None:
    """Wire the night: stages in the run's own clone, then the way to production."""

    @task
    def train_stages(plan: dict[str, Any]) -> list[str]:
        """List the train stages to map over."""
        return list(plan["train"])

    @task
    def problems(plan: dict[str, Any]) -> list[str]:
        """List the problems to map over."""
        return list(plan["problems"])

    @task_group(prefix_group_id=False)
    def judged(problem: str) -> None:
        """Everything up to the gate's verdict, for one problem."""
        problem_stage("export", problem) >> problem_stage("evaluate", problem) >> problem_stage("gate", problem)

    def promotion(problem: str, group: TaskGroup) -> None:
        """The way to production for one problem: nothing moves without a passed gate and a named person."""
        approve_id = group.child_id("approve")

        @task.short_circuit(ignore_downstream_trigger_rules=False)
        def report(problem: str) -> bool:
            """Show the verdict; end here, green, when it is not a pass."""
            context = get_current_context()
            path = places.workspace(context["run_id"]) / "data" / "gate" / problem / "report.json"
            verdict = json.loads(path.read_text())
            context["ti"].xcom_push(key="verdict", value=f"{verdict['outcome']}: {verdict['reason']}")
            print(f"{problem}: {verdict['outcome']}: {verdict['reason']}")  # noqa: T201
            return bool(verdict["outcome"] == "pass")

        approve = PolicyApproval(
            task_id="approve",
            problem=problem,
            response_timeout=timedelta(hours=APPROVAL_HOURS),
            params={"comment": Param("", type=["null", "string"], description="Why; kept in the promotion record")},
        )

        @task(retries=0)
        def promote(problem: str) -> str:
            """Sign the bundle and write the `approved` record, if and only if an approver's own answer says so."""
            return decide(problem)

        @task
        def push(problem: str) -> str:
            """Hand the signed bundle to the placement service."""
            return signed_call("pipeline.push", "--problem", problem, "--url", SERVICE_URL)

        @task
        def verify(problem: str) -> str:
            """Ask the service what is live, and only then write the `live` record."""
            return signed_call("pipeline.verify_live", "--problem", problem, "--url", SERVICE_URL)

        @task(trigger_rule="all_skipped")
        def rejected(problem: str) -> str:
            """Keep the record of a rejection or a time-out; nothing to keep when no approval was asked for."""
            return decide(problem, "--reject")

        def decide(problem: str, *more: str) -> str:
            context = get_current_context()
            asked = f"{context['dag'].dag_id}/{approve_id}"
            arguments = ("--problem", problem, f"--run-id={context['run_id']}", f"--airflow-task={asked}")
            return signed_call("pipeline.promote", *arguments, *more, env=reader())

        promoted = promote(problem)
        report(problem) >> approve >> promoted >> push(problem) >> verify(problem)
        promoted >> rejected(problem)

    plan = workspace()
    chosen = problems(plan)
    trained = mapped_stage("train", train_stages(plan))
    judged_problems = judged.expand(problem=chosen)
    recorded = record()
    calibrated = mapped_stage("calibrate", chosen, template="calibrate@{}")
    first = plan >> stage("ingest") >> stage("clean") >> stage("validate")
    first >> calibrated >> trained >> judged_problems >> recorded
    for problem in PROBLEMS:
        # Task ids are the plain verbs while there is one problem; with more, each has its group's name before it.
        with TaskGroup(problem, prefix_group_id=len(PROBLEMS) > 1) as group:
            promotion(problem, group)
        recorded >> group


nightly_retrain()
