"""The signature of a promotion record: the bytes, the key and the form must all be right."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from wire import records, signatures
from wire.contracts import encode
from wire.errors import BundleError, ContractError
from wire.records import RecordSignature

DATA = b'{"sequence":0}'


@pytest.fixture
def signed(tmp_path: Path) -> tuple[bytes, dict[str, Path]]:
    """The signature of DATA, and the keys that are known."""
    key = ec.generate_private_key(ec.SECP256R1())
    pem, public = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    (tmp_path / "a.pub").write_bytes(key.public_key().public_bytes(pem, public))
    keys = signatures.public_keys(tmp_path)
    (name,) = keys
    return encode(RecordSignature.of(name, key.sign(DATA, ec.ECDSA(hashes.SHA256())))), keys


def refuse(data: bytes, signature: bytes, keys: dict[str, Path], said: str) -> None:
    with pytest.raises(ContractError, match=said) as caught:
        records.verify(data, signature, keys, source="records/000000.json")
    assert caught.value.found.startswith("records/000000.json: ")


def test_the_key_that_signed_is_named(signed: tuple[bytes, dict[str, Path]]) -> None:
    signature, keys = signed
    assert [records.verify(DATA, signature, keys, source="")] == list(keys)


def test_other_bytes_other_keys_and_other_forms_are_refused(signed: tuple[bytes, dict[str, Path]]) -> None:
    signature, keys = signed
    refuse(DATA + b" ", signature, keys, "does not match")
    refuse(DATA, signature, {}, "unknown key .*; expected one of no keys at all")
    refuse(DATA, b"{}", keys, "signature: .*key_id")
    refuse(DATA, signature + b"\n", keys, "canonical")
    name = next(iter(keys))
    refuse(DATA, encode(RecordSignature(name, "not base64!")), keys, "does not match")
    refuse(DATA, encode(RecordSignature(name, base64.b64encode(b"").decode())), keys, "does not match")


def test_a_key_of_another_kind_is_refused(signed: tuple[bytes, dict[str, Path]]) -> None:
    signature, keys = signed
    path = next(iter(keys.values()))
    other = ec.generate_private_key(ec.SECP384R1()).public_key()
    path.write_bytes(other.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(BundleError, match="P-256"):
        records.verify(DATA, signature, keys, source="")
