"""Going back by an answer that Airflow keeps: to the version that was asked about, once, and by nobody else."""

import json

import pytest

from pipeline import airflow_answers, rollback
from pipeline.approval import Response
from pipeline.registry.chain import Chain
from wire.contracts.record import Answer
from wire.errors import LoadmasterError

RUN = "manual__back"
ASKED = {"dag": "rollback", "task": "approve", "to": "", "reason": "slow since noon"}


@pytest.fixture
def went_back_once(history, service):
    """The first policy is live again, after the second; the service agrees."""
    chain = Chain.open()
    live, other = rollback.versions(chain, "functions")
    service.policies["functions"] = {"digest": live.digest, "counter": 3, "previous_digest": other.digest,
                                     "loaded_at": "2026-11-16T09:00:00+00:00"}  # fmt: skip
    return live, other


def answer(monkeypatch, digest, *, approved=True, person="ada", given="2026-11-16T10:00:00+00:00"):
    """Let Airflow say this."""
    said = Answer(id=f"airflow/rollback/{RUN}/approve/{given}/{person}", source="airflow", person_id=person,
                  person_name=person, answered_at=given, asked_at=given, digest=digest, report_sha256=None)  # fmt: skip
    asked = []

    def response(question, dag, task):
        asked.append(question)
        return Response(approved=approved, answer=said if approved else None, comment="as agreed")

    monkeypatch.setattr(airflow_answers, "response", response)
    return asked


def test_an_approved_rollback_flips_the_service_and_keeps_whose_decision_it_was(went_back_once, service, monkeypatch):
    _live, other = went_back_once
    asked = answer(monkeypatch, other.digest)
    done = rollback.flip("functions", RUN, url=service.url, **ASKED)
    assert asked[0].digest == other.digest
    assert service.policies["functions"]["digest"] == other.digest
    assert (done.state, done.approver, done.reason, done.answer.source) == (
        "rolled_back",
        "ada",
        "as agreed",
        "airflow",
    )
    assert Chain.open().live_digest("functions") == other.digest
    # A task that is retried, or cleared, finds what was done and flips nothing a second time.
    again = rollback.flip("functions", RUN, url=service.url, **ASKED)
    assert again.sequence == done.sequence
    assert service.policies["functions"]["digest"] == other.digest


def test_nobody_answering_or_a_rejection_changes_nothing(went_back_once, service, monkeypatch):
    live, other = went_back_once
    answer(monkeypatch, other.digest, approved=False)
    with pytest.raises(LoadmasterError, match="nobody approved rollback/approve"):
        rollback.flip("functions", RUN, url=service.url, **ASKED)
    assert service.policies["functions"]["digest"] == live.digest


def test_the_question_names_both_versions_and_the_reason_as_plain_words(went_back_once):
    live, other = went_back_once
    asked = rollback.question("functions", RUN, reason="see [here](http://evil) | now")
    assert asked.subject == f"Roll functions back to {other.digest[:19]}?"
    assert live.digest in asked.body
    assert other.digest in asked.body
    assert "see \\[here\\](http:" in asked.body
    assert "(http://" not in asked.body, "no link that a tired person could follow"
    assert asked == rollback.question("functions", RUN, reason="see [here](http://evil) | now")


def test_a_version_that_was_never_live_cannot_be_chosen(went_back_once, monkeypatch, capsys):
    monkeypatch.setenv("LOADMASTER_APPROVERS", "ada")
    with pytest.raises(LoadmasterError, match="0 earlier versions of functions begin with 'ffff'"):
        rollback.question("functions", RUN, to="ffff")
    with pytest.raises(LoadmasterError, match="vm has no earlier version"):
        rollback.question("vm", RUN)
    assert rollback.main(["versions"]) == 0
    assert capsys.readouterr().out.count("functions") == 2
    assert rollback.main(["question", "--problem", "functions", "--run-id", RUN]) == 0
    assert json.loads(capsys.readouterr().out)["outcome"] == "rollback"
