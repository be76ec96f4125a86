"""Run branches: what a night depended on and what came out, committed on ``runs/<run id>``.

Data goes to the DVC remote first and the branch second, so that a branch never names data that is nowhere.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from pipeline.errors import RegistryError
from pipeline.registry import dvc_objects, places
from pipeline.registry.chain import now, sync
from pipeline.registry.git import Repository

PREFIX = "runs/"
LOCK = "dvc.lock"
KEPT = ("params.yaml", LOCK, "data/metrics", "champions", "accepted")
"""What is committed beyond the code, although git ignores some of it: what the night depended on (the champions it had
to beat are the same blobs until one is replaced) and the figures that people read."""

REPORTS = "reports/gate/"
"""Where the gate's reports are committed: not at their place under ``data/``, which belongs to DVC."""


class Run(NamedTuple):
    """A run as the registry knows it."""

    run_id: str
    commit: str
    dvc_lock_sha256: str


def branch_of(run_id: str) -> str:
    """Name of the run's branch; ``:``, ``+``, ``.`` and whatever git forbids are percent-encoded, reversibly."""
    encoded = quote(run_id, safe="").replace(".", "%2E").replace("~", "%7E")
    return PREFIX + encoded


def run_id_of(branch: str) -> str:
    """Run id of a branch ``runs/<encoded id>``."""
    return unquote(branch.removeprefix(PREFIX))


def record_run(run_dir: Path, run_id: str) -> Run:
    """Push the data and the branch of a run, once: what a person is shown later is this commit and no other.

    Args:
        run_dir: The run's clone.
        run_id: The Airflow run id.
    """
    lock = run_dir / LOCK
    if not lock.is_file():
        raise RegistryError(f"{lock} does not exist", "a workspace in which the stages have run", "run dvc repro there")
    if run_dir.name != places.run_folder_name(run_id):
        raise RegistryError(
            f"{run_dir} is not the workspace of run {run_id!r}", f"a folder named {places.run_folder_name(run_id)}"
        )
    mirror, clone, branch = sync(), Repository(run_dir), branch_of(run_id)
    recorded, made = mirror.resolve(f"refs/remotes/origin/{branch}"), tree(clone)
    if recorded is None:
        _push_data(run_dir)
        recorded = clone.commit_tree(made, f"run {run_id}\n", parents=[clone.text("rev-parse", "HEAD")], when=now())
        clone.push(places.registry_remote(), f"{recorded}:refs/heads/{branch}")
        sync()
    elif mirror.text("rev-parse", f"{recorded}^{{tree}}") != made:
        changed = _changed(mirror, recorded, run_dir)
        raise RegistryError(
            f"run {run_id!r} was recorded as {recorded[:12]}, and {', '.join(changed) or run_dir} changed since",
            "one commit a run: what was judged is what is recorded",
            "nothing was pushed; start a new run",
        )
    return Run(run_id, recorded, hashlib.sha256(lock.read_bytes()).hexdigest())


def recorded_run(mirror: Repository, run_id: str) -> Run:
    """Return the run as ``record`` pushed it; the workspace, if it is still here, must not have changed since."""
    branch = branch_of(run_id)
    commit = mirror.resolve(f"refs/remotes/origin/{branch}")
    if commit is None:
        raise RegistryError(
            f"run {run_id!r} was never recorded", f"branch {branch} in the registry", "registry record-run writes it"
        )
    lock = mirror.files(commit, LOCK).get(LOCK)
    if lock is None:
        raise RegistryError(f"branch {branch} holds no {LOCK}", "a run whose stages have ended")
    run_dir = places.workspace(run_id)
    if run_dir.is_dir() and (changed := _changed(mirror, commit, run_dir)):
        raise RegistryError(
            f"{run_dir / changed[0]} was changed after run {run_id!r} was recorded",
            f"what commit {commit[:12]} holds",
            "dvc checkout and git checkout bring that back; another result is another run",
        )
    return Run(run_id, commit, hashlib.sha256(lock).hexdigest())


