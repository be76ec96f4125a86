"""The DAG as Airflow sees it: structure, names, and what may be imported at parse time."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def dag(tmp_path_factory):
    os.environ["AIRFLOW_HOME"] = str(tmp_path_factory.mktemp("airflow"))
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
    from dags import nightly_retrain

    return nightly_retrain.nightly_retrain()


def downstream(dag, task):
    return dag.get_task(task).downstream_task_ids


def test_it_runs_at_two_one_at_a_time_and_never_catches_up(dag):
    assert dag.timetable.expression == "0 2 * * *"
    assert dag.max_active_runs == 1
    assert dag.catchup is False


def test_tasks_of_the_stages_have_the_names_of_the_stages(dag):
    stages = set(yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"])
    assert stages <= set(dag.task_ids)


def test_the_night_goes_stage_by_stage_to_a_person_and_then_to_production(dag):
    chain = ["ingest", "clean", "validate", "train", "export", "evaluate", "gate", "record", "report", "approve"]
    chain += ["promote", "push", "verify"]
    for before, after in itertools.pairwise(chain):
        assert after in downstream(dag, before), f"{before} -> {after}"
    assert downstream(dag, "approve") == {"promote"}, "promote must be the direct child: a rejection skips it"
    assert downstream(dag, "promote") == {"push", "rejected"}


def test_nobody_answering_is_a_rejection(dag):
    approve = dag.get_task("approve")
    assert approve.defaults == ["Reject"]
    assert approve.response_timeout.total_seconds() == 12 * 3600
    rejected = dag.get_task("rejected")
    assert rejected.trigger_rule == "all_skipped"
    assert rejected.upstream_task_ids == {"promote"}, "any other upstream would decide the rule before the answer"
    assert dag.get_task("promote").retries == 0


def test_an_answer_is_kept_before_it_is_acted_on():
    from datetime import UTC, datetime

    from airflow.sdk.exceptions import AirflowException  # noqa: F401  makes sure the SDK is importable on its own

    from dags.approval_task import ANSWER_KEY, RecordedApproval

    pushed = {}

    class Ti:
        def xcom_push(self, key, value):
            pushed[key] = value

    task = RecordedApproval(task_id="approve", subject="?")
    event = {
        "chosen_options": ["Reject"],
        "params_input": {},
        "responded_at": datetime.now(UTC),
        "responded_by_user": {"id": "alice", "name": "Alice"},
    }
    task.execute_complete({"ti": Ti(), "task": task}, event)
    assert pushed[ANSWER_KEY] == {
        "chosen_options": ["Reject"],
        "params_input": {},
        "responded_by_user": {"id": "alice", "name": "Alice"},
    }


def test_parsing_loads_nothing_heavy(tmp_path):
    program = (
        "import sys; import dags.nightly_retrain\n"
        "print([m for m in ('torch', 'pandas', 'great_expectations', 'onnx', 'numba', 'duckdb') if m in sys.modules])"
    )
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, cwd=ROOT, check=True
    )
    assert result.stdout.splitlines()[-1] == "[]"
