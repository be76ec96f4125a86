"""Examines the files of branch ``promotions``: every record decoded, chained, signed, and possible after the others.

Nothing here raises for a bad record: each fault becomes a :class:`Finding` with the file and the reason, so that
``verify`` can list them all and a writer can refuse with the first.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pipeline import signing
from pipeline.contracts.record import PromotionRecord
from sched_env.contracts import decode, encode
from sched_env.errors import LoadmasterError

RECORDS = "records/"
_NAME = re.compile(r"records/\d{6}\.(json|sig)")

FLIPS = ("live", "rolled_back")
"""States after which another policy answers."""


class Finding(NamedTuple):
    """One thing that is not as it should be."""

    file: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}"


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
        revoked: Revoked keys: id -> entry of ``revoked.json``.
    """
    findings = [
        Finding(path, "not a record: records/ holds NNNNNN.json and NNNNNN.sig only")
        for path in files
        if path.startswith(RECORDS) and not _NAME.fullmatch(path)
    ]
    numbers = {int(path[len(RECORDS) : len(RECORDS) + 6]) for path in files if _NAME.fullmatch(path)}
    records: list[PromotionRecord] = []
    before: str | None = None
    for sequence in range(max(numbers, default=-1) + 1):
        path = path_of(sequence)
        data = files.get(path)
        if data is None:
            findings.append(Finding(path, "missing: records are never removed"))
            before = None
            continue
        try:
            record = decode(data, PromotionRecord, source=path)
        except LoadmasterError as error:
            findings.append(Finding(path, error.found.removeprefix(f"{path}: ")))
            before = hashlib.sha256(data).hexdigest()
            continue
        findings += _own_faults(record, sequence, before, data)
        findings += _signature_faults(record, data, files.get(signature_path_of(sequence)), keys, revoked)
        findings += [Finding(path, reason) for reason in _impossible(record, records)]
        records.append(record)
        before = hashlib.sha256(data).hexdigest()
    return records, findings


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
        key = signing.verify_bytes(data, signature, keys, source=path)
    except LoadmasterError as error:
        yield Finding(path, error.found.removeprefix(f"{path}: "))
        return
    if key in revoked:
        # The chain fixes what the key signed before its revocation; a thief can only append after it.
        last = revoked[key].get("last_record")
        if last is None or record.sequence > int(last[0]):
            yield Finding(path, f"signed by key {key[:12]} after its revocation")


def _impossible(record: PromotionRecord, before: list[PromotionRecord]) -> Iterator[str]:
    """Say why this record cannot follow those before it."""
    mine = [other for other in before if other.problem == record.problem]
    flips = [other for other in mine if other.state in FLIPS]
    live = flips[-1].digest if flips else None
    counter = max((other.counter for other in mine), default=0)
    approved = [other for other in mine if other.state == "approved"]
    if record.state == "approved":
        if not record.approver:
            yield "approved by nobody"
        if record.gate.get("outcome") != "pass":
            yield f"approved although the gate said {record.gate.get('outcome')!r}"
        if record.bundle_sha256 is None:
            yield "approved without a signed bundle"
    if record.state in ("approved", "rolled_back"):
        if record.counter <= counter:
            yield f"counter {record.counter} does not rise above {counter}"
        if record.previous_digest != live:
            yield f"names {record.previous_digest} as live before it, the records say {live}"
    if record.state in ("live", "failed"):
        match = [other for other in approved if other.counter == record.counter]
        if not match:
            yield f"{record.state}, but no record approved counter {record.counter}"
        elif (match[-1].digest, match[-1].bundle_sha256) != (record.digest, record.bundle_sha256):
            yield f"{record.state} with another bundle than the one approved in record {match[-1].sequence}"
        elif any(other.state in ("live", "failed") and other.counter == record.counter for other in mine):
            yield f"a second outcome for counter {record.counter}"
    if record.state == "rolled_back" and record.digest not in {other.digest for other in approved}:
        yield f"rolled back to {record.digest}, which was never approved"
