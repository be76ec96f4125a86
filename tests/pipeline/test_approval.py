"""What counts as an answer: an approver's own Approve to this very question, and nothing else."""

from datetime import UTC, datetime, timedelta

import pytest

from pipeline import approval
from pipeline.errors import RegistryError
from pipeline.registry import terminal
from wire.errors import ConfigError

NOW = datetime(2026, 11, 16, 8, 0, tzinfo=UTC)
ASKED = approval.Question(
    problem="functions",
    run_id="one",
    commit="c" * 40,
    digest="sha256:" + "d" * 64,
    report_sha256="e" * 64,
    outcome="pass",
    reason="better",
    subject="Promote?",
    body="the report",
)
ALICE = {"id": "alice", "name": "Alice"}


def detail(**changes):
    """As Airflow 3.3 keeps the Approve of an approver who was asked."""
    return {
        "response_received": True,
        "responded_at": "2026-11-16T07:59:00.123456Z",
        "responded_by_user": ALICE,
        "chosen_options": ["Approve"],
        "params_input": {"comment": "looks good"},
        "assigned_users": [ALICE],
        "subject": ASKED.subject,
        "body": ASKED.body,
        "created_at": "2026-11-16T07:00:00Z",
    } | changes


def read(document, **more):
    return approval.read(document, ASKED, where="d/one/approve", allowed=("alice", "bob"), at=NOW, **more)


def test_an_approvers_approve_is_taken_with_their_words_and_what_it_was_about():
    said = read(detail())
    assert (said.approved, said.comment) == (True, "looks good")
    assert (said.answer.person_id, said.answer.person_name, said.answer.source) == ("alice", "Alice", "airflow")
    assert (said.answer.digest, said.answer.report_sha256) == (ASKED.digest, ASKED.report_sha256)
    assert said.answer.answered_at == "2026-11-16T07:59:00.123456+00:00"
    assert said.answer.id == "airflow/d/one/approve/2026-11-16T07:59:00.123456+00:00/alice"


def test_while_nobody_has_answered_there_is_no_answer_whatever_the_task_says():
    # What an XCom and a task set to success leave behind: the detail stays as it was.
    unanswered = detail(
        response_received=False, responded_at=None, responded_by_user=None, chosen_options=None, params_input={}
    )
    assert read(unanswered) is None
    assert read({}) is None


def test_a_time_out_is_nobodys_answer():
    said = read(detail(responded_by_user=None, chosen_options=["Approve"], params_input={}))
    assert said == approval.Response(approved=False, answer=None, comment="nobody answered in time")


def test_a_rejection_names_who_said_no():
    said = read(detail(chosen_options=["Reject"], params_input={"comment": "-1, not on a Friday"}))
    assert (said.approved, said.answer.person_id, said.comment) == (False, "alice", "-1, not on a Friday")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"responded_by_user": {"id": "mallory", "name": "Alice"}}, "'mallory' is none of the approvers"),
        ({"responded_by_user": {"id": "", "name": "Alice"}}, "'' is none of the approvers"),
        ({"responded_by_user": {"id": "alice", "name": "\x1b[2K\r"}}, "cannot be read as a name"),
        ({"responded_by_user": {"id": "alice", "name": "ali\u202ece"}}, "cannot be read as a name"),
        ({"responded_by_user": {"id": "alice", "name": "a" * 1000}}, "cannot be read as a name"),
        ({"assigned_users": []}, "put to everybody"),
        ({"body": "another report"}, "another question"),
        ({"subject": "Promote nothing?"}, "another question"),
        ({"chosen_options": ["Approve", "Reject"]}, "neither Approve nor Reject"),
        ({"chosen_options": []}, "neither Approve nor Reject"),
        ({"chosen_options": ["approve"]}, "neither Approve nor Reject"),
        ({"responded_at": "2026-11-15T07:59:00Z"}, "not within the last"),
        ({"responded_at": "2026-11-17T07:59:00Z"}, "not within the last"),
        ({"responded_at": "2026-11-16T07:59:00"}, "not within the last"),
        ({"responded_at": None}, "not within the last"),
    ],
)
def test_any_other_answer_does_not_count_and_says_why(changes, why):
    with pytest.raises(RegistryError, match=f"does not count: .*{why}"):
        read(detail(**changes))


def test_with_two_persons_whoever_started_the_run_may_not_approve_it():
    assert read(detail(), not_by="bob").approved
    with pytest.raises(RegistryError, match="'alice' started this run"):
        read(detail(), not_by="alice")


def test_naming_no_approvers_lets_nobody_approve():
    with pytest.raises(RegistryError, match=f"nobody: set {approval.APPROVERS_ENV}"):
        approval.read(detail(), ASKED, where="", allowed=(), at=NOW)


def test_approvers_and_the_two_person_rule_come_from_the_environment(monkeypatch):
    monkeypatch.delenv(approval.APPROVERS_ENV, raising=False)
    monkeypatch.delenv(approval.TWO_PERSONS_ENV, raising=False)
    assert (approval.approvers(), approval.two_persons()) == ((), False)
    monkeypatch.setenv(approval.APPROVERS_ENV, " alice, bob ,,")
    monkeypatch.setenv(approval.TWO_PERSONS_ENV, "yes")
    assert (approval.approvers(), approval.two_persons()) == (("alice", "bob"), True)
    monkeypatch.setenv(approval.TWO_PERSONS_ENV, "true")
    with pytest.raises(ConfigError, match="yes or no"):
        approval.two_persons()


@pytest.mark.parametrize("name", ["", "  ", "\x00", "\n", "a\tb", "\u200b", "\x1b[31m", "a" * 201])
def test_a_name_typed_at_a_terminal_must_be_one(name):
    with pytest.raises(RegistryError, match=r"nobody approved|cannot be read as a name"):
        terminal.typed(name, digest="sha256:0", report_sha256=None)


def test_each_line_typed_at_a_terminal_is_an_answer_of_its_own():
    one, two = (terminal.typed("ada", digest="sha256:0", report_sha256=None) for _ in range(2))
    assert one.source == two.source == "terminal"
    assert one.id != two.id
    assert datetime.now(UTC) - datetime.fromisoformat(one.answered_at) < timedelta(minutes=1)
