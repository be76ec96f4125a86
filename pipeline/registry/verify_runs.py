"""Proves that every run a record names can still be walked back to: branch, commit, lock, report, data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from pipeline.registry import dvc_objects
from pipeline.registry.chain import Chain
from pipeline.registry.records import Finding
from pipeline.registry.runs import LOCK, PREFIX, REPORTS, branch_of, gate_output, read_report, report_of, shown_sha256
from wire.contracts.record import PromotionRecord
from wire.errors import LoadmasterError


def findings(chain: Chain) -> Iterator[Finding]:
    """List what is missing or changed behind any record."""
    seen: set[str] = set()
    for record in chain.records:
        branch = branch_of(record.run_id)
        head = chain.mirror.resolve(f"refs/remotes/origin/{branch}")
        if chain.mirror.resolve(f"{record.git_commit}^{{commit}}") is None:
            yield Finding(f"commit {record.git_commit[:12]}", f"missing: record {record.sequence} rests on it")
            continue
        if head is None:
            yield Finding(f"branch {branch}", f"missing: record {record.sequence} rests on it")
        elif not chain.mirror.succeeds("merge-base", "--is-ancestor", record.git_commit, head):
            yield Finding(f"branch {branch}", f"no longer holds commit {record.git_commit[:12]}: history was rewritten")
        elif head != record.git_commit:
            yield Finding(
                f"branch {branch}",
                f"has commits on top of {record.git_commit[:12]}, which record {record.sequence} names",
            )
        yield from _content(chain, record, data=record.git_commit not in seen)
        seen.add(record.git_commit)


def verdicts(chain: Chain) -> Iterator[Finding]:
    """Look at every run, named by a record or not: the gate speaks once."""
    for ref, head in chain.mirror.refs(f"refs/remotes/origin/{PREFIX}*").items():
        branch = ref.removeprefix("refs/remotes/origin/")
        commits = chain.mirror.text("log", "--format=%H", head, "--", REPORTS).split()
        said: dict[str, set[str]] = {}
        for commit in commits if len(commits) > 1 else ():
            for path, data in chain.mirror.files(commit, REPORTS).items():
                if path.endswith("/report.json"):
                    said.setdefault(path, set()).add(str(read_report(data).get("outcome")))
        for path, outcomes in sorted(said.items()):
            if len(outcomes) > 1:
                yield Finding(f"branch {branch}", f"{path} said {' and '.join(sorted(outcomes))}: the verdict changed")


def _content(chain: Chain, record: PromotionRecord, *, data: bool) -> Iterator[Finding]:
    report = report_of(record.problem)
    where = f"in commit {record.git_commit[:12]}"
    files = chain.mirror.files(record.git_commit, LOCK, "params.yaml", report)
    for name in (LOCK, "params.yaml", report):
        if name not in files:
            yield Finding(name, f"missing {where}, on which record {record.sequence} rests")
    lock = files.get(LOCK)
    if lock is not None and hashlib.sha256(lock).hexdigest() != record.dvc_lock_sha256:
        yield Finding(LOCK, f"{where} is not the one that record {record.sequence} names")
    if report in files and read_report(files[report]) != record.gate:
        yield Finding(report, f"{where} differs from the report in record {record.sequence}")
    if record.report_sha256 and shown_sha256(chain.mirror, record.git_commit, record.problem) != record.report_sha256:
        yield Finding(report, f"{where} is not what the approver of record {record.sequence} was shown")
    if lock is not None and report in files:
        yield from _unlike_its_stage(record, lock, files[report], where)
    if lock is not None and data:
        committed = chain.mirror.paths(record.git_commit)
        for output in dvc_objects.outputs(lock, source=f"{LOCK} {where}"):
            # Outputs with `cache: false` live in git; DVC holds only the others.
            if not any(path == output.path or path.startswith(f"{output.path}/") for path in committed):
                yield from dvc_objects.faults(output, needed_by=f"run {record.run_id}")


def _unlike_its_stage(record: PromotionRecord, lock: bytes, report: bytes, where: str) -> Iterator[Finding]:
    """Compare the report with the one that the gate stage left in DVC, which no editor of the run's folder reaches."""
    try:
        outputs = {out.path: out.md5 for out in dvc_objects.outputs(lock, source=LOCK)}
        written = dvc_objects.members(outputs.get(gate_output(record.problem), ""))
    except LoadmasterError:
        return  # A lock or an object that cannot be read is told by others.
    name = report_of(record.problem)
    md5 = hashlib.md5(report, usedforsecurity=False).hexdigest()
    if written and written.get(Path(name).name) != md5:
        yield Finding(name, f"{where} is not what the gate stage wrote, says {LOCK}")
