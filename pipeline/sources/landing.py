"""Landing of raw rows: partitioned Parquet, chunk by chunk, so that a kill at any moment loses or doubles nothing.

Work happens in a scratch folder named after the settings. A chunk's files have names derived from its key; its
marker (counts and time ranges) is written last. A chunk with a marker is done; files of one without are removed and
it is read again. When all are done the folder, markers included, is renamed to the output: one step, done or not done.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Self
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.contracts.raw import TABLES
from pipeline.errors import DataError, SourceError
from pipeline.files import write_atomic
from pipeline.sources import Chunk, Tally
from pipeline.sources.columns import LAST_US
from wire.errors import ContractError

MANIFEST = "manifest.json"
KEEP_SECONDS = 7 * 86_400.0
"""How long half-done work waits to be taken up again."""
_MARKERS = ".chunks"
_DAY_US = 86_400_000_000
_LONGEST_NAME = 200
"""File systems allow 255 bytes."""


class Partition(msgspec.Struct, forbid_unknown_fields=True):
    """Rows of one table, day and cluster."""

    table: str
    date: str
    cluster: str
    rows: int
    first: str
    last: str


class Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """``raw/manifest.json``: what was landed, from where. Nothing in it depends on when it ran."""

    source: str
    settings: dict[str, object]
    rows: dict[str, int]
    """By table."""
    metrics: dict[str, int]
    """Rows of ``samples`` by canonical metric."""
    first: str | None
    last: str | None
    clusters: list[str]
    partitions: list[Partition]
    skipped: dict[str, int]
    """Rows the source could not land or was not asked for, by reason."""
    schema: int = 1


class _Marker(msgspec.Struct):
    """What one chunk landed."""

    partitions: list[Partition]
    metrics: dict[str, int]
    skipped: dict[str, int]


class Landing:
    """A scratch folder that becomes the raw folder; a context manager, for one process at a time works in it."""

    def __init__(self, scratch: Path) -> None:
        self.folder = scratch
        """Where files that belong beside the tables (the price list) are put before publishing."""
        self._markers = scratch / _MARKERS
        self._markers.mkdir(parents=True, exist_ok=True)
        self._lock = (scratch.parent / f"{scratch.name}.lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise SourceError(
                f"another ingest with these settings is at work in {scratch}", fix="wait for it, or stop it"
            ) from error
        self._sweep()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def _sweep(self) -> None:
        """Remove what a killed run left half-done."""
        marked = {marker.stem for marker in self._markers.glob("*.json")}
        for path in self.folder.rglob("*"):
            if path.is_file() and path.parent != self._markers:
                chunk = path.name.removeprefix("part-").rpartition("-")[0]
                if not path.name.startswith("part-") or chunk not in marked:
                    path.unlink()

    def done(self, chunk: Chunk) -> bool:
        """Tell whether a chunk has been landed completely."""
        return self._marker(chunk.key).exists()

    def land(self, chunk: Chunk, landed: Callable[[int], None] = lambda _: None) -> None:
        """Read a chunk and land its rows; ``landed`` is told how many, batch by batch."""
        name = _file_name(chunk.key)
        tally = Tally()
        partitions: dict[tuple[str, str, str], Partition] = {}
        metrics: Counter[str] = Counter()
        for batch, (table, rows) in enumerate(chunk.read(tally)):
            checked = _checked(table, rows, chunk.key)
            if table == "samples":
                for entry in pc.value_counts(checked["metric"].combine_chunks()).to_pylist():
                    metrics[entry["values"]] += entry["counts"]
            for (date, cluster), part in _partitioned(checked):
                folder = self.folder / table / f"date={date}" / _cluster_folder(cluster, chunk.key)
                path = folder / f"part-{name}-{batch:04d}.parquet"
                _write(part, path)
                times = pc.min_max(part["time"]).as_py()
                entry = Partition(
                    table, date, cluster, part.num_rows, times["min"].isoformat(), times["max"].isoformat()
                )
                _merge(partitions, entry)
            landed(checked.num_rows)
        marker = _Marker(list(partitions.values()), dict(metrics), dict(tally.skipped))
        write_atomic(self._marker(chunk.key), msgspec.json.encode(marker))

    def publish(self, out: Path, source: str, settings: dict[str, object], chunks: list[Chunk]) -> Manifest:
        """Write the manifest and put the folder in the output's place; the last step of an ingest."""
        partitions: dict[tuple[str, str, str], Partition] = {}
        metrics: Counter[str] = Counter()
        skipped: Counter[str] = Counter()
        for chunk in chunks:
            marker = msgspec.json.decode(self._marker(chunk.key).read_bytes(), type=_Marker)
            metrics.update(marker.metrics)
            skipped.update(marker.skipped)
            for partition in marker.partitions:
                _merge(partitions, partition)
        if not partitions:
            reasons = "; ".join(f"{reason}: {count}" for reason, count in skipped.items()) or "no reason given"
            raise SourceError(f"{source} yielded no row ({reasons})", "data", "check the source and the range of days")
        landed = sorted(partitions.values(), key=lambda part: (part.table, part.date, part.cluster))
        manifest = Manifest(
            source=source,
            settings=settings,
            rows={table: sum(part.rows for part in landed if part.table == table) for table in TABLES},
            metrics=dict(sorted(metrics.items())),
            first=min((part.first for part in landed), default=None),
            last=max((part.last for part in landed), default=None),
            clusters=sorted({part.cluster for part in landed}),
            partitions=landed,
            skipped=dict(sorted(skipped.items())),
        )
        document = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
        write_atomic(self.folder / MANIFEST, document + b"\n")
        _replace_folder(self.folder, out)
        shutil.rmtree(out / _MARKERS)
        return manifest

    def _marker(self, key: str) -> Path:
        return self._markers / f"{_file_name(key)}.json"


