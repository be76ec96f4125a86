"""One day, checked by itself: what is found is kept, and later put together with what was found of other days."""

from __future__ import annotations

from datetime import datetime
from importlib.metadata import version
from pathlib import Path

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import kept
from pipeline.contracts.windows import SCHEMA_VERSION, TABLES, VERSION_KEY
from pipeline.errors import DataError
from pipeline.files import write_atomic
from pipeline.validate import cross, drift, plausible
from pipeline.validate.config import ValidateConfig
from pipeline.validate.suites import Suites
from pipeline.validate.verdict import Finding
from wire.errors import ContractError

DOCS = "docs"
_FOUND = "found.json"


class DayFound(msgspec.Struct):
    """What was found of one day by itself; kept, and put together with that of other days."""

    rows: dict[str, int]
    """By table."""
    checks: int
    findings: list[Finding]
    mix: drift.Mix
    windows: dict[str, list[float]]
    """By cluster: the windows with a node, seconds since 1970."""
    last_window: datetime | None
    clocks: plausible.Clocks
    responses: plausible.Responses

    def windows_by_cluster(self) -> dict[str, pd.DatetimeIndex]:
        """Return the windows with a node as times."""
        return {
            cluster: pd.to_datetime(times, unit="s", utc=True).as_unit("us") for cluster, times in self.windows.items()
        }


def check(day: str, files: dict[str, list[Path]], suites: Suites, config: ValidateConfig, into: Path) -> None:
    """Check one day by itself, and write what was found and its Data Docs."""
    tables = {table: _read(table, found) for table, found in files.items()}
    write_atomic(into / _FOUND, msgspec.json.encode(_check(day, tables, suites, config)))
    suites.build_docs(into / DOCS)
    # Every day's docs have the same styles and fonts: they are kept once.
    styles = kept.place("validate", "styles", (), version("great_expectations"))
    if kept.there(styles):
        kept.link_folder(styles, into / DOCS / "static")
    else:
        with kept.made(styles) as unfinished:
            kept.link_folder(into / DOCS / "static", unfinished)


def read_found(folder: Path) -> DayFound:
    """Read what was found of a day."""
    return msgspec.json.decode((folder / _FOUND).read_bytes(), type=DayFound)


def _check(day: str, tables: dict[str, pd.DataFrame], suites: Suites, config: ValidateConfig) -> DayFound:
    """Try everything that can be said of one day alone."""
    findings: list[Finding] = []
    checks = cross.DAY_CHECKS + plausible.DAY_CHECKS
    for table, frame in tables.items():
        if len(frame) or table == "nodes":
            tried, broken = suites.run(table, day, frame)
            checks += tried
            findings += broken
    findings += cross.check_day(day, tables, config)
    findings += plausible.check_day(day, tables, config)
    newest = [rows["window_start"].max() for name, rows in tables.items() if len(rows) and name != "quarantine"]
    return DayFound(
        rows={table: len(frame) for table, frame in tables.items()},
        checks=checks,
        findings=findings,
        mix=drift.mix_of(tables["functions"]),
        windows={
            cluster: [time.timestamp() for time in times]
            for cluster, times in cross.windows_by_cluster(tables["nodes"]).items()
        },
        last_window=max((time.to_pydatetime() for time in newest), default=None),
        clocks=plausible.Clocks.of(tables),
        responses=plausible.responses_of(tables["functions"]),
    )


def _read(table: str, files: list[Path]) -> pd.DataFrame:
    for file in files:
        try:
            with file.open("rb") as content:
                schema = pq.read_schema(content)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{file} cannot be read: {error}", "a Parquet file", "run clean again") from error
        if (schema.metadata or {}).get(VERSION_KEY) != str(SCHEMA_VERSION).encode() or not schema.equals(TABLES[table]):
            raise ContractError(f"{file}: not the schema of {table}", f"version {SCHEMA_VERSION}", "run clean again")
    parts = []
    for file in files:
        with file.open("rb") as content:
            parts.append(pq.ParquetFile(content).read().to_pandas())
    frame: pd.DataFrame = pd.concat(parts, ignore_index=True)
    return frame
