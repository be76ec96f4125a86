"""Stage ``validate``: nothing is trained on windows that a person would not sign for.

Writes ``index.html`` (every rule and what came of it), ``verdict.json``, the Data Docs and ``request_mix.json`` (the
last accepted day); an error stops the pipeline with table, rule, count and example rows, warnings let it go on and are
shown in the gate's report. What was found of a day is kept under ``var/cache/validate``: a night of many days looks at
the new one, and at what only several days together can tell.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import msgspec

from pipeline import kept, settings, storage
from pipeline.contracts.windows import TABLES
from pipeline.errors import DataError
from pipeline.files import replaced_folder, write_atomic
from pipeline.progress import Progress
from pipeline.validate import drift
from pipeline.validate.config import ValidateConfig
from pipeline.validate.verdict import Verdict
from wire.errors import run_cli

PAGE = "index.html"
STAGE = "validate"
CODE = ("pipeline.validate.command",)
"""A change of any module that this one imports makes every day anew."""


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
    from pipeline.validate.day import DOCS, check, read_found
    from pipeline.validate.page import docs_index, render
    from pipeline.validate.rules import over_tables
    from pipeline.validate.suites import Suites
    from pipeline.windows import days_of

    days = [day.isoformat() for day in days_of(windows)]
    before = drift.read_accepted(accepted)
    suites = Suites(config.examples)
    places: dict[str, Path] = {}
    with Progress("validate", len(days), "day") as progress:
        for day in days:
            files = {table: _files(windows, table, day) for table in TABLES}
            contents = {table: [kept.digest_of(file) for file in found] for table, found in files.items()}
            folder = places[day] = kept.place(STAGE, day, CODE, day, contents, config)
            if not kept.there(folder):
                with kept.made(folder) as unfinished:
                    check(day, files, suites, config, unfinished)
            progress.add(pieces=1)
    found = {day: read_found(place) for day, place in places.items()}
    findings = [finding for day in found.values() for finding in day.findings]
    counts = {day: one.rows for day, one in found.items()}
    mixes = {day: one.mix for day, one in found.items()}
    clocks = plausible.Clocks()
    for one in found.values():
        clocks.add(one.clocks)
    last_window = max((one.last_window for one in found.values() if one.last_window is not None), default=None)
    seen = {day: one.windows_by_cluster() for day, one in found.items()}
    findings += cross.check_range(cross.Found(counts, seen, last_window), (since, until), config)
    findings += clocks.check()
    findings += plausible.check_responses({day: one.responses for day, one in found.items()}, config)
    drifting = list(drift.check_drift(mixes, before, config))
    findings += drifting
    checks = sum(one.checks for one in found.values())
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
        for day, place in places.items():
            kept.link_folder(place / DOCS, folder / DOCS / day)
        write_atomic(folder / DOCS / PAGE, docs_index(days).encode())
        page = render(verdict, [*over_tables(config), *suites.rules()])
        write_atomic(folder / PAGE, page.encode())
        write_atomic(folder / "verdict.json", msgspec.json.format(msgspec.json.encode(verdict), indent=2) + b"\n")
        write_atomic(folder / drift.ACCEPTED_NOW, drift.document(now))
    kept.forget(STAGE)
    return verdict


def _files(windows: Path, table: str, day: str) -> list[Path]:
    files = sorted((windows / table / f"date={day}").glob("*.parquet"))
    if not files:
        raise DataError(
            f"{windows / table} has no files for {day}", "every table for every day", "run pipeline.clean for it"
        )
    return files


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage from the command line."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.validate", description=__doc__)
    parser.add_argument("--windows", type=storage.place, default=Path("data/windows"), help="folder or s3:// prefix")
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
