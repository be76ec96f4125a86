"""Stage ``clean``: raw rows in, trusted 5-minute windows out, day by day; nothing is lost without an account of it."""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import prices, settings
from pipeline.clean.account import CleanMetrics, DayAccount, total
from pipeline.clean.config import CleanConfig
from pipeline.contracts import raw as raw_contract
from pipeline.contracts.windows import SCHEMA_VERSION, TABLES, VERSION_KEY
from pipeline.errors import DataError
from pipeline.files import write_atomic
from wire.errors import ContractError, run_cli

if TYPE_CHECKING:
    from pipeline.clean.day import CleanedDay, RawDay

FILE = "part-0.parquet"
DEFINITION = 7
"""Raised when the definition of cleaning changes, so that half-done work of an older one is not used."""
STRAY_DAYS = 7
STRAY_SHARE = 1e-3
"""Days this far from all others with less than this share of the rows are no days: a clock was wrong."""
STANDARDS = ["cluster", "function", "standard_response_s"]
_ACCOUNT = "account.json"


def clean(
    raw: Path, out: Path, config: CleanConfig, *, first: date | None = None, last: date | None = None
) -> CleanMetrics:
    """Clean the days of a raw folder into window tables; returns the account of every row.

    Days are done one after another, each in a scratch folder that survives a kill, and moved into place at the end.
    A day that is cleaned again replaces its files; other days in ``out`` are left alone.
    """
    from pipeline.clean.day import clean_day
    from pipeline.clean.engine import Engine
    from pipeline.clean.tables import EARLIER
    from pipeline.progress import Progress

    days, strays = _wanted_days(raw, first, last)
    price_file = raw / prices.FILE
    price_list = prices.read_prices(price_file) if price_file.exists() else {}
    scratch = settings.var() / "scratch" / "clean"
    folders: dict[date, Path] = {}
    earlier = EARLIER.empty_table()
    before = out / "functions" / f"date={days[0] - timedelta(days=1)}" / FILE
    if before.exists():
        earlier = _fastest(earlier, _standards(before))
    writing: list[Future[None]] = []
    # A day is written while the next one is read.
    with (
        ThreadPoolExecutor(1) as writer,
        Engine(config, scratch) as engine,
        Progress("clean", len(days), "day") as progress,
    ):
        for day in days:
            source = _raw_day(raw, day, strays if day == days[0] else ())
            folder = folders[day] = scratch / _key(source, config, price_list, earlier)
            if (folder / _ACCOUNT).exists():
                standards = _standards(folder / "functions.parquet")
            else:
                cleaned = clean_day(engine, source, price_list, earlier, config)
                standards = cleaned.tables["functions"].select(STANDARDS)
                while writing:
                    writing.pop().result()
                writing.append(writer.submit(_write, folder, cleaned))
                del cleaned  # it goes when it is written
            earlier = _fastest(earlier, standards)
            progress.add(rows=source.rows, pieces=1)
    for last_one in writing:
        last_one.result()
    accounts = {
        day.isoformat(): msgspec.json.decode((folder / _ACCOUNT).read_bytes(), type=DayAccount)
        for day, folder in folders.items()
    }
    _publish(folders, out)
    return total(accounts)


def _wanted_days(raw: Path, first: date | None, last: date | None) -> tuple[list[date], list[date]]:
    """List the days of a range that are there, and say which are not; and stray days, apart from all others.

    A few rows of 1999 among today's are a clock that was never set, not a day of the past: they are put aside with the
    first day.
    """
    if first and last and first > last:
        raise DataError(f"the range begins on {first} and ends on {last}", "a first day that is not after the last")
    present = days_present(raw)
    days = [day for day in present if (first is None or day >= first) and (last is None or day <= last)]
    if not days:
        wanted = f" between {first or 'the start'} and {last or 'the end'}" if first or last else ""
        raise DataError(f"{raw} has no day{wanted}", "folders <table>/date=YYYY-MM-DD", "run python -m pipeline.ingest")
    strays = _strays(raw, days) if first is None and last is None else []
    if strays:
        names = ", ".join(day.isoformat() for day in strays[:5]) + (" ..." if len(strays) > 5 else "")
        sys.stderr.write(f"clean: {raw} has a few rows of {names}, far from its other days: they are put aside\n")
        days = [day for day in days if day not in strays]
    low, high = first or days[0], last or days[-1]
    missing = {low + timedelta(days=step) for step in range((high - low).days + 1)} - set(days)
    if missing:
        names = ", ".join(day.isoformat() for day in sorted(missing)[:5]) + (" ..." if len(missing) > 5 else "")
        sys.stderr.write(f"clean: {raw} has nothing of {len(missing)} day(s), which are left out: {names}\n")
    return days, strays


def _strays(raw: Path, days: list[date]) -> list[date]:
    """Find days that are weeks from the others and have next to no rows."""
    rows = {day: _raw_day(raw, day).rows for day in days}
    runs: list[list[date]] = []
    for day in days:
        if not runs or (day - runs[-1][-1]).days > STRAY_DAYS:
            runs.append([])
        runs[-1].append(day)
    whole = sum(rows.values())
    return [day for run in runs if sum(rows[day] for day in run) < STRAY_SHARE * whole for day in run]


