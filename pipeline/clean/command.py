"""Stage ``clean``: raw rows in, trusted 5-minute windows out, day by day; nothing is lost without an account of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import date, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import kept, prices, settings, storage
from pipeline.clean.account import CleanMetrics, DayAccount, total
from pipeline.clean.config import CleanConfig
from pipeline.contracts import raw as raw_contract
from pipeline.contracts.windows import TABLES
from pipeline.errors import DataError
from pipeline.files import write_atomic
from wire.errors import ContractError, run_cli

if TYPE_CHECKING:
    from pipeline.clean.day import CleanedDay, RawDay
    from pipeline.progress import Progress

FILE = "part-0.parquet"
SECOND_US = 1_000_000
STAGE, NEAR = "clean", "clean-near"
CODE = ("pipeline.clean.command",)
"""A change of any module that this one imports makes every day anew."""
STRAY_DAYS = 7
STRAY_SHARE = 1e-3
"""Days this far from all others with less than this share of the rows are no days: a clock was wrong."""
_ACCOUNT = "account.json"
_NEAR = "rows.json"


def clean(
    raw: Path, out: Path, config: CleanConfig, *, first: date | None = None, last: date | None = None
) -> CleanMetrics:
    """Clean the days of a raw folder into window tables; returns the account of every row.

    Days are done one after another, and each is kept under ``var/cache/clean``: a killed run goes on with the day it
    was at, and a day whose raw rows, settings and code are those of an earlier run is linked into place, not cleaned.
    Other days in ``out`` are left alone.
    """
    from pipeline.progress import Progress

    days, strays = _wanted_days(raw, first, last)
    price_file = raw / prices.FILE
    price_list = prices.read_prices(price_file) if price_file.exists() else {}
    sources = {day: _raw_day(raw, day, strays if day == days[0] else ()) for day in days}
    digest = cache(kept.digest_of)  # a file is a neighbour of two days too
    folders = {day: _place(source, config, price_list, digest) for day, source in sources.items()}
    todo = [source for day, source in sources.items() if not kept.there(folders[day])]
    with Progress("clean", len(days), "day", len(days) - len(todo)) as progress:
        if todo:
            _clean_days(todo, folders, price_list, config, progress)
    accounts = {
        day.isoformat(): msgspec.json.decode((folder / _ACCOUNT).read_bytes(), type=DayAccount)
        for day, folder in folders.items()
    }
    for day, folder in folders.items():
        for name in TABLES:
            target = out / name / f"date={day.isoformat()}"
            kept.link_folder(folder / name, target)
            for older in {file.name for file in target.iterdir()} - {file.name for file in (folder / name).iterdir()}:
                (target / older).unlink()
    for stage in (STAGE, NEAR):
        kept.forget(stage)
    return total(accounts)


def _clean_days(
    todo: list[RawDay],
    folders: dict[date, Path],
    price_list: dict[str, float],
    config: CleanConfig,
    progress: Progress,
) -> None:
    from pipeline.clean.day import clean_day
    from pipeline.clean.engine import Engine

    writing: list[Future[None]] = []
    # A day is written while the next one is read.
    with ThreadPoolExecutor(1) as writer, Engine(config, settings.var() / "scratch" / "clean") as engine:
        for source in todo:
            if engine.spread:
                with kept.made(folders[source.day]) as unfinished:
                    _write(unfinished, clean_day(engine, source, price_list, config, unfinished))
            else:
                cleaned = clean_day(engine, source, price_list, config)
                while writing:
                    writing.pop().result()
                writing.append(writer.submit(_write_whole, folders[source.day], cleaned))
                del cleaned  # it goes when it is written
            progress.add(rows=source.rows, pieces=1)
    for last_one in writing:
        last_one.result()


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
    near = [
        file
        for step in (-1, 1)
        for table in ("samples", raw_contract.MARGIN)
        for file in _files(raw, table, day + timedelta(days=step))
    ]
    for table, paths in files.items():
        for path in paths:
            _check_schema(path, table)
    return RawDay(day, files, near)


def _check_schema(path: Path, table: str) -> None:
    try:
        with path.open("rb") as file:
            found = pq.read_schema(file)
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


def _place(
    source: RawDay, config: CleanConfig, price_list: dict[str, float], digest: Callable[[Path], str] = kept.digest_of
) -> Path:
    """Name the folder of a day after everything its result depends on."""
    files = [
        f"{table}:{digest(file)}"
        for table in sorted(source.files)
        for file in source.files[table]
    ]  # fmt: skip
    near = _near(source, config.margin_seconds, digest)
    return kept.place(
        STAGE, source.day.isoformat(), CODE, source.day, sorted(files), near, config.decisive(), price_list
    )


def _near(source: RawDay, margin_s: int, digest: Callable[[Path], str]) -> list[str]:
    """Name what a day sees of its neighbours, remembered by their files: days that are kept are not read again."""
    files = sorted(map(digest, source.near))
    folder = kept.place(NEAR, source.day.isoformat(), CODE, files, source.span_us, margin_s)
    if not kept.there(folder):
        found = _digest_of_rows(source.near, source.span_us, margin_s)
        with kept.made(folder) as unfinished:
            (unfinished / _NEAR).write_bytes(msgspec.json.encode(found))
    return msgspec.json.decode((folder / _NEAR).read_bytes(), type=list[str])


def _digest_of_rows(files: list[Path], span_us: tuple[int, int], margin_s: int) -> list[str]:
    """Name the rows within a margin around a day by their content, in whichever files and order they lie.

    A neighbour is there whole, or as its margin alone, or later than this day: what counts is what this day sees of it.
    """
    if not files:
        return []
    import duckdb

    from pipeline.clean.engine import dataset_of

    low, high = span_us
    columns = ", ".join(raw_contract.SAMPLES.names)
    around = [low - margin_s * SECOND_US, low, high, high + margin_s * SECOND_US]
    ends = [f"make_timestamptz({bound})" for bound in around]
    query = f"""SELECT count(*), sum(hash({columns})::HUGEINT) FROM rows
        WHERE (time >= {ends[0]} AND time < {ends[1]}) OR (time >= {ends[2]} AND time < {ends[3]})"""  # noqa: S608 - ours
    with duckdb.connect(config={"threads": 1, "memory_limit": "200MB"}) as con:
        if storage.is_remote(files[0]):
            con.register("rows", dataset_of(files))
        else:
            # Of large files few rows are wanted: DuckDB's own reader passes over the rest, pyarrow's reads ahead.
            con.read_parquet([str(file) for file in files], hive_partitioning=False).create_view("rows")
        return [str(number) for number in con.execute(query).fetchall()[0]]


def _write_whole(folder: Path, cleaned: CleanedDay) -> None:
    """Write a finished day, whole or not at all."""
    with kept.made(folder) as unfinished:
        _write(unfinished, cleaned)


def _write(folder: Path, cleaned: CleanedDay) -> None:
    """Write what the engine's workers have not written."""
    from pipeline.clean.engine import write_windows

    def write(name: str) -> None:
        (folder / name).mkdir(exist_ok=True)
        write_windows(cleaned.tables[name], folder / name / FILE)

    with ThreadPoolExecutor(2) as writers:
        list(writers.map(write, cleaned.tables))
    write_atomic(folder / _ACCOUNT, msgspec.json.encode(DayAccount(cleaned.accounts, cleaned.rows)))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage from the command line."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.clean", description=__doc__)
    parser.add_argument("--raw", type=storage.place, default=Path("data/raw"), help="folder or s3:// prefix")
    parser.add_argument("--out", type=storage.place, default=Path("data/windows"), help="folder or s3:// prefix")
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
