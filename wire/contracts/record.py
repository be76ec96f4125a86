"""The promotion record: one JSON file a decision, hash-chained; the truth that tags and pages are derived from."""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from wire.contracts import encode
from wire.contracts.feature_spec import ProblemName

State = Literal["approved", "live", "rejected", "rolled_back", "failed"]
"""``approved`` by a person; ``live`` after the service was asked; ``failed`` when push or verify did not succeed;
``rejected`` by a person or a time-out; ``rolled_back``: the policy named by ``digest`` is live *again*, and
``previous_digest`` is the one it took over from."""


class PromotionRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One step in the life of a bundle. Records are never edited: each new state is a new record."""

    sequence: int
    """Position in the chain, from 0, over all problems."""
    problem: ProblemName
    state: State
    digest: str
    previous_digest: str | None
    """What was live before; null for the first promotion."""
    counter: int
    """Rises with every flip of the live policy, rollbacks included; the service refuses a counter it has seen."""
    run_id: str
    git_commit: str
    dvc_lock_sha256: str
    data_range: tuple[str, str]
    gate: dict[str, object]
    """The gate report: outcome, rules with thresholds, intervals and seeds."""
    approver: str | None
    """Named person for approved and rejected; null only where no person decided (a time-out, a service's own flip)."""
    decided_at: str
    reason: str
    previous_record_sha256: str | None
    """Hash of the record before it in the chain; null only for the first."""
    bundle_sha256: str | None = None
    """Hash over every file of the signed bundle, manifest and signature included (the digest covers content only);
    null for a rejection, which signs nothing."""
    loaded_at: str | None = None
    """When the service says it took the policy into use; only for ``live`` and ``rolled_back``."""
    schema: Literal[1] = 1


def record_sha256(record: PromotionRecord) -> str:
    """Hash of the canonical encoding; what the next record names as ``previous_record_sha256``."""
    return hashlib.sha256(encode(record)).hexdigest()
