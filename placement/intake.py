"""From the bytes of a push to a policy that may go live; every step can refuse, none changes anything."""

from __future__ import annotations

import hmac
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

from placement import trial
from placement.errors import PushRefusedError, StoreError
from placement.policy import Policy, open_policy
from placement.settings import Settings
from placement.store import PolicyStore
from sched_env import problems
from wire import bundle, secret_files, signatures
from wire.contracts.bundle import SIGNATURE_FILE
from wire.contracts.feature_spec import ProblemName
from wire.errors import BundleError
from wire.graph import refusing

_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)


def check_token(authorization: str | None, token_file: Path) -> None:
    """Let the holder of the push token pass; the comparison takes the same time wherever the first difference is."""
    scheme, _, given = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not given.strip():
        raise PushRefusedError("token", 401, "no bearer token", "Authorization: Bearer <push token>")
    try:
        token = secret_files.push_token(token_file)
    except OSError as error:
        raise PushRefusedError("token", 403, f"pushes are off: the token file cannot be read ({error})") from error
    if not token or not hmac.compare_digest(given.strip().encode(), token.encode()):
        raise PushRefusedError("token", 403, "wrong push token", f"the content of {token_file.name}")


def unpack(archive: Path) -> dict[str, bytes]:
    """Take the files out of an uncompressed tar, into memory; nothing is ever extracted to a path it names."""
    files: dict[str, bytes] = {}
    with (
        refusing("the body is not a readable tar archive", "an uncompressed tar"),
        tarfile.open(archive, mode="r:") as tar,
    ):
        for member in tar:
            name = member.name.removeprefix("./")
            if member.isdir() and name in ("", "."):
                continue  # the folder itself, as `tar -C bundle .` writes it
            if name not in bundle.MAX_FILE_BYTES or member.type not in _PLAIN or name in files:
                raise BundleError(
                    f"archive holds {member.name!r} (type {member.type!r})",
                    f"each of {', '.join(bundle.MAX_FILE_BYTES)} at most once, as plain files without a path",
                )
            bundle.check_file(name, member.size)
            stream = tar.extractfile(member)
            files[name] = stream.read() if stream else b""
            if len(files[name]) != member.size:
                raise BundleError(f"archive ends inside {name}", f"{member.size} bytes of it")
    missing = sorted(set(bundle.REQUIRED_FILES) - set(files))
    if missing:
        raise BundleError(f"archive lacks {', '.join(missing)}", ", ".join(bundle.REQUIRED_FILES))
    return files


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


def admit(files: Mapping[str, bytes], problem: ProblemName, store: PolicyStore, settings: Settings) -> Policy:
    """Take a bundle through every check, cheapest and most telling first; raises :class:`PushRefusedError`."""
    try:
        key = verify_signature(files, store, settings)
    except BundleError as error:
        raise PushRefusedError.because("signature", error) from error
    try:
        checked = bundle.check(files, problems.spec)
    except BundleError as error:
        raise PushRefusedError.because("bundle", error) from error
    if checked.manifest.problem != problem:
        raise PushRefusedError("bundle", 422, f"bundle is for problem {checked.manifest.problem}", problem)
    try:
        trial.run(files, timeout_s=settings.trial_timeout_s, memory_mib=settings.trial_memory_mib)
        return open_policy(checked, key)
    except BundleError as error:
        raise PushRefusedError.because("trial", error) from error
