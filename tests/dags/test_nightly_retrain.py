"""The DAG as Airflow sees it: structure, names, and what may be imported at parse time."""

import argparse
import hashlib
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


@pytest.mark.parametrize("hour", [2, 4, 12])
def test_a_night_that_was_due_before_anybody_started_airflow_is_not_made_up_for(dag, hour, monkeypatch):
    import pendulum
    from airflow.serialization.decoders import decode_timetable
    from airflow.serialization.encoders import encode_timetable
    from airflow.timetables import trigger
    from airflow.timetables.base import TimeRestriction

    now = pendulum.datetime(2026, 11, 18, hour, 1, tz="UTC")
    monkeypatch.setattr(trigger, "utcnow", lambda: now)
    asked = decode_timetable(json.loads(json.dumps(encode_timetable(dag.timetable))))
    coming = asked.next_dagrun_info(
        last_automated_data_interval=None, restriction=TimeRestriction(earliest=None, latest=None, catchup=False)
    )
    assert coming.run_after == pendulum.datetime(2026, 11, 19, 2, tz="UTC")


def test_tasks_of_the_stages_have_the_names_of_the_stages(dag):
    stages = set(yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"])
    assert stages <= set(dag.task_ids)


def test_the_night_goes_stage_by_stage_to_a_person_and_then_to_production(dag):
    chain = ["ingest", "clean", "validate", "calibrate", "trainings", "train", "trained", "export", "evaluate", "gate"]
    chain += ["shadow", "record", "report"]
    chain += ["approve", "promote", "push", "canary", "verify"]
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
    monkeypatch.setenv("LOADMASTER_AIRFLOW_URL", "http://airflow")
    task = approval_task.PolicyApproval(task_id="approve", problem="functions")
    assert [dict(user) for user in task.assigned_users] == [{"id": "ada", "name": "ada"}, {"id": "bob", "name": "bob"}]
    asked = {"subject": "Promote sha256:1?", "body": "the report {{ not.rendered }}"}
    called = []

    def call(*arguments, env):
        called.append((*arguments, env))
        return json.dumps(asked)

    class Asked(Exception):
        pass

    def ask(self, context):
        raise Asked(self.subject, self.body)

    told = []
    monkeypatch.setattr(approval_task, "call", call)
    monkeypatch.setattr(approval_task, "tell", lambda *words, **more: told.append((*words, more["link"])))
    monkeypatch.setattr(approval_task, "page_of", lambda context: "http://airflow/page")
    monkeypatch.setattr(approval_task.ApprovalOperator, "execute", ask)
    with pytest.raises(Asked) as caught:
        task.execute({"run_id": "-x"})
    assert caught.value.args == (asked["subject"], asked["body"])
    where = {"LOADMASTER_AIRFLOW_URL": "http://airflow"}
    assert called == [("pipeline.approval", "--problem", "functions", "--run-id=-x", where)], (
        "links lead to this Airflow"
    )
    assert told == [("approval", asked["subject"], "http://airflow/page/required_actions")], "and is told about it"


def test_no_decision_is_taken_from_an_xcom():
    for name in ("approval_task", "airflow_reader", "nightly_retrain"):
        text = (ROOT / "dags" / f"{name}.py").read_text()
        assert "xcom_pull" not in text, f"{name}: a user can write any XCom through the REST API"


def test_stages_are_told_neither_keys_nor_airflows_secret(dag, tmp_path, monkeypatch):
    from dags import calls as stages

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
    from dags import calls as stages

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


def test_a_failed_training_or_problem_stops_nobody_else(dag):
    for name in ("trainings", "trained", "shadow", "record"):
        assert dag.get_task(name).trigger_rule == "all_done_min_one_success"
    # One success must be one of the stage before, not of a task that only lists: so they have no other upstream.
    # What is there counts for `trainings`, so the stage that fits a model may be upstream too.
    models = {"runtime_model", "lifetime_model", "forecast"}
    assert dag.get_task("trainings").upstream_task_ids == {"calibrate", *models}
    assert dag.get_task("trained").upstream_task_ids == {"train"}
    assert dag.get_task("shadow").upstream_task_ids == {"gate"}
    # A shadow that fails is missing from the page; what was judged is recorded all the same.
    assert dag.get_task("record").upstream_task_ids == {"gate", "shadow"}


def test_where_a_problem_ends_tells_what_became_of_it(dag):
    assert downstream(dag, "report") == {"approve", "not_passed", "unchanged"}
    leaves = {task for task in dag.task_ids if not downstream(dag, task)}
    assert leaves == {"verify", "rejected", "not_passed", "unchanged"}


def test_the_trigger_form_takes_one_problem_other_days_and_another_source(dag):
    dag.params.validate()
    assert {name: dag.params[name] for name in dag.params} == {
        "problem": "all", "from": None, "to": None, "source": None, "rollout": "canary", "size": "full",
        "density": None,
    }  # fmt: skip
    assert set(dag.params.get_param("source").schema["enum"]) >= {None, "prometheus", "traces"}
    density = dag.params.get_param("density")
    assert density.resolve(0.25) == 0.25
    with pytest.raises(ValueError, match="less than or equal to the minimum"):
        density.resolve(0)


def test_what_the_form_asks_for_is_what_the_workspace_takes(dag):
    from dags.stages import CHOICES
    from pipeline import workspace

    assert {*dag.params} - {*CHOICES} == {"rollout"}
    parser = argparse.ArgumentParser()
    workspace.arguments(parser)
    assert {*CHOICES} <= {name.lstrip("-") for action in parser._actions for name in action.option_strings}


def test_the_sources_of_the_form_are_those_of_ingest():
    from typing import get_args

    from dags import nightly_retrain
    from pipeline.ingest import SourceName

    assert get_args(nightly_retrain.Source) == get_args(SourceName)


def test_assets_are_handed_on_with_their_lineage(dag, tmp_path, monkeypatch):
    from dags import calls as stages

    outlets = {task: [asset.name for asset in dag.get_task(task).outlets] for task in ("validate", "report", "verify")}
    assert outlets == {"validate": ["state_windows"], "report": ["policy_candidate"], "verify": ["policy_live"]}
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path))
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "dvc.lock").write_text("schema: '2.0'")
    said = stages.lineage("one", problem="vm")
    assert said["dvc_lock_sha256"] == hashlib.sha256(b"schema: '2.0'").hexdigest()
    assert (said["run_id"], said["problem"]) == ("one", "vm")


