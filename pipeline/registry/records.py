"""Examines the files of branch ``promotions``: every record decoded, chained, signed, and possible after the others.

Nothing here raises for a bad record: each fault becomes a :class:`Finding` with the file and the reason, so that
``verify`` can list them all and a writer can refuse with the first.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import UNSET

from wire import records as wire_records
from wire.contracts import decode, encode
from wire.contracts.record import PromotionRecord
from wire.errors import LoadmasterError

RECORDS = "records/"
_NAME = re.compile(r"records/\d{6}\.(json|sig)")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")

FLIPS = ("live", "rolled_back")
"""States after which another policy answers."""

OFF = "switched_off"
"""The state after which none does."""

LONGEST_PERSON = 200
"""Characters of a person's name."""


class Finding(NamedTuple):
    """One thing that is not as it should be."""

    file: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}"

    @classmethod
    def of(cls, error: LoadmasterError) -> Finding:
        """Take over an error that was found in the form ``file: reason``."""
        file, _, reason = error.found.rpartition(": ")
        return cls(file, reason)


def path_of(sequence: int) -> str:
    """Path of a record on branch ``promotions``."""
    return f"{RECORDS}{sequence:06d}.json"


def signature_path_of(sequence: int) -> str:
    """Path of a record's signature."""
    return f"{RECORDS}{sequence:06d}.sig"


def examine(
    files: Mapping[str, bytes], keys: dict[str, Path], revoked: Mapping[str, Mapping[str, Any]]
) -> tuple[list[PromotionRecord], list[Finding]]:
    """Decode the chain and list everything that is wrong with it.

    Args:
        files: Path -> content of everything below ``records/``.
        keys: Public keys that are good for the history: id -> file.
        revoked: Keys that sign nothing new, revoked or retired: id -> entry (``signing.ended``).
    """
    findings = [
        Finding(path, "not a record: records/ holds NNNNNN.json and NNNNNN.sig only")
        for path in files
        if path.startswith(RECORDS) and not _NAME.fullmatch(path)
    ]
    numbers = {int(path[len(RECORDS) : len(RECORDS) + 6]) for path in files if _NAME.fullmatch(path)}
    records: list[PromotionRecord] = []
    before: str | None = None
    expected = 0
    for sequence in sorted(numbers):
        path = path_of(sequence)
        data = files.get(path)
        if data is None or sequence > expected:
            # One finding for a whole gap: a stray number must not make a million of them.
            findings.append(Finding(path_of(min(expected, sequence)), "missing: records are never removed"))
            before = None
        expected = sequence + 1
        if data is None:
            continue
        record, faults = _read(data, path)
        findings += faults
        if record is not None:
            findings += _own_faults(record, sequence, before, data)
            findings += _signature_faults(record, data, files.get(signature_path_of(sequence)), keys, revoked)
            findings += [Finding(path, reason) for reason in _impossible(record, records)]
            findings += [Finding(path, reason) for reason in _undecided(record, records)]
            records.append(record)
        before = hashlib.sha256(data).hexdigest()
    return records, findings + list(_rewritten(files, revoked))


def _read(data: bytes, path: str) -> tuple[PromotionRecord | None, list[Finding]]:
    """Decode a record; one whose fields are not of their form is not handed on, since they become paths and names."""
    try:
        record = decode(data, PromotionRecord, source=path)
    except LoadmasterError as error:
        return None, [Finding(path, error.found.removeprefix(f"{path}: "))]
    except RecursionError:
        return None, [Finding(path, "not a record: nested too deeply")]
    forms = (
        (_DIGEST, "digest", record.digest),
        (_DIGEST, "digest", record.previous_digest),
        (_COMMIT, "commit", record.git_commit),
        (_SHA256, "SHA-256", record.dvc_lock_sha256),
        (_SHA256, "SHA-256", record.bundle_sha256),
        (_SHA256, "SHA-256", record.report_sha256 or None),
    )
    faults = [
        f"{text!r} is not a {name}" for form, name, text in forms if text is not None and not form.fullmatch(text)
    ]
    if _moment(record) is None:
        faults.append(f"{record.decided_at!r} is not a time in UTC")
    return (None if faults else record), [Finding(path, fault) for fault in faults]


