"""Real servers that tests of several packages start: where their programs are, a free port, and an S3 store."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

S3_KEYS = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "not-a-secret", "AWS_DEFAULT_REGION": "us-east-1"}


def program(name: str) -> Path:
    """Return a program of the test cluster (kube-apiserver, etcd, kwok, versitygw …); skip with a reason without it."""
    folder = os.environ.get("KUBE_ASSETS")
    unpack = Path(__file__).resolve().parents[2] / "shared" / "kube" / "unpack"
    if not folder and unpack.exists():
        folder = subprocess.check_output([unpack], text=True).strip()
    folder = folder or os.environ.get("KUBEBUILDER_ASSETS")
    if not folder or not Path(folder, name).exists():
        pytest.skip(f"no {name}: set KUBE_ASSETS or KUBEBUILDER_ASSETS to a folder that holds it")
    return Path(folder, name)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def wait_for(port: int, process: subprocess.Popen[bytes], seconds: float = 60) -> None:
    """Wait until something listens; say so when the process ended instead."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert process.poll() is None, f"{process.args!r} ended with {process.returncode}"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"{process.args!r} does not listen on {port}")


@contextmanager
def postgres(folder: Path, database: str) -> Iterator[str]:
    """Run PostgreSQL as `nobody` (it refuses root); gives ``user:password@host:port/database``."""
    folders = [Path(found).resolve().parent] if (found := shutil.which("initdb")) else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    tools = next(
        (one for one in folders if all((one / name).exists() for name in ("initdb", "pg_ctl", "createdb"))), None
    )
    if tools is None:
        pytest.skip("no PostgreSQL: apt-get install postgresql, or put initdb and pg_ctl on the PATH")
    folder.mkdir(parents=True)
    _open_the_way(folder)
    password = folder / "password"
    password.write_text("not-a-secret")
    other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.getuid() == 0 else []
    if other:
        for path in (folder, password):
            os.chown(path, 65534, 65534)
    port, data = free_port(), folder / "data"

    def run(*command: str | Path) -> None:
        subprocess.run([*other, *command], check=True, capture_output=True, cwd="/", timeout=120)

    run(tools / "initdb", "-D", data, "-U", "lm", "-A", "scram-sha-256", f"--pwfile={password}", "-E", "UTF8",
        "--locale=C", "-N")  # fmt: skip
    options = f"-c listen_addresses=127.0.0.1 -p {port} -c unix_socket_directories={folder} -c fsync=off"
    start = [*other, tools / "pg_ctl", "-D", data, "-w", "-o", options, "-l", folder / "log", "start"]
    subprocess.run(start, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", timeout=120)
    try:
        environment = {**os.environ, "PGPASSWORD": "not-a-secret"}
        made = [tools / "createdb", "-h", "127.0.0.1", "-p", str(port), "-U", "lm", database]
        subprocess.run(made, check=True, capture_output=True, env=environment, timeout=60)
        yield f"lm:not-a-secret@127.0.0.1:{port}/{database}"
    finally:
        _open_the_way(folder)  # any other pytest that starts closes /tmp/pytest-of-USER again
        run(tools / "pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")


def _open_the_way(folder: Path) -> None:
    """Let other users pass through the folders above."""
    for above in (folder, *folder.parents):
        if above.stat().st_uid == os.getuid() and above != Path("/"):
            above.chmod(above.stat().st_mode | 0o011)


class S3Server:
    """A real S3 server over a folder, with one bucket."""

    def __init__(self, folder: Path, bucket: str) -> None:
        (folder / bucket).mkdir(parents=True)
        self.folder, self.bucket, self.port = folder, bucket, free_port()
        self.start()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that every AWS tool reads."""
        return {**S3_KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}", "NO_PROXY": "127.0.0.1"}

    def start(self) -> None:
        keys = ["--access", S3_KEYS["AWS_ACCESS_KEY_ID"], "--secret", S3_KEYS["AWS_SECRET_ACCESS_KEY"]]
        command = [program("versitygw"), *keys, "--port", f"127.0.0.1:{self.port}", "posix", self.folder]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(self.port, self.process)

    def stop(self) -> None:
        """End it, also while it is frozen."""
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait(10)


@contextmanager
def s3_server(folder: Path, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """Run an S3 server; this process, and what it starts, finds it by the environment."""
    server = S3Server(folder, bucket)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    try:
        yield server
    finally:
        server.stop()
