"""What may go goes, what is needed stays; and what was lost comes back, bit for bit."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from pipeline import promote
from pipeline.errors import RegistryError
from pipeline.registry import bundles, gc, outcomes, places, restore, runs, signing
from pipeline.registry.chain import Chain, sync
from pipeline.registry.git import Repository
from pipeline.registry.verify import verify

pytestmark = pytest.mark.usefixtures("dvc_in_process")


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def objects(store: Path) -> set[str]:
    return {path.parent.name + path.name for path in (store / "files" / "md5").glob("??/*")}


def test_gc_removes_unnamed_runs_and_their_data_and_nothing_that_a_record_names(history, night, monkeypatch) -> None:
    cache, remote = places.dvc_cache(), history / "remotes" / "dvc"
    before = objects(cache)
    clone = night("nobody-cares", seed=77)
    runs.record_run(clone, "nobody-cares")
    (places.bundles() / ("0" * 64)).mkdir()
    log = history / "var" / "airflow" / "logs" / "task.log"
    log.parent.mkdir(parents=True)
    log.write_text("old")
    extra = objects(cache) - before
    assert extra

    everything = gc.Policy(keep_runs=0, keep_days=0.0, remote=True)
    young = gc.collect(gc.Policy(), dry_run=False)
    assert young in ([], ["nothing of the DVC cache: a run is under way"])
    monkeypatch.setattr(gc, "BUSY_S", 0.0)
    would = gc.collect(everything, dry_run=True)
    assert "branch runs/nobody-cares" in would
    assert objects(cache) == before | extra
    removed = gc.collect(everything, dry_run=False)
    assert set(removed) >= {"branch runs/nobody-cares", f"bundle {'0' * 64}", "log airflow/logs/task.log"}
    assert not objects(cache) & extra
    assert not objects(remote) & extra
    assert verify()[1] == [], "everything that records name is still there"
    assert not clone.exists()
    assert gc.collect(everything, dry_run=False) == []


def test_gc_keeps_its_hands_off_the_cache_while_a_run_is_under_way(history) -> None:
    workspace = history / "var" / "runs" / "now"
    workspace.mkdir(parents=True)
    stray = places.dvc_cache() / "files" / "md5" / "ab" / "c"
    stray.parent.mkdir(parents=True, exist_ok=True)
    stray.write_bytes(b"used by a stage that has not ended")
    os.utime(stray, (0, 0))
    assert gc.collect(gc.Policy(), dry_run=False) == ["nothing of the DVC cache: a run is under way"]
    os.utime(workspace, (0, 0))
    for other in workspace.parent.iterdir():
        shutil.rmtree(other)
    assert gc.collect(gc.Policy(), dry_run=False) == ["1 DVC objects, 34 bytes"]


def test_a_lost_var_comes_back_bit_for_bit(history) -> None:
    service_store = pytest.importorskip("placement.store")
    chain = Chain.open()
    flips = [record for record in chain.records if record.state in ("live", "rolled_back")]
    store = service_store.FolderStore(places.store(), keep_bundles=10)
    pointer = None
    for flip in flips:
        directory = places.bundle(flip.digest)
        store.save("functions", flip.digest, {path.name: path.read_bytes() for path in directory.iterdir()})
        new = service_store.Pointer(
            digest=flip.digest, counter=flip.counter, previous_digest=flip.previous_digest, loaded_at=flip.loaded_at
        )
        store.flip("functions", new, pointer)
        pointer = new
    store.close()
    records, cached, kept = chain.records, objects(places.dvc_cache()), tree(places.bundles())
    stored = {path: data for path, data in tree(places.store()).items() if path != "lock"}
    tags = chain.mirror.refs("refs/tags")
    shutil.rmtree(history / "var")

    done = restore.restore(trust=[signed_by(records)])
    assert Chain.open().records == records
    assert tree(places.bundles()) == kept
    assert objects(places.dvc_cache()) == cached
    assert {path: data for path, data in tree(places.store()).items() if path != "lock"} == stored
    assert sync().refs("refs/tags") == tags
    assert verify()[1] == []
    assert any("policy store: functions is" in line for line in done)
    reopened = service_store.FolderStore(places.store(), keep_bundles=10)
    assert reopened.pointer("functions") == pointer
    reopened.close()
    again = restore.restore()
    assert [line for line in again if not line.startswith("DVC cache")] == [], "nothing is done twice"


def signed_by(records: list) -> str:
    signature = sync().files("refs/remotes/origin/promotions", "records/000000.sig")["records/000000.sig"]
    return str(json.loads(signature)["key_id"])


def test_after_a_restore_the_next_promotion_signs_with_a_new_key_beside_the_old(history, night, service) -> None:
    old = signing.current_key_id()
    live = Chain.open().records[5]
    shutil.rmtree(history / "var")
    restore.restore()
    runs.record_run(night("after", seed=5, champion=live.digest), "after")
    record = promote.promote("functions", run_id="after", approver="ada", reason="")
    assert signing.current_key_id() != old
    assert record.counter == 4
    assert verify()[1] == []


def test_restore_trusts_only_the_keys_it_was_told(history) -> None:
    shutil.rmtree(history / "var")
    with pytest.raises(RegistryError, match="the remote publishes key"):
        restore.restore(trust=["0000"])
    assert not signing.public_keys()


def test_a_lost_embedded_repository_is_given_back_from_the_mirror(nights) -> None:
    promote.promote("functions", run_id="one", approver="ada", reason="")
    records = Chain.open().records
    shutil.rmtree(nights.parent / "registry.git")
    with pytest.raises(RegistryError, match="no branch at all"):
        Chain.open()
    done = restore.restore()
    assert done[0] == "registry: 1 records and 1 runs given back to the remote from the mirror"
    assert Chain.open().records == records
    assert verify()[1] == []


def test_restore_names_what_it_needs_when_the_remote_is_empty(home) -> None:
    with pytest.raises(RegistryError, match="LOADMASTER_REGISTRY"):
        restore.restore()


def test_restore_does_not_touch_the_store_of_a_running_service(history) -> None:
    service_store = pytest.importorskip("placement.store")
    running = service_store.FolderStore(places.store(), keep_bundles=10)
    with pytest.raises(RegistryError, match="is in use"):
        restore.restore()
    running.close()


def test_tags_are_rebuilt_from_the_records(history) -> None:
    remote = Repository(Path(places.registry_remote()))
    right = remote.refs("refs/tags")
    remote.run("update-ref", "-d", "refs/tags/functions@v1.0.0")
    remote.run("update-ref", "refs/tags/functions#live#2", "refs/heads/promotions")
    remote.run("update-ref", "refs/tags/functions@v9.0.0", "refs/heads/promotions")
    assert len(restore.rebuild_tags(Chain.open())) == 3
    assert remote.refs("refs/tags") == right
    assert verify()[1] == []


def test_a_live_bundle_is_signed_anew_after_its_key_was_revoked(history, service) -> None:
    chain = Chain.open()
    live = chain.live("functions")
    service.policies["functions"] = {"digest": live.digest, "counter": live.counter}
    signing.revoke(signing.current_key_id(), "laptop lost", last_record=chain.head())
    assert any("revoked key" in finding.reason for finding in verify()[1])
    record = promote.resign("functions", approver="ada", reason="key revoked")
    assert (record.digest, record.previous_digest, record.counter) == (live.digest, live.digest, 4)
    from pipeline import push

    push.push("functions", service.url)
    assert outcomes.confirm("functions", service.url).counter == 4
    assert Chain.open().live_since("functions") == live.loaded_at, "the same policy, live all the while"
    assert verify()[1] == []
    assert bundles.files_sha256(places.bundle(live.digest)) == record.bundle_sha256


def test_old_is_measured_in_days(history, monkeypatch) -> None:
    workspace = history / "var" / "runs" / "fresh"
    workspace.mkdir(parents=True)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 31 * gc.DAY_S)
    assert "workspace fresh" in gc.collect(gc.Policy(), dry_run=True)
    monkeypatch.setattr(time, "time", lambda: now + 29 * gc.DAY_S)
    assert "workspace fresh" not in gc.collect(gc.Policy(), dry_run=True)
