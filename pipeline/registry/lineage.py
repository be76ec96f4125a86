"""The way back from a digest: to its run, commit, parameters and data windows, and forward again by rebuilding it."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import yaml

from pipeline.errors import RegistryError
from pipeline.registry import bundles, dvc_objects, places
from pipeline.registry.chain import Chain
from pipeline.registry.runs import branch_of
from wire import environment
from wire.contracts.bundle import POLICY_FILE
from wire.contracts.record import PromotionRecord

NONE_YET = "make run, or nightly_retrain in Airflow, and an answer to its question"
"""How the first record comes."""

CONSTRAINTS = "constraints.txt"
NUMERICAL = ("torch", "numpy", "numba", "stable-baselines3", "sb3-contrib", "gymnasium", "onnx", "onnxscript", "duckdb")
"""Packages whose versions can change the last bit of a policy, or the way it is written down."""

SCORE_TOLERANCE = 1e-6
"""How far scores of a rebuilt policy may be off when its bytes differ (another CPU, another order of sums)."""


class Thread(msgspec.Struct, frozen=True):
    """Everything that a digest hangs on."""

    digest: str
    problem: str
    run_id: str
    branch: str
    git_commit: str
    code_commit: str
    """The commit of the code; the run's own commit adds params, lock and metrics to it."""
    dvc_lock_sha256: str
    data_range: tuple[str, str]
    data: dict[str, str]
    """Output of each stage in the run's lock -> its DVC hash."""
    params: dict[str, Any]
    approver: str | None
    records: list[int]


def find_record(chain: Chain, digest: str) -> PromotionRecord:
    """Find the newest record about a digest, given whole or by its beginning (with or without ``sha256:``)."""
    wanted = digest.removeprefix("sha256:")
    found = {one.digest for one in chain.records if one.digest.removeprefix("sha256:").startswith(wanted)}
    if len(found) != 1 or not wanted:
        known = ", ".join(sorted({record.digest[:19] for record in chain.records}))
        if not known:
            raise RegistryError("the registry holds no record yet", "a promotion, or a rejection", NONE_YET)
        raise RegistryError(f"{len(found)} bundles begin with {digest!r}", f"one of {known}")
    records = [record for record in chain.records if record.digest in found]
    approved = [record for record in records if record.state == "approved"]
    return (approved or records)[-1]


def trace(chain: Chain, digest: str) -> Thread:
    """Walk a digest back to where it came from."""
    record = find_record(chain, digest)
    files = chain.mirror.files(record.git_commit, "dvc.lock", "params.yaml")
    if "dvc.lock" not in files or hashlib.sha256(files["dvc.lock"]).hexdigest() != record.dvc_lock_sha256:
        raise RegistryError(
            f"dvc.lock in commit {record.git_commit[:12]} is not the one that record {record.sequence} names",
            fix="python -m pipeline.registry verify",
        )
    # Commits of the run itself are ours; the first that is not holds the code.
    ours = ("--fixed-strings", f"--grep=run {record.run_id}", "--invert-grep")
    code = chain.mirror.text("log", "-1", "--format=%H", *ours, record.git_commit)
    return Thread(
        digest=record.digest,
        problem=record.problem,
        run_id=record.run_id,
        branch=branch_of(record.run_id),
        git_commit=record.git_commit,
        code_commit=code,
        dvc_lock_sha256=record.dvc_lock_sha256,
        data_range=record.data_range,
        data={out.path: out.md5 for out in dvc_objects.outputs(files["dvc.lock"], source="dvc.lock")},
        params=yaml.safe_load(files["params.yaml"]),
        approver=record.approver,
        records=[one.sequence for one in chain.records if one.digest == record.digest],
    )


