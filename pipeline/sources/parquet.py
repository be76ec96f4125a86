"""Parquet files in the raw contract's own columns: what another ingest, or a tool of the user's, has written."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.contracts.raw import TABLES
from pipeline.errors import SourceError
from pipeline.sources import Chunk, Rows, Tally
from pipeline.sources.files import FileSource
from wire.errors import ConfigError, legal

BATCH_ROWS = 1_000_000
_NEEDED = {"samples": "value", "requests": "duration_s", "tasks": "runtime_s"}
"""Columns that may hold nulls but not be missing: no row could be used without them."""


class ParquetConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files of each table. Columns are found by name; nullable ones may be missing, others are ignored."""

    paths: dict[str, list[str]]
    """Table (samples, requests, events, tasks) -> files or patterns."""
    cluster: str = "default"
    """Cluster of files that have no such column."""

    def __post_init__(self) -> None:
        """Refuse tables that are not in the contract."""
        if unknown := set(self.paths) - set(TABLES):
            raise ConfigError(f"ingest.parquet.paths: {', '.join(sorted(unknown))}", legal(TABLES))


class ParquetSource(FileSource):
    """One chunk a file, read in batches."""

    def __init__(self, config: ParquetConfig, days: Sequence[date]) -> None:
        super().__init__([pattern for found in config.paths.values() for pattern in found], days, "ingest.parquet")
        self._config = config
        self._tables: dict[Path, str] = {}
        for table, patterns in config.paths.items():
            for path in FileSource.matching(patterns, f"ingest.parquet.{table}"):
                if (other := self._tables.setdefault(path, table)) != table:
                    raise SourceError(f"{path} is named for {other} and for {table}", "one table a file")

    def settings(self) -> dict[str, object]:
        """Name files, days and the cluster."""
        return {**super().settings(), "cluster": self._config.cluster}

    def chunks(self) -> list[Chunk]:
        """List the files by table: the same file is other rows in another one."""
        return [Chunk(f"{self._tables[path]}/{key}", partial(self.read, path)) for key, path in self._files.items()]

    def read(self, path: Path, _tally: Tally) -> Rows:
        """Read one file."""
        table = self._tables[path]
        try:
            with pq.ParquetFile(path) as file:
                present = file.schema_arrow.names
                columns = [name for name in TABLES[table].names if name in present]
                if twice := [name for name in columns if present.count(name) > 1]:
                    raise SourceError(f"{path}: the column {twice[0]!r} is there twice", "each column once")
                for batch in file.iter_batches(BATCH_ROWS, columns=columns):
                    yield table, self._conform(table, pa.table(batch), path)
        except (OSError, pa.ArrowException) as error:
            raise SourceError(f"{path} cannot be read: {error}", "a whole Parquet file") from error

    def _conform(self, table: str, rows: pa.Table, path: Path) -> pa.Table:
        columns = []
        for wanted in TABLES[table]:
            if wanted.name in rows.schema.names:
                column = rows[wanted.name]
                if pa.types.is_timestamp(column.type) and column.type.tz is None:
                    raise SourceError(f"{path}: {wanted.name} has no time zone", "timestamps in UTC")
                if pa.types.is_timestamp(wanted.type) and not pa.types.is_timestamp(column.type):
                    raise SourceError(f"{path}: {wanted.name} is {column.type}", "timestamps in UTC")
                if pa.types.is_floating(wanted.type) and not _is_number(column.type):
                    raise SourceError(f"{path}: {wanted.name} is {column.type}", "numbers")
                if pa.types.is_string(wanted.type) and not _is_name(column.type):
                    raise SourceError(f"{path}: {wanted.name} is {column.type}", "strings, or whole numbers")
                # Nanoseconds are rounded down; nothing here is measured more finely than microseconds. A counter above
                # 2**53 loses its last digits.
                rounded = _in_nanoseconds(column.type) or pa.types.is_floating(wanted.type)
                try:
                    columns.append(column.cast(wanted.type, safe=not rounded))
                except pa.ArrowException as error:
                    raise SourceError(f"{path}: {wanted.name} is {column.type}: {error}", str(wanted.type)) from error
            elif wanted.name == "cluster":
                columns.append(pa.array([self._config.cluster] * len(rows), pa.string()))
            elif wanted.nullable and wanted.name != _NEEDED.get(table):
                columns.append(pa.nulls(len(rows), wanted.type))
            else:
                raise SourceError(
                    f"{path}: no column {wanted.name!r}", f"the columns of {table}: {', '.join(TABLES[table].names)}"
                )
        return pa.table(columns, names=TABLES[table].names)


def _is_number(kind: pa.DataType) -> bool:
    checks = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)
    return any(check(kind) for check in checks)


def _is_name(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    checks = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_binary)
    return any(check(kind) for check in (*checks, pa.types.is_integer, pa.types.is_null))


def _in_nanoseconds(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.unit == "ns")
