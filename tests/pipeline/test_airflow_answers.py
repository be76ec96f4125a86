"""The answer is asked of Airflow itself, by a process that may be lied to: whatever is not an answer is none."""

from __future__ import annotations

import http.server
import json
import threading

import pytest

from pipeline import airflow_answers, approval
from pipeline.errors import RegistryError
from wire.errors import ConfigError

RUN = "manual__2026-11-16T02:00:00+00:00"
ASKED = approval.Question(
    problem="functions", run_id=RUN, commit="c" * 40, digest="sha256:" + "d" * 64, report_sha256="e" * 64,
    outcome="pass", reason="better", subject="Promote?", body="the report",
)  # fmt: skip
BASE = "/api/v2/dags/nightly_retrain/dagRuns/manual__2026-11-16T02%3A00%3A00%2B00%3A00"


def detail(**changes):
    from datetime import UTC, datetime

    return {
        "response_received": True,
        "responded_at": datetime.now(UTC).isoformat(),
        "responded_by_user": {"id": "ada", "name": "Ada"},
        "chosen_options": ["Approve"],
        "params_input": {"comment": "fine"},
        "assigned_users": [{"id": "ada", "name": "Ada"}],
        "subject": ASKED.subject,
        "body": ASKED.body,
        "created_at": "2026-11-16T07:00:00Z",
    } | changes


@pytest.fixture
def airflow(monkeypatch):
    """A server that says what a test puts into it; returns (path -> (code, body), what was asked)."""
    answers, asked = {}, []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self._answer(b"")

        def do_POST(self):
            self._answer(self.rfile.read(int(self.headers["Content-Length"])))

        def _answer(self, body):
            asked.append((self.path, self.headers.get("Authorization"), body))
            code, content = answers.get(self.path, (404, {"detail": "Not Found"}))
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setenv(airflow_answers.URL_ENV, f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv(airflow_answers.TOKEN_ENV, "short-lived")
    monkeypatch.delenv(airflow_answers.LOGIN_ENV, raising=False)
    monkeypatch.delenv(approval.TWO_PERSONS_ENV, raising=False)
    monkeypatch.setenv(approval.APPROVERS_ENV, "ada,bob")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield answers, asked
    server.shutdown()
    server.server_close()


HITL = f"{BASE}/taskInstances/approve/-1/hitlDetails"


def response():
    return airflow_answers.response(ASKED, "nightly_retrain", "approve")


def test_the_answer_is_read_with_a_viewers_token_from_the_run_it_belongs_to(airflow):
    answers, asked = airflow
    answers[HITL] = (200, detail())
    said = response()
    assert (said.approved, said.answer.person_id, said.comment) == (True, "ada", "fine")
    assert asked == [(HITL, "Bearer short-lived", b"")]
    assert said.answer.id.startswith("airflow/nightly_retrain/manual__2026-11-16T02%3A00%3A00%2B00%3A00/approve/")


def test_a_task_that_never_asked_has_no_answer(airflow):
    assert response() is None


@pytest.mark.parametrize("code", [401, 403, 500, 503])
def test_an_airflow_that_does_not_say_is_not_taken_for_an_answer(airflow, code):
    airflow[0][HITL] = (code, {"detail": "no"})
    with pytest.raises(RegistryError, match=f"Airflow answered {code}"):
        response()


@pytest.mark.parametrize("content", [b"<html>", b"", b"[]", b'"Approve"', b"true", b"\xff"])
def test_something_else_than_airflow_is_not_taken_for_an_answer(airflow, content):
    airflow[0][HITL] = (200, content)
    with pytest.raises(RegistryError, match=r"cannot be asked|an object"):
        response()


def test_an_airflow_that_is_not_there_is_told(airflow, monkeypatch):
    monkeypatch.setenv(airflow_answers.URL_ENV, "http://127.0.0.1:9")
    with pytest.raises(RegistryError, match="cannot be asked"):
        response()


@pytest.mark.parametrize("url", ["", "file:///etc/passwd", "ftp://127.0.0.1"])
def test_only_http_is_asked(airflow, monkeypatch, url):
    monkeypatch.setenv(airflow_answers.URL_ENV, url)
    with pytest.raises(ConfigError, match="http"):
        response()


def test_two_persons_are_told_apart_by_airflows_word_on_who_started_the_run(airflow, monkeypatch):
    answers, _ = airflow
    monkeypatch.setenv(approval.TWO_PERSONS_ENV, "yes")
    answers[HITL] = (200, detail())
    answers[BASE] = (200, {"triggering_user_name": "bob"})
    assert response().approved
    answers[BASE] = (200, {"triggering_user_name": None})
    assert response().approved, "the schedule is nobody"
    answers[BASE] = (200, {"triggering_user_name": "ada"})
    with pytest.raises(RegistryError, match="'ada' started this run"):
        response()
    answers[BASE] = (403, {})
    with pytest.raises(RegistryError, match="Airflow answered 403"):
        response()


def test_a_signer_of_its_own_logs_in_for_itself(airflow, monkeypatch, tmp_path):
    answers, asked = airflow
    monkeypatch.delenv(airflow_answers.TOKEN_ENV)
    with pytest.raises(ConfigError, match="the means to ask"):
        response()
    login = tmp_path / "login.json"
    monkeypatch.setenv(airflow_answers.LOGIN_ENV, str(login))
    for wrong in ("", "[]", '{"username": "x"}'):
        login.write_text(wrong)
        with pytest.raises(ConfigError, match="username and password"):
            response()
    login.write_text('{"username": "reader", "password": "pw"}')
    answers["/auth/token"] = (201, {"access_token": "mine"})
    answers[HITL] = (200, detail())
    assert response().approved
    assert [path for path, _, _ in asked] == ["/auth/token", HITL]
    assert json.loads(asked[0][2]) == {"username": "reader", "password": "pw"}
    assert asked[1][1] == "Bearer mine"
