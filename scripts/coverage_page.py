"""Write docs/results/coverage.md from coverage's data: ``make coverage`` runs the suite and then this.

python scripts/coverage_page.py [--out docs/results/coverage.md]
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from coverage import Coverage
from coverage.exceptions import NoDataError

LEAST = 15
"""Modules named as the least covered: enough for an afternoon."""
COUNTS = ("num_statements", "covered_lines", "num_branches", "covered_branches", "excluded_lines")


def files() -> dict[str, dict[str, int]]:
    """Counts of every measured module, by its path."""
    measured = Coverage()
    measured.load()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "coverage.json")
        measured.json_report(outfile=str(report))
        document: dict[str, Any] = json.loads(report.read_text())
    return {path: {name: found["summary"][name] for name in COUNTS} for path, found in document["files"].items()}


def total(rows: Iterable[dict[str, int]]) -> dict[str, int]:
    """Sum up modules."""
    rows = list(rows)
    return {name: sum(row[name] for row in rows) for name in COUNTS}


def share(row: dict[str, int]) -> float:
    """Percent of statements and branches that ran, as coverage itself counts."""
    there = row["num_statements"] + row["num_branches"]
    return 100.0 * (row["covered_lines"] + row["covered_branches"]) / there if there else 100.0


def page(measured: dict[str, dict[str, int]]) -> str:
    """Write the page."""
    packages: dict[str, list[dict[str, int]]] = {}
    for path, row in measured.items():
        packages.setdefault(Path(path).parts[0], []).append(row)
    everything = total(measured.values())
    rows = {name: total(found) for name, found in sorted(packages.items())} | {"**all**": everything}
    lines = [
        "# Coverage",
        "",
        f"Made by `make coverage` (all tests but `soak`, branch coverage, child processes included) with Python "
        f"{platform.python_version()}. Covered = share of statements and branches that ran.",
        "",
        "| package | covered | statements | not run | branches | not taken | compiled or for types |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, row in rows.items():
        lines.append(
            f"| {name} | {share(row):.1f} % | {row['num_statements']:,} "
            f"| {row['num_statements'] - row['covered_lines']:,} | {row['num_branches']:,} "
            f"| {row['num_branches'] - row['covered_branches']:,} | {row['excluded_lines']:,} |"
        )
    lines += [
        "",
        "The last column is in no other: functions that numba compiles (`@kernel`, `@lean_kernel`, `@inline`, "
        "`@called`) run as machine code, which no tracer sees, so they are left out of the number instead of standing "
        "in it as not run. What holds them are the tests of exactness against plain Python, the property tests, and "
        "`tests/sched_env/test_jit.py`, which runs kernels compiled and plain and compares. Feature and heuristic "
        "functions are plain in their own modules, and counted.",
        "",
        f"## The {LEAST} least covered modules",
        "",
        "| module | covered | lines not run |",
        "| --- | ---: | ---: |",
    ]
    least = sorted((item for item in measured.items() if item[1]["num_statements"]), key=lambda item: share(item[1]))
    for path, row in least[:LEAST]:
        lines.append(f"| `{path}` | {share(row):.1f} % | {row['num_statements'] - row['covered_lines']:,} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results/coverage.md"))
    options = parser.parse_args()
    try:
        measured = files()
    except NoDataError:
        sys.stderr.write("error: there is no coverage data here; run make coverage\n")
        return 2
    options.out.write_text(page(measured))
    sys.stdout.write(json.dumps({"covered_percent": round(share(total(measured.values())), 1)}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
