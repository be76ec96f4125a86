"""A request log as a source: CSV or JSON lines, gzipped or not, one request a line, in columns of the user's naming."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.contracts.raw import REQUESTS
from pipeline.errors import SourceError
from pipeline.sources import Rows, Tally
from pipeline.sources.columns import plausible_us, times
from pipeline.sources.files import FileSource
from wire.errors import ConfigError, legal

BATCH_ROWS = 100_000
_NUMBERS = ("cpu_cores", "mem_bytes", "duration_s")
_ENDINGS = (".csv", ".jsonl", ".ndjson")
_CPU = {"cores": 1.0, "millicores": 1e-3}
_MEM = {"bytes": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "MB": 1e6}
_DURATION = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_EPOCH_US = {"s": 1e6, "ms": 1e3, "us": 1.0}


class RequestLogConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the log is and what its columns are called and measured in."""

    paths: list[str]
    """Files or patterns; ``.csv``, ``.jsonl`` or ``.ndjson``, with ``.gz`` or without."""
    cluster: str = "default"
    """Cluster of all rows."""
    columns: dict[str, str] = {}
    """Canonical column (time, function, pod, cpu_cores, mem_bytes, duration_s, id) -> the log's, where it differs."""
    time: Literal["iso", "s", "ms", "us"] = "iso"
    """ISO 8601 with a zone, or a number since 1970. A time without a zone is refused: it would be a guess."""
    cpu: Literal["cores", "millicores"] = "cores"
    mem: Literal["bytes", "KiB", "MiB", "GiB", "MB"] = "bytes"
    duration: Literal["s", "ms", "us"] = "s"
    skip_bad: bool = False
    """Count and leave out rows that cannot be read, instead of stopping at the first."""

    def __post_init__(self) -> None:
        """Refuse columns that are not in the contract."""
        if unknown := set(self.columns) - (set(REQUESTS.names) - {"cluster"}):
            raise ConfigError(f"ingest.requests.columns: {', '.join(sorted(unknown))}", legal(REQUESTS.names))


class RequestLogSource(FileSource):
    """One chunk a log file."""

    def __init__(self, config: RequestLogConfig, days: Sequence[date]) -> None:
        super().__init__(config.paths, days, "ingest.requests")
        self._config = config

    def settings(self) -> dict[str, object]:
        """Name files, days, columns and units."""
        named = msgspec.to_builtins(self._config)
        del named["paths"]
        return {**super().settings(), **named}

    def read(self, path: Path, tally: Tally) -> Rows:
        """Read one file in batches; memory holds one of them."""
        config = self._config
        names = {name: config.columns.get(name, name) for name in REQUESTS.names if name != "cluster"}
        ending = Path(path.name.removesuffix(".gz")).suffix
        if ending not in _ENDINGS:
            raise SourceError(f"{path} ends in {ending!r}", legal(_ENDINGS) + ", with .gz or without")
        rows = _csv_rows if ending == ".csv" else _json_rows
        try:
            with _opened(path) as file:
                lines = rows(file, path, names, config, tally)
                while batch := list(islice(lines, BATCH_ROWS)):
                    if len(table := self._table(batch, path, tally)):
                        yield "requests", table
        except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
            raise SourceError(f"{path} cannot be read: {error}", "a whole CSV or JSON-lines file in UTF-8") from error

    def _table(self, batch: list[tuple[int, list[Any]]], path: Path, tally: Tally) -> pa.Table:
        config = self._config
        numbers = np.array([number for number, _ in batch])
        cells = list(zip(*(row for _, row in batch), strict=True))
        bad: dict[int, str] = {}

        def convert(column: Sequence[Any], one: Callable[[Any], float], name: str) -> NDArray[np.float64]:
            values = np.full(len(column), np.nan)
            for row, cell in enumerate(column):
                try:
                    values[row] = one(cell)
                except (TypeError, ValueError, OverflowError) as error:
                    bad.setdefault(int(numbers[row]), f"{name} is {str(cell)[:80]!r}: {error}")
            return values

        time_us = convert(cells[0], _moment if config.time == "iso" else _since(_EPOCH_US[config.time]), "time")
        scale = (_CPU[config.cpu], _MEM[config.mem], _DURATION[config.duration])
        measured = [
            convert(column, _amount, name) * factor
            for column, name, factor in zip(cells[3:6], _NUMBERS, scale, strict=True)
        ]
        named = [
            [_text(cell, name, int(number), bad) for number, cell in zip(numbers, column, strict=True)]
            for column, name in zip((*cells[1:3], cells[6]), ("function", "pod", "id"), strict=True)
        ]
        if bad and not config.skip_bad:
            line = min(bad)
            raise SourceError(f"{path}, line {line}: {bad[line]}", fix="mend the line, or set ingest.requests.skip_bad")
        if bad:
            tally.skipped["request rows that cannot be read"] += len(bad)
        keep = np.flatnonzero(~np.isin(numbers, list(bad)))
        texts = [pa.array([names[row] for row in keep], pa.string()) for names in named]
        # A NaN that the log says is for ``clean`` to judge; only an empty cell is nothing.
        empty = [np.array([cell is None or cell == "" for cell in column]) for column in cells[3:6]]
        amounts = [pa.array(column[keep], mask=mask[keep]) for column, mask in zip(measured, empty, strict=True)]
        cluster = pa.array([config.cluster] * len(keep), pa.string())
        columns = [times(time_us[keep].astype(np.int64)), cluster, *texts[:2], *amounts, texts[2]]
        return pa.table(columns, names=REQUESTS.names)


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _csv_rows(
    file: IO[str], path: Path, names: dict[str, str], config: RequestLogConfig, tally: Tally
) -> Iterator[tuple[int, list[Any]]]:
    rows = csv.reader(file)
    header = [name.strip() for name in next(rows, [])]
    _check_columns(header, names, config, f"{path}, line 1")
    if twice := [column for column in names.values() if header.count(column) > 1]:
        raise SourceError(f"{path}, line 1: the column {twice[0]!r} is there twice", "each column once")
    at = [header.index(column) if column in header else None for column in names.values()]
    for row in rows:
        if len(row) == len(header):
            yield rows.line_num, [None if index is None else row[index] for index in at]
        elif row:
            if not config.skip_bad:
                raise SourceError(f"{path}, line {rows.line_num}: {len(row)} cells, the header has {len(header)}")
            tally.skipped["request rows that cannot be read"] += 1


