"""A DVC remote in S3: promotions push to it, gc leaves what is needed, restore brings everything back from it."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import RegistryError
from pipeline.registry import dvc_objects, gc, places, restore
from pipeline.registry.chain import Chain
from pipeline.registry.dvc_objects import Output
from pipeline.registry.verify import verify
from tests.servers import s3_server

pytest.importorskip("dvc_s3", reason="the s3 extra is not installed: pip install -e '.[s3]'")

pytestmark = pytest.mark.s3


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An S3 server of our own with one bucket; DVC finds it by the variables that every AWS tool reads."""
    with s3_server(tmp_path / "s3", "loadmaster", monkeypatch):
        yield "s3://loadmaster/dvc"


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


def test_what_is_only_in_s3_is_looked_for_there(bucket, home, tmp_path, monkeypatch) -> None:
    # Pods push what they make: Airflow's machine never had it.
    monkeypatch.setenv("LOADMASTER_DVC_REMOTE", bucket)
    store = tmp_path / "s3" / "loadmaster" / "dvc"

    def put(data: bytes, suffix: str = "") -> str:
        md5 = hashlib.md5(data, usedforsecurity=False).hexdigest() + suffix
        path = dvc_objects.object_path(store, md5)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return md5

    rows = put(b"rows")
    raw = Output("data/raw", put(json.dumps([{"md5": rows, "relpath": "rows"}]).encode(), ".dir"))
    assert list(dvc_objects.faults(raw, needed_by="run one")) == []
    dvc_objects.object_path(store, rows).unlink()
    (finding,) = dvc_objects.faults(raw, needed_by="run one")
    assert finding.reason.endswith("1 files of data/raw are not in the DVC remote, rows the first, needed by run one")
