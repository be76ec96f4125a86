"""The keys that sign bundles and records: made on first use, rotated, retired, revoked.

``var/keys`` holds ``signing.pem`` (private, mode 0600, needed only where ``promote`` and the other writers of records
run), ``trusted/<key id>.pub`` (what the placement service accepts; at most two, so that a rotation has no gap),
``trusted/trusted.json`` (which of them were put there on purpose), ``retired/<key id>.pub`` and ``retired.json`` (good
for the history up to the record named there, for nothing new) and ``revoked.json``.
The command line is ``python -m pipeline.registry.keys``; records are checked in ``wire.records``.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.errors import RegistryError
from pipeline.files import write_atomic
from pipeline.registry import p256
from pipeline.settings import var
from wire import environment, secret_files, signatures
from wire.contracts import encode
from wire.records import RecordSignature

KEY_ENV = environment.variable("signing_key")
"""Environment variable naming the private key when it is not ``var/keys/signing.pem``: the file of a mounted secret, or
the ``pkcs11:`` URI of a key in a token."""

VALID_AT_ONCE = 2
"""The new key and the one before it; a third would only be a forgotten one."""


def folder() -> Path:
    """Where keys are kept."""
    return var() / environment.KEYS


def trusted_folder() -> Path:
    """Public keys the placement service accepts."""
    return var() / environment.BELOW_VAR["trusted_keys_dir"]


def retired_folder() -> Path:
    """Public keys that are good for the history only."""
    return folder() / "retired"


def revoked_file() -> Path:
    """Keys that are good for nothing signed after the record named in their entry."""
    return var() / environment.BELOW_VAR["revoked_keys_file"]


def retired_file() -> Path:
    """Keys that sign nothing new, and the record that was newest when they were retired."""
    return folder() / "retired.json"


def private_path() -> Path | str:
    """Where the private key is, or will be: a file, or the URI of a token."""
    named = os.environ.get(KEY_ENV, "")
    return named if named.startswith(signatures.PKCS11) else Path(named or folder() / "signing.pem")


def has_private_key() -> bool:
    """Whether this machine can sign, or could at once."""
    path = private_path()
    return isinstance(path, str) or path.exists()


def private_key() -> Path | str:
    """Return the private key, made on first use; refuse one that others can read, or that signs no more."""
    path = private_path()
    if isinstance(path, str):
        _publish(path)
        return path
    if not path.exists():
        if KEY_ENV in os.environ:
            raise RegistryError(f"{path} ({KEY_ENV}) does not exist", "the private signing key")
        _first_private(path)
    refuse_readable(path)
    _publish(path)
    return path


def refuse_readable(path: Path | str) -> None:
    """Raise if anybody but its owner may read a secret; a token guards its own."""
    if isinstance(path, str):
        return
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise RegistryError(f"{path}: mode {mode:o}, readable by others", "mode 600", f"chmod 600 {path}")


def current_key_id() -> str:
    """Id of the key that signs now."""
    return p256.key_id(private_path())


def public_keys() -> dict[str, Path]:
    """Every public key known here, retired ones included: id -> file."""
    return signatures.public_keys(retired_folder()) | signatures.trusted(trusted_folder())


def sign_bytes(data: bytes) -> bytes:
    """Sign a document and return the content of its ``.sig`` file."""
    key = private_key()
    return encode(RecordSignature.of(p256.key_id(key), p256.sign(key, data)))


def ended() -> dict[str, dict[str, Any]]:
    """Keys that sign nothing new, revoked or retired: id -> since which record, and why."""
    try:
        retired = json.loads(retired_file().read_bytes())["retired"]
    except FileNotFoundError:
        retired = {}
    except (ValueError, KeyError, TypeError) as error:
        raise RegistryError(
            f"{retired_file()}: not readable ({error!r})", "the file as keys retire wrote it"
        ) from error
    revoked = signatures.revocations(revoked_file())
    return {key: {**entry, "by": "retirement"} for key, entry in retired.items()} | {
        key: {**entry, "by": "revocation"} for key, entry in revoked.items()
    }


def rotate() -> str:
    """Make a new signing key; the one before stays trusted. Return the new key's id."""
    path = private_key()
    valid = signatures.trusted(trusted_folder())
    if len(valid) >= VALID_AT_ONCE:
        raise RegistryError(
            f"{len(valid)} keys are trusted already: {', '.join(key[:12] for key in valid)}",
            f"at most {VALID_AT_ONCE}",
            "python -m pipeline.registry.keys retire KEY first",
        )
    _replace_private(path)
    return current_key_id()


