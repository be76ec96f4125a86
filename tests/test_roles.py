"""The approval against a real Airflow with one account of each role: only the assigned approver's own answer promotes.

The stages are stand-ins that end in a moment; Airflow, registry, DVC, signatures and the placement service are real.
"""

import json
import shutil
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest
import requests

from pipeline.local import servers
from pipeline.local.__main__ import DAG, SETTLE_SECONDS
from pipeline.local.airflow_api import ENDED, AirflowApi, AirflowError
from pipeline.registry import outcomes
from pipeline.registry.chain import Chain
from pipeline.registry.verify import verify
from tests.servers import free_port

pytestmark = [pytest.mark.airflow, pytest.mark.soak, pytest.mark.timeout(3000)]
ROOT = Path(__file__).parents[1]
APPROVER = "otto"
ACCOUNTS = {"vera": "viewer", "ursula": "user", APPROVER: "op", "olga": "op", "adam": "admin"}

STAGES = """
import json, pathlib, sys, zlib
from sched_env import problems
from wire import sample_bundle
stage, out = sys.argv[1], pathlib.Path(sys.argv[2])
out.mkdir(parents=True)
standing = pathlib.Path("champions/functions/standing.json")
champion = json.loads(standing.read_text())["digest"] if standing.exists() else None
if stage == "export":
    seed = zlib.crc32((champion or "").encode())
    for name, data in sample_bundle.build(problems.spec("functions"), seed=seed, hidden=8).items():
        (out / name).write_bytes(data)
elif stage == "gate":
    digest = json.loads(pathlib.Path("data/bundles/functions/manifest.json").read_text())["digest"]
    report = {"outcome": "pass", "reason": "better by 2 %", "digest": digest, "champion_digest": champion, "rules": []}
    (out / "report.json").write_text(json.dumps(report))
    (out / "report.md").write_text("# Better by 2 %\\n")
else:
    (out / "done").write_text(stage)
"""

DVC_YAML = """
stages:
  ingest: {cmd: python stages.py ingest data/raw, outs: [data/raw]}
  clean: {cmd: python stages.py clean data/windows, deps: [data/raw], outs: [data/windows]}
  validate: {cmd: python stages.py validate data/validation, deps: [data/windows], outs: [data/validation]}
  runtime_model: {cmd: python stages.py runtime_model data/models, deps: [data/validation], outs: [data/models]}
  calibrate:
    foreach: [functions]
    do:
      cmd: python stages.py calibrate data/calibration/functions
      deps: [data/validation]
      outs: [data/calibration/functions]
  train:
    foreach: [functions]
    do:
      cmd: python stages.py train data/policies/functions
      deps: [data/calibration/functions, data/models]
      outs: [data/policies/functions]
  export:
    foreach: [functions]
    do:
      cmd: python stages.py export data/bundles/functions
      deps: [data/policies/functions, champions/functions]
      outs: [data/bundles/functions]
  evaluate:
    foreach: [functions]
    do: {cmd: python stages.py evaluate data/evaluation, deps: [data/bundles/functions], outs: [data/evaluation]}
  gate:
    foreach: [functions]
    do:
      cmd: python stages.py gate data/gate/functions
      deps: [data/evaluation, data/bundles/functions, champions/functions]
      outs: [data/gate/functions]
"""


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """Airflow and the service on a repository whose stages take no time; returns settings and a log-in for each."""
    root = tmp_path_factory.mktemp("roles")
    repository = root / "repository"
    for name, text in {
        "stages.py": STAGES,
        "dvc.yaml": DVC_YAML,
        "params.yaml": "problems: [functions]\nnightly: {days: null}\ndata: {from: null, to: null}\n",
        ".gitignore": "/data/\n",
        ".dvc/config": "[core]\n    analytics = false\n",
        ".dvc/.gitignore": "/config.local\n/tmp\n/cache\n",
        "champions/functions/standing.json": '{"digest": null, "live_since": null}\n',
    }.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
    (repository / "dags").mkdir()
    shutil.copy(ROOT / "dags" / "nightly_retrain.py", repository / "dags")
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "stand-ins"]):
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *command], cwd=repository, check=True)
    settings = servers.LocalSettings(
        repository=repository, var=root / "var", service_port=free_port(), airflow_port=free_port(), accounts=ACCOUNTS
    )
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        for name, value in servers.airflow_environment(settings).items():
            if name.startswith("LOADMASTER"):
                patch.setenv(name, value)
        environment = servers.airflow_environment
        more = {"LOADMASTER_APPROVERS": APPROVER, "LOADMASTER_TWO_PERSONS": "yes"}
        patch.setattr(servers, "airflow_environment", lambda chosen: environment(chosen) | more)
        patch.setenv("PYTHONPATH", str(ROOT))
        stack.enter_context(servers.placement_service(settings))
        stack.enter_context(servers.airflow(settings))
        passwords = servers.credentials(settings)
        people = {name: AirflowApi(settings.airflow_url, name, passwords[name]) for name in ACCOUNTS}
        people["adam"].wait_for_dag(DAG)
        yield settings, people


