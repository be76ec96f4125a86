"""Settings from a file, checked without a start; and a stop that loses nobody."""

from __future__ import annotations

import http.client
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from placement import check_config
from placement.audit import AuditLine, AuditLog
from placement.request_ids import JsonLines, current
from placement.settings import load
from wire.errors import ConfigError

CLIENTS = 4


def test_settings_come_from_a_file_and_the_environment_goes_before_it(tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    file.write_text("deadline_ms: 40\nlog_files: 3\nstore_dir: /srv/store\nfallbacks: {vm: first_fit}\n")
    environ = {"LOADMASTER_CONFIG_FILE": str(file), "LOADMASTER_LOG_FILES": "7", "LOADMASTER_VAR": str(tmp_path)}
    found = load(environ)
    assert (found.deadline_ms, found.log_files, found.store_dir) == (40.0, 7, Path("/srv/store"))
    assert found.fallback("vm") == "first_fit"
    assert found.log_dir.is_relative_to(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("deadline: 40", "sets deadline; expected one of"),
        ("deadline_ms: -1", "deadline_ms"),
        ("deadline_ms: [1]", "deadline_ms"),
        ("- 1", "holds a list"),
        ("a: [", "a readable YAML file"),
        ("prometheus_url: ftp://x", "expected http"),
        ("freeze: tomorrow", "RFC 3339"),
        ("fallbacks: 3", "problem: heuristic"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "service.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load({"LOADMASTER_CONFIG_FILE": str(file)})
    with pytest.raises(ConfigError, match="a readable YAML file"):
        load({"LOADMASTER_CONFIG_FILE": str(tmp_path / "gone.yaml")})


def test_check_config_shows_what_would_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path))
    monkeypatch.setenv("LOADMASTER_DEADLINE_MS", "40")
    assert check_config.main([]) == 0
    shown = capsys.readouterr().out
    assert "deadline_ms: 40.0  (set)" in shown
    assert "clusters: none" in shown
    monkeypatch.setenv("LOADMASTER_FALLBACK_VM", "magic")
    with pytest.raises(ConfigError, match="magic"):
        check_config.main([])


def test_every_answer_carries_the_id_of_its_request(shared_live: Any, kit: Any) -> None:
    assert shared_live.get("/healthz", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    made = {shared_live.get("/healthz", headers=sent).headers["x-request-id"] for sent in ({}, {"X-Request-Id": "a b"})}
    assert len(made) == 2
    assert all(len(one) == 16 for one in made)
    assert kit.place(shared_live, {"problem": "ships"}).headers["x-request-id"]


def test_a_line_of_the_log_is_one_json_object_with_the_request(settings: Any) -> None:
    record = logging.LogRecord("placement", logging.WARNING, "x.py", 1, "found %s\nand more", ("it",), None)
    token = current.set("abc-1")
    line = json.loads(JsonLines().format(record))
    assert (line["level"], line["message"], line["request"]) == ("warning", "found it\nand more", "abc-1")
    audit = AuditLog(settings)
    audit.write(AuditLine("rollback", "functions", "127.0.0.1", "ada", "done", None, 2))
    audit.close()
    current.reset(token)
    assert json.loads((settings.log_dir / "audit.jsonl").read_text())["request"] == "abc-1"


def test_sigterm_under_load_loses_no_request(settings: Any, kit: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = os.environ | {
        "LOADMASTER_VAR": str(settings.store_dir.parent),
        "LOADMASTER_DRAIN_S": "3",
        "LOADMASTER_PUSH_TOKEN_FILE": str(settings.push_token_file),
    }
    command = [sys.executable, "-m", "placement", "--port", str(port), "--log-level", "warning"]
    lost: list[str] = []
    answered = [0, 0]
    """Before the signal, and after it."""
    told = threading.Event()
    unready: list[int] = []
    leaving: list[int] = []

    def ask() -> None:
        body = json.dumps(kit.body(30)).encode()
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        while True:
            try:
                if client.sock is None:
                    client.connect()
            except OSError:
                return  # nobody listens any more: nothing was sent, nothing is lost
            try:
                client.request("POST", "/v1/place", body)
                answer = client.getresponse()
                answer.read()
                if answer.status != 200:
                    lost.append(f"status {answer.status}")
                answered[told.is_set()] += 1
                if answer.getheader("connection") == "close":
                    leaving.append(answered[1])
                    if len(leaving) > 3 * CLIENTS:
                        return  # told to leave, now and again: a balancer has taken the replica out by then
            except (OSError, http.client.HTTPException) as error:
                lost.append(repr(error))
                return

    with subprocess.Popen(command, env=environ) as service:
        try:
            for _ in range(1200):
                try:
                    http.client.HTTPConnection("127.0.0.1", port, timeout=5).connect()
                    break
                except OSError:
                    assert service.poll() is None
                    time.sleep(0.1)
            asking = [threading.Thread(target=ask) for _ in range(CLIENTS)]
            for thread in asking:
                thread.start()
            while answered[0] < 40:
                time.sleep(0.02)
            service.send_signal(signal.SIGTERM)
            told.set()
            while answered[1] < 4:
                time.sleep(0.02)
            probe = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            probe.request("GET", "/readyz")
            unready.append(probe.getresponse().status)
            for thread in asking:
                thread.join(timeout=60)
            service.wait(timeout=60)
        finally:
            service.kill()
    assert lost == []
    assert unready == [503]
    assert answered[1] >= CLIENTS, "those on their way are still answered"
    assert leaving, "everybody was told to go elsewhere"
    assert service.returncode in {0, -signal.SIGTERM}
