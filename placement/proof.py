"""The proof that a push carries: a promotion record, signed, that names this bundle, this flip, and who approved it.

A token says who may knock; it promotes nothing. What goes live was approved as the next flip after what is live now:
an old bundle, or an old record, proves nothing about today.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from placement.errors import PushRefusedError
from placement.settings import Settings
from wire import bundle, records, signatures
from wire.contracts import decode
from wire.contracts.bundle import Manifest
from wire.contracts.feature_spec import ProblemName
from wire.contracts.policies import RECORD_FILE, RECORD_SIGNATURE_FILE
from wire.contracts.record import PromotionRecord
from wire.errors import BundleError, ContractError

MAX_FILE_BYTES = {RECORD_FILE: 4 * bundle.MIB, RECORD_SIGNATURE_FILE: 4096}
"""A record carries the gate's report, some 20 kB."""


class Proof(NamedTuple):
    """A record and its signature, as they came."""

    record: bytes
    signature: bytes

    def check(self, problem: ProblemName, settings: Settings) -> PromotionRecord:
        """Read the record, if a trusted key signed it and it approves something for this problem."""
        try:
            keys = signatures.trusted(settings.trusted_keys_dir)
            key = records.verify(self.record, self.signature, keys, source=RECORD_FILE)
            signatures.refuse_revoked(key, settings.revoked_keys_file, source=RECORD_FILE)
            record = decode(self.record, PromotionRecord, source=RECORD_FILE)
        except (BundleError, ContractError) as error:
            raise PushRefusedError.because("record", error) from error
        if record.problem != problem:
            raise _refused(f"is about {record.problem}", problem)
        if record.state != "approved":
            raise _refused(f"says {record.state}", "approved: what a person put live, and nothing that came after")
        if not (record.approver or "").strip():
            raise _refused("names no approver", "a person")
        answer = record.answer or None
        if answer is None or (answer.digest, answer.person_name) != (record.digest, record.approver):
            raise _refused("carries no answer of its approver to this bundle", "the answer that approved it")
        # Back to what was live once needs a person's word alone; its gate is of another day.
        if record.kind != "rollback" and record.gate.get("outcome") != "pass":
            raise _refused(f"has the gate's outcome {record.gate.get('outcome')!r}", "pass")
        return record


def hold_to(record: PromotionRecord, manifest: Manifest, files: Mapping[str, bytes]) -> None:
    """Compare a bundle, whose own signature is good, with the record that promotes it."""
    if manifest.gate is None or manifest.gate.outcome != "pass":
        said = manifest.gate.outcome if manifest.gate else "nothing"
        raise PushRefusedError("record", 422, f"the bundle's own verdict is {said}", "pass", "promote writes it")
    if manifest.digest != record.digest:
        raise _refused(f"promotes {record.digest}", f"{manifest.digest}, the bundle that came with it")
    if bundle.files_sha256(files) != record.bundle_sha256:
        raise _refused(f"promotes files with SHA-256 {record.bundle_sha256}", "those that came with it")


def _refused(found: str, expected: str) -> PushRefusedError:
    return PushRefusedError("record", 422, f"{RECORD_FILE} {found}", expected)