def _changed(mirror: Repository, commit: str, run_dir: Path) -> list[str]:
    """Name what a workspace holds otherwise than its commit and the lock in it say; no git runs in that folder."""
    committed = mirror.files(commit, *KEPT, REPORTS)
    here = {str(path.relative_to(run_dir)): path for name in KEPT for path in _files(run_dir / name)}
    here |= {f"{REPORTS}{path.parent.name}/{path.name}": path for path in _reports(run_dir)}
    other = {name for name in committed.keys() | here.keys() if not _holds(here.get(name), committed.get(name))}
    for output in dvc_objects.outputs(committed[LOCK], source=f"{LOCK} in {commit[:12]}"):
        if output.path.startswith(("data/gate/", "data/bundles/")):
            wanted = dvc_objects.members(output.md5)
            present = {str(path.relative_to(run_dir / output.path)): path for path in _files(run_dir / output.path)}
            for name in wanted.keys() | present.keys():
                path = present.get(name)
                if path is None or path.is_symlink() or not dvc_objects.is_right(path, wanted.get(name, "")):
                    other.add(f"{output.path}/{name}")
    return sorted(other)


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else [one for one in path.rglob("*") if not one.is_dir()]


def _holds(path: Path | None, content: bytes | None) -> bool:
    return path is not None and not path.is_symlink() and content is not None and path.read_bytes() == content


def outputs_of(mirror: Repository, commit: str) -> dict[str, str]:
    """What the stages of a recorded run wrote: path -> DVC hash."""
    lock = mirror.files(commit, LOCK).get(LOCK, b"outs: []")
    return {out.path: out.md5 for out in dvc_objects.outputs(lock, source=f"{LOCK} in {commit[:12]}")}


def gate_output(problem: str) -> str:
    """What the gate stage of a problem writes."""
    return f"data/gate/{problem}"


def bundle_output(problem: str) -> str:
    """What the export stage of a problem writes."""
    return f"data/bundles/{problem}"


def report_of(problem: str) -> str:
    """Path of the gate's report in a run's commit."""
    return f"{REPORTS}{problem}/report.json"


def shown_sha256(mirror: Repository, commit: str, problem: str) -> str:
    """Hash every file of the gate's report in a run's commit: what the person who approves is shown."""
    files = mirror.files(commit, f"{REPORTS}{problem}/")
    listing = {Path(name).name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    return hashlib.sha256(msgspec.json.encode(listing, order="sorted")).hexdigest()


def read_report(data: bytes) -> dict[str, Any]:
    """Read a committed report of the gate; empty when it is none, as on a branch that somebody else has pushed."""
    try:
        report: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}
    return report


def tree(clone: Repository) -> str:
    """Write the tree of HEAD plus what the run made, through an index of our own."""
    kept = [name for name in KEPT if (clone.path / name).exists()]
    with tempfile.TemporaryDirectory(prefix="loadmaster-index-") as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder, "index"))}
        clone.run("read-tree", "HEAD", env=index)
        clone.run("add", "--force", "--", *kept, env=index)
        for path in _reports(clone.path):
            blob = clone.run("hash-object", "-w", "--stdin", data=path.read_bytes()).decode().strip()
            entry = f"100644,{blob},{REPORTS}{path.parent.name}/{path.name}"
            clone.run("update-index", "--add", "--cacheinfo", entry, env=index)
        return clone.run("write-tree", env=index).decode().strip()


def _reports(run_dir: Path) -> list[Path]:
    """What a person is shown: the gate's report, and what the candidate would have done with live traffic."""
    data = run_dir / "data"
    return sorted([*data.glob("gate/*/report.*"), *data.glob("shadow/*/shadow.*")])


def _push_data(run_dir: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dvc", "push", "--quiet"], cwd=run_dir, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RegistryError(
            f"dvc push in {run_dir} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-2000:]}",
            fix="see that the DVC remote can be written, then run it again",
        )
