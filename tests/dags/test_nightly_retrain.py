"""The DAG as Airflow sees it: structure, names, and what may be imported at parse time."""

import itertools
import json
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
    chain = ["ingest", "clean", "validate", "calibrate", "train", "export", "evaluate", "gate", "record", "report"]
    chain += ["approve", "promote", "push", "verify"]
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


def test_the_question_comes_from_the_registry_and_goes_to_the_approvers_alone(monkeypatch):
    from dags import approval_task

    monkeypatch.setenv("LOADMASTER_APPROVERS", "ada,bob")
    task = approval_task.PolicyApproval(task_id="approve", problem="functions")
    assert [dict(user) for user in task.assigned_users] == [{"id": "ada", "name": "ada"}, {"id": "bob", "name": "bob"}]
    asked = {"subject": "Promote sha256:1?", "body": "the report {{ not.rendered }}"}
    called = []

    def call(*arguments):
        called.append(arguments)
        return json.dumps(asked)

    class Asked(Exception):
        pass

    def ask(self, context):
        raise Asked(self.subject, self.body)

    monkeypatch.setattr(approval_task, "call", call)
    monkeypatch.setattr(approval_task.ApprovalOperator, "execute", ask)
    with pytest.raises(Asked) as caught:
        task.execute({"run_id": "-x"})
    assert caught.value.args == (asked["subject"], asked["body"])
    assert called == [("pipeline.approval", "--problem", "functions", "--run-id=-x")]


def test_no_decision_is_taken_from_an_xcom():
    for name in ("approval_task", "airflow_reader", "nightly_retrain"):
        text = (ROOT / "dags" / f"{name}.py").read_text()
        assert "xcom_pull" not in text, f"{name}: a user can write any XCom through the REST API"


def test_stages_are_told_neither_keys_nor_airflows_secret(dag, tmp_path, monkeypatch):
    from dags import stages

    hidden = [*stages.FOR_THE_SIGNER, "AIRFLOW__API_AUTH__JWT_SECRET"]
    for name in hidden:
        monkeypatch.setenv(name, "hush-hush")
    (tmp_path / "shows.py").write_text("import os; print(','.join(sorted(os.environ)))")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert not set(hidden) & set(stages.call("shows").split(","))
    assert set(hidden) <= set(stages.signed_call("shows").split(","))
    shown = subprocess.run(
        ["bash", "-c", dag.get_task("clean").bash_command.partition(";")[0] + "; env"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "hush-hush" not in shown


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_stage_run_as_its_own_user_cannot_read_the_key_nor_the_environment_of_the_worker(tmp_path, monkeypatch):
    from dags import stages

    monkeypatch.setattr(stages, "STAGES_WITH", "setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs")
    tmp_path.chmod(0o755)
    key = tmp_path / "signing.pem"
    key.write_text("secret")
    key.chmod(0o600)
    program = f"""
import os
for path in ({str(key)!r}, "/proc/%d/environ" % os.getppid()):
    try:
        open(path).read()
    except PermissionError:
        print("refused", end=" ")
"""
    command = [*stages.STAGES_WITH.split(), "/usr/bin/python3", "-c", program]
    assert stages._run(command, dict(os.environ), None) == "refused refused"


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
