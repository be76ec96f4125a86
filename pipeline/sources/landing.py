"""Landing of raw rows: partitioned Parquet, chunk by chunk, so that a kill at any moment loses or doubles nothing.

A chunk is landed into a folder of its own, which is kept (``pipeline.kept``): there whole or not at all, and not read
again by this night or a later one. A raw folder is made of links to the files of its chunks, and put in place in one
step. Rows of days that were not asked for stay behind, but for the samples next to a border: what spans midnight needs
them, and a day must come out the same whichever days are asked for beside it.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline import kept, storage
from pipeline.contracts.raw import LANDED, MARGIN, MARGIN_S, TABLES
from pipeline.errors import DataError, SourceError
from pipeline.files import replaced_folder, write_atomic
from pipeline.prices import FILE as PRICES_FILE
from pipeline.prices import format_prices
from pipeline.sources import Chunk, Tally
from pipeline.sources.columns import LAST_US
from wire.errors import ContractError

MANIFEST = "manifest.json"
OTHER_DAYS = "rows outside the days asked for"
_MARKER = "chunk.json"
_DAY_US = 86_400_000_000
_DAY, _MARGIN = timedelta(days=1), timedelta(seconds=MARGIN_S)
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
    metrics: dict[str, dict[str, int]]
    """Rows of ``samples`` by day, by canonical metric."""
    skipped: dict[str, int]


class Landing:
    """Chunks that have been landed, kept in a folder, and the way from them to a raw folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def done(self, chunk: Chunk) -> bool:
        """Tell whether a chunk has been landed completely."""
        return kept.there(self._of(chunk))

    def land(self, chunk: Chunk, landed: Callable[[int], None] = lambda _: None) -> None:
        """Read a chunk and land its rows; ``landed`` is told how many, batch by batch."""
        name = _file_name(chunk.key)
        tally = Tally()
        partitions: dict[tuple[str, str, str], Partition] = {}
        metrics: dict[str, Counter[str]] = defaultdict(Counter)
        with kept.made(self._of(chunk)) as into:
            for batch, (table, rows) in enumerate(chunk.read(tally)):
                checked = _checked(table, rows, chunk.key)
                for (day, cluster), part in _partitioned(checked):
                    if table == "samples":
                        for entry in pc.value_counts(part["metric"].combine_chunks()).to_pylist():
                            metrics[day][entry["values"]] += entry["counts"]
                    folder = into / table / f"date={day}" / _cluster_folder(cluster, chunk.key)
                    _write(part, folder / f"part-{name}-{batch:04d}.parquet")
                    times = pc.min_max(part["time"]).as_py()
                    first, last = (times[end].isoformat() for end in ("min", "max"))
                    _merge(partitions, Partition(table, day, cluster, part.num_rows, first, last))
                landed(checked.num_rows)
            marker = _Marker(
                list(partitions.values()), {day: dict(m) for day, m in metrics.items()}, dict(tally.skipped)
            )
            write_atomic(into / _MARKER, msgspec.json.encode(marker))

    def publish(
        self,
        out: Path,
        source: str,
        settings: dict[str, object],
        chunks: Sequence[Chunk],
        days: Sequence[date] = (),
        prices: dict[str, float] | None = None,
    ) -> Manifest:
        """Put the chunks' rows of the days asked for (none: all) in the output's place; the last step of an ingest."""
        wanted = {day.isoformat() for day in days}
        partitions: dict[tuple[str, str, str], Partition] = {}
        metrics: Counter[str] = Counter()
        skipped: Counter[str] = Counter()
        for chunk in chunks:
            if chunk.margin:
                continue
            marker = msgspec.json.decode((self._of(chunk) / _MARKER).read_bytes(), type=_Marker)
            skipped.update(marker.skipped)
            for day, counts in marker.metrics.items():
                metrics.update(counts if day in wanted or not days else {})
            for partition in marker.partitions:
                if partition.date in wanted or not days:
                    _merge(partitions, partition)
                else:
                    skipped[OTHER_DAYS] += partition.rows
        if not partitions:
            reasons = "; ".join(f"{reason}: {count}" for reason, count in skipped.items()) or "no reason given"
            raise SourceError(f"{source} yielded no row ({reasons})", "data", "check the source and the range of days")
        landed = sorted(partitions.values(), key=lambda part: (part.table, part.date, part.cluster))
        manifest = Manifest(
            source=source,
            settings=settings,
            rows={
                table: sum(part.rows for part in landed if part.table == table)
                for table in LANDED
                if table in TABLES or any(part.table == table for part in landed)
            },
            metrics=dict(sorted(metrics.items())),
            first=min((part.first for part in landed), default=None),
            last=max((part.last for part in landed), default=None),
            clusters=sorted({part.cluster for part in landed}),
            partitions=landed,
            skipped=dict(sorted(skipped.items())),
        )
        with replaced_folder(out) as folder:
            for chunk in chunks:
                self._link(chunk, folder, days)
            if prices is not None:
                write_atomic(folder / PRICES_FILE, format_prices(prices))
            document = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
            write_atomic(folder / MANIFEST, document + b"\n")
        return manifest

    def _link(self, chunk: Chunk, folder: Path, days: Sequence[date]) -> None:
        wanted = {f"date={day}" for day in days}
        borders = {f"date={days[0] - _DAY}": days[0], f"date={days[-1] + _DAY}": days[-1] + _DAY} if days else {}
        source = self._of(chunk)
        for file in sorted(source.glob("*/date=*/cluster=*/*.parquet")):
            table, day, *_ = path = file.relative_to(source).parts
            if not days or day in wanted:
                kept.link(file, folder / file.relative_to(source))
            elif table == "samples" and day in borders:
                _write_margin(file, folder.joinpath(MARGIN, *path[1:]), borders[day])

    def _of(self, chunk: Chunk) -> Path:
        return self._folder / f"{_file_name(chunk.key)}{chunk.made_by and '-'}{chunk.made_by}"


def _write_margin(file: Path, target: Path, border: date) -> None:
    """Keep the samples of a file that are close to a border between days."""
    at = datetime(border.year, border.month, border.day, tzinfo=UTC)
    first, last = (pa.scalar(at + step, TABLES["samples"].field("time").type) for step in (-_MARGIN, _MARGIN))
    rows = pq.ParquetFile(file).read()
    rows = rows.filter(pc.and_(pc.greater_equal(rows["time"], first), pc.less(rows["time"], last)))
    if rows.num_rows:
        _write(rows, target)


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
    schema = LANDED.get(table)
    if schema is None:
        raise ContractError(f"chunk {key}: table {table!r} is not a raw table", f"one of {', '.join(LANDED)}")
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
    if not storage.is_remote(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    # Minima and maxima leave NaN out, and DuckDB skips row groups by them: NaN rows would silently vanish from filters.
    ordered = [column.name for column in rows.schema if not pa.types.is_floating(column.type)]
    # Without the stored Arrow schema, dictionary-encoded strings are read back as the plain strings of the contract.
    with path.open("wb") as file:
        pq.write_table(
            rows, file, compression="zstd", compression_level=1, write_statistics=ordered, store_schema=False
        )


def _merge(partitions: dict[tuple[str, str, str], Partition], entry: Partition) -> None:
    key = (entry.table, entry.date, entry.cluster)
    known = partitions.get(key)
    if known is None:
        partitions[key] = entry
        return
    known.rows += entry.rows
    known.first, known.last = min(known.first, entry.first), max(known.last, entry.last)
