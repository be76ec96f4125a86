"""The approval against a real Airflow with one account of each role: only the assigned approver's own answer promotes.

The stages are stand-ins that end in a moment; Airflow, registry, DVC, signatures and the placement service are real.
"""

import json
from urllib.parse import quote

import psutil
import pytest

from pipeline.local import servers
from pipeline.local.__main__ import DAG
from pipeline.local.airflow_api import AirflowError
from pipeline.registry import outcomes
from pipeline.registry.chain import Chain
from pipeline.registry.verify import verify
from tests.standing_night import APPROVER, ask_again, asked, clear_and_force, ended, live, path_of, standing

pytestmark = [pytest.mark.airflow, pytest.mark.soak, pytest.mark.timeout(3000)]


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """Airflow and the service on a repository whose stages take no time; returns settings and a log-in for each."""
    more = {"LOADMASTER_APPROVERS": APPROVER, "LOADMASTER_TWO_PERSONS": "yes"}
    with standing(tmp_path_factory.mktemp("roles"), more) as both:
        yield both


@pytest.fixture(scope="module")
def first_night(local):
    _settings, people = local
    return asked(people["adam"])


@pytest.fixture(scope="module")
def forged(local, first_night):
    """Everything that another account can do to a question that waits; returns the refusals by account, what became of
    the tasks, and what was live after it."""
    settings, people = local
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
    return refused, ended(people["adam"], first_night), live(settings)


@pytest.fixture(scope="module")
def approved(local, first_night, forged):
    """The approver is asked again and answers; returns the state of every task."""
    _settings, people = local
    ask_again(people[APPROVER], first_night)
    people[APPROVER].answer(DAG, first_night, "approve", -1, "Approve", "-1 is a fine comment")
    return ended(people["adam"], first_night)


def test_nobody_but_the_assigned_approver_can_answer_the_administrator_included(forged):
    refused, _, _ = forged
    assert refused.keys() == {"vera", "ursula", "olga", "adam"}
    assert all("403" in said for said in refused.values()), refused


def test_a_forged_xcom_and_a_task_set_to_success_promote_nothing(forged):
    _, tasks, was_live = forged
    assert tasks["approve"] == "success", "the forgery itself went through"
    assert tasks["promote"] == "failed"
    assert tasks["push"] == tasks["verify"] == "upstream_failed"
    assert was_live is None


def test_the_approvers_own_answer_promotes_and_the_record_says_who_when_and_about_what(local, first_night, approved):
    settings, _ = local
    assert approved["verify"] == "success", approved
    records = Chain.open().records
    assert [record.state for record in records[:2]] == ["approved", "live"]
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
    before = Chain.open().records
    first = before[0]
    clear_and_force(people["ursula"], first.run_id)
    ended(people["adam"], first.run_id)
    assert Chain.open().records == before

    second = asked(people["adam"])
    people[APPROVER].answer(DAG, second, "approve", -1, "Approve", "better still")
    assert ended(people["adam"], second)["verify"] == "success"
    outcomes.roll_back("functions", settings.service_url, approver="eve", reason="SLA alarms")
    assert live(settings) == first.digest

    clear_and_force(people["ursula"], second)
    assert ended(people["adam"], second)["promote"] == "failed"
    assert live(settings) == first.digest
    assert [record.state for record in Chain.open().records[len(before) :]] == ["approved", "live", "rolled_back"]
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