def forget_old(scratch: Path, older_than_s: float = KEEP_SECONDS) -> None:
    """Remove what runs that nobody took up again left behind; a folder that is being worked in is locked and stays."""
    for lock in scratch.glob("*.lock"):
        if time.time() - lock.stat().st_mtime < older_than_s:
            continue
        with lock.open("a") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
            lock.unlink()


def read_manifest(raw: Path) -> Manifest:
    """Read a raw folder's manifest."""
    path = raw / MANIFEST
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError as error:
        raise DataError(
            f"{path} does not exist", "a folder written by ingest", "run python -m pipeline.ingest"
        ) from error
    except msgspec.DecodeError as error:
        raise ContractError(f"{path}: {error}", "a manifest written by ingest", "run ingest again") from error


def _file_name(key: str) -> str:
    safe = "".join(char if char.isalnum() or char in "-_." else "-" for char in key)
    # Two keys that differ only in unsafe characters must not share files.
    return f"{safe[:80]}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"


def _cluster_folder(cluster: str, key: str) -> str:
    """Name the partition of a cluster; names are a source's, and may hold what folders may not (``cluster/prod``)."""
    name = f"cluster={quote(cluster, safe=' :@')}"
    if not cluster.strip() or len(name) > _LONGEST_NAME:
        raise DataError(
            f"chunk {key}: the cluster's name is {cluster[:80]!r}", f"a name of 1 to {_LONGEST_NAME - 8} letters"
        )
    return name


def _checked(table: str, rows: pa.Table, key: str) -> pa.Table:
    schema = TABLES.get(table)
    if schema is None:
        raise ContractError(f"chunk {key}: table {table!r} is not a raw table", f"one of {', '.join(TABLES)}")
    if rows.schema.names != schema.names:
        raise ContractError(f"chunk {key}: columns {rows.schema.names} of {table}", f"{schema.names}")
    fields = []
    for wanted, column in zip(schema, rows.columns, strict=True):
        encoded = pa.types.is_dictionary(column.type) and column.type.value_type == wanted.type
        if column.type != wanted.type and not encoded:
            raise ContractError(f"chunk {key}: {table}.{wanted.name} is {column.type}", str(wanted.type))
        if not wanted.nullable and column.null_count:
            raise ContractError(f"chunk {key}: {column.null_count} rows of {table} have no {wanted.name}", "a value")
        fields.append(pa.field(wanted.name, column.type, wanted.nullable))
    return pa.table(rows.columns, schema=pa.schema(fields))


def _partitioned(rows: pa.Table) -> Iterator[tuple[tuple[str, str], pa.Table]]:
    """Split rows by (day, cluster), keeping their order within each."""
    if not rows.num_rows:
        return
    time_us = rows["time"].cast(pa.int64()).to_numpy()
    if time_us.min() < 0 or time_us.max() >= LAST_US:
        odd = time_us[(time_us < 0) | (time_us >= LAST_US)]
        raise DataError(
            f"{len(odd)} of {len(time_us)} times are not between 1970 and 2200, e.g. {odd[0]} µs since 1970",
            "times in UTC",
            "check the unit of the source's times",
        )
    day = time_us // _DAY_US
    encoded = pc.dictionary_encode(rows["cluster"].combine_chunks())
    cluster = encoded.indices.to_numpy()
    names = encoded.dictionary.to_pylist()
    if len(names) == 1 and day[0] == day.min() == day.max():
        yield (_date(int(day[0])), names[0]), rows
        return
    group = day * len(names) + cluster
    for value in np.unique(group):
        picked = rows.take(np.flatnonzero(group == value))
        yield (_date(int(value // len(names))), names[value % len(names)]), picked


def _date(day: int) -> str:
    return datetime.fromtimestamp(day * 86_400, UTC).strftime("%Y-%m-%d")


def _write(rows: pa.Table, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    # Minima and maxima leave NaN out, and DuckDB skips row groups by them: NaN rows would silently vanish from filters.
    ordered = [column.name for column in rows.schema if not pa.types.is_floating(column.type)]
    # Without the stored Arrow schema, dictionary-encoded strings are read back as the plain strings of the contract.
    pq.write_table(
        rows, temporary, compression="zstd", compression_level=1, write_statistics=ordered, store_schema=False
    )
    temporary.replace(path)


def _merge(partitions: dict[tuple[str, str, str], Partition], entry: Partition) -> None:
    key = (entry.table, entry.date, entry.cluster)
    known = partitions.get(key)
    if known is None:
        partitions[key] = entry
        return
    known.rows += entry.rows
    known.first, known.last = min(known.first, entry.first), max(known.last, entry.last)


def _replace_folder(new: Path, out: Path) -> None:
    """Put ``new`` where ``out`` is; killed at any point, ``new`` is still complete or ``out`` is the new folder."""
    out.parent.mkdir(parents=True, exist_ok=True)
    old = out.parent / f".{out.name}.old"
    shutil.rmtree(old, ignore_errors=True)
    if new.stat().st_dev != out.parent.stat().st_dev:
        staged = out.parent / f".{out.name}.new"
        shutil.rmtree(staged, ignore_errors=True)
        shutil.copytree(new, staged)
        done = new.with_name(f"{new.name}.done")
        shutil.rmtree(done, ignore_errors=True)
        _swap(staged, out, old)
        # Renamed before it is deleted: a folder with markers but without its data must never be found.
        new.rename(done)
        shutil.rmtree(done)
    else:
        _swap(new, out, old)


def _swap(new: Path, out: Path, old: Path) -> None:
    if out.exists():
        out.rename(old)
    new.rename(out)
    shutil.rmtree(old, ignore_errors=True)
