"""Reads DVC's own files: what a lock or a ``.dvc`` file points at, where the bytes lie, whether they are right.

Only the layout of DVC 3 (``files/md5/ab/cdef…``, ``.dir`` objects as JSON lists) is known here. Moving bytes to and
from remotes is left to DVC; folders are looked at directly, because ``verify`` must not trust what it checks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlparse

import yaml

from pipeline import storage
from pipeline.errors import RegistryError
from pipeline.registry import places
from pipeline.registry.records import Finding

DIRECTORY = ".dir"


class Output(NamedTuple):
    """One output of a stage, or the target of a ``.dvc`` file."""

    path: str
    md5: str


def outputs(document: bytes, *, source: str) -> list[Output]:
    """List what a ``dvc.lock`` or ``.dvc`` file says was written."""
    try:
        parsed: Any = yaml.safe_load(document)
        groups = [parsed] if "outs" in parsed else list(parsed["stages"].values())
        return [Output(str(out["path"]), str(out["md5"])) for group in groups for out in group.get("outs", [])]
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise RegistryError(f"{source}: not a DVC file ({error!r})", "a dvc.lock or .dvc file") from error


def stores() -> list[Path]:
    """The folders that hold objects here: the shared cache, and the remote if it is a folder."""
    remote = remote_folder()
    return [places.dvc_cache(), *([remote] if remote else [])]


def remote_folder() -> Path | None:
    """The DVC remote, if it is a folder of this machine."""
    address = places.dvc_remote()
    parsed = urlparse(address)
    if parsed.scheme in ("", "file"):
        return Path(unquote(parsed.path) if parsed.scheme else address)
    return None


def object_path(store: Path, md5: str) -> Path:
    """Where a store keeps an object."""
    return store / "files" / "md5" / md5[:2] / md5[2:]


def find(md5: str) -> Path | None:
    """Find an object in any store whose bytes are right."""
    for store in stores():
        path = object_path(store, md5)
        if path.is_file() and is_right(path, md5):
            return path
    return None


def is_right(path: Path, md5: str) -> bool:
    """Whether the bytes hash to the object's name."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    return digest == md5.removesuffix(DIRECTORY)


def members(md5: str) -> dict[str, str]:
    """List a directory object: relative path -> md5. A plain file has no members."""
    if not md5.endswith(DIRECTORY):
        return {}
    path = find(md5)
    if path is None:
        raise RegistryError(f"DVC object {md5} is in none of {', '.join(map(str, stores()))}", fix="run dvc pull")
    return {str(entry["relpath"]): str(entry["md5"]) for entry in json.loads(path.read_bytes())}


def reachable(md5: str) -> set[str]:
    """Every object that an output needs: itself and, for a directory, its files; unknown directories count alone."""
    try:
        return {md5, *members(md5).values()}
    except RegistryError:
        return {md5}


def faults(output: Output, *, needed_by: str) -> Iterator[Finding]:
    """Say which bytes of an output are missing or wrong, in cache or remote.

    What only an object store holds is looked for there by name: its bytes are hashed when they are brought back.
    """
    parts = [(output.md5, output.path)]
    with suppress(RegistryError):  # a listing that is nowhere here is reported itself
        parts += [(md5, f"{output.path}/{name}") for name, md5 in sorted(members(output.md5).items())]
    store = object_store()
    there = store is not None and any(find(md5) is None for md5, _ in parts)
    for md5, name in parts:
        yield from _changed(md5, f"{name}, needed by {needed_by}")
        if not there:
            yield from _gone(md5, f"{name}, needed by {needed_by}")
    if store is not None and there:
        for said in missing(store, output):
            yield Finding(str(object_path(store, output.md5)), f"missing: {said}, needed by {needed_by}")


def _changed(md5: str, what: str) -> Iterator[Finding]:
    for store in stores():
        path = object_path(store, md5)
        if path.is_file() and not is_right(path, md5):
            yield Finding(str(path), f"changed: not the bytes of {what}")


def _gone(md5: str, what: str) -> Iterator[Finding]:
    remote = remote_folder()
    if find(md5) is None:
        where = "in no store" if remote else f"not in the cache; registry restore asks {places.dvc_remote()}"
        yield Finding(str(object_path(stores()[-1], md5)), f"missing: the bytes of {what} are {where}")
    elif remote and not object_path(remote, md5).is_file():
        yield Finding(str(object_path(remote, md5)), f"missing in the DVC remote: {what} could not be restored")


def object_store() -> Path | None:
    """The DVC remote, if it is an object store that can be asked."""
    address = places.dvc_remote()
    return storage.place(address) if address.startswith("s3://") else None


def missing(store: Path, output: Output) -> Iterator[str]:
    """Say what of an output a folder or an object store has not, or has otherwise than its name says."""
    try:
        data = object_path(store, output.md5).read_bytes()
    except FileNotFoundError:
        yield f"{output.path} ({output.md5}) is not in the DVC remote"
        return
    if hashlib.md5(data, usedforsecurity=False).hexdigest() != output.md5.removesuffix(DIRECTORY):
        yield f"{output.path}: the DVC remote holds other bytes than {output.md5}"
    elif output.md5.endswith(DIRECTORY):
        listed = {str(one["md5"]): str(one["relpath"]) for one in json.loads(data)}
        with ThreadPoolExecutor(8) as pool:
            found = pool.map(lambda md5: object_path(store, md5).exists(), listed)
            lost = [name for name, exists in zip(listed.values(), found, strict=True) if not exists]
        if lost:
            yield f"{len(lost)} files of {output.path} are not in the DVC remote, {lost[0]} the first"
