"""The promotion record: one JSON file a decision, hash-chained; the truth that tags and pages are derived from."""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from wire.contracts import encode
from wire.contracts.feature_spec import ProblemName

State = Literal["approved", "canary", "live", "rejected", "rolled_back", "switched_off", "failed"]
"""``approved`` by a person; ``canary``: it answers the share of the calls that ``reason`` begins with; ``live`` after
the service was asked; ``failed`` when push or verify did not succeed; ``rejected`` by a person or a time-out;
``rolled_back``: the policy named by ``digest`` is live *again*, and ``previous_digest`` is the one it took over from;
``switched_off``: the policy named by both answers no more, the problem's heuristic does."""

Kind = Literal["promotion", "rollback", "resign"]
"""What a person was asked. ``promotion``: to put a bundle live that passed the gate. ``rollback``: to go back to one
that was live once, without a gate. ``resign``: to sign anew what is live; the policy stays the same."""


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a person answered, and to which question: an answer counts once, for one bundle."""

    id: str
    """Names this answer and no other: DAG, run, task and time of the answer, or one line typed at a terminal."""
    source: Literal["airflow", "terminal"]
    """``airflow``: read from where Airflow keeps it (the HITL detail). ``terminal``: typed by whoever holds the signing
    key; nobody else vouches for the name."""
    person_id: str
    """The account that answered."""
    person_name: str
    answered_at: str
    """RFC 3339, UTC, as Airflow says it."""
    asked_at: str | None
    """When the question was put; null at a terminal."""
    digest: str
    """The bundle that the question named."""
    report_sha256: str | None
    """The report that the question showed, as ``PromotionRecord.report_sha256``; null without a gate."""


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
    """When the service says it took the policy into use; only for ``live``, ``rolled_back`` and ``switched_off``."""
    kind: Kind | UnsetType = UNSET
    answer: Answer | UnsetType | None = UNSET
    """Whose decision it was: never null for ``approved``; null for ``live`` and ``failed``, which the service's own
    words decide, for a time-out and for a flip that the service made by itself."""
    report_sha256: str | UnsetType | None = UNSET
    """Hash over every file of the gate's report as the run's commit holds it: what the person was shown."""
    rules_off: dict[str, str] | UnsetType = UNSET
    """Rules of the gate that were switched off by name -> the reason given."""
    schema: Literal[1, 2] = 2
    """1: written before the four fields above, which it lacks. No such record follows one of schema 2."""


def record_sha256(record: PromotionRecord) -> str:
    """Hash of the canonical encoding; what the next record names as ``previous_record_sha256``."""
    return hashlib.sha256(encode(record)).hexdigest()
