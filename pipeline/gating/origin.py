"""What the gate and the back-test ask of a bundle: its name, the end of its data, and since when it has been live."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from pipeline.errors import GateError
from sched_env.contracts import decode
from sched_env.contracts.bundle import MANIFEST_FILE

STANDING_FILE = "standing.json"
"""Beside a champion's bundle: what the registry says of it. Written by ``workspace``, so that a night depends on it."""


class Standing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of that file."""

    digest: str
    live_since: str
    """When the service took the policy into use (RFC 3339)."""


class Origin(NamedTuple):
    """Where a bundle comes from."""

    digest: str
    windows_end: datetime
    """End (exclusive, UTC) of its data windows."""
    live_since: datetime | None = None
    """None: not live, or nobody wrote it down."""


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
    end = _moment(manifest.lineage.windows_end, f"{path}: lineage.windows_end")
    return Origin(manifest.digest, end, _live_since(folder / STANDING_FILE, manifest.digest))


def _live_since(path: Path, digest: str) -> datetime | None:
    if not path.exists():
        return None
    standing = decode(path.read_bytes(), Standing, source=str(path))
    if standing.digest != digest:
        raise GateError(f"{path} is about {standing.digest}", f"{digest}, the bundle beside it", "make a new workspace")
    return _moment(standing.live_since, f"{path}: live_since")


def _moment(text: str, where: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise GateError(f"{where} is {text!r}", "an RFC 3339 time") from error
    if moment.tzinfo is None:
        raise GateError(f"{where} {text!r} has no zone", "UTC, as ...+00:00")
    return moment