def rebuild(chain: Chain, digest: str, target: Path, *, first_stage: str, last_stage: str) -> str:
    """Check out the run's commit, fetch only what the first stage landed, run the others, and compare the policy.

    Nothing is taken from a cache: the clone has its own, empty, and its own ``var/``, so that training is real.

    Args:
        chain: The records.
        digest: Whose bundle.
        target: A folder that does not exist yet.
        first_stage: Its outputs are fetched, not remade: a source cannot be asked for the past.
        last_stage: The stage that writes the bundle; ``{problem}`` stands for the problem.

    Returns:
        How the rebuilt policy compares.
    """
    thread = trace(chain, digest)
    if target.exists():
        raise RegistryError(f"{target} exists", "a folder to be made")
    chain.mirror.run("clone", "--quiet", "--no-checkout", str(chain.mirror.path), str(target.absolute()))
    git = ["git", "-C", str(target)]
    subprocess.run([*git, "fetch", "--quiet", str(chain.mirror.path), thread.git_commit], check=True)
    subprocess.run([*git, "checkout", "--quiet", "--detach", thread.git_commit], check=True)
    (target / ".dvc").mkdir(exist_ok=True)
    (target / ".dvc" / "config.local").write_text(
        "[core]\n    remote = registry\n[cache]\n    dir = cache\n"
        f"['remote \"registry\"']\n    url = {places.dvc_remote()}\n"
    )
    _dvc(target, "pull", "--quiet", first_stage)
    _dvc(target, "repro", "--no-run-cache", last_stage.format(problem=thread.problem))
    original = bundles.approved(chain, find_record(chain, digest), history=True)
    return compare(original, target / "data" / "bundles" / thread.problem, constraints=target / CONSTRAINTS)


def compare(original: Path, rebuilt: Path, *, constraints: Path) -> str:
    """Say how a rebuilt bundle's policy compares with the original: same bytes, or same scores and why not the bytes.

    Args:
        original: The bundle that was approved.
        rebuilt: The one just made.
        constraints: The package versions of the run's commit.

    Raises:
        RegistryError: The scores differ by more than the tolerance.
    """
    before, after = (original / POLICY_FILE).read_bytes(), (rebuilt / POLICY_FILE).read_bytes()
    if before == after:
        return f"same bytes: {POLICY_FILE} has SHA-256 {hashlib.sha256(after).hexdigest()} both times"
    import numpy as np

    from wire import bundle
    from wire.graph import open_session, scores

    largest = 0.0
    sessions = [open_session(before), open_session(after)]
    for case in bundle.check(bundle.read(original)).golden:
        old, new = (scores(session, case.candidates, case.request, case.mask) for session in sessions)
        largest = max(largest, float(np.max(np.abs(old - new))))
    if largest > SCORE_TOLERANCE:
        raise RegistryError(
            f"the rebuilt policy scores differently, by up to {largest:g}",
            f"the same bytes, or scores within {SCORE_TOLERANCE:g}",
            f"the likely cause: {_why(constraints)}",
        )
    return f"same scores: the files differ ({_why(constraints)}), the scores by at most {largest:g}"


def _why(constraints: Path) -> str:
    """Name what differs between this machine and the run that could change the bytes of a policy."""
    lines = constraints.read_text().split() if constraints.exists() else []
    pinned = dict(line.split("==", 1) for line in lines if "==" in line)
    other = []
    for package in NUMERICAL:
        try:
            here = metadata.version(package).split("+")[0]
        except metadata.PackageNotFoundError:
            here = "none"
        if package in pinned and pinned[package] != here:
            other.append(f"{package} {here} here, {pinned[package]} in {constraints.name} of the run")
    return (
        "; ".join(other)
        or f"the packages are those of the run, so another CPU: {platform.processor() or 'unknown'} here"
    )


def _dvc(folder: Path, *arguments: str) -> None:
    """Run DVC in the rebuilt clone: its stages see this interpreter first and a ``var/`` of their own."""
    passed_on = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        environment.VAR: str(folder / "var"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *arguments],
        cwd=folder,
        env=passed_on,
        stdin=subprocess.DEVNULL,  # under sshd, bash would read ~/.bashrc and might put another python first
        check=False,
    )
    if done.returncode:
        raise RegistryError(f"dvc {arguments[0]} in {folder} ended with {done.returncode}", fix="its message is above")
