"""What sources of files share: which files, and what is in them (by digest)."""

from __future__ import annotations

import glob
import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from datetime import date
from functools import partial
from pathlib import Path

from pipeline.errors import SourceError
from pipeline.sources import Chunk, Rows, Source, Tally
from wire.errors import ConfigError


class FileSource(Source):
    """One chunk a file, landed whole. Files are known by their content: a changed file is other data."""

    about_range = ("files", "from", "to")

    def __init__(self, patterns: Iterable[str], days: Sequence[date], what: str) -> None:
        self._days = list(days)
        self._files: dict[str, Path] = {}
        for path in self.matching(patterns, what):
            self._files[f"{path.parent.name}/{path.name}-{_digest(path)[:12]}"] = path

    @staticmethod
    def matching(patterns: Iterable[str], what: str) -> list[Path]:
        """List the files that patterns name; each must name one."""
        patterns = list(patterns)
        if not patterns:
            raise ConfigError(f"{what}.paths is empty", "paths or patterns of readable files")
        files: list[Path] = []
        for pattern in patterns:
            found = sorted(path for path in map(Path, glob.glob(pattern, recursive=True)) if path.is_file())  # noqa: PTH207  absolute too
            if not found:
                raise SourceError(f"{what}: no file matches {pattern!r}", "paths or patterns of readable files")
            files += found
        return files

    def settings(self) -> dict[str, object]:
        """Name the files by content, and the days."""
        span = {"from": self._days[0].isoformat(), "to": self._days[-1].isoformat()} if self._days else {}
        return {"files": sorted(self._files), **span}

    def chunks(self) -> list[Chunk]:
        """List the files in the order of their names."""
        return [Chunk(key, partial(self.read, path)) for key, path in self._files.items()]

    @abstractmethod
    def read(self, path: Path, tally: Tally) -> Rows:
        """Read one file."""


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}", "a readable file") from error