def _json_rows(
    file: IO[str], path: Path, names: dict[str, str], config: RequestLogConfig, tally: Tally
) -> Iterator[tuple[int, list[Any]]]:
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    seen: dict[str, None] = {}
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            row = decode(line)
        except msgspec.DecodeError as error:
            if not config.skip_bad:
                raise SourceError(f"{path}, line {number}: {error}", "one JSON object a line") from error
            tally.skipped["request rows that cannot be read"] += 1
            continue
        if not row.keys() <= seen.keys():
            seen |= dict.fromkeys(row)
        yield number, [row.get(column) for column in names.values()]
    if seen:
        _check_columns(list(seen), names, config, str(path))


def _check_columns(present: list[str], names: dict[str, str], config: RequestLogConfig, where: str) -> None:
    """Refuse a log without a column that was named, or without those that no request can be used without."""
    found = {name for name, column in names.items() if column in present}
    missing = [name for name in ("time", "duration_s", *config.columns) if name not in found]
    if not found & {"function", "pod"}:
        missing.append("function")
    if missing:
        raise SourceError(
            f"{where}: no column {names[missing[0]]!r}, only {', '.join(present)}",
            "time, duration_s, and function or pod",
            "say in ingest.requests.columns what the log calls them",
        )


def _text(cell: Any, name: str, line: int, bad: dict[int, str]) -> str | None:
    """Read a name; nothing is None. What is no name is put down in ``bad``."""
    if cell is None:
        return None
    if not isinstance(cell, str | int) or isinstance(cell, bool) or "\0" in str(cell):
        bad.setdefault(line, f"{name} is {cell!r}: not a name")
    return str(cell).strip() or None


def _number(cell: Any) -> float:
    """Read a number as other programs would: not ``true``, not ``1_000``."""
    if isinstance(cell, bool) or (isinstance(cell, str) and "_" in cell):
        raise ValueError("not a number")
    return float(cell)


def _amount(cell: Any) -> float:
    """Read a number; nothing is NaN. What makes no sense (negative, huge) is for ``clean`` to judge."""
    return np.nan if cell is None or cell == "" else _number(cell)


def _since(us: float) -> Callable[[Any], float]:
    return lambda cell: plausible_us(_number(cell) * us)


def _moment(cell: Any) -> float:
    when = datetime.fromisoformat(cell)
    if when.tzinfo is None:
        raise ValueError("no time zone")
    since = when.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return plausible_us((since.days * 86_400 + since.seconds) * 1e6 + since.microseconds)
