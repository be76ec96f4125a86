"""Starts the placement service and Airflow as child processes and takes them down again."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import requests

from wire.errors import ConfigError, LoadmasterError

HOST = "127.0.0.1"
APPROVER = "approver"
"""The one user of the local Airflow who may approve."""

STOP_SECONDS = 8.0
"""How long a server may take to end by itself; Airflow's children need a few seconds, a waiting task ignores TERM."""


class LocalSettings(msgspec.Struct, frozen=True):
    """Where the local servers listen and keep their state; every field can be set by environment."""

    repository: Path
    var: Path
    service_port: int = 8100
    airflow_port: int = 8080
    accounts: dict[str, str] = msgspec.field(default_factory=lambda: {"admin": "admin", APPROVER: "op"})
    """Users of the local Airflow -> their roles."""

    @classmethod
    def from_environment(cls, repository: Path, var: Path) -> LocalSettings:
        """Read ``LOADMASTER_SERVICE_PORT`` and ``LOADMASTER_AIRFLOW_PORT``."""
        ports: dict[str, Any] = {}
        for name, variable in (
            ("service_port", "LOADMASTER_SERVICE_PORT"),
            ("airflow_port", "LOADMASTER_AIRFLOW_PORT"),
        ):
            text = os.environ.get(variable)
            if text is None:
                continue
            if not text.isdigit() or not 0 < int(text) < 65536:
                raise ConfigError(f"{variable} is {text!r}", "a port from 1 to 65535")
            ports[name] = int(text)
        return cls(repository=repository, var=var, **ports)

    @property
    def service_url(self) -> str:
        """Base address of the placement service."""
        return f"http://{HOST}:{self.service_port}"

    @property
    def airflow_url(self) -> str:
        """Base address of Airflow's UI and API."""
        return f"http://{HOST}:{self.airflow_port}"


def require_free(port: int, variable: str) -> None:
    """Raise when somebody listens on the port already; a clear word now beats a server that dies later."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ConfigError(
                f"port {port} on {HOST} is taken", "a free port", f"stop what listens there, or set {variable}=<port>"
            ) from error


def credentials(settings: LocalSettings) -> dict[str, str]:
    """Users of the local Airflow and their passwords, made on first use."""
    path = settings.var / "airflow" / "passwords.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".tmp")
        unfinished.touch(mode=0o600)
        unfinished.write_text(json.dumps({user: secrets.token_urlsafe(9) for user in settings.accounts}))
        unfinished.rename(path)
    passwords: dict[str, str] = json.loads(path.read_text())
    return passwords


def airflow_environment(settings: LocalSettings) -> dict[str, str]:
    """Settings of a small Airflow: SQLite, LocalExecutor, four workers, loopback only, our DAGs only."""
    home = settings.var / "airflow"
    port = settings.airflow_port
    secret = home / "jwt-secret"
    if not secret.exists():
        home.mkdir(parents=True, exist_ok=True)
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_urlsafe(32))
    credentials(settings)
    return {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(settings.repository / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "4",  # the default 32 forks 32 workers and takes gigabytes
        # All three follow the port, or every task fails to reach the execution API.
        "AIRFLOW__API__HOST": HOST,
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": settings.airflow_url,
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{settings.airflow_url}/execution/",
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API_AUTH__JWT_SECRET": secret.read_text(),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(
            f"{name}:{role}" for name, role in settings.accounts.items()
        ),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        # Nobody edits these DAGs while they run, and reading all of them every 30 s (the default) takes its share.
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",
        # A night is some twenty tasks one after another: with the default of 1 s half a minute of it is nobody working.
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
        # Tasks that the API server's start overtook are told to wait, not to fail.
        "AIRFLOW__WORKERS__EXECUTION_API_RETRIES": "12",
        # Tasks call git.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "LOADMASTER_REPO": str(settings.repository),
        "LOADMASTER_APPROVERS": APPROVER,
        "LOADMASTER_VAR": str(settings.var),
        "LOADMASTER_SERVICE_URL": settings.service_url,
        # Nobody asks the local service for placements, so there is nothing that a canary could answer a share of.
        "LOADMASTER_ROLLOUT": "at once",
        # Training uses one thread a process: results do not depend on the number of cores.
        "OMP_NUM_THREADS": "1",
        "NO_PROXY": f"{HOST},localhost",
        "ORT_DISABLE_TELEMETRY": "1",
    }


@contextlib.contextmanager
def server_process(
    name: str, command: list[str], *, env: dict[str, str], log: Path, ready: Callable[[], bool], timeout_s: float
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server in its own process group until the block ends; entering waits until it is ready.

    Args:
        name: What people call it, for messages.
        command: Program and arguments.
        env: Added to our own environment.
        log: File for its output.
        ready: Asked until it says True.
        timeout_s: How long to wait for that.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, env={**os.environ, **env}, stdout=output, stderr=output, start_new_session=True
        )
    try:
        _wait_ready(name, process, log=log, ready=ready, timeout_s=timeout_s)
        yield process
    finally:
        _stop(process)


def _wait_ready(
    name: str, process: subprocess.Popen[bytes], *, log: Path, ready: Callable[[], bool], timeout_s: float
) -> None:
    deadline = time.monotonic() + timeout_s
    while not ready():
        if process.poll() is not None:
            raise LoadmasterError(f"{name} ended with exit code {process.returncode} while starting", fix=f"see {log}")
        if time.monotonic() > deadline:
            raise LoadmasterError(f"{name} was not ready after {timeout_s:.0f} s", fix=f"see {log}")
        time.sleep(0.3)


def _stop(process: subprocess.Popen[bytes]) -> None:
    for signal_number, patience in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal_number)
        try:
            process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            continue
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # children that outlived their parent


def stop_on_terminate() -> None:
    """Let SIGTERM end the program like Ctrl-C, so that the servers are taken down too.

    SIGINT is named as well: what a shell has started in the background is told to ignore it.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, interrupt)


