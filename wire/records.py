"""The signature of a promotion record: ECDSA P-256 over the bytes of its file, checked by whoever reads records.

``pipeline.registry`` signs; the registry checks its history with this, and the service can check a record it is sent.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path

import msgspec

from wire import signatures
from wire.contracts import decode, encode
from wire.errors import ContractError


class RecordSignature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``records/<sequence>.sig``: ECDSA P-256, SHA-256, over the bytes of the record file."""

    key_id: str
    signature: str
    """DER, base64."""

    @classmethod
    def of(cls, key_id: str, raw: bytes) -> RecordSignature:
        """Put a signature into the form in which it is kept."""
        return cls(key_id, base64.b64encode(raw).decode())


def verify(data: bytes, signature: bytes, keys: Mapping[str, Path], *, source: str) -> str:
    """Check a document against its ``.sig`` content; return the key's id. Revocation is for the caller to judge."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    claim = decode(signature, RecordSignature, source=f"{source}: signature")
    path = keys.get(claim.key_id)
    if path is None:
        raise ContractError(
            f"{source}: signed by the unknown key {claim.key_id[:12]}",
            "one of " + (", ".join(key[:12] for key in keys) or "no keys at all"),
        )
    try:
        raw = base64.b64decode(claim.signature, validate=True)
        signatures.load_public(path).verify(raw, data, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError) as error:
        raise ContractError(
            f"{source}: the signature of key {claim.key_id[:12]} does not match", "unchanged bytes"
        ) from error
    # Blanks, or bits that base64 leaves unused, would let a changed file pass for the one that was written.
    if encode(RecordSignature.of(claim.key_id, raw)) != signature:
        raise ContractError(f"{source}: the signature is not in canonical form", "the file as it was written")
    return claim.key_id
