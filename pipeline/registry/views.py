"""What people read: the list of records, one record, two bundles side by side, the thread behind a digest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from pipeline.registry import bundles
from pipeline.registry.chain import Chain
from pipeline.registry.lineage import NONE_YET, Thread, find_record, trace
from pipeline.registry.runs import PREFIX, read_report, report_of
from sched_env import problems
from wire.contracts.record import PromotionRecord
from wire.errors import LoadmasterError


def describe(record: PromotionRecord) -> str:
    """Say a record in one line."""
    by = f" by {record.approver}" if record.approver else ""
    what = f" for a {record.kind}" if record.state == "approved" and record.kind in ("rollback", "resign") else ""
    off = f"; rules switched off: {', '.join(sorted(record.rules_off))}" if record.rules_off else ""
    counted = f"(record {record.sequence}, counter {record.counter})"
    return f"{record.problem}: {record.state}{what}{by} {record.digest} {counted}{off}"


def status(chain: Chain, problem: str | None = None) -> Iterator[str]:
    """Say what is live and what is on its way."""
    for name in problems.names():
        if problem in (None, name) and chain.of(name):
            pending = chain.pending(name)
            live = chain.live_digest(name)
            more = f" since {chain.live_since(name)}{_looks(chain, name, live)}" if live else ""
            yield f"{name}: {live or 'no policy'} is live{more}"
            if pending is not None:
                yield (
                    f"{name}: {pending.digest} was approved by {pending.approver} at {pending.decided_at} and is not "
                    f"live yet: run pipeline.push and pipeline.verify_live (record {pending.sequence})"
                )


def _looks(chain: Chain, problem: str, live: str) -> str:
    """Count the challengers that were judged against what is live: each is one more chance of a pass by luck."""
    report, said = report_of(problem), Counter[str]()
    for commit in chain.mirror.refs(f"refs/remotes/origin/{PREFIX}*").values():
        data = chain.mirror.files(commit, report).get(report)
        verdict = read_report(data or b"")
        if verdict.get("champion_digest") == live and verdict.get("digest") != live:
            said[str(verdict.get("outcome"))] += 1
    if not said:
        return ""
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(said.items()))
    return f"; challengers judged against it: {sum(said.values())} ({counts})"


def listing(chain: Chain, problem: str | None = None) -> Iterator[str]:
    """Say what is live, and every record, oldest first."""
    yield from status(chain, problem)
    if not any(problem in (None, record.problem) for record in chain.records):
        yield f"no record{f' of {problem}' if problem else ''} yet: {NONE_YET}"
    for record in chain.records:
        if problem in (None, record.problem):
            yield f"  {record.decided_at} {describe(record)}: {record.reason}"


def shown(chain: Chain, name: str) -> str:
    """Show a record (by sequence or by digest) in full, as JSON."""
    by_sequence = name.isdigit() and int(name) < len(chain.records)
    record = chain.records[int(name)] if by_sequence else find_record(chain, name)
    return msgspec.json.format(msgspec.json.encode(record), indent=2).decode()


def walked_back(thread: Thread) -> Iterator[str]:
    """Say the thread behind a digest, one step a line."""
    yield f"digest   {thread.digest} ({thread.problem}, records {', '.join(map(str, thread.records))})"
    yield f"approver {thread.approver or 'nobody'}"
    yield f"run      {thread.run_id} (branch {thread.branch})"
    yield f"commit   {thread.git_commit} (code: {thread.code_commit})"
    yield f"lock     dvc.lock, SHA-256 {thread.dvc_lock_sha256}"
    yield f"windows  from {thread.data_range[0]} until {thread.data_range[1]}"
    for path, md5 in thread.data.items():
        yield f"data     {path} {md5}"
    for name, value in _flat(thread.params):
        yield f"param    {name} = {value}"


def difference(chain: Chain, first: str, second: str) -> Iterator[str]:
    """Say in what two bundles differ: code, data, parameters, stage outputs, metrics."""
    one, two = trace(chain, first), trace(chain, second)
    for name in ("problem", "digest", "run_id", "code_commit", "approver"):
        yield from _change(name, getattr(one, name), getattr(two, name))
    yield from _change("windows", " until ".join(one.data_range), " until ".join(two.data_range))
    for kind, left, right in (
        ("param", dict(_flat(one.params)), dict(_flat(two.params))),
        ("data", one.data, two.data),
        ("metric", _metrics(chain, one.digest), _metrics(chain, two.digest)),
    ):
        for name in sorted(left.keys() | right.keys()):
            yield from _change(f"{kind} {name}", left.get(name), right.get(name))


def _change(name: str, left: object, right: object) -> Iterator[str]:
    if left != right:
        yield f"{name}: {'-' if left is None else left} -> {'-' if right is None else right}"


def _metrics(chain: Chain, digest: str) -> dict[str, float]:
    record = find_record(chain, digest)
    try:
        return bundles.read_manifest(bundles.approved(chain, record, history=True)).metrics
    except LoadmasterError:
        return {}  # Rejected: never signed, so there is no bundle to read; the lock still tells its data apart.


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value
