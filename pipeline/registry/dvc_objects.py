"""Reads DVC's own files: what a lock or a ``.dvc`` file points at, where the bytes lie, whether they are right.

Only the layout of DVC 3 (``files/md5/ab/cdef…``, ``.dir`` objects as JSON lists) is known here. Moving bytes to and
from remotes is left to DVC; folders are looked at directly, because ``verify`` must not trust what it checks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlparse

import yaml

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
    """Say which bytes of an output are missing or wrong, in cache or remote."""
    yield from _object_faults(output.md5, f"{output.path}, needed by {needed_by}")
    try:
        inside = members(output.md5)
    except RegistryError:
        return  # The directory object itself has been reported.
    for name, md5 in sorted(inside.items()):
        yield from _object_faults(md5, f"{output.path}/{name}, needed by {needed_by}")


def _object_faults(md5: str, what: str) -> Iterator[Finding]:
    remote = remote_folder()
    for store in stores():
        path = object_path(store, md5)
        if path.is_file() and not is_right(path, md5):
            yield Finding(str(path), f"changed: not the bytes of {what}")
    if find(md5) is None:
        where = "in no store" if remote else f"not in the cache; registry restore asks {places.dvc_remote()}"
        yield Finding(str(object_path(stores()[-1], md5)), f"missing: the bytes of {what} are {where}")
    elif remote and not object_path(remote, md5).is_file():
        yield Finding(str(object_path(remote, md5)), f"missing in the DVC remote: {what} could not be restored")
