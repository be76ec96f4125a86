"""The champions: what is live, put beside the code of a night so that everything judged against it depends on it.

``champions/<problem>/`` holds ``standing.json`` (what the registry says) and ``bundle/`` (what is live); ``workspace``
writes both into the run's own clone. In the repository itself nothing is live: the standing says so.
"""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from pipeline.errors import GateError
from wire.contracts import decode
from wire.contracts.bundle import MANIFEST_FILE

STANDING_FILE, BUNDLE_FOLDER = "standing.json", "bundle"


class Standing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of that file."""

    digest: str | None = None
    """Null: nothing is live."""
    live_since: str | None = None
    """When the service took the policy into use (RFC 3339)."""
    density: float = 1.0
    """How many times as dense as recorded arrivals were when it was judged."""


class Origin(NamedTuple):
    """Where a bundle comes from."""

    digest: str
    windows_end: datetime
    """End (exclusive, UTC) of its data windows."""
    live_since: datetime | None = None
    """None: not live, or nobody wrote it down."""
    density: float = 1.0
    """What its standing says of it."""


class _Lineage(msgspec.Struct):
    windows_end: str


class _Manifest(msgspec.Struct):
    """Only these fields: a champion may have been made by an older version whose manifest has others."""

    digest: str
    lineage: _Lineage


def bundle_of(champion: Path) -> Path | None:
    """Return the folder of a champion's bundle; None when nothing is live."""
    folder = champion / BUNDLE_FOLDER
    return folder if (folder / MANIFEST_FILE).exists() else None


def put(champion: Path, bundle: Path, standing: Standing) -> None:
    """Make a bundle the champion of a workspace."""
    shutil.copytree(bundle, champion / BUNDLE_FOLDER)
    (champion / STANDING_FILE).write_bytes(msgspec.json.encode(standing) + b"\n")


def live(champion: Path) -> Origin | None:
    """Read where a champion comes from and since when it has been live; None when nothing is."""
    bundle = bundle_of(champion)
    found = origin(bundle) if bundle else None
    if found is None:
        return None
    path = champion / STANDING_FILE
    standing = _standing(path, found.digest)
    since = _moment(standing.live_since, f"{path}: live_since") if standing.live_since else None
    return found._replace(live_since=since, density=standing.density)


def origin(bundle: Path) -> Origin | None:
    """Read a bundle's origin; None when there is no bundle in the folder."""
    path = bundle / MANIFEST_FILE
    if not path.exists():
        return None
    manifest = decode(path.read_bytes(), _Manifest, source=str(path))
    return Origin(manifest.digest, _moment(manifest.lineage.windows_end, f"{path}: lineage.windows_end"))


def _standing(path: Path, digest: str) -> Standing:
    if not path.exists():
        return Standing(digest)
    standing = decode(path.read_bytes(), Standing, source=str(path))
    if standing.digest != digest:
        raise GateError(f"{path} is about {standing.digest}", f"{digest}, the bundle beside it", "make a new workspace")
    return standing


def _moment(text: str, where: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise GateError(f"{where} is {text!r}", "an RFC 3339 time") from error
    if moment.tzinfo is None:
        raise GateError(f"{where} {text!r} has no zone", "UTC, as ...+00:00")
    return moment
