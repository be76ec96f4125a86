"""Tampering that leaves hashes or signatures right: links, git's own ways to lie, stale keys, paths out of the way."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.errors import RegistryError
from pipeline.registry import bundles, p256, places, restore, signing
from pipeline.registry import command as registry
from pipeline.registry.chain import ANCHOR, DVC_CONFIG, Chain
from pipeline.registry.git import Repository
from pipeline.registry.records import examine, path_of, signature_path_of
from pipeline.registry.runs import branch_of
from pipeline.registry.verify import verify
from wire import secret_files
from wire.contracts import encode
from wire.contracts.record import record_sha256

Attack = Any
"""The registry in an attacker's hands, from conftest.py."""


def mirror() -> Repository:
    return Repository(places.registry_mirror())


def parent_of(attack: Attack) -> str:
    return attack.remote.text("rev-parse", f"{attack.head}^")


def stolen_and_revoked(attack: Attack) -> str:
    """The key that signed everything is stolen, and revoked when record 5 was the newest; returns the thief's copy."""
    copy = attack.root / "stolen.pem"
    shutil.copy(signing.private_path(), copy)
    signing.revoke(signing.current_key_id(), "stolen", last_record=(5, record_sha256(attack.records[5])))
    return str(copy)


def as_thief(attack: Attack, act: Callable[[], object]) -> None:
    key = stolen_and_revoked(attack)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(signing.KEY_ENV, key)
        patch.setattr(signing, "_publish", lambda path: None)
        act()


def append_with_revoked_key(attack: Attack) -> None:
    last = attack.records[5]
    new = msgspec.structs.replace(
        last, sequence=6, counter=4, digest=attack.other, previous_digest=attack.live,
        previous_record_sha256=record_sha256(last),
    )  # fmt: skip
    as_thief(
        attack,
        lambda: attack.add_commit({path_of(6): encode(new), signature_path_of(6): signing.sign_bytes(encode(new))}),
    )


def hide_newest_by_replace_ref(attack: Attack) -> None:
    """Git itself then shows the branch without its newest record, under the same commit id."""
    mirror().run("update-ref", f"refs/replace/{attack.head}", parent_of(attack))


def hide_history_by_graft(attack: Attack) -> None:
    path = places.registry_mirror() / "info" / "grafts"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{attack.head}\n")


def linked(attack: Attack) -> None:
    """The right bytes, but from a place that is somebody else's to change."""
    path = attack.bundle() / "policy.onnx"
    elsewhere = attack.root / "elsewhere.onnx"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def linked_store(attack: Attack) -> None:
    path = attack.store() / "bundles" / attack.bundle().name / "policy.onnx"
    elsewhere = attack.root / "elsewhere.onnx"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def withdraw_revocation(attack: Attack) -> None:
    """Revoke and publish, then take the entry back on the branch and on this machine."""
    stolen_and_revoked(attack)
    Chain.open().publish_keys("keys: revoke")
    attack.head = attack.remote.resolve("refs/heads/promotions")
    empty = b'{"revoked": {}}\n'
    attack.add_commit({"keys/revoked.json": empty})
    signing.revoked_file().write_bytes(empty)


def empty_registry_live_store(attack: Attack) -> None:
    attack.store()
    shutil.rmtree(attack.remote.path)
    Repository.create(attack.remote.path)
    shutil.rmtree(places.registry_mirror())


def store_of_another_problem(attack: Attack) -> None:
    folder = attack.store()
    shutil.copytree(folder, folder.with_name("vm"))


def retired_key_listed_as_trusted(attack: Attack) -> None:
    old = signing.current_key_id()
    signing.rotate()
    signing.retire(old, last_record=Chain.open().head())
    trusted = json.loads(attack.files()["keys/trusted.json"])
    attack.add_commit({"keys/trusted.json": json.dumps([*trusted, "0" * 64]).encode()})


def stranger_trusted(attack: Attack) -> None:
    """The right name for the key, a place among the two that may be trusted, and no record of it."""
    key = attack.root / "thief.pem"
    secret_files.create(key, p256.new_private_pem(), exclusive=False)
    (signing.trusted_folder() / f"{p256.key_id(key)}.pub").write_bytes(p256.public_pem(key))


