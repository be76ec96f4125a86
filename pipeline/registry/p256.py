"""Private keys on NIST P-256: made, read, and told apart by the id of their public half."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from pipeline.errors import RegistryError


def new_private_pem() -> bytes:
    """Make a private key."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def load_private(path: Path) -> Any:
    """Read a private key; anything but an unencrypted P-256 key is refused."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise RegistryError(f"{path}: not a private key ({error})", "PEM, unencrypted, NIST P-256") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
        raise RegistryError(f"{path}: not a key on NIST P-256", "PEM, unencrypted, NIST P-256")
    return key


def public_pem(private: Path) -> bytes:
    """Public half of a private key, as PEM."""
    return _public(private, pem=True)


def key_id(private: Path) -> str:
    """Id of a private key: that of its public half (``wire.signatures.key_id``)."""
    return hashlib.sha256(_public(private, pem=False)).hexdigest()


def _public(private: Path, *, pem: bool) -> bytes:
    from cryptography.hazmat.primitives import serialization

    encoding = serialization.Encoding.PEM if pem else serialization.Encoding.DER
    public: bytes = (
        load_private(private).public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return public
