"""What sources of files share: which files, what is in them (by digest), and rows of other days left out."""

from __future__ import annotations

import glob
import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.errors import SourceError
from pipeline.sources import Chunk, Rows, Source, Tally
from wire.errors import ConfigError

OTHER_DAYS = "rows outside the days asked for"
_DAY_US = 86_400_000_000


class FileSource(Source):
    """One chunk a file. Files are known by their content: a changed file is other data."""

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
        return [Chunk(key, partial(self._asked, path)) for key, path in self._files.items()]

    @abstractmethod
    def read(self, path: Path, tally: Tally) -> Rows:
        """Read one file."""

    def _asked(self, path: Path, tally: Tally) -> Rows:
        for table, rows in self.read(path, tally):
            kept = self._within(rows)
            if left_out := rows.num_rows - kept.num_rows:
                tally.skipped[OTHER_DAYS] += left_out
            if kept.num_rows:
                yield table, kept

    def _within(self, rows: pa.Table) -> pa.Table:
        if not self._days:
            return rows
        start = int(datetime.combine(self._days[0], datetime.min.time(), UTC).timestamp()) * 1_000_000
        time = rows["time"].cast(pa.int64()).to_numpy()
        keep = (time >= start) & (time < start + len(self._days) * _DAY_US)
        return rows if keep.all() else rows.take(np.flatnonzero(keep))


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}", "a readable file") from error