def as_link(attack: Attack) -> None:
    """A record committed as a symbolic link: the same blob to us, another file in every checkout."""
    listing = attack.remote.text("ls-tree", "-r", attack.head, path_of(1))
    blob = listing.split()[2]
    index = {"GIT_INDEX_FILE": str(attack.root / "index")}
    attack.remote.run("read-tree", attack.head, env=index)
    attack.remote.run("update-index", "--add", "--cacheinfo", f"120000,{blob},{path_of(1)}", env=index)
    tree = attack.remote.run("write-tree", env=index).decode().strip()
    commit = attack.remote.commit_tree(tree, "mode\n", parents=[attack.head], when="2026-11-16T00:00:00Z")
    attack.set_head(commit, forget=False)


def pointer_with(attack: Attack, text: str) -> None:
    path = bundles.pointer_of(attack.live)
    attack.replace({path: attack.files()[path] + text.encode()})


def pointer_path(attack: Attack, target: str) -> None:
    path = bundles.pointer_of(attack.live)
    document = attack.files()[path].decode().replace(f"path: {attack.bundle().name}", f"path: {target}")
    assert target in document
    attack.replace({path: document.encode()})


def later_pointer(attack: Attack) -> None:
    """Our own code reads the pointer of the approval; whoever runs `dvc pull` on the branch gets this one."""
    files = attack.files()
    attack.add_commit({bundles.pointer_of(attack.live): files[bundles.pointer_of(attack.other)]})


def lightweight(attack: Attack) -> None:
    commit = attack.remote.resolve("refs/tags/functions@v1.0.0")
    attack.remote.run("update-ref", "refs/tags/functions@v1.0.0", commit)


def run_with(attack: Attack, files: dict[str, bytes], **changes: object) -> None:
    """One more commit on the run of record 2, named by the record, everything signed with the real key."""
    old = attack.records[2].git_commit
    new = attack.remote.commit(files, "edited\n", parent=old, when="2026-11-16T00:00:00Z")
    attack.remote.run("update-ref", "refs/heads/" + branch_of(attack.records[2].run_id), new)
    attack.replace(attack.forge(2, git_commit=new, **changes))


def edited_report(attack: Attack) -> None:
    """Report and record agree on a verdict that the gate never gave."""
    report = {**attack.records[2].gate, "reason": "better by 90 %"}
    run_with(attack, {"reports/gate/functions/report.json": json.dumps(report).encode()}, gate=report)


def other_lock(attack: Attack) -> None:
    """The lock of another run: its digest is in the record, its bundle is not the one that was approved."""
    lock = attack.remote.files(attack.records[0].git_commit, "dvc.lock")["dvc.lock"]
    run_with(attack, {"dvc.lock": lock}, dvc_lock_sha256=hashlib.sha256(lock).hexdigest())


def duplicate_key(attack: Attack) -> None:
    data = encode(attack.records[2])
    attack.replace({path_of(2): data[:-1] + b',"approver":"mallory"}'})


def deep(attack: Attack) -> None:
    data = encode(attack.records[2]).replace(b'"gate":{', b'"gate":{"a":' + b"[" * 200_000 + b"]" * 200_000 + b",", 1)
    attack.replace({path_of(2): data})


@pytest.fixture
def committed(history) -> tuple[dict[str, bytes], dict[str, Path]]:
    """The files of all records, and the keys that are good for them."""
    files = mirror().files("refs/remotes/origin/promotions", "records/")
    assert examine(files, signing.public_keys(), {})[1] == []
    return files, signing.public_keys()


