"""Signed bundles: finalised from a run, signed, kept under ``var/bundles`` and in the DVC remote by content.

The pointer ``bundles/<digest>.dvc`` on branch ``promotions`` is an ordinary DVC file: ``dvc pull`` in a checkout of
that branch brings the bundle back, bit for bit.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import yaml

from pipeline.errors import RegistryError
from pipeline.files import replaced_folder
from pipeline.registry import dvc_objects, places, runs, signing
from pipeline.registry.chain import Chain
from pipeline.registry.git import Repository
from pipeline.registry.runs import Run
from wire import signatures
from wire.bundle import check_manifest
from wire.bundle import files_sha256 as hash_of_files
from wire.contracts.bundle import MANIFEST_FILE, SIGNATURE_FILE, Lineage, Manifest, Verdict
from wire.contracts.record import PromotionRecord
from wire.errors import BundleError

POINTERS = "bundles/"
_DIRECTORY = re.compile(r"[0-9a-f]{32}\.dir")


def pointer_of(digest: str) -> str:
    """Path of a bundle's DVC file on branch ``promotions``."""
    return f"{POINTERS}{digest.removeprefix('sha256:')}.dvc"


def read_manifest(directory: Path) -> Manifest:
    """Read a bundle's manifest and check that files and digest are what it says."""
    path = directory / MANIFEST_FILE
    if not path.is_file():
        raise BundleError(f"{path} does not exist", "a bundle made by the export stage")
    manifest = check_manifest(path.read_bytes())
    present = {entry.name for entry in directory.iterdir()} - {MANIFEST_FILE, SIGNATURE_FILE}
    if present != manifest.files.keys():
        raise BundleError(
            f"{directory} holds {', '.join(sorted(present))}", f"what its manifest lists: {', '.join(manifest.files)}"
        )
    for name, sha256 in manifest.files.items():
        if hashlib.sha256((directory / name).read_bytes()).hexdigest() != sha256:
            raise BundleError(f"{directory / name} has changed", f"SHA-256 {sha256[:12]}…, as the manifest says")
    return manifest


def files_sha256(directory: Path) -> str:
    """Hash every file of a bundle, manifest and signature included: what a record pins.

    A link is refused even if it leads to the right bytes: they are somebody else's to change.
    """
    signatures.refuse_links(directory)
    return hash_of_files({path.name: path.read_bytes() for path in directory.iterdir()})


def holds(directory: Path, sha256: str | None) -> bool:
    """Whether a folder is, file by file, what a record pins."""
    try:
        return files_sha256(directory) == sha256
    except BundleError:
        return False


def pointed_at(document: bytes, path: str) -> dvc_objects.Output:
    """Read a bundle's DVC file; one that says more than which bytes is refused before DVC would obey it."""
    try:
        parsed = yaml.safe_load(document)
        (out,) = parsed["outs"]
        wanted = Path(path).name.removesuffix(".dvc")
        plain = parsed.keys() == {"outs"} and out.keys() <= {"md5", "size", "nfiles", "hash", "path"}
        if plain and out["path"] == wanted and _DIRECTORY.fullmatch(out["md5"]):
            return dvc_objects.Output(out["path"], out["md5"])
    except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError):
        pass  # Whatever it is, it is not ours: told below, in one way.
    raise RegistryError(f"{path}: not the DVC file of one bundle", "one folder, named by the digest, and its hash")


@contextmanager
def of_run(mirror: Repository, commit: str, problem: str) -> Iterator[Path]:
    """Give the bundle that a recorded run exported: by the hashes in its commit, not from its workspace."""
    with output_of_run(mirror, commit, runs.bundle_output(problem)) as folder:
        yield folder


@contextmanager
def output_of_run(mirror: Repository, commit: str, wanted: str) -> Iterator[Path]:
    """Give a folder that a stage of a recorded run wrote, brought from the DVC remote if it is not on this machine."""
    md5 = runs.outputs_of(mirror, commit).get(wanted, "")
    if not _DIRECTORY.fullmatch(md5):
        raise RegistryError(f"{runs.LOCK} in commit {commit[:12]} says nothing of {wanted}", "a run that exported it")
    with dvc_folder() as root:
        folder = root / "output"
        if not _copied(md5, folder):
            file = root / "output.dvc"
            file.write_text(yaml.safe_dump({"outs": [{"md5": md5, "hash": "md5", "path": folder.name}]}))
            dvc(root, "pull", "--quiet", file.name)
        signatures.refuse_links(folder)
        yield folder


def _copied(md5: str, folder: Path) -> bool:
    """Copy a directory object whose files are all on this machine; DVC takes seconds for the same."""
    if dvc_objects.find(md5) is None:
        return False
    objects = {Path(name).name: dvc_objects.find(member) for name, member in dvc_objects.members(md5).items()}
    if None in objects.values():
        return False
    folder.mkdir()
    for name, path in objects.items():
        shutil.copyfile(str(path), folder / name)
    return True