def path_of(run, task="approve"):
    return f"/dags/{DAG}/dagRuns/{quote(run, safe='')}/taskInstances/{task}"


def state_of(api, run, task):
    return next(row["state"] for row in api.tasks(DAG, run) if row["task_id"] == task)


def until(condition, what, seconds=600):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(1)


def asked(api):
    """Start a night and wait until its question is put; returns the run."""
    run = api.start(DAG)

    def waits():
        assert api.run_state(DAG, run) not in ENDED, [(row["task_id"], row["state"]) for row in api.tasks(DAG, run)]
        return state_of(api, run, "approve") in ("awaiting_input", "deferred")

    until(waits, "the question was never put")
    time.sleep(SETTLE_SECONDS)
    return run


def ended(api, run):
    until(lambda: api.run_state(DAG, run) in ENDED, "the run never ended")
    return {row["task_id"]: row["state"] for row in api.tasks(DAG, run)}


def log_of(api, run, task):
    (row,) = [row for row in api.tasks(DAG, run) if row["task_id"] == task]
    return api.log(DAG, run, task, row["map_index"], row["try_number"])


def clear_and_force(api, run):
    """Clear the approval and what follows, and set it to success before it can ask again."""
    body = {"dry_run": False, "task_ids": ["approve"], "dag_run_id": run, "include_downstream": True,
            "only_failed": False, "reset_dag_runs": True}  # fmt: skip
    api.call("POST", f"/dags/{DAG}/clearTaskInstances", json=body)
    api.call("PATCH", path_of(run), json={"new_state": "success"})


def ask_again(api, run):
    body = {"dry_run": False, "task_ids": ["approve"], "dag_run_id": run, "include_downstream": True,
            "only_failed": False, "reset_dag_runs": True}  # fmt: skip
    api.call("POST", f"/dags/{DAG}/clearTaskInstances", json=body)
    until(lambda: state_of(api, run, "approve") in ("awaiting_input", "deferred"), "not asked again")
    time.sleep(SETTLE_SECONDS)


def live(settings):
    entry = requests.get(f"{settings.service_url}/v1/policies", timeout=10).json()["policies"].get("functions")
    return entry and entry["digest"]


@pytest.fixture(scope="module")
def first_night(local):
    _settings, people = local
    return asked(people["adam"])


@pytest.fixture(scope="module")
def forged(local, first_night):
    """Everything that another account can do to a question that waits; returns the refusals by account."""
    _settings, people = local
    refused = {}
    for name in ("vera", "ursula", "olga", "adam"):
        try:
            people[name].answer(DAG, first_night, "approve", -1, "Approve", "let me")
        except AirflowError as error:
            refused[name] = str(error)
    answer = {"chosen_options": ["Approve"], "params_input": {}, "responded_by_user": {"id": APPROVER, "name": "Otto"}}
    for key in ("answer", "return_value"):
        body = {"key": key, "value": answer, "map_index": -1}
        people["ursula"].call("POST", f"{path_of(first_night)}/xcomEntries", json=body)
    people["ursula"].call("PATCH", path_of(first_night), json={"new_state": "success"})
    return refused, ended(people["adam"], first_night)


@pytest.fixture(scope="module")
def approved(local, first_night, forged):
    """The approver is asked again and answers; returns the state of every task."""
    _settings, people = local
    ask_again(people[APPROVER], first_night)
    people[APPROVER].answer(DAG, first_night, "approve", -1, "Approve", "-1 is a fine comment")
    return ended(people["adam"], first_night)


