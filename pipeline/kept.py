"""Finished work that outlives a run, so that a night of many days does the work of the new one.

DVC removes a stage's outputs before the stage runs. What need not be done again therefore lies outside, in
``var/cache/<stage>``: a folder for each piece, named by everything that it depends on (code, settings, content), whole
or not there. A stage links it into its outputs; what no run has used for ``KEEP_DAYS`` goes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from pipeline import settings, storage
from wire import closure

KEEP_DAYS = 45.0
"""Longer than the 31 days that a night may hold, so that a day stays as long as nights ask for it."""


def place(stage: str, name: str, code: Iterable[str], *given: object) -> Path:
    """Name the folder of a piece of work after the code (modules, with what they import) and the rest it depends on."""
    parts = [closure.fingerprint(*code), *given]
    digest = hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()
    return settings.var() / "cache" / stage / f"{name}-{digest[:24]}"


def digest_of(file: Path) -> str:
    """Name a file by its content."""
    if (known := storage.identity(file)) is not None:
        return known
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def there(folder: Path) -> bool:
    """Tell whether a piece is kept, and remember that it was asked for."""
    try:
        os.utime(folder)
    except FileNotFoundError:
        return False
    return True


@contextmanager
def made(folder: Path) -> Iterator[Path]:
    """Give a folder to fill, which becomes the piece when the block ends well; one that is there already goes."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
    try:
        yield unfinished
        # Moved away whole before it is removed: half a piece must never be found under its name.
        with suppress(FileNotFoundError):
            shutil.rmtree(folder.rename(f"{unfinished}.old"))
        try:
            unfinished.rename(folder)
        except OSError:
            # Another process was faster; its piece is as good.
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def link(source: Path, target: Path) -> None:
    """Put a kept file where an output belongs, in one step; without a copy where the file system can."""
    if storage.is_remote(target):
        storage.put(source, target)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        unfinished.unlink(missing_ok=True)
        os.link(source, unfinished)
    except OSError:
        shutil.copyfile(source, unfinished)
    unfinished.replace(target)


def link_folder(source: Path, target: Path) -> None:
    """Put a kept folder where an output belongs, file by file."""
    for file in source.rglob("*"):
        if file.is_file():
            link(file, target / file.relative_to(source))


def forget(stage: str, older_than_days: float = KEEP_DAYS) -> None:
    """Remove what no run has asked for in a long time, and what killed runs left half-done."""
    limit = time.time() - older_than_days * 86_400
    for folder in (settings.var() / "cache" / stage).glob("*"):
        if folder.stat().st_mtime < limit:
            shutil.rmtree(folder, ignore_errors=True)
