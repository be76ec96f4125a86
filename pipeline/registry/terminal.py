"""Answers typed at a terminal: whoever holds the signing key vouches for the name."""

from __future__ import annotations

import getpass
import uuid

from pipeline.errors import RegistryError
from pipeline.registry.chain import now
from pipeline.registry.records import is_a_name
from wire.contracts.record import Answer


def typed(name: str, *, digest: str, report_sha256: str | None) -> Answer:
    """Take a name typed at a terminal for an answer: whoever holds the signing key vouches for it."""
    refuse_nobody(name)
    return Answer(
        id=f"terminal/{uuid.uuid4()}",
        source="terminal",
        person_id=getpass.getuser(),
        person_name=name.strip(),
        answered_at=now(),
        asked_at=None,
        digest=digest,
        report_sha256=report_sha256,
    )


def refuse_nobody(name: str) -> None:
    """Raise unless this is the name of somebody."""
    if not is_a_name(name.strip()):
        found = f"{name!r} cannot be read as a name" if name.strip() else "nobody approved this"
        raise RegistryError(found, "--approver with the name of a person")
