"""Stage ``validate``: nothing is trained on windows that a person would not sign for.

Writes ``index.html`` (every rule and what came of it), ``verdict.json``, the Data Docs and ``request_mix.json`` (the
last accepted day); an error stops the pipeline with table, rule, count and example rows, warnings let it go on and are
shown in the gate's report.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline import settings
from pipeline.contracts.windows import SCHEMA_VERSION, TABLES, VERSION_KEY
from pipeline.errors import DataError
from pipeline.files import replaced_folder, write_atomic
from pipeline.progress import Progress
from pipeline.validate import drift
from pipeline.validate.config import ValidateConfig
from pipeline.validate.verdict import Finding, Verdict
from wire.errors import ContractError, run_cli

if TYPE_CHECKING:
    import pandas as pd

PAGE = "index.html"


def validate(
    windows: Path,
    out: Path,
    config: ValidateConfig,
    *,
    accepted: Path = drift.ACCEPTED,
    since: date | None = None,
    until: date | None = None,
) -> Verdict:
    """Check every day of a windows folder; writes the verdict and the docs, and returns the verdict.

    Args:
        windows: Folder of window tables.
        out: Folder for ``index.html``, ``verdict.json``, ``docs/`` and ``request_mix.json``; replaced.
        config: Thresholds.
        accepted: The last day that was accepted before.
        since: First day that was asked for; it must be there.
        until: Last day that was asked for; the windows must reach its end.
    """
    from pipeline.validate import cross, plausible
    from pipeline.validate.page import render
    from pipeline.validate.rules import over_tables
    from pipeline.validate.suites import Suites
    from pipeline.windows import days_of

    days = [day.isoformat() for day in days_of(windows)]
    before = drift.read_accepted(accepted)
    suites = Suites(config.examples)
    findings: list[Finding] = []
    counts: dict[str, dict[str, int]] = {}
    mixes: dict[str, drift.Mix] = {}
    seen: dict[str, dict[str, pd.DatetimeIndex]] = {}
    checks, last_window = 0, None
    clocks = plausible.Clocks()
    with Progress("validate", len(days), "day") as progress:
        for day in days:
            tables = {table: _read(windows, table, day) for table in TABLES}
            counts[day] = {table: len(frame) for table, frame in tables.items()}
            for table, frame in tables.items():
                if len(frame) or table == "nodes":
                    tried, found = suites.run(table, day, frame)
                    checks += tried
                    findings += found
            findings += cross.check_day(day, tables, config)
            findings += plausible.check_day(day, tables, config)
            clocks.add(tables)
            checks += cross.DAY_CHECKS + plausible.DAY_CHECKS
            mixes[day] = drift.mix_of(tables["functions"])
            seen[day] = cross.windows_by_cluster(tables["nodes"])
            newest = [rows["window_start"].max() for name, rows in tables.items() if len(rows) and name != "quarantine"]
            last_window = max([time.to_pydatetime() for time in newest], default=last_window)
            progress.add(rows=sum(counts[day].values()), pieces=1)
    findings += cross.check_range(cross.Found(counts, seen, last_window), (since, until), config)
    findings += clocks.check()
    drifting = list(drift.check_drift(mixes, before, config))
    findings += drifting
    checks += cross.RANGE_CHECKS + plausible.RANGE_CHECKS + len(days)
    errors = [str(finding) for finding in findings if finding.severity == "error"]
    verdict = Verdict(
        passed=not errors,
        drifted=bool(drifting),
        first=days[0],
        last=days[-1],
        rows={table: sum(count[table] for count in counts.values()) for table in TABLES},
        checks=checks,
        errors=errors,
        warnings=[str(finding) for finding in findings if finding.severity == "warning"],
        findings=findings,
        request_mix=mixes,
    )
    now = drift.newly_accepted(mixes, before) if verdict.passed else before
    with replaced_folder(out) as folder:
        suites.build_docs(folder / "docs")
        page = render(verdict, [*over_tables(config), *suites.rules()])
        write_atomic(folder / PAGE, page.encode())
        write_atomic(folder / "verdict.json", msgspec.json.format(msgspec.json.encode(verdict), indent=2) + b"\n")
        write_atomic(folder / drift.ACCEPTED_NOW, drift.document(now))
    return verdict


def _read(windows: Path, table: str, day: str) -> pd.DataFrame:
    files = sorted((windows / table / f"date={day}").glob("*.parquet"))
    if not files:
        raise DataError(
            f"{windows / table} has no files for {day}", "every table for every day", "run pipeline.clean for it"
        )
    for file in files:
        try:
            schema = pq.read_schema(file)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{file} cannot be read: {error}", "a Parquet file", "run clean again") from error
        if (schema.metadata or {}).get(VERSION_KEY) != str(SCHEMA_VERSION).encode() or not schema.equals(TABLES[table]):
            raise ContractError(f"{file}: not the schema of {table}", f"version {SCHEMA_VERSION}", "run clean again")
    from pandas import concat

    frame: pd.DataFrame = concat([pq.ParquetFile(file).read().to_pandas() for file in files], ignore_index=True)
    return frame


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage from the command line."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.validate", description=__doc__)
    parser.add_argument("--windows", type=Path, default=Path("data/windows"))
    parser.add_argument("--out", type=Path, default=Path("data/validation"))
    parser.add_argument("--metrics", type=Path, default=Path("data/metrics/validate.json"))
    parser.add_argument("--params", type=Path, default=settings.PARAMS_FILE)
    parser.add_argument("--accepted", type=Path, default=drift.ACCEPTED, help="last day that was accepted before")
    parser.add_argument("--until", type=date.fromisoformat, help="last day that was asked for (default: data.to)")
    args = parser.parse_args(argv)
    config = settings.load("validate", ValidateConfig, args.params)
    asked = settings.load("data", dict[str, date | None], args.params)
    since, until = asked.get("from"), args.until or asked.get("to")
    verdict = validate(args.windows, args.out, config, accepted=args.accepted, since=since, until=until)
    numbers = {
        "passed": int(verdict.passed),
        "errors": len(verdict.errors),
        "warnings": len(verdict.warnings),
        "checks": verdict.checks,
        "drifted": int(verdict.drifted),
    }
    write_atomic(args.metrics, msgspec.json.format(msgspec.json.encode(numbers), indent=2) + b"\n")
    for warning in verdict.warnings:
        sys.stdout.write(f"warning: {warning}\n")
    if not verdict.passed:
        raise DataError(
            f"validation of {verdict.first} to {verdict.last} failed:\n  " + "\n  ".join(verdict.errors) + "\n",
            f"no error in {verdict.checks} checks",
            f"see {args.out / PAGE}; nothing was trained",
        )
    sys.stdout.write(
        f"{verdict.first} to {verdict.last}: passed {verdict.checks} checks, {len(verdict.warnings)} warnings\n"
    )
    return 0


if __name__ == "__main__":
    run_cli(main)
