"""Fragments of the lock: what one stage of a run read and wrote, by digest, kept beside the data in the DVC remote.

A pod's own word is worth little: it may be lost after its work was done, or end well with nothing pushed. So a stage
has ended when its fragment is there, belongs to this run's commit, and everything that it names is in the remote.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from pipeline import storage
from pipeline.errors import RegistryError
from pipeline.files import write_atomic
from pipeline.registry import dvc_objects, places
from pipeline.registry.dvc_objects import Output

FOLDER = "fragments"
SUFFIX = ".json"


class Fragment(msgspec.Struct, frozen=True):
    """One stage of one run."""

    run_id: str
    stage: str
    commit: str
    """Of the run's branch that the pod worked on: code, parameters, champions."""
    lock: dict[str, Any]
    """The stage's entry in ``dvc.lock``."""
    files: dict[str, str]
    """Small outputs that DVC does not keep (metrics): path -> text."""

    def outputs(self) -> list[Output]:
        """Say what the stage wrote."""
        return [Output(str(out["path"]), str(out["md5"])) for out in self.lock.get("outs", [])]

    def kept(self) -> list[Output]:
        """Say what of it the DVC remote holds."""
        return [out for out in self.outputs() if out.path not in self.files]

    def digest(self) -> str:
        """Name the fragment by its content."""
        return "sha256:" + hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()


def folder(run_id: str) -> Path:
    """Where the fragments of a run are."""
    return storage.place(places.dvc_remote()) / FOLDER / places.run_folder_name(run_id)


def put(fragment: Fragment) -> None:
    """Publish a fragment, whole or not at all; its data must be in the remote already."""
    name = places.run_folder_name(fragment.stage) + SUFFIX
    write_atomic(folder(fragment.run_id) / name, msgspec.json.encode(fragment, order="sorted"))


def get(run_id: str, stage: str) -> Fragment | None:
    """Read the fragment of a stage; None before it has ended."""
    return _read(folder(run_id) / (places.run_folder_name(stage) + SUFFIX))


def all_of(run_id: str) -> dict[str, Fragment]:
    """Read every fragment of a run: stage -> fragment."""
    there = folder(run_id)
    found = [_read(path) for path in sorted(there.glob(f"*{SUFFIX}"))] if there.exists() else []
    return {fragment.stage: fragment for fragment in found if fragment is not None}


def _read(path: Path) -> Fragment | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(data, type=Fragment)
    except msgspec.DecodeError as error:
        raise RegistryError(
            f"{path} is no fragment of a lock: {error}", fix="delete it and run the stage again"
        ) from error


def faults(fragment: Fragment, *, commit: str, others: Mapping[str, Fragment]) -> Iterator[str]:
    """Say what is wrong with a fragment: of another commit, built on other data, or not all of it is in the remote.

    Args:
        fragment: What a pod has published.
        commit: What the run is cloned from.
        others: Fragments of the run, by stage.
    """
    if fragment.commit != commit:
        yield f"it was made from commit {fragment.commit[:12]}, the run is {commit[:12]}"
    written = {out.path: out.md5 for one in others.values() for out in one.outputs()}
    for dep in fragment.lock.get("deps", []):
        if written.get(dep["path"], dep["md5"]) != dep["md5"]:
            yield f"it was built on {dep['path']} {dep['md5']}, this run made {written[dep['path']]}"
    by_path = {out.path: out.md5 for out in fragment.outputs()}
    for path, text in fragment.files.items():
        if hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() != by_path.get(path):
            yield f"{path} is not what its lock says"
    remote = storage.place(places.dvc_remote())
    for out in fragment.kept():
        yield from dvc_objects.missing(remote, out)


def forget_broken(fragment: Fragment) -> None:
    """Take from the remote the listings of outputs whose files are not all there.

    DVC takes a folder for pushed when its listing is: without it, the push that follows brings everything.
    """
    remote = storage.place(places.dvc_remote())
    for out in fragment.kept():
        top = dvc_objects.object_path(remote, out.md5)
        if top.exists() and list(dvc_objects.missing(remote, out)):
            top.unlink()
