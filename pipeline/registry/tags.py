"""GTO version and stage tags, derived from the records: a view for people and tools, never the truth.

``functions@v3.0.0`` stands on the commit that approved counter 3; ``functions#live#2`` says which commit's bundle was
the second to go live, ``functions#live!#3`` that it was switched off. Tag objects carry the record's time, so a
rebuilt tag is the same object, byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from pipeline.registry.git import Repository
from pipeline.registry.records import FLIPS, OFF, Finding
from sched_env import problems
from wire.contracts.record import PromotionRecord

STAGE = "live"


class Tag(NamedTuple):
    """What one tag must be."""

    commit: str
    message: str
    when_s: int


def derive(records: Sequence[PromotionRecord], commits: Mapping[int, str]) -> dict[str, Tag]:
    """Derive every tag from the records.

    Args:
        records: The whole chain.
        commits: Sequence -> the commit that added the record.
    """
    derived: dict[str, Tag] = {}
    flips: dict[str, int] = {}
    for record in records:
        if record.state == "approved":
            name, commit = f"{record.problem}@v{record.counter}.0.0", commits[record.sequence]
        elif record.state in (*FLIPS, OFF):
            flips[record.problem] = flips.get(record.problem, 0) + 1
            approval = _approval(record, records)
            if approval is None:
                continue  # An impossible record, reported as such; there is nothing a tag could stand on.
            stage = STAGE + ("!" if record.state == OFF else "")
            name, commit = f"{record.problem}#{stage}#{flips[record.problem]}", commits[approval]
        else:
            continue
        message = f"{record.state} {record.digest}\n\nrecord {record.sequence}, counter {record.counter}"
        when_s = int(datetime.fromisoformat(record.decided_at).timestamp())
        derived[name] = Tag(commit, message, when_s)
    return derived


def _approval(flip: PromotionRecord, records: Sequence[PromotionRecord]) -> int | None:
    """Sequence of the record that approved the bundle a flip made live."""
    wanted = (flip.problem, "approved", flip.digest)
    approvals = [one.sequence for one in records if (one.problem, one.state, one.digest) == wanted]
    return max((sequence for sequence in approvals if sequence < flip.sequence), default=None)


def _is_ours(name: str) -> bool:
    """Whether only we give such names; other tags belong to whoever shares the repository with us."""
    return any(name.startswith((f"{problem}@", f"{problem}#")) for problem in problems.names())


def make(repository: Repository, name: str, tag: Tag) -> str:
    """Make the tag object and return its id."""
    return repository.tag(name, tag.commit, tag.message, when_s=tag.when_s)


def disagreements(repository: Repository, derived: Mapping[str, Tag]) -> list[Finding]:
    """Compare the tags that exist with those the records ask for."""
    every = {ref.removeprefix("refs/tags/"): target for ref, target in repository.refs("refs/tags").items()}
    present = {name: target for name, target in every.items() if _is_ours(name)}
    findings = [Finding(f"tag {name}", "no record asks for it") for name in sorted(present.keys() - derived.keys())]
    for name, tag in sorted(derived.items()):
        if name not in present:
            findings.append(Finding(f"tag {name}", f"missing; record says {tag.message.splitlines()[0]}"))
        elif present[name] != make(repository, name, tag):
            findings.append(Finding(f"tag {name}", f"changed or moved; the records put it on {tag.commit[:12]}"))
    return findings
