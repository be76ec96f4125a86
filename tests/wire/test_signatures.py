"""A signature covers every byte of a bundle, says whose it is, and is refused for every reason it should be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("model_signing")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from wire import signatures
from wire.errors import BundleError


class Keys:
    """Private keys and the folder of trusted public ones."""

    def __init__(self, root: Path) -> None:
        self.root, self.trusted, self.revoked = root, root / "trusted", root / "revoked.json"
        self.trusted.mkdir(parents=True)

    def new(self, name: str, curve: ec.EllipticCurve | None = None) -> Path:
        key = ec.generate_private_key(curve or ec.SECP256R1())
        private = self.root / f"{name}.pem"
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        (self.root / f"{name}.pub").write_bytes(public)
        return private

    def trust(self, name: str) -> str:
        (self.trusted / f"{name}.pub").write_bytes((self.root / f"{name}.pub").read_bytes())
        key = signatures.key_id(self.root / f"{name}.pub")
        listed = signatures.listed(self.trusted) or set()
        (self.trusted / signatures.LISTED).write_text(json.dumps(sorted(listed | {key})))
        return key


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path / "keys")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    folder.mkdir()
    for name in ("policy.onnx", "golden.npz", "manifest.json"):
        (folder / name).write_bytes(name.encode() * 100)
    return folder


def test_two_keys_are_valid_at_once_and_the_signer_is_named(bundle, keys) -> None:
    for name in ("old", "new"):
        private = keys.new(name)
        expected = keys.trust(name)
        signatures.sign(bundle, private)
        assert signatures.verify(bundle, keys.trusted, keys.revoked) == expected
    assert sorted(path.name for path in bundle.parent.iterdir()) == ["bundle", "keys"], "no scratch file is left"


def test_a_bundle_can_be_moved_and_renamed(bundle, keys, tmp_path) -> None:
    signatures.sign(bundle, keys.new("one"))
    keys.trust("one")
    elsewhere = bundle.rename(tmp_path / "elsewhere")
    signatures.verify(elsewhere, keys.trusted, keys.revoked)


CHANGES = {
    "a changed byte": (lambda b: (b / "policy.onnx").write_bytes(b"policy"), "Hash mismatch for 'policy.onnx'"),
    "a changed manifest": (lambda b: (b / "manifest.json").write_bytes(b"{}"), "Hash mismatch for 'manifest.json'"),
    "a missing file": (lambda b: (b / "golden.npz").unlink(), "Missing files"),
    "an extra file": (lambda b: (b / "more.onnx").write_bytes(b""), "Extra files"),
    "an extra hidden file": (lambda b: (b / ".gitattributes").write_bytes(b""), "Extra files"),
    "a folder": (lambda b: (b / "inside").mkdir(), "a link or a folder"),
    "a link": (lambda b: (b / "link").symlink_to("/etc/hostname"), "a link or a folder"),
    "no signature": (lambda b: (b / "signature.sig").unlink(), "missing"),
    "a garbled signature": (lambda b: (b / "signature.sig").write_text("?"), "not a key-mode signature"),
    "a huge signature": (lambda b: (b / "signature.sig").write_bytes(b" " * 2_000_000), "at most"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_refused_with_the_reason(bundle, keys, name) -> None:
    signatures.sign(bundle, keys.new("one"))
    keys.trust("one")
    act, reason = CHANGES[name]
    act(bundle)
    with pytest.raises(BundleError, match=reason):
        signatures.verify(bundle, keys.trusted, keys.revoked)


def edit_signature(bundle: Path, act) -> None:
    path = bundle / "signature.sig"
    document = json.loads(path.read_text())
    act(document)
    path.write_text(json.dumps(document))


def test_a_forged_signature_is_refused(bundle, keys) -> None:
    keys.new("one")
    keys.trust("one")
    signatures.sign(bundle, keys.new("thief"))
    with pytest.raises(BundleError, match="not trusted"):
        signatures.verify(bundle, keys.trusted, keys.revoked)
    # The thief may claim to be the trusted key; the mathematics says otherwise.
    import hashlib

    hint = hashlib.sha256((keys.trusted / "one.pub").read_bytes()).hexdigest()
    edit_signature(bundle, lambda d: d["verificationMaterial"]["publicKey"].update(hint=hint))
    with pytest.raises(BundleError, match="does not match"):
        signatures.verify(bundle, keys.trusted, keys.revoked)
    edit_signature(bundle, lambda d: d["verificationMaterial"]["publicKey"].update(hint=""))
    with pytest.raises(BundleError, match="names no key"):
        signatures.verify(bundle, keys.trusted, keys.revoked)


def test_a_revoked_key_is_refused_even_while_its_file_is_trusted(bundle, keys) -> None:
    signatures.sign(bundle, keys.new("one"))
    key = keys.trust("one")
    keys.revoked.write_text(json.dumps({"revoked": {key: {"at": "2026-11-16", "reason": "laptop lost"}}}))
    with pytest.raises(BundleError, match=r"revoked key .*laptop lost"):
        signatures.verify(bundle, keys.trusted, keys.revoked)


def test_an_unreadable_list_of_revoked_keys_trusts_nobody(bundle, keys) -> None:
    signatures.sign(bundle, keys.new("one"))
    keys.trust("one")
    for content in ("", "[]", '{"revoked": 1}', '{"revoked": {"a": 1}}'):
        keys.revoked.write_text(content)
        with pytest.raises(BundleError, match="not readable"):
            signatures.verify(bundle, keys.trusted, keys.revoked)


def test_only_p256_keys_are_trusted(bundle, keys) -> None:
    signatures.sign(bundle, keys.new("one", ec.SECP384R1()))
    with pytest.raises(BundleError, match="not a key on NIST P-256"):
        keys.trust("one")
    (keys.trusted / "one.pub").write_text("hello")
    with pytest.raises(BundleError, match="not a public key"):
        signatures.verify(bundle, keys.trusted, keys.revoked)