TAMPERING: dict[str, tuple[Callable[[Attack], object], str, str]] = {
    # Records
    "records of two problems swapped": (
        lambda a: a.replace(a.forge(2, problem="vm")), "records/000003.json", "no record approved"
    ),
    "record with a key twice": (duplicate_key, "records/000002.json", "canonical"),
    "record nested without end": (deep, "records/000002.json", "not a record|recursion|nest"),
    "record from the future": (
        lambda a: a.replace(a.forge(5, decided_at="2096-01-01T00:00:00+00:00")), "records/000005.json", "future"
    ),
    "record older than the one before": (
        lambda a: a.replace(a.forge(3, decided_at="2020-01-01T00:00:00+00:00")),
        "records/000003.json", "before record 2",
    ),
    "record of no time": (
        lambda a: a.replace(a.forge(3, decided_at="yesterday")), "records/000003.json", "not a time"
    ),
    "digest in capitals": (
        lambda a: a.replace(a.forge(2, digest=a.other.upper())), "records/000002.json", "not a digest"
    ),
    "digest that leads out of the folder": (
        lambda a: a.replace(a.forge(2, digest="sha256:../../../../keys")), "records/000002.json", "not a digest"
    ),
    "commit that is an option of git": (
        lambda a: a.replace(a.forge(2, git_commit="--output=/tmp/x")), "records/000002.json", "not a commit"
    ),
    "approved by a blank": (
        lambda a: a.replace(a.forge(2, approver=" ")), "records/000002.json", "approved by nobody"
    ),
    "approved while another was on its way": (
        lambda a: a.replace(a.forge(1, state="rejected")), "records/000002.json", "record 0 was neither live nor failed"
    ),
    "old record replayed with a new number": (
        lambda a: a.add_commit({
            path_of(6): encode(msgspec.structs.replace(a.records[3], sequence=6)),
            signature_path_of(6): a.files()[signature_path_of(3)],
        }),
        "records/000006.json", "does not match",
    ),
    "record far beyond the last": (
        lambda a: a.add_commit({path_of(999_999): encode(a.records[5])}), "records/000006.json", "missing"
    ),
    "record committed as a link": (as_link, "records/000001.json", "mode 120000"),
    # Runs
    "verdict that the gate never gave": (edited_report, "functions/report.json", "not what the gate stage"),
    "bundle that the run never exported": (other_lock, "policy.onnx", "not what the run of record 2 exported"),
    # Keys
    "signed with a revoked key": (append_with_revoked_key, "records/000006.json", "after its revocation"),
    "history written anew with a revoked key": (
        lambda a: as_thief(a, lambda: a.replace(a.forge(2, reason="nothing to see"))),
        "records/000005.json", "not the one that was newest when",
    ),
    "revocation taken back everywhere": (withdraw_revocation, "revoked.json", "was revoked"),
    "retired key listed as trusted": (retired_key_listed_as_trusted, "keys/trusted.json", "not trusted here"),
    "stranger's key trusted": (
        stranger_trusted, "keys/trusted", "dropped here"
    ),
    "list of trusted keys garbled": (
        lambda a: a.add_commit({"keys/trusted.json": b"{}"}), "keys/trusted.json", "not a list of keys"
    ),
    "revocation without a clear last record": (
        lambda a: (stolen_and_revoked(a), signing.revoked_file().write_text(
            re.sub(r'"last_record": \[[^]]*\]', '"last_record": "the newest"', signing.revoked_file().read_text()))),
        "records/000000.json", "after its revocation",
    ),
    # Git
    "newest record hidden by a replace ref": (hide_newest_by_replace_ref, "registry-mirror.git", "refs/replace"),
    "replace ref in the remote": (
        lambda a: a.remote.run("update-ref", f"refs/replace/{a.head}", parent_of(a)), "registry.git", "refs/replace"
    ),
    "history hidden by a graft": (hide_history_by_graft, "registry-mirror.git", "grafts"),
    "history cut off by a shallow file": (
        lambda a: (places.registry_mirror() / "shallow").write_text(a.head + "\n"), "registry-mirror.git", "shallow"
    ),
    "tag without its record's words": (lightweight, "tag functions@v1.0.0", "changed or moved"),
    "tag on another problem": (
        lambda a: a.remote.run("update-ref", "refs/tags/vm#live#1", a.head), "tag vm#live#1", "no record asks"
    ),
    "settings of DVC on the branch changed": (
        lambda a: a.add_commit({DVC_CONFIG[0]: b"[core]\n    remote = evil\n"}), DVC_CONFIG[0], "changed"
    ),
    # Bundles
    "link in a bundle": (linked, "policy.onnx", "a link"),
    "link in a bundle of the store": (linked_store, "store/functions/bundles", "a link"),
    "folder in a bundle": (lambda a: (a.bundle() / "more").mkdir(), "bundles/", "a link or a folder"),
    "bundle cut short": (
        lambda a: (a.bundle() / "policy.onnx").write_bytes((a.bundle() / "policy.onnx").read_bytes()[:-1]),
        "policy.onnx", "changed",
    ),
    "bundle is a file": (
        lambda a: (shutil.rmtree(a.bundle()), a.bundle().write_bytes(b"")), "bundles/", "no such directory"
    ),
    "pointer changed after the approval": (later_pointer, "bundles/", "changed after record 0"),
    "pointer of a bundle nobody approved": (
        lambda a: a.add_commit({bundles.pointer_of("sha256:" + "1" * 64): a.files()[bundles.pointer_of(a.live)]}),
        "bundles/1111", "no record approved",
    ),
    "pointer that leads out of the folder": (
        lambda a: pointer_path(a, "../../../outside"), "bundles/", "not the DVC file of one bundle"
    ),
    "pointer that fetches from elsewhere": (
        lambda a: pointer_with(a, "deps:\n- path: x\n  repo:\n    url: https://evil.example\n"),
        "bundles/", "not the DVC file of one bundle",
    ),
    # The store
    "live service, empty registry": (empty_registry_live_store, "live.json", "the records say nothing"),
    "live service, registry of other problems": (store_of_another_problem, "vm/live.json", "the records say nothing"),
    "pointer of the store removed": (lambda a: (a.store() / "live.json").unlink(), "live.json", "missing"),
    "store that would roll back to a stranger": (
        lambda a: a.store(previous_digest="sha256:" + "9" * 64), "live.json", "never live"
    ),
    "bundle to roll back to changed": (
        lambda a: (a.store() / "bundles" / a.bundle(a.other).name / "policy.onnx").write_bytes(b"x"),
        "store/functions/bundles", "not the bytes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERING)
def test_tampering_is_found_with_file_and_reason(attack, name) -> None:
    act, file, reason = TAMPERING[name]
    act(attack)
    findings = verify()[1]
    hits = [one for one in findings if file in one.file and re.search(reason, one.reason)]
    assert hits, f"{file}: {reason} is not among {[str(one) for one in findings][:20]}"
    assert len(findings) < 50


@given(st.data())
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bit_of_a_record_or_its_signature_can_change_unnoticed(committed, data) -> None:
    files, keys = committed
    path = data.draw(st.sampled_from(sorted(files)))
    changed = bytearray(files[path])
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    findings = examine({**files, path: bytes(changed)}, keys, {})[1]
    assert any(Path(path).stem in finding.file for finding in findings), f"{path}: {bytes(changed)!r}"


def test_a_branch_of_somebody_else_among_the_runs_does_no_harm(attack, monkeypatch, capsys) -> None:
    report = {"reports/gate/functions/report.json": b"["}
    commit = attack.remote.commit(report, "not ours\n", parent=None, when="2026-11-16T00:00:00Z")
    attack.remote.run("update-ref", "refs/heads/runs/not-ours", commit)
    assert verify()[1] == []
    monkeypatch.setattr(sys, "argv", ["registry", "list"])
    assert registry.main() == 0
    assert "is live" in capsys.readouterr().out


def test_a_replace_ref_does_not_change_what_is_read(attack) -> None:
    hide_newest_by_replace_ref(attack)
    assert len(Chain.open().records) == 6


def test_tags_of_a_users_own_repository_are_left_alone(history) -> None:
    remote = Repository(Path(places.registry_remote()))
    remote.run("update-ref", "refs/tags/v1.2.3", "refs/heads/promotions")
    assert verify()[1] == []
    assert restore.rebuild_tags(Chain.open()) == []
    assert "refs/tags/v1.2.3" in remote.refs("refs/tags")


def test_a_false_remote_cannot_make_restore_write_outside_of_var(attack) -> None:
    """A machine without keys believes what the remote publishes; not even then do paths lead out."""
    attack.replace(attack.forge(2, digest="sha256:../../outside"))
    shutil.rmtree(attack.var)
    with pytest.raises(RegistryError, match="not a digest"):
        restore.restore()
    assert not (attack.root / "outside").exists()


def test_a_pointer_from_the_branch_says_which_bytes_and_nothing_else(attack) -> None:
    pointer_path(attack, "../../../outside")
    shutil.rmtree(places.bundles())
    mirror().run("update-ref", "-d", ANCHOR)
    with pytest.raises(RegistryError, match="not the DVC file of one bundle"):
        bundles.approved(Chain.open(), attack.records[0], history=True)
    assert not list(attack.root.rglob("outside"))


def test_key_files_of_other_names_are_told(history) -> None:
    key = history / "other.pem"
    secret_files.create(key, p256.new_private_pem(), exclusive=False)
    (signing.trusted_folder() / "harmless.pub").write_bytes(p256.public_pem(key))
    assert any("replaced by another key" in finding.reason for finding in verify()[1])


def test_a_key_published_under_a_trusted_name_is_not_trusted(attack) -> None:
    trusted = signing.current_key_id()
    thief = attack.root / "thief.pem"
    secret_files.create(thief, p256.new_private_pem(), exclusive=False)
    attack.add_commit({f"keys/{trusted}.pub": p256.public_pem(thief)})
    shutil.rmtree(attack.var)
    with pytest.raises(RegistryError, match=f"publishes key {p256.key_id(thief)} as keys/{trusted}"):
        restore.restore(trust=[trusted])
    assert not signing.public_keys()
