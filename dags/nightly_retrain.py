"""nightly_retrain: from last night's metrics to a signed policy that a person approved.

workspace → ingest → clean → validate → calibrate → train (one a seed) → export → evaluate → gate → shadow → record, and
then for each problem report → approve → promote → push → canary → verify.

A training or a problem that fails does not stop the others. Where a problem ends tells what became of it: `verify`
(promoted), `rejected`, `not_passed` (the gate failed it, or could not decide) or `unchanged`; the run's note says it in
words. Anything but a passed gate ends green; a problem that never got to a verdict ends red. A rejection, or nobody
answering, never promotes.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, get_args

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import CronTriggerTimetable, Param, TaskGroup, dag, get_current_context, task, task_group
from airflow.sdk.definitions.callback import SyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from dags import alerts
from dags.airflow_reader import reader
from dags.approval_task import PolicyApproval
from dags.assets import POLICY_CANDIDATE, POLICY_LIVE, STATE_WINDOWS
from dags.calls import call, lineage, signed_call
from dags.stages import EVERY, MACROS, made, mapped_stage, problem_stage, record, shadow, stage, workspace
from pipeline import approval
from pipeline import workspace as workspace_of_run
from pipeline.registry import places

SERVICE_URL = os.environ.get("LOADMASTER_SERVICE_URL", "http://127.0.0.1:8100")
PROBLEMS = workspace_of_run.offered(workspace_of_run.repository())
"""Those of ``params.yaml``, each with its own approval. Static, because Airflow 3.3 does not skip downstream of an
approval or a short circuit inside mapped task groups (docs/decisions/0003)."""
MODELLED = {"jobs", "pods", "vm"}
"""Problems that are trained with a model of their own (``data/models/<problem>``), which a stage has to fit first."""
APPROVAL_HOURS = float(os.environ.get("LOADMASTER_APPROVAL_HOURS", "12"))
DEADLINE_HOURS = float(os.environ.get("LOADMASTER_DEADLINE_HOURS", "4"))
"""After the start at 02:00: what has not ended by 06:00 is told to people."""
GPU_POOL = os.environ.get("LOADMASTER_GPU_POOL", "default_pool")
"""Airflow pool that trainings take a slot of: as many slots as there are GPUs to train on."""

AT_ONCE = "at once"
ROLLOUT = os.environ.get("LOADMASTER_ROLLOUT", "canary")
"""How what was approved becomes live: ``canary``, by 1, 5, 25 and 100 % of the calls, or ``at once``."""
CANARY_HOURS = float(os.environ.get("LOADMASTER_CANARY_HOURS", "24"))
CANARY_DWELL_MINUTES = float(os.environ.get("LOADMASTER_CANARY_DWELL_MINUTES", "30"))
CANARY = (
    f"--dwell-minutes={CANARY_DWELL_MINUTES:g}",
    f"--calls={os.environ.get('LOADMASTER_CANARY_CALLS', '200')}",
    f"--most-hours={CANARY_HOURS:g}",
)
CANARY_LOOK_S = max(2.0, min(60.0, CANARY_DWELL_MINUTES * 15))
CANARY_TIMEOUT_S = CANARY_HOURS * 3600 + 600
"""After the rollout itself has given up, and recorded it."""

Source = Literal["sample", "prometheus", "requests", "openmetrics", "parquet", "traces", "decisions"]
OPTIONAL_DAY = {"type": ["null", "string"], "format": "date"}


@dag(
    # Not run_immediately=False: Airflow 3.3 then starts the last night where it was due up to 2.4 hours ago, and the
    # run that somebody has just asked for waits behind it.
    schedule=CronTriggerTimetable("0 2 * * *", timezone="UTC", run_immediately=timedelta(0)),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30), "retry_exponential_backoff": True},
    user_defined_macros=MACROS,
    params={
        "problem": Param(EVERY, enum=[EVERY, *PROBLEMS], description="One problem only"),
        "from": Param(None, description="First day, UTC; empty: as params.yaml says", **OPTIONAL_DAY),
        "to": Param(None, description="Last day, included", **OPTIONAL_DAY),
        "source": Param(None, enum=[None, *get_args(Source)], description="Another source than that of params.yaml"),
        "rollout": Param(ROLLOUT, enum=["canary", AT_ONCE], description="By 1, 5, 25, 100 % of the calls, or at once"),
        "size": Param("full", type="string", description="full, or a file of sizes/ (demo, early)"),
        "density": Param(
            None, type=["null", "number"], exclusiveMinimum=0, description="Load to train for, times the recorded one"
        ),
    },
    # By the hour it is for, not by when it was queued: a night that begins late is late all the same, and Airflow 3.3
    # answers 500 to clearing a task of a run whose deadline counts from its queueing. Runs by hand have none.
    deadline=DeadlineAlert(
        reference=DeadlineReference.DAGRUN_LOGICAL_DATE,
        interval=timedelta(hours=DEADLINE_HOURS),
        callback=SyncCallback(alerts.late),
    ),
    on_failure_callback=alerts.failed,
    tags=["loadmaster"],
    doc_md=__doc__,
)
def nightly_retrain() -> None:
    """Wire the night: stages in the run's own clone, then the way to production."""

    @task
    def problems(plan: dict[str, Any]) -> list[str]:
        """List the problems of this run."""
        return list(plan["problems"])

    @task(trigger_rule="all_done_min_one_success")
    def trainings() -> list[str]:
        """List the trainings of the problems that have all they need; a stage that failed loses its own alone."""
        plan = json.loads(call("pipeline.workspace", f"--run-id={get_current_context()['run_id']}"))
        done = {*made("calibration", PROBLEMS)} - (MODELLED - {*made("models", PROBLEMS)})
        return [name for name in plan["train"] if name.partition("@")[2].partition("-")[0] in done]

    @task(trigger_rule="all_done_min_one_success")
    def trained() -> list[str]:
        """List the problems that have at least one policy: a failed seed does not lose the others."""
        return made("policies", PROBLEMS)

    @task_group(prefix_group_id=False)
    def judged(problem: str) -> None:
        """Everything up to the gate's verdict, for one problem."""
        problem_stage("export", problem) >> problem_stage("evaluate", problem) >> problem_stage("gate", problem)

    plan = workspace()
    windows = stage("validate", outlets=[STATE_WINDOWS])
    calibrated = mapped_stage("calibrate", problems(plan), template="calibrate@{}")
    listed, kept, shadowed, recorded = trainings(), trained(), shadow(), record()
    training = mapped_stage("train", listed, pool=GPU_POOL)
    judging = judged.expand(problem=kept)
    plan >> stage("ingest") >> stage("clean") >> windows >> calibrated >> listed
    windows >> [stage("runtime_model"), stage("lifetime_model"), stage("forecast")] >> listed
    training >> kept
    # What would be shown of a shadow that failed is that there is none: the night goes on.
    judging >> shadowed >> recorded
    judging >> recorded
    for problem in PROBLEMS:
        # Task ids are the plain verbs while there is one problem; with more, each has its group's name before it.
        with TaskGroup(problem, prefix_group_id=len(PROBLEMS) > 1) as group:
            promotion(problem, group)
        recorded >> group


