"""A file outside the registry that remembers how far it had come: one line a record, kept wherever the user likes.

Somebody who can write the git remote can cut the newest records off; a machine that has never seen them cannot tell by
the remote alone. With this file (another disk, another account, a repository of its own) it can.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from pipeline.errors import RegistryError
from pipeline.registry.records import Finding
from wire import environment
from wire.contracts.record import PromotionRecord, record_sha256

ANCHOR_ENV = environment.variable("anchor_file")
"""Environment variable naming the file; an empty one is a beginning, a missing one an error."""


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One record that was seen."""

    sequence: int
    sha256: str
    decided_at: str


def path() -> Path | None:
    """Where the file is; None when nobody keeps one."""
    named = os.environ.get(ANCHOR_ENV)
    return Path(named) if named else None


def findings(records: Sequence[PromotionRecord]) -> Iterator[Finding]:
    """Hold the chain against every line: what was seen must still be there, and the same."""
    file = path()
    if file is None:
        return
    try:
        lines = [msgspec.json.decode(line, type=Line) for line in file.read_bytes().splitlines()]
    except FileNotFoundError:
        yield Finding(str(file), f"missing ({ANCHOR_ENV}): bring it, or begin an empty one with touch")
        return
    except (OSError, msgspec.DecodeError) as error:
        yield Finding(str(file), f"cannot be read: {error}")
        return
    known = {record.sequence: record_sha256(record) for record in records}
    newest = max(known, default=-1)
    gone = [line for line in lines if line.sequence > newest]
    if gone:
        yield Finding(str(file), f"has seen record {gone[-1].sequence}, the chain ends at {newest}: it was cut short")
    for line in lines:
        if line.sequence in known and known[line.sequence] != line.sha256:
            yield Finding(str(file), f"has seen another record {line.sequence}: history was rewritten")


def append(record: PromotionRecord) -> None:
    """Note a record that was just written."""
    file = path()
    if file is None:
        return
    line = msgspec.json.encode(Line(record.sequence, record_sha256(record), record.decided_at)) + b"\n"
    try:
        with file.open("ab") as out:
            out.write(line)
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        raise RegistryError(
            f"record {record.sequence} was written, but not noted in {file}: {error}",
            "a file that can be written",
            f"put it right, then append this line: {line.decode().strip()}",
        ) from error