def days_present(raw: Path) -> list[date]:
    """List the days that any raw table has."""
    days = set()
    for folder in raw.glob("*/date=*"):
        if folder.parent.name in raw_contract.TABLES:
            try:
                days.add(date.fromisoformat(folder.name.removeprefix("date=")))
            except ValueError as error:
                raise ContractError(f"{folder}: not a day", "a folder named date=YYYY-MM-DD") from error
    return sorted(days)


def _files(raw: Path, table: str, day: date) -> list[Path]:
    """List a day's files of one raw table, in a fixed order."""
    return sorted((raw / table / f"date={day.isoformat()}").glob("cluster=*/*.parquet"))


def _raw_day(raw: Path, day: date, strays: Sequence[date] = ()) -> RawDay:
    from pipeline.clean.day import RawDay

    files = {
        table: [file for one in (day, *strays) for file in _files(raw, table, one)] for table in raw_contract.TABLES
    }
    near = [file for step in (-1, 1) for file in _files(raw, "samples", day + timedelta(days=step))]
    for table, paths in files.items():
        for path in paths:
            _check_schema(path, table)
    return RawDay(day, files, near)


def _check_schema(path: Path, table: str) -> None:
    try:
        found = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read: {error}", "a Parquet file", "run ingest again for this day") from error
    expected = raw_contract.TABLES[table]
    for column in expected:
        if column.name not in found.names:
            raise ContractError(f"{path}: no column {column.name}", f"the columns {', '.join(expected.names)}")
        kind = found.field(column.name).type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if kind != column.type and not (pa.types.is_large_string(kind) and column.type == pa.string()):
            raise ContractError(f"{path}: column {column.name} is {kind}", str(column.type))


def _key(source: RawDay, config: CleanConfig, price_list: dict[str, float], earlier: pa.Table) -> str:
    """Name the scratch folder of a day after everything its result depends on."""
    paths = [*source.near, *(file for table in sorted(source.files) for file in source.files[table])]
    contents = []
    for path in paths:
        with path.open("rb") as file:
            contents.append(f"{path.parent.parent.parent.name}:{hashlib.file_digest(file, 'sha256').hexdigest()}")
    parts = [DEFINITION, source.day, contents, config, price_list, earlier.to_pylist()]
    digest = hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()
    return f"{source.day.isoformat()}-{digest[:16]}"


def _write(folder: Path, cleaned: CleanedDay) -> None:
    """Write a finished day; the account comes last, and a day without one is not finished."""
    folder.mkdir(parents=True, exist_ok=True)

    def write(name: str) -> None:
        table = cleaned.tables[name].replace_schema_metadata({VERSION_KEY: str(SCHEMA_VERSION).encode()})
        # Names repeat; measured numbers hardly do, and looking for it takes longer than writing them.
        names = [column.name for column in table.schema if pa.types.is_string(column.type)]
        pq.write_table(table, folder / f"{name}.parquet", compression="zstd", use_dictionary=names)

    with ThreadPoolExecutor(2) as writers:
        list(writers.map(write, cleaned.tables))
    account = DayAccount(cleaned.accounts, {name: table.num_rows for name, table in cleaned.tables.items()})
    write_atomic(folder / _ACCOUNT, msgspec.json.encode(account))


def _standards(functions: Path) -> pa.Table:
    return pq.read_table(functions, columns=STANDARDS, partitioning=None)


def _fastest(earlier: pa.Table, today: pa.Table) -> pa.Table:
    """Carry the standard response of each function on: the fastest seen so far."""
    both = pa.concat_tables([earlier, today.cast(earlier.schema)])
    found = both.group_by(["cluster", "function"]).aggregate([("standard_response_s", "min")])
    return found.rename_columns(STANDARDS).sort_by([("cluster", "ascending"), ("function", "ascending")])


def _publish(folders: dict[date, Path], out: Path) -> None:
    """Put finished days into place, file by file, each replaced whole; then forget the scratch."""
    for day, folder in folders.items():
        for name in TABLES:
            target = out / name / f"date={day.isoformat()}" / FILE
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(f".{FILE}.{os.getpid()}.tmp")
            shutil.copyfile(folder / f"{name}.parquet", temporary)
            temporary.replace(target)
    for folder in folders.values():
        shutil.rmtree(folder)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage from the command line."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.clean", description=__doc__)
    parser.add_argument("--raw", type=Path, default=Path("data/raw"))
    parser.add_argument("--out", type=Path, default=Path("data/windows"))
    parser.add_argument("--metrics", type=Path, default=Path("data/metrics/clean.json"))
    parser.add_argument("--params", type=Path, default=settings.PARAMS_FILE)
    parser.add_argument("--from", dest="first", type=date.fromisoformat, help="first day, YYYY-MM-DD")
    parser.add_argument("--to", dest="last", type=date.fromisoformat, help="last day, YYYY-MM-DD")
    args = parser.parse_args(argv)
    config = settings.load("clean", CleanConfig, args.params)
    try:
        metrics = clean(args.raw, args.out, config, first=args.first, last=args.last)
        write_atomic(args.metrics, msgspec.json.format(msgspec.json.encode(metrics), indent=2) + b"\n")
    except OSError as error:
        raise DataError(f"cannot write: {error}", "room and rights", "run again: finished days are kept") from error
    lines = [f"{table}: {account}" for table, account in metrics.rows.items()]
    lines.append("windows: " + ", ".join(f"{name} {count:,}" for name, count in metrics.windows.items()))
    sys.stdout.write(f"{metrics.first} to {metrics.last}\n" + "\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    run_cli(main)
