"""What happens inside a pod: clone the run's branch, pull what the stage reads, run it, push, publish the fragment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from pipeline import workspace
from pipeline.errors import RegistryError
from pipeline.pods import fragments
from pipeline.pods.fragments import Fragment
from pipeline.registry import places
from pipeline.registry.runs import LOCK
from pipeline.settings import var
from pipeline.workspace import UNFINISHED
from wire import closure

PREFIX = "work/"
"""Branches of runs under way: what their pods clone. ``merge`` takes them away; ``runs/`` holds what was recorded."""


def branch(run_id: str) -> str:
    """Name the branch that the pods of a run clone."""
    from pipeline.registry.runs import branch_of

    return PREFIX + branch_of(run_id).partition("/")[2]


def run_stage(run_id: str, stage: str) -> Fragment:
    """Run one stage of a run, all of it; a stage that has ended already is left as it is."""
    os.environ.setdefault("DVC_SITE_CACHE_DIR", str(var() / "dvc" / "site"))  # /var/tmp is not ours to write in a pod
    folder = _clone(run_id)
    commit = _git(folder, "rev-parse", "HEAD")
    known = fragments.all_of(run_id)
    done = known.get(stage)
    if done is not None and not list(fragments.faults(done, commit=commit, others=known)):
        return done
    known.pop(stage, None)
    write_lock(folder, known)
    _pull(folder, stage, known)
    _dvc(folder, "repro", "--single-item", "--", stage)
    entry = yaml.safe_load((folder / LOCK).read_text())["stages"][stage]
    fragment = Fragment(run_id, stage, commit, entry, _small_files(folder, stage))
    if fragment.kept():
        fragments.forget_broken(fragment)
        _dvc(folder, "push", "--quiet", *(out.path for out in fragment.kept()))
    fragments.put(fragment)
    return fragment


def write_lock(folder: Path, known: dict[str, Fragment]) -> None:
    """Put fragments together: one lock, and the small files beside it."""
    stages = {name: known[name].lock for name in sorted(known)}
    (folder / LOCK).write_text(yaml.safe_dump({"schema": "2.0", "stages": stages}, sort_keys=False))
    for fragment in known.values():
        for name, text in fragment.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)


def _clone(run_id: str) -> Path:
    target = places.workspace(run_id)
    unfinished = target.with_name(target.name + UNFINISHED)
    for left in (target, unfinished):
        shutil.rmtree(left, ignore_errors=True)  # of a container that was started again in the same pod
    target.parent.mkdir(parents=True, exist_ok=True)
    command = ["git", "clone", "--quiet", "--single-branch", "--branch", branch(run_id)]
    done = subprocess.run(
        [*command, "--", places.registry_remote(), str(unfinished)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RegistryError(
            f"the branch of run {run_id!r} could not be cloned: {done.stderr.strip()}",
            f"branch {branch(run_id)} in the registry",
            f"see {places.REGISTRY_ENV} and the secret that the pod was given",
        )
    workspace.configure_dvc(unfinished, var(), verify=True)
    workspace.hand_on_kernels([closure.ROOT], unfinished)  # the image was built with its simulators compiled
    unfinished.rename(target)
    return target


def _pull(folder: Path, stage: str, known: dict[str, Fragment]) -> None:
    """Pull what the stage depends on, of what the stages before it wrote; every file is hashed on its way in."""
    deps = _stage_paths(folder, stage)[0]
    wanted = sorted(
        {
            out.path
            for fragment in known.values()
            for out in fragment.kept()
            for dep in deps
            if out.path == dep or out.path.startswith(f"{dep}/") or dep.startswith(f"{out.path}/")
        }
    )
    if wanted:
        _dvc(folder, "pull", "--quiet", *wanted)


def _small_files(folder: Path, stage: str) -> dict[str, str]:
    return {path: (folder / path).read_text() for path in _stage_paths(folder, stage)[1]}


def _stage_paths(folder: Path, stage: str) -> tuple[list[str], list[str]]:
    """Return what DVC says that a stage depends on, and which outputs it leaves to git."""
    from dvc.repo import Repo

    with Repo(str(folder)) as repo:
        found = repo.stage.load_one(path=str(folder / "dvc.yaml"), name=stage)
        root = Path(repo.root_dir)
        deps = [
            Path(dep.fs_path).relative_to(root).as_posix()
            for dep in found.deps
            if dep.def_path and dep.protocol == "local"
        ]
        small = [Path(out.fs_path).relative_to(root).as_posix() for out in found.outs if not out.use_cache]
    return deps, small


def _dvc(folder: Path, *arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "dvc", *arguments], cwd=folder, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RegistryError(f"dvc {' '.join(arguments[:3])} ended with {done.returncode}; its message is above")


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()