def retire(key: str, *, last_record: tuple[int, str] | None) -> None:
    """Stop trusting an old key for anything new; the history it signed, up to ``last_record``, stays verifiable."""
    private_key()
    key = _resolve(key, signatures.trusted(trusted_folder()))
    if key == current_key_id():
        raise RegistryError(
            f"key {key[:12]} is the one that signs now", fix="python -m pipeline.registry.keys rotate first"
        )
    entry = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "last_record": last_record}
    retired = {one: before for one, before in ended().items() if before["by"] == "retirement"} | {key: entry}
    write_atomic(retired_file(), json.dumps({"retired": retired}, indent=2, sort_keys=True).encode() + b"\n")
    _set_aside(key)


def revoke(key: str, reason: str, *, last_record: tuple[int, str] | None) -> None:
    """Withdraw a key that may be in other hands.

    Args:
        key: Its id, or the beginning of it.
        reason: What happened; shown wherever the key is refused.
        last_record: Sequence and hash of the newest record now: what the key signed up to there is fixed by the chain
            and stays valid as history; nothing after it is.
    """
    path = private_key()
    key = _resolve(key, public_keys())
    if key == current_key_id():
        _replace_private(path)
    entry = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "reason": reason, "last_record": last_record}
    listed = signatures.revocations(revoked_file()) | {key: entry}
    write_atomic(revoked_file(), json.dumps({"revoked": listed}, indent=2, sort_keys=True).encode() + b"\n")
    # Only after it is listed: in between, the key is refused because it is listed.
    if (trusted_folder() / f"{key}.pub").exists():
        _set_aside(key)


def _set_aside(key: str) -> None:
    retired_folder().mkdir(parents=True, exist_ok=True)
    (trusted_folder() / f"{key}.pub").replace(retired_folder() / f"{key}.pub")
    list_trusted(signatures.trusted(trusted_folder()).keys() - {key})


def list_trusted(keys: Iterable[str]) -> None:
    """Write down which keys of the trusted folder are there on purpose."""
    write_atomic(trusted_folder() / signatures.LISTED, json.dumps(sorted(keys)).encode() + b"\n")


def trust(keys: Iterable[str]) -> None:
    """Write the list of trusted keys anew, as a person names them: for a folder whose list was lost."""
    lying = signatures.public_keys(trusted_folder())
    list_trusted([_resolve(key, lying) for key in keys])


def _replace_private(path: Path | str) -> None:
    if isinstance(path, str) or KEY_ENV in os.environ:
        raise RegistryError(
            f"{path} is named by {KEY_ENV}",
            "a key under var/keys",
            "put a new key there the way this one came",
        )
    # Trusted first: a kill in between leaves an unused public key, never a signature that nobody accepts.
    scratch = _next_to(path)
    secret_files.create(scratch, p256.new_private_pem(), exclusive=False)
    _publish(scratch)
    scratch.replace(path)


def _first_private(path: Path) -> None:
    """Make the first key, trusted before it can sign; what a killed process left half-done is taken up again."""
    scratch = _next_to(path)
    try:
        secret_files.create(scratch, p256.new_private_pem(), exclusive=True)
        _publish(scratch)
        mine = p256.key_id(scratch)
        path.hardlink_to(scratch)
    except FileExistsError:
        if mine != current_key_id():  # Another process was first, with a key of its own: ours never signed anything.
            (trusted_folder() / f"{mine}.pub").unlink(missing_ok=True)
    except FileNotFoundError:
        if not path.exists():  # else another process has done the rest with the same key, and cleared up
            raise
    scratch.unlink(missing_ok=True)


def _next_to(path: Path) -> Path:
    return path.with_name(f".{path.name}.next")


def _publish(path: Path | str) -> None:
    """Make sure that the public half is known, also of a key that came by another way (a mounted secret, a token)."""
    key = p256.key_id(path)
    place = str(path).split("?")[0]
    if key in signatures.revocations(revoked_file()):
        raise RegistryError(f"{place}: key {key[:12]} is revoked", fix="remove it: a new one is made on first use")
    if key in signatures.public_keys(retired_folder()):
        raise RegistryError(
            f"{place}: key {key[:12]} is retired", "a key that is trusted", "remove it: a new one is made on first use"
        )
    known = signatures.trusted(trusted_folder())
    if key not in known:
        # The list first: keys without one are refused, while a name on it without a file harms nobody.
        list_trusted({*known, key})
        write_atomic(trusted_folder() / f"{key}.pub", p256.public_pem(path))


def _resolve(key: str, known: dict[str, Path]) -> str:
    matches = [candidate for candidate in known if candidate.startswith(key)]
    if len(matches) != 1:
        raise RegistryError(f"{len(matches)} keys begin with {key!r}", ", ".join(one[:12] for one in known) or "a key")
    return matches[0]