def report_of(run_id: str, problem: str) -> Path:
    """Name the gate's report of a run."""
    return places.workspace(run_id) / "data" / "gate" / problem / "report.json"


def promotion(problem: str, group: TaskGroup) -> None:
    """Wire the way to production for one problem: nothing moves without a passed gate and a named person."""
    approve_id = group.child_id("approve")

    @task.branch(outlets=[POLICY_CANDIDATE], retries=0)
    def report(problem: str) -> str:
        """Show the verdict and the whole report; only a pass goes on to a person."""
        context = get_current_context()
        folder = places.workspace(context["run_id"])
        if problem not in workspace_of_run.problems(folder):
            raise AirflowSkipException(f"this run is not about {problem}")
        path = report_of(context["run_id"], problem)
        if not path.is_file():
            raise AirflowFailException(f"{problem} got to no verdict: see which of its stages failed")
        verdict = json.loads(path.read_text())
        context["ti"].xcom_push(key="verdict", value=f"{verdict['outcome']}: {verdict['reason']}")
        known = {"problem": problem, "verdict": verdict["outcome"], "digest": verdict["digest"]}
        context["outlet_events"][POLICY_CANDIDATE].extra = lineage(context["run_id"], **known)
        print(path.with_name("report.md").read_text())  # noqa: T201 - the whole report, every night
        print(f"{problem}: {verdict['outcome']}: {verdict['reason']}")  # noqa: T201
        annotate(context)
        goes_to = {"pass": "approve", "unchanged": "unchanged"}.get(verdict["outcome"], "not_passed")
        return str(group.child_id(goes_to))

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
        """Hand the signed bundle to the placement service: to answer a hundredth of the calls, or all at once."""
        if get_current_context()["params"]["rollout"] == AT_ONCE:
            return signed_call("pipeline.push", "--problem", problem, "--url", SERVICE_URL)
        return signed_call("pipeline.rollout", "--problem", problem, "--url", SERVICE_URL, *CANARY)

    @task.sensor(mode="reschedule", poke_interval=CANARY_LOOK_S, timeout=CANARY_TIMEOUT_S)
    def canary(problem: str) -> bool:
        """Look whether the next share of the calls may follow, until it answers all of them."""
        if get_current_context()["params"]["rollout"] == AT_ONCE:
            return True
        return signed_call("pipeline.rollout", "--problem", problem, "--url", SERVICE_URL, *CANARY) == "live"

    @task(outlets=[POLICY_LIVE])
    def verify(problem: str) -> str:
        """Ask the service what is live, and only then write the `live` record."""
        context = get_current_context()
        said = signed_call("pipeline.verify_live", "--problem", problem, "--url", SERVICE_URL)
        context["outlet_events"][POLICY_LIVE].extra = lineage(context["run_id"], problem=problem, record=said)
        annotate(context)
        alerts.tell("promoted", said, link=alerts.page_of(context))
        return said

    @task(trigger_rule="all_skipped")
    def rejected(problem: str) -> str:
        """Keep the record of a rejection or a time-out; skipped when no approval was asked for."""
        context = get_current_context()
        path = report_of(context["run_id"], problem)
        if not path.is_file() or json.loads(path.read_text())["outcome"] != "pass":
            raise AirflowSkipException("nobody was asked")
        said = decide(problem, "--reject")
        if said.endswith(approval.NO_REJECTION):
            raise AirflowSkipException(said)
        annotate(context)
        alerts.tell("rejected", said, link=alerts.page_of(context))
        return said

    def decide(problem: str, *more: str) -> str:
        context = get_current_context()
        asked = f"{context['dag'].dag_id}/{approve_id}"
        arguments = ("--problem", problem, f"--run-id={context['run_id']}", f"--airflow-task={asked}")
        return signed_call("pipeline.promote", *arguments, *more, env=reader())

    shown, promoted = report(problem), promote(problem)
    shown >> [approve, EmptyOperator(task_id="not_passed"), EmptyOperator(task_id="unchanged")]
    approve >> promoted >> push(problem) >> canary(problem) >> verify(problem)
    promoted >> rejected(problem)


def annotate(context: Any) -> None:
    """Write what became of the night into the run's note; it is for reading, so it stops nothing."""
    try:
        name = context["dag"].dag_id
        call("pipeline.airflow_notes", "--dag", name, f"--run-id={context['run_id']}", env=reader("USER"))
    except RuntimeError as error:
        print(f"the run's note was not written: {error}")  # noqa: T201


nightly_retrain()