def test_nobody_but_the_assigned_approver_can_answer_the_administrator_included(forged):
    refused, _ = forged
    assert refused.keys() == {"vera", "ursula", "olga", "adam"}
    assert all("403" in said for said in refused.values()), refused


def test_a_forged_xcom_and_a_task_set_to_success_promote_nothing(local, forged):
    settings, _ = local
    _, tasks = forged
    assert tasks["approve"] == "success", "the forgery itself went through"
    assert tasks["promote"] == "failed"
    assert tasks["push"] == tasks["verify"] == "upstream_failed"
    assert live(settings) is None


def test_the_approvers_own_answer_promotes_and_the_record_says_who_when_and_about_what(local, first_night, approved):
    settings, _ = local
    assert approved["verify"] == "success", approved
    records = Chain.open().records
    assert [record.state for record in records] == ["approved", "live"]
    record, answer = records[0], records[0].answer
    assert (record.approver, record.reason, answer.person_id) == (APPROVER, "-1 is a fine comment", APPROVER)
    assert (answer.source, answer.digest, answer.report_sha256) == ("airflow", record.digest, record.report_sha256)
    assert answer.id.startswith(f"airflow/{DAG}/{quote(first_night, safe='')}/approve/")
    assert record.digest in json.dumps(answer_detail(local, first_night)["body"]), "they saw what they approved"
    assert live(settings) == record.digest
    assert verify()[1] == []


def answer_detail(local, run):
    _, people = local
    return people["vera"].call("GET", f"{path_of(run)}/-1/hitlDetails")


def test_an_old_answer_after_a_clear_changes_nothing_while_live_and_nothing_after_a_rollback(local, approved):
    settings, people = local
    first = Chain.open().records[0]
    clear_and_force(people["ursula"], first.run_id)
    ended(people["adam"], first.run_id)
    assert [record.state for record in Chain.open().records] == ["approved", "live"]

    second = asked(people["adam"])
    people[APPROVER].answer(DAG, second, "approve", -1, "Approve", "better still")
    assert ended(people["adam"], second)["verify"] == "success"
    outcomes.roll_back("functions", settings.service_url, approver="eve", reason="SLA alarms")
    assert live(settings) == first.digest

    clear_and_force(people["ursula"], second)
    assert ended(people["adam"], second)["promote"] == "failed"
    assert live(settings) == first.digest
    assert len(Chain.open().records) == 5
    ask_again(people[APPROVER], second)
    people[APPROVER].answer(DAG, second, "approve", -1, "Approve", "a fresh answer and no fresh gate")
    assert ended(people["adam"], second)["promote"] == "failed"
    assert live(settings) == first.digest


def test_who_started_a_run_by_hand_does_not_approve_it(local, approved):
    settings, people = local
    before, records = live(settings), len(Chain.open().records)
    run = asked(people[APPROVER])
    people[APPROVER].answer(DAG, run, "approve", -1, "Approve", "my own")
    assert ended(people["adam"], run)["promote"] == "failed"
    assert (live(settings), len(Chain.open().records)) == (before, records)


def test_a_rejection_is_kept_and_cannot_be_turned_into_an_approval(local, approved):
    settings, people = local
    before = live(settings)
    run = asked(people["adam"])
    people[APPROVER].answer(DAG, run, "approve", -1, "Reject", "--not on a Friday")
    tasks = ended(people["adam"], run)
    assert (tasks["promote"], tasks["rejected"]) == ("skipped", "success")
    record = Chain.open().records[-1]
    assert (record.state, record.approver, record.reason) == ("rejected", APPROVER, "--not on a Friday")
    ask_again(people[APPROVER], run)
    people[APPROVER].answer(DAG, run, "approve", -1, "Approve", "on second thoughts")
    assert ended(people["adam"], run)["promote"] == "failed"
    assert live(settings) == before
    assert verify()[1] == []


def test_nothing_of_airflow_or_the_service_listens_beyond_loopback(local):
    ours = [psutil.Process(), *psutil.Process().children(recursive=True)]
    listening = []
    for process in ours:
        try:
            listening += [one.laddr for one in process.net_connections("inet") if one.status == psutil.CONN_LISTEN]
        except psutil.NoSuchProcess:
            continue
    assert len(listening) >= 2
    assert {address.ip for address in listening} <= {servers.HOST, "::1"}, listening