def finalise(source: Path, run: Run, verdict: Verdict) -> Path:
    """Complete the manifest of a run's bundle with lineage and verdict, sign it, and keep it under ``var/bundles``.

    A bundle that already lies there, complete and signed with a key that is good now, is taken as it is.
    """
    manifest = read_manifest(source)
    lineage = Lineage(
        git_commit=run.commit,
        dvc_lock_sha256=run.dvc_lock_sha256,
        run_id=run.run_id,
        windows_start=manifest.lineage.windows_start,
        windows_end=manifest.lineage.windows_end,
    )
    final = msgspec.structs.replace(manifest, lineage=lineage, gate=verdict)
    content = msgspec.json.format(msgspec.json.encode(final, order="sorted"), indent=2) + b"\n"
    target = places.bundle(manifest.digest)
    if _is_kept(target, content):
        return target
    with replaced_folder(target) as copy:
        for name in manifest.files:
            shutil.copyfile(source / name, copy / name)
        (copy / MANIFEST_FILE).write_bytes(content)
        signatures.sign(copy, signing.private_key())
    return target


def sign_anew(directory: Path) -> Path:
    """Replace the signature of a kept bundle by one of the current key."""
    with replaced_folder(directory) as copy:
        shutil.copytree(directory, copy, dirs_exist_ok=True)
        signatures.sign(copy, signing.private_key())
    return directory


def store(directory: Path) -> bytes:
    """Put a signed bundle into the DVC cache and remote; return the DVC file that points at it."""
    with dvc_folder() as root:
        copy = root / POINTERS / directory.name
        shutil.copytree(directory, copy)
        dvc(root, "add", "--quiet", str(copy.relative_to(root)))
        dvc(root, "push", "--quiet")
        return copy.with_suffix(".dvc").read_bytes()


def fetch(digest: str, pointer: bytes) -> Path:
    """Bring a signed bundle back from the DVC remote into ``var/bundles``."""
    target = places.bundle(digest)
    with dvc_folder() as root:
        file = root / pointer_of(digest)
        file.parent.mkdir(parents=True)
        pointed_at(pointer, pointer_of(digest))
        file.write_bytes(pointer)
        dvc(root, "pull", "--quiet", str(file.relative_to(root)))
        with replaced_folder(target) as copy:
            # Copied byte by byte: DVC may have linked the files into its read-only cache.
            shutil.copytree(file.with_suffix(""), copy, copy_function=shutil.copyfile, dirs_exist_ok=True)
    return target


def approved(chain: Chain, record: PromotionRecord, *, history: bool = False) -> Path:
    """Return the folder of a record's signed bundle, brought back from the DVC remote if need be, and check it.

    Args:
        chain: The records.
        record: Names digest and bytes.
        history: Accept retired and revoked keys too: the bundle is looked at, not served.
    """
    directory = places.bundle(record.digest)
    if not holds(directory, record.bundle_sha256):
        directory = fetch(record.digest, _pointer(chain, record))
    if files_sha256(directory) != record.bundle_sha256:
        raise RegistryError(f"{directory} is not the bundle that record {record.sequence} approved")
    if history:
        signatures.signer(directory, signing.public_keys())
    else:
        signatures.verify(directory, signing.trusted_folder(), signing.revoked_file())
    return directory


def signed_by_retired(chain: Chain, record: PromotionRecord) -> bool:
    """Whether a record's bundle must be signed anew before it can be served again; a revoked key's is refused."""
    directory = approved(chain, record, history=True)
    key = signatures.signer(directory, signing.public_keys())
    signatures.refuse_revoked(key, signing.revoked_file(), source=str(directory / SIGNATURE_FILE))
    return key not in signatures.trusted(signing.trusted_folder())


def _pointer(chain: Chain, record: PromotionRecord) -> bytes:
    """Read the DVC file as it was when these very bytes were approved; a bundle may have been signed anew since."""
    wanted = (record.digest, record.bundle_sha256)
    approvals = [one for one in chain.records if one.state == "approved" and (one.digest, one.bundle_sha256) == wanted]
    path, commits = pointer_of(record.digest), chain.commits()
    for approval in reversed(approvals):
        pointer = chain.mirror.files(commits[approval.sequence], path).get(path)
        if pointer is not None:
            return pointer
    raise RegistryError(f"{path} is missing on branch promotions", f"the bundle of record {record.sequence}")


def _is_kept(target: Path, manifest: bytes) -> bool:
    if not target.is_dir():
        return False
    try:
        signatures.verify(target, signing.trusted_folder(), signing.revoked_file())
    except BundleError:
        return False
    return (target / MANIFEST_FILE).read_bytes() == manifest


def dvc_settings() -> str:
    """Settings of a DVC repository that works on the shared cache and the remote of the bundles."""
    return (
        "[core]\n    analytics = false\n    remote = bundles\n"
        f"[cache]\n    dir = {places.dvc_cache()}\n    type = copy\n"
        f"['remote \"bundles\"']\n    url = {places.dvc_remote()}\n"
    )


@contextmanager
def dvc_folder() -> Iterator[Path]:
    """Make a throw-away DVC repository: concurrent promotions never share a working tree."""
    with tempfile.TemporaryDirectory(prefix="loadmaster-dvc-") as folder:
        root = Path(folder)
        (root / ".dvc").mkdir()
        (root / ".dvc" / "config").write_text(dvc_settings().replace("[core]\n", "[core]\n    no_scm = true\n"))
        yield root


def dvc(root: Path, *arguments: str) -> None:
    """Run DVC in a folder; an error carries its own words."""
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "DVC_NO_ANALYTICS": "true"},
    )
    if done.returncode:
        raise RegistryError(
            f"dvc {arguments[0]} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-2000:]}",
            fix=f"see that the DVC remote {places.dvc_remote()} can be reached, then run it again",
        )
