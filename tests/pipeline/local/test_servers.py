"""Starting and stopping local servers: clear words for taken ports and dead children, and nothing left running."""

import os
import socket
import stat
import sys
import time
from pathlib import Path

import psutil
import pytest

from pipeline.local import servers
from wire.errors import ConfigError, LoadmasterError


@pytest.fixture
def settings(tmp_path):
    return servers.LocalSettings(repository=tmp_path, var=tmp_path / "var", service_port=18123, airflow_port=18124)


def test_a_taken_port_is_named_with_the_way_out():
    with socket.socket() as taken:
        taken.bind((servers.HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as caught:
            servers.require_free(port, "LOADMASTER_AIRFLOW_PORT")
    assert str(port) in str(caught.value)
    assert "LOADMASTER_AIRFLOW_PORT=<port>" in str(caught.value)


@pytest.mark.parametrize("text", ["http", "0", "70000", "-1", ""])
def test_a_port_that_is_none_is_refused(monkeypatch, tmp_path, text):
    monkeypatch.setenv("LOADMASTER_SERVICE_PORT", text)
    with pytest.raises(ConfigError, match="LOADMASTER_SERVICE_PORT"):
        servers.LocalSettings.from_environment(tmp_path, tmp_path)


def test_ports_follow_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("LOADMASTER_AIRFLOW_PORT", "9090")
    settings = servers.LocalSettings.from_environment(tmp_path, tmp_path)
    environment = servers.airflow_environment(settings)
    assert settings.service_port == 8100
    for name in ("AIRFLOW__API__BASE_URL", "AIRFLOW__CORE__EXECUTION_API_SERVER_URL"):
        assert ":9090" in environment[name], "tasks that call another port fail with an almost empty log"


def test_passwords_are_made_once_and_for_our_eyes_only(settings):
    first = servers.credentials(settings)
    assert first == servers.credentials(settings)
    assert set(first) == {"admin", "approver"}
    path = settings.var / "airflow" / "passwords.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(set(first.values())) == 2


def test_a_server_that_dies_while_starting_is_reported_with_its_log(tmp_path):
    log = tmp_path / "log"
    with (
        pytest.raises(LoadmasterError, match="exit code 3"),
        servers.server_process(
            "it",
            [sys.executable, "-c", "raise SystemExit(3)"],
            env={},
            log=log,
            ready=lambda: False,
            timeout_s=30,
        ),
    ):
        pass


def test_a_server_that_never_answers_is_given_up_and_stopped(tmp_path):
    command = [sys.executable, "-c", f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"]  # fmt: skip  # noqa: E501
    with (
        pytest.raises(LoadmasterError, match="not ready"),
        servers.server_process("it", command, env={}, log=tmp_path / "log", ready=lambda: False, timeout_s=2),
    ):
        pass
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_children_of_a_server_go_with_it(tmp_path):
    pid = tmp_path / "pid"
    program = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal, time;"
        " signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)'])\n"
        f"open({str(pid)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", program]
    with servers.server_process("it", command, env={}, log=tmp_path / "log", ready=pid.exists, timeout_s=30):
        while not pid.read_text():
            time.sleep(0.05)
        child = int(pid.read_text())
        assert psutil.pid_exists(child)
    deadline = time.monotonic() + 10
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the grandchild outlived its server"
        time.sleep(0.1)


def test_the_airflow_of_a_run_is_ours_alone(settings):
    environment = servers.airflow_environment(settings)
    assert environment["AIRFLOW__API__HOST"] == "127.0.0.1"
    assert environment["AIRFLOW__CORE__LOAD_EXAMPLES"] == "False"
    assert environment["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
