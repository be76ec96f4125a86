"""nightly_retrain: from last night's metrics to a signed policy that a person approved.

workspace → ingest → clean → validate → train (one a seed) → export → evaluate → gate → record
          → report → approve → promote → push → verify

Anything but a passed gate ends the run green with approve...verify skipped and the reason on ``report``.
A rejection, or nobody answering, never promotes; ``rejected`` keeps the record of it.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import CronTriggerTimetable, Param, TaskGroup, dag, get_current_context, task, task_group

from dags.approval_task import ANSWER_KEY, RecordedApproval
from dags.stages import call, mapped_stage, problem_stage, record, stage, workspace
from pipeline import approval
from pipeline import workspace as workspace_of_run

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

    def promotion(problem: str, plan: dict[str, Any], group: TaskGroup) -> None:
        """The way to production for one problem: nothing moves without a passed gate and a named person."""
        approve_id = group.child_id("approve")

        @task.short_circuit(ignore_downstream_trigger_rules=False)
        def report(problem: str, plan: dict[str, Any]) -> bool:
            """Show the verdict; end here, green, when it is not a pass."""
            folder = Path(plan["path"], "data", "gate", problem)
            verdict = json.loads((folder / "report.json").read_text())
            context = get_current_context()
            context["ti"].xcom_push(key="body", value=(folder / "report.md").read_text())
            context["ti"].xcom_push(key="verdict", value=f"{verdict['outcome']}: {verdict['reason']}")
            print(f"{problem}: {verdict['outcome']}: {verdict['reason']}")  # noqa: T201
            return bool(verdict["outcome"] == "pass")

        approve = RecordedApproval(
            task_id="approve",
            subject=f"Promote the new {problem} policy to production?",
            body=f"{{{{ ti.xcom_pull(task_ids='{group.child_id('report')}', key='body') }}}}",
            defaults="Reject",
            response_timeout=timedelta(hours=APPROVAL_HOURS),
            params={"comment": Param("", type=["null", "string"], description="Why; kept in the promotion record")},
        )

        @task(retries=0)
        def promote(problem: str, plan: dict[str, Any]) -> str:
            """Sign the bundle and write the `approved` record, if and only if a named person said so."""
            answer = approval.require_approved(_answer(approve_id))
            return call(
                "pipeline.promote", "--problem", problem, "--run-dir", plan["path"], "--run-id",
                get_current_context()["run_id"], "--approver", str(answer.person), "--reason", answer.comment,
            )  # fmt: skip

        @task
        def push(problem: str) -> str:
            """Hand the signed bundle to the placement service."""
            return call("pipeline.push", "--problem", problem, "--url", SERVICE_URL)

        @task
        def verify(problem: str) -> str:
            """Ask the service what is live, and only then write the `live` record."""
            return call("pipeline.verify_live", "--problem", problem, "--url", SERVICE_URL)

        @task(trigger_rule="all_skipped")
        def rejected(problem: str) -> str:
            """Keep the record of a rejection or a time-out; nothing to keep when no approval was asked for."""
            # The plan is pulled, not passed: as an argument it would make `workspace` an upstream that succeeded.
            plan: dict[str, Any] = get_current_context()["ti"].xcom_pull(task_ids="workspace")
            response = _answer(approve_id)
            answer = approval.read(response)
            if response is None:
                return answer.comment
            return call(
                "pipeline.promote", "--reject", "--problem", problem, "--run-dir", plan["path"], "--run-id",
                get_current_context()["run_id"], "--approver", answer.person or "", "--reason", answer.comment,
            )  # fmt: skip

        promoted = promote(problem, plan)
        report(problem, plan) >> approve >> promoted >> push(problem) >> verify(problem)
        promoted >> rejected(problem)

    plan = workspace()
    chosen = problems(plan)
    trained = mapped_stage("train", train_stages(plan))
    judged_problems = judged.expand(problem=chosen)
    recorded = record(plan)
    plan >> stage("ingest") >> stage("clean") >> stage("validate") >> trained >> judged_problems >> recorded
    for problem in PROBLEMS:
        # Task ids are the plain verbs while there is one problem; with more, each has its group's name before it.
        with TaskGroup(problem, prefix_group_id=len(PROBLEMS) > 1) as group:
            promotion(problem, plan, group)
        recorded >> group


def _answer(approve_id: str) -> dict[str, Any] | None:
    """What the approve task of a problem was told."""
    answer: dict[str, Any] | None = get_current_context()["ti"].xcom_pull(task_ids=approve_id, key=ANSWER_KEY)
    return answer


nightly_retrain()
