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
    """Push the data and the branch of a run; doing it again adds a commit only if something changed.

    Args:
        run_dir: The run's clone.
        run_id: The Airflow run id.
    """
    lock = run_dir / LOCK
    if not lock.is_file():
        raise RegistryError(f"{lock} does not exist", "a workspace in which the stages have run", "run dvc repro there")
    mirror, clone, branch = sync(), Repository(run_dir), branch_of(run_id)
    recorded, tree = mirror.resolve(f"refs/remotes/origin/{branch}"), _tree(clone)
    if recorded is None or mirror.text("rev-parse", f"{recorded}^{{tree}}") != tree:
        _push_data(run_dir)
        if recorded is not None:
            clone.run("fetch", "--quiet", "--no-tags", str(mirror.path), recorded)
        parents = [recorded or clone.text("rev-parse", "HEAD")]
        recorded = clone.commit_tree(tree, f"run {run_id}\n", parents=parents, when=now())
        clone.run("push", "--quiet", places.registry_remote(), f"{recorded}:refs/heads/{branch}")
        sync()
    return Run(run_id, recorded, hashlib.sha256(lock.read_bytes()).hexdigest())


def refuse_edited(run_dir: Path, problem: str) -> None:
    """Raise if the gate's report or the bundle is not what its stage wrote: the lock knows better than the folder."""
    lock = run_dir / LOCK
    recorded = {out.path: out.md5 for out in dvc_objects.outputs(lock.read_bytes(), source=str(lock))}
    for output in (gate_output(problem), bundle_output(problem)):
        if output not in recorded:
            raise RegistryError(
                f"{lock} says nothing of {output}", "a run whose stages have ended", "run dvc repro there"
            )
        wanted = dvc_objects.members(recorded[output])
        inside = [path for path in (run_dir / output).rglob("*") if not path.is_dir()]
        present = {str(path.relative_to(run_dir / output)): path for path in inside}
        for name in sorted(wanted.keys() | present.keys()):
            if name not in wanted or name not in present or not dvc_objects.is_right(present[name], wanted[name]):
                raise RegistryError(
                    f"{run_dir / output / name} was changed after its stage",
                    f"what {LOCK} says was written",
                    "dvc checkout brings that back; dvc repro makes it anew",
                )


def gate_output(problem: str) -> str:
    """What the gate stage of a problem writes."""
    return f"data/gate/{problem}"


def bundle_output(problem: str) -> str:
    """What the export stage of a problem writes."""
    return f"data/bundles/{problem}"


def report_of(problem: str) -> str:
    """Path of the gate's report in a run's commit."""
    return f"{REPORTS}{problem}/report.json"


def read_report(data: bytes) -> dict[str, Any]:
    """Read a committed report of the gate; empty when it is none, as on a branch that somebody else has pushed."""
    try:
        report: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}
    return report


def _tree(clone: Repository) -> str:
    """Write the tree of HEAD plus what the run made, through an index of our own."""
    kept = [name for name in KEPT if (clone.path / name).exists()]
    reports = sorted((clone.path / "data" / "gate").glob("*/report.*"))
    with tempfile.TemporaryDirectory(prefix="loadmaster-index-") as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder, "index"))}
        clone.run("read-tree", "HEAD", env=index)
        clone.run("add", "--force", "--", *kept, env=index)
        for path in reports:
            blob = clone.run("hash-object", "-w", "--stdin", data=path.read_bytes()).decode().strip()
            entry = f"100644,{blob},{REPORTS}{path.parent.name}/{path.name}"
            clone.run("update-index", "--add", "--cacheinfo", entry, env=index)
        return clone.run("write-tree", env=index).decode().strip()


def _push_data(run_dir: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dvc", "push", "--quiet"], cwd=run_dir, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RegistryError(
            f"dvc push in {run_dir} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-2000:]}",
            fix="see that the DVC remote can be written, then run it again",
        )
