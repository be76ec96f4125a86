"""Private keys on NIST P-256: made, read, told apart by the id of their public half, and used.

A key is a PEM file, or lives in a PKCS#11 token and is named by a URI: then only its public half is ever seen here.
"""

from __future__ import annotations

import functools
import hashlib
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
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


def sign(private: Path | str, data: bytes) -> bytes:
    """Sign with ECDSA and SHA-256; DER."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, utils

    if isinstance(private, Path):
        signature: bytes = load_private(private).sign(data, ec.ECDSA(hashes.SHA256()))
        return signature
    import PyKCS11

    mechanism, digest = PyKCS11.Mechanism(PyKCS11.CKM_ECDSA, None), hashlib.sha256(data).digest()
    with _token(private) as token:
        raw = bytes(token.session.sign(token._private_key, digest, mecha=mechanism))
    half = len(raw) // 2
    return utils.encode_dss_signature(int.from_bytes(raw[:half], "big"), int.from_bytes(raw[half:], "big"))


@contextmanager
def _token(uri: str) -> Iterator[Any]:
    """Log in to the token that holds a key, for one use: a process logs in once, and what signs bundles does too."""
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        # The library's own: what signs bundles signs records, found by the same URI.
        from model_signing._signing.sign_pkcs11 import Signer
    except ImportError as error:
        raise RegistryError(
            f"a key in a token cannot be used: {error}", "the package pykcs11", "pip install 'loadmaster[pkcs11]'"
        ) from error
    place = uri.split("?", maxsplit=1)[0]  # without the PIN
    try:
        token = Signer(uri)
    except Exception as error:  # whatever module, token and PIN make the library raise
        # Its frames hold a session of the token, and as long as one is open nobody else of this process can log in.
        traceback.clear_frames(error.__traceback__)
        raise RegistryError(
            f"{place}: {type(error).__name__}: {error}", "pkcs11:token=…;object=…?module-path=…&pin-source=file:…"
        ) from error
    try:
        key = token.public_key()  # type: ignore[no-untyped-call]
        if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
            raise RegistryError(f"{place}: not a key on NIST P-256", "EC:prime256v1")
        yield token
    finally:
        if token.session is not None:
            token.session.closeSession()
        token.session = None


@functools.cache
def _public_in_token(uri: str) -> Any:
    with _token(uri) as token:
        return token.public_key()


def public_pem(private: Path | str) -> bytes:
    """Public half of a private key, as PEM."""
    return _public(private, pem=True)


def key_id(private: Path | str) -> str:
    """Id of a private key: that of its public half (``wire.signatures.key_id``)."""
    return hashlib.sha256(_public(private, pem=False)).hexdigest()


def _public(private: Path | str, *, pem: bool) -> bytes:
    from cryptography.hazmat.primitives import serialization

    encoding = serialization.Encoding.PEM if pem else serialization.Encoding.DER
    key = load_private(private).public_key() if isinstance(private, Path) else _public_in_token(private)
    public: bytes = key.public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
    return public