def test_late_and_failed_nights_are_told(dag, monkeypatch):
    from dags import alerts

    assert dag.deadline[0].interval.total_seconds() == 4 * 3600, "02:00 and four hours: 06:00"
    assert dag.deadline[0].callback.path == "dags.alerts.late"
    told = []
    monkeypatch.setattr(alerts, "call", lambda *words: told.append(words))
    alerts.late({"dag_run": {"dag_run_id": "scheduled__x"}})
    alerts.failed(
        {"dag_run": type("Run", (), {"dag_id": "nightly_retrain", "run_id": "y"})(), "reason": "task_failure"}
    )
    assert [words[1:3] for words in told] == [
        ("--kind=late", "--subject=nightly_retrain has not ended by its deadline: scheduled__x"),
        ("--kind=failed", "--subject=nightly_retrain failed: y"),
    ]


def test_with_many_problems_each_has_its_own_way_to_production(tmp_path):
    program = (
        "import dags.nightly_retrain as night\n"
        "dag = night.nightly_retrain()\n"
        "print(sorted(task for task in dag.task_ids if task.endswith('approve')), dag.get_task('vm.approve').problem)"
    )
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path),
        "LOADMASTER_PROBLEMS": "functions, vm",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, cwd=ROOT, check=True
    )
    assert result.stdout.splitlines()[-1] == "['functions.approve', 'vm.approve'] vm"


DAG_FILES = [path.stem for path in (ROOT / "dags").glob("*.py") if "@dag" in path.read_text()]


@pytest.mark.parametrize("name", DAG_FILES)
def test_parsing_is_quick_and_loads_nothing_heavy(tmp_path, name):
    program = (
        "import sys, time; import airflow.sdk, airflow.providers.standard.operators.hitl, airflow.configuration\n"
        f"began = time.process_time(); import dags.{name}\n"
        "heavy = ('torch', 'pandas', 'great_expectations', 'onnx', 'onnxruntime', 'numba', 'duckdb', 'pyarrow', "
        "'kubernetes', 'scipy')\n"
        "print([m for m in heavy if m in sys.modules], time.process_time() - began)"
    )
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, cwd=ROOT, check=True
    )
    loaded, _, seconds = result.stdout.splitlines()[-1].rpartition(" ")
    assert loaded == "[]"
    assert float(seconds) < 2.0, "of processor time, beyond Airflow itself"
