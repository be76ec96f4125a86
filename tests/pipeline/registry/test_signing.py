"""Keys: made once, private, rotated with two valid, retired, revoked."""

from __future__ import annotations

import multiprocessing
import stat
import sys
from pathlib import Path

import pytest

from pipeline.errors import RegistryError
from pipeline.registry import keys, p256, signing
from pipeline.registry.chain import Chain
from pipeline.registry.verify import verify
from wire import records, secret_files, signatures
from wire.errors import ContractError


def test_the_first_use_makes_a_private_key_and_trusts_its_public_half(home) -> None:
    path = signing.private_key()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(signatures.trusted(signing.trusted_folder())) == [signing.current_key_id()]
    assert signing.private_key() == path
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["signing.pem", "trusted"]


@pytest.mark.parametrize("step", ["_publish", "key_id"])
def test_a_first_use_that_another_process_ends_goes_on_with_its_key(home, monkeypatch, step) -> None:
    path, place = signing.private_path(), signing if step == "_publish" else signing.p256
    original = getattr(place, step)

    def overtaken(file: Path) -> object:
        if file != path and not path.exists():  # the other process does all that is left to do, in this very moment
            path.hardlink_to(file)
            file.unlink()
        return original(file)

    monkeypatch.setattr(place, step, overtaken)
    assert signing.private_key() == path
    assert list(signing.public_keys()) == [signing.current_key_id()]


def test_many_first_uses_at_once_agree_on_one_key(home) -> None:
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=signing.private_key) for _ in range(8)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert list(signatures.trusted(signing.trusted_folder())) == [signing.current_key_id()]


def test_a_key_that_others_can_read_is_not_used(home) -> None:
    signing.private_key().chmod(0o640)
    with pytest.raises(RegistryError, match="mode 640, readable by others"):
        signing.sign_bytes(b"x")


def test_a_mounted_key_is_used_and_never_replaced(home, tmp_path, monkeypatch) -> None:
    mounted = tmp_path / "secret.pem"
    monkeypatch.setenv(signing.KEY_ENV, str(mounted))
    with pytest.raises(RegistryError, match="does not exist"):
        signing.private_key()
    secret_files.create(mounted, p256.new_private_pem(), exclusive=False)
    before = mounted.read_bytes()
    signing.sign_bytes(b"x")
    with pytest.raises(RegistryError, match=signing.KEY_ENV):
        signing.rotate()
    assert mounted.read_bytes() == before


def test_rotation_keeps_two_valid_and_refuses_a_third(home) -> None:
    first = signing.sign_bytes(b"document")
    old = signing.current_key_id()
    new = signing.rotate()
    assert new != old
    known = signing.public_keys()
    assert records.verify(b"document", first, known, source="") == old
    assert records.verify(b"document", signing.sign_bytes(b"document"), known, source="") == new
    with pytest.raises(RegistryError, match="at most 2"):
        signing.rotate()
    with pytest.raises(RegistryError, match="the one that signs now"):
        signing.retire(new, last_record=None)
    signing.retire(old[:10], last_record=None)
    assert list(signatures.trusted(signing.trusted_folder())) == [new]
    assert records.verify(b"document", first, signing.public_keys(), source="") == old, "history stays readable"
    signing.rotate()


def test_revoking_the_signing_key_puts_a_new_one_in_its_place(home) -> None:
    old = signing.private_key() and signing.current_key_id()
    signing.revoke(old, "laptop lost", last_record=(4, "abc"))
    assert signing.current_key_id() != old
    assert signatures.revocations(signing.revoked_file())[old]["last_record"] == [4, "abc"]
    assert old not in signatures.trusted(signing.trusted_folder())
    with pytest.raises(RegistryError, match="0 keys begin with"):
        signing.revoke("feed", "", last_record=None)


@pytest.mark.parametrize("change", [b"documenT", b""])
def test_a_changed_document_is_found(home, change) -> None:
    signature = signing.sign_bytes(b"document")
    with pytest.raises(ContractError, match="does not match"):
        records.verify(change, signature, signing.public_keys(), source="records/1")


def test_rotation_and_revocation_are_published_with_the_records(history, monkeypatch, capsys) -> None:
    old = signing.current_key_id()
    for arguments in (["rotate"], ["revoke", old, "--reason", "laptop lost"], ["list"]):
        monkeypatch.setattr(sys, "argv", ["keys", *arguments])
        keys.main()
    shown = capsys.readouterr().out.splitlines()[-2:]
    assert sorted(line.split("  ")[1] for line in shown) == ["revoked", "trusted, signs now"]
    published = Chain.open().mirror.files("refs/remotes/origin/promotions", "keys/")
    assert {f"keys/{old}.pub", f"keys/{signing.current_key_id()}.pub", "keys/revoked.json"} <= published.keys()
    findings = [str(finding) for finding in verify()[1]]
    assert findings, "the live bundle is signed by the revoked key"
    assert all("revoked key" in finding for finding in findings), findings