def _moment(record: PromotionRecord) -> datetime | None:
    try:
        moment = datetime.fromisoformat(record.decided_at)
    except ValueError:
        return None
    return moment if moment.utcoffset() == timedelta(0) else None


def _rewritten(files: Mapping[str, bytes], revoked: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """Hold the chain against the record that was newest when a key was revoked: its thief can sign another past."""
    for key, entry in sorted(revoked.items()):
        sequence, sha256 = last_good(entry)
        data = files.get(path_of(sequence))
        if data is not None and hashlib.sha256(data).hexdigest() != sha256:
            how = "retired" if entry.get("by") == "retirement" else "revoked"
            yield Finding(path_of(sequence), f"not the one that was newest when key {key[:12]} was {how}")


def last_good(entry: Mapping[str, Any]) -> tuple[int, str]:
    """Sequence and hash of the last record that a revoked key is still good for; -1 for none, and for no clear word."""
    match entry.get("last_record"):
        case [int(sequence), str(sha256)]:
            return sequence, sha256
    return -1, ""


def _own_faults(record: PromotionRecord, sequence: int, before: str | None, data: bytes) -> Iterator[Finding]:
    path = path_of(sequence)
    if record.sequence != sequence:
        yield Finding(path, f"holds sequence {record.sequence}: records were reordered or renamed")
    if record.previous_record_sha256 != before:
        named, real = (record.previous_record_sha256 or "none")[:12], (before or "none")[:12]
        yield Finding(path, f"names {named} as the record before it, which hashes to {real}: the chain is broken")
    if encode(record) != data:
        yield Finding(path, "not in canonical form: edited by hand")


def _signature_faults(
    record: PromotionRecord,
    data: bytes,
    signature: bytes | None,
    keys: dict[str, Path],
    revoked: Mapping[str, Mapping[str, Any]],
) -> Iterator[Finding]:
    path = path_of(record.sequence)
    if signature is None:
        yield Finding(signature_path_of(record.sequence), "missing: the record is not signed")
        return
    try:
        key = wire_records.verify(data, signature, keys, source=path)
    except LoadmasterError as error:
        yield Finding(path, error.found.removeprefix(f"{path}: "))
        return
    # The chain fixes what the key signed before its revocation; a thief can only append after it.
    if key in revoked and record.sequence > last_good(revoked[key])[0]:
        yield Finding(path, f"signed by key {key[:12]} after its {revoked[key].get('by', 'revocation')}")


def is_a_name(text: str) -> bool:
    """Whether a person's name can be read by another person: no control characters, nothing invisible, not endless."""
    return bool(text.strip()) and text.isprintable() and len(text) <= LONGEST_PERSON


def spent(run_id: str, mine: list[PromotionRecord]) -> PromotionRecord | None:
    """The record after which a run cannot be promoted any more: a person rejected it, or it went live once."""
    return next(
        (
            other
            for other in reversed(mine)
            if other.run_id == run_id
            and (other.state in FLIPS or (other.state == "rejected" and other.approver is not None))
        ),
        None,
    )


def changes(mine: Iterable[PromotionRecord]) -> list[PromotionRecord]:
    """Return those of one problem's records that changed what answers."""
    return [record for record in mine if record.state in (*FLIPS, OFF)]


def live(mine: Iterable[PromotionRecord]) -> PromotionRecord | None:
    """Return the record of one problem's that says what is live; None before the first, and while it is off."""
    changed = changes(mine)
    return changed[-1] if changed and changed[-1].state != OFF else None


def answered_before(answer_id: str, before: list[PromotionRecord]) -> PromotionRecord | None:
    """The record that an answer was used for: it counts once."""
    return next((other for other in before if other.answer and other.answer.id == answer_id), None)


def _undecided(record: PromotionRecord, before: list[PromotionRecord]) -> Iterator[str]:
    """Say in what a record lacks the decision of a person; records of schema 1 were written before that was kept."""
    newer = (record.kind, record.answer, record.report_sha256, record.rules_off)
    if record.schema == 1:
        if any(field is not UNSET for field in newer):
            yield "of schema 1, with fields of schema 2"
        if any(other.schema == 2 for other in before):
            yield "of schema 1 after records of schema 2: it hides whose decision it was"
        return
    if UNSET in newer:
        yield "of schema 2 without kind, answer, report_sha256 or rules_off"
        return
    answer = record.answer or None
    if answer is None:
        if record.state == "approved" or (record.state in ("rejected", "rolled_back") and record.approver is not None):
            yield f"{record.state} by {record.approver} without an answer of theirs"
        return
    if record.state in ("canary", "live", "failed"):
        yield f"{record.state} by somebody's answer: the service decides that"
    if answer.person_name != record.approver:
        yield f"names {record.approver!r}, the answer is of {answer.person_name!r}"
    if answer.digest != record.digest:
        yield f"the answer was about {answer.digest}"
    if record.kind == "promotion" and (record.report_sha256 is None or answer.report_sha256 != record.report_sha256):
        yield "the answer was about another report"
    if (used := answered_before(answer.id, before)) is not None:
        yield f"its answer was used before, by record {used.sequence}"
    if record.kind == "promotion" and record.rules_off != (record.gate.get("rules_off") or {}):
        yield "names other rules as switched off than the gate's report"
    if record.state == "approved" and record.kind == "promotion":
        mine = [other for other in before if other.problem == record.problem]
        if (once := spent(record.run_id, mine)) is not None:
            yield f"run {record.run_id} was {once.state} before, in record {once.sequence}: that needs a new run"


def _impossible(record: PromotionRecord, before: list[PromotionRecord]) -> Iterator[str]:
    """Say why this record cannot follow those before it."""
    if before and record.decided_at < before[-1].decided_at:
        yield f"decided at {record.decided_at}, before record {before[-1].sequence} ({before[-1].decided_at})"
    mine = [other for other in before if other.problem == record.problem]
    flips = [other for other in mine if other.state in FLIPS]
    before_it = live(mine)
    live_digest = before_it.digest if before_it else None
    counter = max((other.counter for other in mine), default=0)
    approved = [other for other in mine if other.state == "approved"]
    if record.approver is not None and not is_a_name(record.approver):
        yield f"{record.state} by {record.approver!r}, which nobody could read as a name"
    if record.state == "approved":
        if not (record.approver or "").strip():
            yield "approved by nobody"
        settled = {other.counter for other in mine if other.state in ("live", "failed")}
        if waiting := [other.sequence for other in approved if other.counter not in settled]:
            yield f"approved while record {waiting[-1]} was neither live nor failed"
        if record.kind == "rollback":
            if record.digest not in {other.digest for other in flips}:
                yield f"a rollback to {record.digest}, which was never live"
        elif record.gate.get("outcome") != "pass":
            yield f"approved although the gate said {record.gate.get('outcome')!r}"
        if record.bundle_sha256 is None:
            yield "approved without a signed bundle"
    if record.state in ("approved", "rolled_back", OFF):
        if record.counter <= counter:
            yield f"counter {record.counter} does not rise above {counter}"
        if record.previous_digest != live_digest:
            yield f"names {record.previous_digest} as live before it, the records say {live_digest}"
    if record.state in ("live", "failed"):
        match = [other for other in approved if other.counter == record.counter]
        if not match:
            yield f"{record.state}, but no record approved counter {record.counter}"
        elif (match[-1].digest, match[-1].bundle_sha256) != (record.digest, record.bundle_sha256):
            yield f"{record.state} with another bundle than the one approved in record {match[-1].sequence}"
        elif any(other.state in ("live", "failed") and other.counter == record.counter for other in mine):
            yield f"a second outcome for counter {record.counter}"
    if record.state == "canary":
        settled = {other.counter for other in mine if other.state in ("live", "failed")}
        under_way = {
            (other.counter, other.digest, other.bundle_sha256) for other in approved if other.counter not in settled
        }
        if (record.counter, record.digest, record.bundle_sha256) not in under_way or record.approver is not None:
            yield f"a step of counter {record.counter}, which no record approved, or which is settled"
    if record.state == OFF and (record.digest != live_digest or record.approver is not None):
        yield f"switched off {record.digest} in somebody's name, or while {live_digest or 'nothing'} was live"
    if record.state == "rolled_back" and record.digest not in {other.digest for other in approved}:
        yield f"rolled back to {record.digest}, which was never approved"
