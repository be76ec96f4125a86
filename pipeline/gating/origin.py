"""What the gate and the back-test ask of a bundle's manifest: its name, and the end of the data it was made from."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from pipeline.errors import GateError
from sched_env.contracts import decode
from sched_env.contracts.bundle import MANIFEST_FILE


class Origin(NamedTuple):
    """A bundle's digest and the end (exclusive, UTC) of its data windows."""

    digest: str
    windows_end: datetime


class _Lineage(msgspec.Struct):
    windows_end: str


class _Manifest(msgspec.Struct):
    """Only these fields: a champion may have been made by an older version whose manifest has others."""

    digest: str
    lineage: _Lineage


def read(folder: Path) -> Origin | None:
    """Read a bundle's origin; None when there is no bundle in the folder."""
    path = folder / MANIFEST_FILE
    if not path.exists():
        return None
    manifest = decode(path.read_bytes(), _Manifest, source=str(path))
    try:
        end = datetime.fromisoformat(manifest.lineage.windows_end)
    except ValueError as error:
        raise GateError(
            f"{path}: lineage.windows_end is {manifest.lineage.windows_end!r}", "an RFC 3339 time"
        ) from error
    if end.tzinfo is None:
        raise GateError(
            f"{path}: lineage.windows_end {manifest.lineage.windows_end!r} has no zone", "UTC, as ...+00:00"
        )
    return Origin(manifest.digest, end)
