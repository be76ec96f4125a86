"""watch_live: every quarter of an hour, is what is live as good as it was promised, and is the world still the same?

reconcile (what the service did by itself is recorded) → look → for each problem: `open_rollback` asks a person to go
back when service level, cost or fallbacks are beyond the promise; `start_retrain` trains early when features or actions
have drifted, for the load of now where that is what changed. Each at most once a day. The figures are a page
(`var/watch/index.html`) and metrics for Prometheus.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import CronTriggerTimetable, TaskGroup, dag, get_current_context, task
from airflow.sdk.exceptions import AirflowSkipException

from dags import alerts
from dags.calls import call, signed_call
from pipeline import workspace

SERVICE_URL = os.environ.get("LOADMASTER_SERVICE_URL", "http://127.0.0.1:8100")
EARLY = "early"
"""Size of a night that starts early (``sizes/early.yaml``): about one problem alone, it may train for longer."""
PROBLEMS = workspace.offered(workspace.repository())


@dag(
    schedule=CronTriggerTimetable("*/15 * * * *", timezone="UTC"),
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(minutes=14),
    default_args={"retries": 0},
    on_failure_callback=alerts.failed,
    tags=["loadmaster"],
    doc_md=__doc__,
)
def watch_live() -> None:
    """Wire the watch."""

    @task
    def reconcile() -> str:
        """Record flips that the service made by itself; a service that does not answer is told, and looked at."""
        said = []
        for problem in PROBLEMS:
            try:
                word = signed_call("pipeline.verify_live", "--problem", problem, "--url", SERVICE_URL, "--reconcile")
            except RuntimeError as error:
                word = f"{problem}: {error}"
                alerts.tell("failed", f"watch_live could not reconcile {problem}", body=str(error))
            if "nothing to reconcile" not in word:
                said.append(word)
        return "\n".join(said)

    @task(trigger_rule="all_done")
    def look() -> dict[str, Any]:
        """Look at everything that is live."""
        found: dict[str, Any] = json.loads(call("pipeline.watch", "--json"))
        if found["late"]:
            alerts.tell("late", "no night has ended by 06:00", body=found["late"])
        return {one["problem"]: one for one in found["seen"]}

    def wants(problem: str, kind: str, found: dict[str, Any]) -> str:
        reason = str(found.get(problem, {}).get(kind, ""))
        if not reason:
            raise AirflowSkipException(f"no reason for a {kind} of {problem}")
        context = get_current_context()
        alerts.tell("rollback" if kind == "rollback" else "drift", f"{problem}: {reason}", link=alerts.page_of(context))
        return reason

    found = look()
    reconcile() >> found
    for problem in PROBLEMS:
        with TaskGroup(problem):

            @task
            def beyond_promise(found: dict[str, Any], problem: str = problem) -> str:
                """Whether a person should be asked to go back."""
                return wants(problem, "rollback", found)

            @task
            def drifted(found: dict[str, Any], problem: str = problem) -> dict[str, Any]:
                """Whether training should start early, and for which load."""
                wants(problem, "retrain", found)
                size = EARLY if workspace.has_size(workspace.repository(), EARLY) else workspace.FULL
                return {"problem": problem, "size": size, "density": found[problem]["density"]}

            day = "{{ dag_run.run_after.strftime('%Y-%m-%d') }}"
            reason = "{{ ti.xcom_pull(task_ids='" + problem + ".beyond_promise') }}"
            early = drifted(found)
            density = f"ti.xcom_pull(task_ids='{problem}.drifted')['density']"
            beyond_promise(found) >> TriggerDagRunOperator(
                task_id="open_rollback",
                trigger_dag_id="rollback",
                # One a day: the same question is not put every quarter of an hour.
                trigger_run_id=f"watch__{problem}__{day}",
                conf={"problem": problem, "to": "", "reason": reason},
                skip_when_already_exists=True,
            )
            early >> TriggerDagRunOperator(
                task_id="start_retrain",
                trigger_dag_id="nightly_retrain",
                # A night for the load of now is another than one on the days as they are: an alarm by the index alone,
                # which may come a look before the load is sure, must not take its place for the day.
                trigger_run_id="{{ 'load' if " + density + " else 'drift' }}" + f"__{problem}__{day}",
                conf=early,
                skip_when_already_exists=True,
            )


watch_live()