def _healthy(url: str, check: Callable[[requests.Response], bool]) -> bool:
    try:
        return check(requests.get(url, timeout=2))
    except requests.RequestException:
        return False


def placement_service(settings: LocalSettings) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """Run the placement service."""
    require_free(settings.service_port, "LOADMASTER_SERVICE_PORT")
    return server_process(
        "the placement service",
        [sys.executable, "-m", "placement", "--host", HOST, "--port", str(settings.service_port)],
        env={"LOADMASTER_VAR": str(settings.var)},
        log=settings.var / "log" / "placement.log",
        ready=lambda: _healthy(f"{settings.service_url}/healthz", lambda answer: answer.ok),
        timeout_s=60,
    )


@contextlib.contextmanager
def airflow(settings: LocalSettings) -> Iterator[None]:
    """Run Airflow: API server first, then scheduler and DAG processor; approvals need no triggerer.

    Not ``airflow standalone``: its log servers listen on every address of the machine, and there is no setting against
    that. Logs are files of this machine, which the API server reads by itself.
    """
    require_free(settings.airflow_port, "LOADMASTER_AIRFLOW_PORT")
    env, log = airflow_environment(settings), settings.var / "log" / "airflow.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        migrate = [sys.executable, "-m", "airflow", "db", "migrate"]
        done = subprocess.run(migrate, env={**os.environ, **env}, stdout=output, stderr=output, check=False)
    if done.returncode:
        raise LoadmasterError(f"airflow db migrate ended with exit code {done.returncode}", fix=f"see {log}")

    def healthy(*parts: str) -> Callable[[], bool]:
        def check(answer: requests.Response) -> bool:
            said = answer.json() if answer.ok else {}
            return answer.ok and all(said.get(part, {}).get("status") == "healthy" for part in parts)

        return lambda: _healthy(f"{settings.airflow_url}/api/v2/monitor/health", check)

    with contextlib.ExitStack() as stack:
        # A scheduler that is there first starts tasks which then find no API server, and fail. The other two start side
        # by side.
        for command, ready in (
            (["api-server"], healthy()),
            (["dag-processor"], lambda: True),
            (["scheduler", "--skip-serve-logs"], healthy("scheduler", "dag_processor")),
        ):
            start = server_process(
                f"Airflow's {command[0]}",
                [sys.executable, "-m", "airflow", *command],
                env=env,
                log=log,
                ready=ready,
                timeout_s=300,
            )
            stack.enter_context(start)
        yield
