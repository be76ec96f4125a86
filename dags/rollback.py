"""rollback: go back to a version that was live once, with a person's answer.

versions → approve → push → verify. `versions` lists what there is; leave `to` empty for the version before the one that
is live. Live about ten seconds after the answer. Without Airflow: `loadmaster registry rollback`; without the registry:
`loadmaster mode heuristic`.
"""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.sdk import Param, dag, get_current_context, task

from dags import alerts
from dags.airflow_reader import reader
from dags.approval_task import RollbackApproval, chosen
from dags.assets import POLICY_LIVE
from dags.calls import call, signed_call
from pipeline import workspace

SERVICE_URL = os.environ.get("LOADMASTER_SERVICE_URL", "http://127.0.0.1:8100")
PROBLEMS = workspace.offered(workspace.repository())


@dag(
    schedule=None,
    catchup=False,
    default_args={"retries": 1, "retry_delay": timedelta(seconds=5)},
    params={
        "problem": Param(PROBLEMS[0], enum=PROBLEMS, description="Whose policy"),
        "to": Param("", type=["null", "string"], description="Beginning of a digest; empty: the version before"),
        "reason": Param("", type=["null", "string"], description="Why; kept in the record"),
    },
    on_failure_callback=alerts.failed,
    tags=["loadmaster"],
    doc_md=__doc__,
)
def rollback() -> None:
    """Wire the way back."""

    @task
    def versions() -> str:
        """Show what there is to go back to."""
        return call("pipeline.rollback", "versions")

    approve = RollbackApproval(
        task_id="approve",
        response_timeout=timedelta(hours=12),
        params={"comment": Param("", type=["null", "string"], description="Why; kept in the record")},
    )

    @task
    def push() -> str:
        """Flip the service, if and only if an approver's own answer says so, and record whose decision it was."""
        context = get_current_context()
        asked = f"{context['dag'].dag_id}/approve"
        where = (f"--airflow-task={asked}", "--url", SERVICE_URL)
        return signed_call("pipeline.rollback", "flip", *chosen(context), *where, env=reader())

    @task(outlets=[POLICY_LIVE])
    def verify() -> str:
        """Ask the service what is live: the same as the records say."""
        context = get_current_context()
        problem = context["params"]["problem"]
        said = signed_call("pipeline.verify_live", "--problem", problem, "--url", SERVICE_URL)
        context["outlet_events"][POLICY_LIVE].extra = {
            "run_id": context["run_id"],
            "problem": problem,
            "record": said,
        }
        alerts.tell("rollback", said, link=alerts.page_of(context))
        return said

    versions() >> approve >> push() >> verify()


rollback()
