"""Sign and verify a bundle directory: OpenSSF model-signing, key mode, NIST P-256.

``promote`` signs; the registry and the placement service verify, and may not import each other, so both find it here.
A signature covers every file of the (flat) directory but itself. Two keys may be valid at once, so that a key can be
rotated without a gap; a revoked key is refused even while its file is still among the trusted ones.

``model_signing`` and ``cryptography`` are imported inside the functions: features and heuristics need numpy alone.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from wire.contracts.bundle import SIGNATURE_FILE
from wire.errors import BundleError

MAX_SIGNATURE_BYTES = 1_000_000
"""A signature lists a handful of files; anything larger is not ours and is not parsed."""


PKCS11 = "pkcs11:"
"""Begins the name of a key that lives in a token (an HSM, a smart card) and never leaves it: an RFC 7512 URI."""

LISTED = "trusted.json"
"""Names, inside a folder of trusted keys, those that were put there on purpose: a list of key ids."""


def sign(directory: Path, private_key: Path | str) -> Path:
    """Sign every file of ``directory`` and return the path of the signature, written atomically inside it.

    Args:
        directory: The bundle.
        private_key: A PEM file, or the ``pkcs11:`` URI of a key in a token.
    """
    from model_signing import signing

    refuse_links(directory)
    target = directory / SIGNATURE_FILE
    # Written beside the directory, so that a half-written signature never lies inside a bundle.
    scratch = directory.parent / f".{directory.name}.{os.getpid()}.sig"
    config = signing.Config()  # type: ignore[no-untyped-call]
    if isinstance(private_key, str):
        config.use_pkcs11_signer(pkcs11_uri=private_key)
    else:
        config.use_elliptic_key_signer(private_key=private_key)
    config.set_hashing_config(_hashing())
    try:
        config.sign(directory, scratch)
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)
    return target


def verify(directory: Path, trusted_keys: Path, revoked: Path) -> str:
    """Check the signature of a bundle against the trusted keys.

    Args:
        directory: The bundle, signature included.
        trusted_keys: Folder of public keys, ``*.pub``, PEM.
        revoked: ``revoked.json``; may be absent, may not be unreadable.

    Returns:
        The id of the key that signed it.

    Raises:
        BundleError: Unsigned, changed since, extra or missing files, an unknown key, a revoked key.
    """
    key = signer(directory, trusted(trusted_keys))
    refuse_revoked(key, revoked, source=str(directory / SIGNATURE_FILE))
    return key


def signer(directory: Path, keys: dict[str, Path]) -> str:
    """Check the signature of a bundle against ``keys`` (id -> file) and return the id of the one that made it.

    Whether that key has been revoked since is a question of its own: :func:`verify` asks it, the registry's history
    asks it together with the time of the signature.
    """
    from model_signing import verifying

    refuse_links(directory)
    hint = _key_hint(directory / SIGNATURE_FILE)
    match = [key for key, path in keys.items() if hashlib.sha256(_public_pem(path)).hexdigest() == hint]
    if not match:
        raise BundleError(
            f"{directory / SIGNATURE_FILE}: signed by a key that is not trusted (hint {hint[:12]})",
            "one of the trusted keys " + (", ".join(key[:12] for key in keys) or "(there are none)"),
            "sign with a trusted key, or add its public key if you know where it comes from",
        )
    key = match[0]
    config = verifying.Config()  # type: ignore[no-untyped-call]
    config.use_elliptic_key_verifier(public_key=keys[key]).set_hashing_config(_hashing())
    try:
        config.verify(directory, directory / SIGNATURE_FILE)
    except Exception as error:  # whatever a hostile signature makes the library raise is a refusal
        reason = str(error) or type(error).__name__
        raise BundleError(
            f"{directory}: the signature does not match: {reason}",
            f"the files that key {key[:12]} signed",
            "fetch the bundle again from the registry",
        ) from error
    return key


def public_keys(folder: Path) -> dict[str, Path]:
    """List the public keys that lie in a folder, trusted or not: id -> file. Any other ``*.pub`` is an error."""
    return {key_id(path): path for path in sorted(folder.glob("*.pub"))}


def trusted(folder: Path) -> dict[str, Path]:
    """List the public keys of a folder that are there on purpose: id -> file.

    A key that is not on the folder's list counts for nothing, whoever dropped it there; keys without a list are an
    error, or deleting the list would make all of them trusted.
    """
    keys = public_keys(folder)
    on_purpose = listed(folder)
    if keys and on_purpose is None:
        raise BundleError(
            f"{folder / LISTED} is missing, so that none of the {len(keys)} keys beside it is trusted",
            "the list of the keys that are there on purpose",
            "restore the file, or where the keys are made: python -m pipeline.registry.keys trust KEY [KEY ...]",
        )
    return {key: path for key, path in keys.items() if key in (on_purpose or ())}


def listed(folder: Path) -> set[str] | None:
    """Read the list of a folder of keys; None when there is none, an error when it cannot be read."""
    path = folder / LISTED
    try:
        names = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise BundleError(
            f"{path}: not a list of key ids ({error})", '["<key id>", ...]', "restore the file"
        ) from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BundleError(f"{path}: not a list of key ids", '["<key id>", ...]', "restore the file")
    return set(names)


def key_id(public_key: Path) -> str:
    """Name a key: SHA-256 of its public half in DER."""
    from cryptography.hazmat.primitives import serialization

    der = load_public(public_key).public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(der).hexdigest()


def refuse_revoked(key: str, revoked: Path, *, source: str) -> None:
    """Raise if ``key`` is listed in ``revoked.json``."""
    listed = revocations(revoked)
    if key in listed:
        raise BundleError(
            f"{source}: signed by the revoked key {key[:12]} ({listed[key].get('reason', 'no reason given')})",
            "a key that is not revoked",
            "promote again: the bundle is then signed with the current key",
        )


def revocations(revoked: Path) -> dict[str, dict[str, Any]]:
    """Read ``revoked.json``: key id -> {at, reason, ...}. Absent means none; unreadable is an error, never none."""
    try:
        return parse_revocations(revoked.read_bytes(), source=str(revoked))
    except FileNotFoundError:
        return {}


def parse_revocations(data: bytes, *, source: str) -> dict[str, dict[str, Any]]:
    """Read the content of a ``revoked.json``."""
    try:
        return {str(key): dict(entry) for key, entry in json.loads(data)["revoked"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BundleError(
            f"{source}: not readable as a list of revoked keys ({error})",
            '{"revoked": {"<key id>": {"at": ..., "reason": ...}}}',
            "restore the file; while it is unreadable no key is trusted",
        ) from error


def _hashing() -> Any:
    from model_signing import hashing

    config = hashing.Config()  # type: ignore[no-untyped-call]
    config.use_file_serialization(hashing_algorithm="sha256", allow_symlinks=False)
    # The library ignores .git* files by default; in a bundle nothing but the signature may go unsigned.
    return config.set_ignored_paths(paths=[SIGNATURE_FILE], ignore_git_paths=False)


def refuse_links(directory: Path) -> None:
    """Raise unless the directory is there and holds plain files only."""
    if not directory.is_dir():
        raise BundleError(f"{directory}: no such directory", "a bundle directory")
    for entry in sorted(directory.iterdir()):
        if entry.is_symlink() or not entry.is_file():
            raise BundleError(f"{entry}: a link or a folder inside a bundle", "plain files only")


def _key_hint(signature: Path) -> str:
    """Read which key the signature names: SHA-256 of the PEM, as model-signing writes it."""
    if not signature.is_file():
        raise BundleError(f"{signature}: missing", "a signed bundle", "sign it with python -m pipeline.promote")
    if signature.stat().st_size > MAX_SIGNATURE_BYTES:
        raise BundleError(f"{signature}: {signature.stat().st_size} bytes", f"at most {MAX_SIGNATURE_BYTES}")
    try:
        hint = json.loads(signature.read_bytes())["verificationMaterial"]["publicKey"]["hint"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BundleError(f"{signature}: not a key-mode signature ({error!r})", "a model-signing bundle") from error
    # Without the hint the library would only print a warning; we want to know whose signature it claims to be.
    if not isinstance(hint, str) or not hint:
        raise BundleError(f"{signature}: names no key", "a signature with a public-key hint")
    return hint


def _public_pem(path: Path) -> bytes:
    from cryptography.hazmat.primitives import serialization

    pem: bytes = load_public(path).public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return pem


def load_public(path: Path) -> Any:
    """Read a public key; anything but a P-256 key is refused."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BundleError(f"{path}: not a public key ({error})", "a PEM public key on NIST P-256") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
        raise BundleError(f"{path}: not a key on NIST P-256", "a PEM public key on NIST P-256")
    return key
