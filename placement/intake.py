"""From the bytes of a push to a policy that may go live; every step can refuse, none changes anything."""

from __future__ import annotations

import hmac
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

from placement import proof, trial
from placement.errors import PushRefusedError, StoreError
from placement.policy import Policy, open_policy
from placement.proof import Proof
from placement.settings import Settings
from placement.store import PolicyStore
from sched_env import problems
from wire import bundle, secret_files, signatures
from wire.contracts.bundle import SIGNATURE_FILE
from wire.contracts.feature_spec import ProblemName
from wire.contracts.policies import RECORD_FILE, RECORD_SIGNATURE_FILE
from wire.contracts.record import PromotionRecord
from wire.errors import BundleError, ConfigError
from wire.graph import refusing
from wire.secret_files import Role

_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)


def check_token(authorization: str | None, token_file: Path, role: Role) -> str:
    """Let the holder of a token with this role pass, and name them; every comparison takes the same time."""
    scheme, _, given = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not given.strip():
        raise PushRefusedError("token", 401, "no bearer token", "Authorization: Bearer <token>")
    try:
        known = secret_files.tokens(token_file)
    except ConfigError as error:
        raise PushRefusedError("token", 403, f"changes are off: {error.found}", error.expected) from error
    holders = [one for one in known if hmac.compare_digest(given.strip().encode(), one.secret.encode())]
    if not holders:
        raise PushRefusedError("token", 403, "unknown token", f"one of the file {token_file.name}")
    if not any(role in one.roles for one in holders):
        raise PushRefusedError("token", 403, f"the token of {holders[0].name} has not the role {role}")
    return holders[0].name


def unpack(archive: Path) -> tuple[dict[str, bytes], Proof]:
    """Take bundle and proof out of an uncompressed tar, into memory; nothing is ever extracted to a path it names."""
    files: dict[str, bytes] = {}
    caps = bundle.MAX_FILE_BYTES | proof.MAX_FILE_BYTES
    with (
        refusing("the body is not a readable tar archive", "an uncompressed tar"),
        tarfile.open(archive, mode="r:") as tar,
    ):
        for member in tar:
            name = member.name.removeprefix("./")
            if member.isdir() and name in ("", "."):
                continue  # the folder itself, as `tar -C bundle .` writes it
            if name not in caps or member.type not in _PLAIN or name in files:
                raise BundleError(
                    f"archive holds {member.name[:100]!r} (type {member.type!r})",
                    f"each of {', '.join(caps)} at most once, as plain files without a path",
                )
            if member.size > caps[name]:
                raise BundleError(f"{name} has {member.size} bytes", f"at most {caps[name]}")
            stream = tar.extractfile(member)
            files[name] = stream.read() if stream else b""
            if len(files[name]) != member.size:
                raise BundleError(f"archive ends inside {name}", f"{member.size} bytes of it")
    missing = sorted({*bundle.REQUIRED_FILES, *proof.MAX_FILE_BYTES} - set(files))
    if missing:
        expected = f"{', '.join(bundle.REQUIRED_FILES)} and the signed promotion record"
        raise BundleError(f"archive lacks {', '.join(missing)}", expected)
    return files, Proof(files.pop(RECORD_FILE), files.pop(RECORD_SIGNATURE_FILE))


def verify_signature(files: Mapping[str, bytes], store: PolicyStore, settings: Settings) -> str:
    """Verify the signature over exactly these bytes, in a private folder; returns the id of the key."""
    if SIGNATURE_FILE not in files:
        raise BundleError(f"bundle has no {SIGNATURE_FILE}", "a signed bundle")
    folder = store.staging()
    try:
        for name, data in files.items():
            (folder / name).write_bytes(data)
        return signatures.verify(folder, settings.trusted_keys_dir, settings.revoked_keys_file)
    except BundleError as error:
        # Our own scratch folder says nothing to whoever reads the refusal.
        raise BundleError(error.found.replace(str(folder), "bundle"), error.expected, error.fix) from error
    except OSError as error:
        raise StoreError(f"staging folder {folder}: {error}", "free space and rights") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_key(key: str, settings: Settings) -> None:
    """Refuse a key that does not count any more, whenever a policy that it signed is to go live."""
    signatures.refuse_revoked(key, settings.revoked_keys_file, source="the policy")
    if key not in signatures.trusted(settings.trusted_keys_dir):
        raise BundleError(f"the policy is signed by key {key[:12]}, which is not trusted any more")


def admit(
    files: Mapping[str, bytes],
    problem: ProblemName,
    store: PolicyStore,
    settings: Settings,
    record: PromotionRecord | None = None,
) -> Policy:
    """Take a bundle through every check, cheapest and most telling first; raises :class:`PushRefusedError`.

    Args:
        files: The bundle.
        problem: What it must be for.
        store: Lends a folder to verify the signature in.
        settings: Keys, and the limits of the trial.
        record: What promotes it; None for a bundle that went live by one before.
    """
    try:
        key = verify_signature(files, store, settings)
    except BundleError as error:
        raise PushRefusedError.because("signature", error) from error
    try:
        checked = bundle.check(files, problems.spoken)
    except BundleError as error:
        raise PushRefusedError.because("bundle", error) from error
    if checked.manifest.problem != problem:
        raise PushRefusedError("bundle", 422, f"bundle is for problem {checked.manifest.problem}", problem)
    if record is not None:
        proof.hold_to(record, checked.manifest, files)
    try:
        trial.run(files, settings)
        return open_policy(checked, key)
    except BundleError as error:
        raise PushRefusedError.because("trial", error) from error
