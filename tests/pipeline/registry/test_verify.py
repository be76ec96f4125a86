"""Forty-odd ways to tamper with registry, bundles, records and keys: each is found, with the file and the reason."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import RegistryError
from pipeline.registry import bundles, p256, signing
from pipeline.registry.chain import Chain, append
from pipeline.registry.records import path_of, signature_path_of
from pipeline.registry.runs import branch_of
from pipeline.registry.verify import verify
from wire import secret_files, signatures
from wire.contracts import decode, encode
from wire.contracts.record import PromotionRecord, record_sha256

Attack = Any
"""The registry in an attacker's hands, from conftest.py."""


def overwrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    overwrite(path, bytes(data))


def other_key(folder: Path) -> Path:
    """A private key that nobody trusts."""
    path = folder / "thief.pem"
    secret_files.create(path, p256.new_private_pem(), exclusive=False)
    return path


def sign_with(attack: Attack, data: bytes) -> bytes:
    """Sign as the thief: the right shape, an unknown key."""
    key = other_key(attack.root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(signing.KEY_ENV, str(key))
        patch.setattr(signing, "_publish", lambda path: None)
        return signing.sign_bytes(data)


def move_tag(attack: Attack, name: str, target: str) -> None:
    attack.remote.run("update-ref", f"refs/tags/{name}", target)


def revoke_signing_key(attack: Attack, last: int | None) -> None:
    key = signing.current_key_id()
    last_record = (last, record_sha256(attack.records[last])) if last is not None else None
    signing.revoke(key, "laptop lost", last_record=last_record)


def resign_bundle(attack: Attack) -> None:
    signatures.sign(attack.bundle(), other_key(attack.root))


def run_branch(attack: Attack, sequence: int = 2) -> str:
    return "refs/heads/" + branch_of(attack.records[sequence].run_id)


def rewrite_run(attack: Attack, files: dict[str, bytes]) -> None:
    """Rewrite the branch of a run, and with the real key every record that names it."""
    old = attack.records[2].git_commit
    new = attack.remote.commit(files, "rewritten\n", parent=old, when="2026-11-16T00:00:00Z")
    attack.remote.run("update-ref", run_branch(attack), new)
    attack.replace(attack.forge(2, git_commit=new))


def drop_object(attack: Attack, name: str) -> None:
    loose = attack.remote.path / "objects" / name[:2] / name[2:]
    assert loose.exists()
    loose.unlink()


def publish_thief(attack: Attack) -> None:
    key = other_key(attack.root)
    public = p256.public_pem(key)
    name = p256.key_id(key)
    attack.add_commit({f"keys/{name}.pub": public})


def swap_trusted(attack: Attack) -> None:
    path = next(signing.trusted_folder().glob("*.pub"))
    path.write_bytes(p256.public_pem(other_key(attack.root)))


def swap_pointer(attack: Attack) -> None:
    document = attack.files()[bundles.pointer_of(attack.other)].decode()
    swapped = document.replace(attack.bundle(attack.other).name, attack.bundle().name).encode()
    attack.replace({bundles.pointer_of(attack.live): swapped})


def swap_records(attack: Attack) -> None:
    files = attack.files()
    a, b = (0, 2)
    attack.replace({
        path_of(a): files[path_of(b)], signature_path_of(a): files[signature_path_of(b)],
        path_of(b): files[path_of(a)], signature_path_of(b): files[signature_path_of(a)],
    })  # fmt: skip


TAMPERING: dict[str, tuple[Callable[[Attack], object], str, str]] = {
    # Records
    "record edited": (lambda a: a.replace(a.edit(2, approver="mallory")), "records/000002.json", "does not match"),
    "record edited, chain mended": (
        lambda a: a.replace({k: v for k, v in a.forge(2, reason="fine").items() if k.endswith(".json")}),
        "records/000002.json",
        "does not match",
    ),
    "newest record edited": (
        lambda a: a.replace(a.edit(5, reason="never happened")),
        "records/000005.json",
        "not match",
    ),
    "record reformatted": (
        lambda a: a.replace({path_of(1): json.dumps(json.loads(encode(a.records[1])), indent=1).encode()}),
        "records/000001.json",
        "canonical",
    ),
    "record not JSON": (lambda a: a.replace({path_of(3): b"{"}), "records/000003.json", "truncated"),
    "record with an unknown field": (
        lambda a: a.replace({path_of(3): encode(a.records[3])[:-1] + b',"more":1}'}),
        "records/000003.json",
        "unknown field",
    ),
    "record removed in the middle": (
        lambda a: a.replace({path_of(2): None, signature_path_of(2): None}),
        "records/000002.json",
        "missing",
    ),
    "newest record cut off": (
        lambda a: a.replace({path_of(5): None, signature_path_of(5): None}, forget=False),
        "branch promotions",
        "rewritten",
    ),
    "newest record cut off, seen for the first time": (
        lambda a: a.replace({path_of(5): None, signature_path_of(5): None}),
        "tag functions#live#3",
        "no record asks",
    ),
    "records reordered": (swap_records, "records/000000.json", "reordered"),
    "record copied to the end": (
        lambda a: a.replace({path_of(6): encode(a.records[3]), signature_path_of(6): a.files()[signature_path_of(3)]}),
        "records/000006.json",
        "reordered",
    ),
    "stranger among the records": (
        lambda a: a.add_commit({"records/notes.txt": b"hi"}),
        "records/notes.txt",
        "not a record",
    ),
    "branch rewritten": (lambda a: a.replace({}, forget=False), "branch promotions", "history was rewritten"),
    "branch deleted": (
        lambda a: a.remote.run("update-ref", "-d", "refs/heads/promotions"),
        "branch promotions",
        "no branch at all",
    ),
    "record edited by a later commit": (
        lambda a: a.add_commit({path_of(1): encode(a.records[0])}),
        "records/000001.json",
        "never changed",
    ),
    "stranger on the branch": (lambda a: a.add_commit({"install.sh": b"rm"}), "install.sh", "does not belong"),
    # Signatures of records
    "signature removed": (lambda a: a.replace({signature_path_of(3): None}), "records/000003.sig", "missing"),
    "signature of another record": (
        lambda a: a.replace({signature_path_of(3): a.files()[signature_path_of(1)]}),
        "records/000003.json",
        "not match",
    ),
    "signature garbled": (lambda a: a.replace({signature_path_of(0): b"x"}), "records/000000.json", "signature"),
    "signature by an unknown key": (
        lambda a: a.replace({signature_path_of(5): sign_with(a, encode(a.records[5]))}),
        "records/000005.json",
        "unknown key",
    ),
    # Records that were signed with the real key, but cannot be
    "approved by nobody": (lambda a: a.replace(a.forge(2, approver=None)), "records/000002.json", "approved by nobody"),
    "approved against the gate": (
        lambda a: a.replace(a.forge(2, gate={"outcome": "fail"})),
        "records/000002.json",
        "the gate said 'fail'",
    ),
    "counter that does not rise": (lambda a: a.replace(a.forge(5, counter=2)), "records/000005.json", "does not rise"),
    "live without approval": (lambda a: a.replace(a.forge(3, counter=7)), "records/000003.json", "no record approved"),
    "live with another bundle": (
        lambda a: a.replace(a.forge(3, digest="sha256:" + "0" * 64)),
        "records/000003.json",
        "another bundle",
    ),
    "wrong predecessor": (
        lambda a: a.replace(a.forge(2, previous_digest=None)),
        "records/000002.json",
        "as live before it",
    ),
    # Bundles
    "policy changed": (lambda a: flip(a.bundle() / "policy.onnx"), "policy.onnx", "changed"),
    "golden vectors changed": (lambda a: flip(a.bundle() / "golden.npz"), "golden.npz", "changed"),
    "manifest changed": (
        lambda a: overwrite(a.bundle() / "manifest.json", (a.bundle() / "manifest.json").read_bytes() + b" "),
        "manifest.json",
        "changed",
    ),
    "file added to a bundle": (lambda a: overwrite_new(a.bundle() / "extra.so"), "extra.so", "not part of"),
    "file missing in a bundle": (lambda a: (a.bundle() / "golden.npz").unlink(), "golden.npz", "missing in the bundle"),
    "bundle signed by a stranger": (resign_bundle, "signature.sig", "not trusted"),
    "bundle signed anew": (
        lambda a: signatures.sign(a.bundle(), signing.private_key()),
        "signature.sig",
        "not the bytes that record 0",
    ),
    "another bundle in its place": (
        lambda a: (shutil.rmtree(a.bundle()), shutil.copytree(a.bundle(a.other), a.bundle())),
        "bundles/",
        "not the bytes",
    ),
    "pointer at another bundle": (swap_pointer, "bundles/", "other bytes"),
    "pointer removed": (lambda a: a.replace({bundles.pointer_of(a.live): None}), "bundles/", "missing in the commit"),
    "pointer garbled": (lambda a: a.replace({bundles.pointer_of(a.live): b"- 1"}), "bundles/", "not the DVC file"),
    "cached object changed": (lambda a: flip(a.object("policy.onnx")), "dvc/cache", "changed: not the bytes of"),
    "remote object changed": (lambda a: flip(a.object("policy.onnx", "remote")), "remotes/dvc", "changed"),
    "remote object removed": (
        lambda a: a.object("manifest.json", "remote").unlink(),
        "remotes/dvc",
        "missing in the DVC",
    ),
    "object removed everywhere": (
        lambda a: (a.object("signature.sig", "remote").unlink(), a.object("signature.sig").unlink()),
        "remotes/dvc",
        "in no store",
    ),
    # Keys
    "signing key revoked": (lambda a: revoke_signing_key(a, 5), "bundles/", "revoked key"),
    "key revoked before it signed": (lambda a: revoke_signing_key(a, 1), "records/000002.json", "after its revocation"),
    "revoked key put back": (
        lambda a: (
            revoke_signing_key(a, 5),
            [shutil.copy(p, signing.trusted_folder()) for p in signing.retired_folder().glob("*.pub")],
        ),
        "keys/trusted",
        "still among",
    ),
    "trusted key replaced": (swap_trusted, "keys/trusted", "replaced by another key"),
    "trusted key removed": (lambda a: shutil.rmtree(signing.trusted_folder()), "signing.pem", "not trusted"),
    "stranger's key published": (publish_thief, "keys/", "unknown on this machine"),
    "key in use retired": (
        lambda a: (k := signing.current_key_id(), signing.rotate(), signing.retire(k, last_record=Chain.open().head())),
        "bundles/",
        "retired key",
    ),
    "private key readable": (lambda a: signing.private_path().chmod(0o644), "signing.pem", "readable by others"),
    "list of revoked keys garbled": (lambda a: signing.revoked_file().write_text("{}"), "revoked.json", "not readable"),
    # Tags
    "version tag removed": (
        lambda a: a.remote.run("update-ref", "-d", "refs/tags/functions@v2.0.0"),
        "tag functions@v2.0.0",
        "missing",
    ),
    "stage tag moved": (lambda a: move_tag(a, "functions#live#3", a.head), "tag functions#live#3", "changed or moved"),
    "tag invented": (lambda a: move_tag(a, "functions@v9.0.0", a.head), "tag functions@v9.0.0", "no record asks"),
    # Runs and their data
    "run branch removed": (lambda a: a.remote.run("update-ref", "-d", run_branch(a)), "branch runs/", "rests on it"),
    "run branch moved": (
        lambda a: a.remote.run("update-ref", run_branch(a), a.records[0].git_commit),
        "runs/",
        "history was rewritten",
    ),
    "lock of a run changed": (
        lambda a: rewrite_run(a, {"dvc.lock": b"stages: {}\n"}),
        "dvc.lock",
        "not the one that record 2",
    ),
    "gate report of a run changed": (
        lambda a: rewrite_run(a, {"reports/gate/functions/report.json": b"{}"}),
        "report.json",
        "differs from the report",
    ),
    "data of a run changed": (lambda a: flip(a.data_object()), "remotes/dvc", "windows.txt, needed by run"),
    "data of a run removed": (lambda a: a.data_object().unlink(), "remotes/dvc", "could not be restored"),
    "commit missing in the remote": (
        lambda a: drop_object(a, a.head),
        "registry.git",
        "bad object|missing|invalid|not",
    ),
    # The service's store
    "store runs something else": (lambda a: a.store(digest=a.other, counter=2), "live.json", "the records say"),
    "store runs a counter nobody gave": (lambda a: a.store(counter=8), "live.json", "counter 8"),
    "bundle in the store changed": (
        lambda a: flip(a.store() / "bundles" / a.bundle().name / "policy.onnx"),
        "store/functions/bundles",
        "not the bytes",
    ),
    "pointer of the store garbled": (lambda a: (a.store() / "live.json").write_text("?"), "live.json", "not a pointer"),
}


def overwrite_new(path: Path) -> None:
    path.write_bytes(b"\x7fELF")


def test_an_untouched_registry_has_no_findings(history) -> None:
    chain, findings = verify()
    assert findings == []
    assert chain is not None
    assert len(chain.records) == 6


def test_a_right_store_has_no_findings(attack) -> None:
    attack.store()
    assert verify()[1] == []


@pytest.mark.parametrize("name", TAMPERING)
def test_tampering_is_found_with_file_and_reason(attack, name) -> None:
    act, file, reason = TAMPERING[name]
    act(attack)
    findings = verify()[1]
    hits = [one for one in findings if file in one.file and re.search(reason, one.reason)]
    assert hits, f"{file}: {reason} is not among {[str(one) for one in findings]}"
    assert all(one.file and one.reason for one in findings)


def test_nothing_is_written_on_top_of_a_tampered_registry(attack) -> None:
    attack.replace(attack.edit(2, approver="mallory"))
    with pytest.raises(RegistryError, match=r"not whole: records/000002\.json.*nothing was written"):
        append(lambda chain: chain.follow_up(chain.records[0], state="failed", approver=None, reason="x"))


def test_gto_reads_the_derived_tags(history) -> None:
    clone = history / "clone"
    subprocess.run(["git", "clone", "-q", "-b", "promotions", attack_remote(history), clone], check=True)
    shown = subprocess.run(
        ["gto", "show", "--json"], cwd=clone, check=True, capture_output=True, text=True, env=_with_venv()
    )
    entry = json.loads(shown.stdout)["functions"] if "functions" in shown.stdout else {}
    assert entry["version"] == "v2.0.0", shown.stdout
    assert "v1.0.0" in json.dumps(entry["stage"]), "rolled back: the first version is live again"


def attack_remote(history: Path) -> Path:
    return history / "remotes" / "registry.git"


def _with_venv() -> dict[str, str]:
    import sys

    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def test_records_survive_a_round_trip(history) -> None:
    for record in Chain.open().records:
        assert decode(encode(record), PromotionRecord, source="") == record
