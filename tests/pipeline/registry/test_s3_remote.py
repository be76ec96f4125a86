"""A DVC remote in S3: promotions push to it, gc leaves what is needed, restore brings everything back from it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import RegistryError
from pipeline.registry import gc, places, restore
from pipeline.registry.chain import Chain
from pipeline.registry.verify import verify

botocore = pytest.importorskip("botocore.session", reason="the s3 extra is not installed: pip install -e '.[s3]'")
errors = pytest.importorskip("botocore.exceptions")
pytest.importorskip("dvc_s3", reason="the s3 extra is not installed: pip install -e '.[s3]'")

pytestmark = pytest.mark.s3


def server_program() -> Path:
    folder = os.environ.get("KUBE_ASSETS")
    unpack = Path(__file__).resolve().parents[4] / "shared" / "kube" / "unpack"
    if folder is None and unpack.exists():
        folder = subprocess.run([unpack], check=True, capture_output=True, text=True).stdout.strip()
    program = Path(folder, "versitygw") if folder else None
    if program is None or not program.exists():
        pytest.skip("no S3 server: set KUBE_ASSETS to a folder with versitygw")
    return program


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An S3 server of our own with one bucket; DVC finds it by the variables that every AWS tool reads."""
    folder, address = tmp_path / "s3", f"127.0.0.1:{free_port()}"
    folder.mkdir()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": "not-a-secret",
        "AWS_ENDPOINT_URL": f"http://{address}",
        "AWS_DEFAULT_REGION": "us-east-1",
        "NO_PROXY": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    command = [server_program(), "--access", "tester", "--secret", "not-a-secret", "--port", address, "posix", folder]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    client = botocore.get_session().create_client("s3")
    until = time.monotonic() + 60
    while True:
        try:
            client.create_bucket(Bucket="loadmaster")
            break
        except (errors.EndpointConnectionError, errors.ConnectionClosedError):
            assert server.poll() is None, "versitygw ended"
            assert time.monotonic() < until, "versitygw does not answer"
            time.sleep(0.1)
    yield "s3://loadmaster/dvc"
    server.kill()
    server.wait()


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def cached() -> set[str]:
    return {path.parent.name + path.name for path in (places.dvc_cache() / "files" / "md5").glob("??/*")}


def test_a_lost_var_comes_back_from_s3_and_gc_leaves_it_alone(
    bucket, home, tmp_path, night, service, live, dvc_in_process, monkeypatch
) -> None:
    remote = tmp_path / "registry.git"
    subprocess.run(["git", "init", "--quiet", "--bare", remote], check=True)
    monkeypatch.setenv("LOADMASTER_REGISTRY", str(remote))
    monkeypatch.setenv("LOADMASTER_DVC_REMOTE", bucket)
    live(night("one", seed=1), "one", service)
    assert verify()[1] == []
    stored = tree(tmp_path / "s3" / "loadmaster")
    assert stored, "nothing was pushed to S3"

    monkeypatch.setattr(gc, "BUSY_S", 0.0)
    said = gc.collect(gc.Policy(keep_runs=0, keep_days=0.0, remote=True), dry_run=False)
    assert any("nothing of s3://loadmaster/dvc" in line for line in said)
    assert tree(tmp_path / "s3" / "loadmaster") == stored
    assert verify()[1] == [], "everything that records name is still in the cache"

    records, kept, objects = Chain.open().records, tree(places.bundles()), cached()
    shutil.rmtree(home)
    restore.restore()
    assert Chain.open().records == records
    assert tree(places.bundles()) == kept
    assert cached() == objects
    assert verify()[1] == []


@pytest.mark.soak
def test_a_changed_object_in_s3_does_not_come_back_unnoticed(
    bucket, home, tmp_path, night, service, live, monkeypatch
) -> None:
    remote = tmp_path / "registry.git"
    subprocess.run(["git", "init", "--quiet", "--bare", remote], check=True)
    monkeypatch.setenv("LOADMASTER_REGISTRY", str(remote))
    monkeypatch.setenv("LOADMASTER_DVC_REMOTE", bucket)
    record = live(night("one", seed=1), "one", service)
    policy = (places.bundle(record.digest) / "policy.onnx").read_bytes()
    (held,) = [path for path in (tmp_path / "s3").rglob("*") if path.is_file() and path.read_bytes() == policy]
    held.write_bytes(policy[:-1] + b"X")
    shutil.rmtree(home)
    with pytest.raises(RegistryError, match="dvc fetch ended with"):
        restore.restore()
    assert not places.bundle(record.digest).exists()
