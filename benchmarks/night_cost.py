"""What a night costs once earlier ones are kept: 14 days after the first beside a single day, and memory of 31 days.

    python benchmarks/night_cost.py [--days 14] [--month 31] [--out docs/results]

Days are those of the embedded sample, written as one Parquet file a table and day, as a queue or an exporter leaves
them; a night lands the files of its days, cleans and validates them with the pipeline's own commands, and builds the
datasets of every problem and split. CPU is that of the processes, user and system; peak memory is the largest resident
set of one of them. Compiled kernels and plans of queries are there in both cases: a night before has made them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import yaml

from pipeline import datasets
from pipeline.ingest import IngestConfig, Range, ingest
from pipeline.sources.sample import SampleConfig
from wire.errors import run_cli

FIRST = date(2026, 1, 5)
TABLES = ("samples", "requests", "events", "tasks")
STAGES = ("ingest", "clean", "validate", "datasets")
DATASETS = f"""
from pipeline import datasets
for problem in {list(datasets.MODULES)!r}:
    for split in ("train", "validation", "test"):
        datasets.workload(problem, split)
"""
LIMIT = 1.3
LIMIT_MB = 1500.0


def day(number: int) -> date:
    return FIRST + timedelta(days=number)


def run(stage: str, folder: Path) -> tuple[float, float]:
    """Run a stage in a folder; returns CPU seconds and peak memory in MB."""
    root = Path(__file__).resolve().parents[1]
    environment = {**os.environ, "LOADMASTER_VAR": str(folder / "var"), "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", DATASETS] if stage == "datasets" else [sys.executable, "-m", f"pipeline.{stage}"]
    with (folder / f"{stage}.log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{stage} ended with {process.returncode}: {(folder / f'{stage}.log').read_text()[-2000:]}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def night(folder: Path, files: Path, first: int, last: int) -> dict[str, Any]:
    """Take the days of a night through all stages."""
    shutil.rmtree(folder / "data", ignore_errors=True)  # as DVC does before a stage runs
    (folder / "accepted").mkdir(parents=True, exist_ok=True)
    (folder / "accepted" / "request_mix.json").write_text('{"day": "", "mix": {}}\n')
    params = yaml.safe_load((Path(__file__).resolve().parents[1] / "params.yaml").read_text())
    params["data"] = {"from": day(first).isoformat(), "to": day(last).isoformat()}
    paths = {table: [f"{files}/{table}/*/*/*.parquet"] for table in TABLES}
    params["ingest"] = {"source": "parquet", "parquet": {"paths": paths}}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    found = {stage: run(stage, folder) for stage in STAGES}
    result = {
        "days": last - first + 1,
        "cpu_s": {stage: round(cpu, 2) for stage, (cpu, _) in found.items()},
        "peak_mb": {stage: round(peak) for stage, (_, peak) in found.items()},
        "total_cpu_s": round(sum(cpu for cpu, _ in found.values()), 2),
    }
    print(folder.name, day(first), day(last), json.dumps(result), flush=True)
    return result


def make(work: Path, files: Path, days: int) -> None:
    """Write the days of the sample as files."""
    os.environ["LOADMASTER_VAR"] = str(work / "made")
    ingest(IngestConfig(sample=SampleConfig(start=FIRST, days=days)), Range(), files)


def measure(work: Path, days: int, month: int) -> dict[str, Any]:
    """Make the days, then the nights."""
    files, results = work / "files", {}
    # In a process of its own: the peak of a child begins with the size of who started it.
    maker = multiprocessing.get_context("spawn").Process(target=make, args=(work, files, max(days + 1, month)))
    maker.start()
    maker.join()
    if maker.exitcode:
        raise SystemExit("the days could not be made")
    # The last day of the night that is measured is the same one in both.
    night(work / "one", files, days - 1, days - 1)
    results["one day"] = night(work / "one", files, days, days)
    results[f"{days} days, the first night"] = night(work / "many", files, 0, days - 1)
    results[f"{days} days, a night later"] = night(work / "many", files, 1, days)
    results[f"{month} days, nothing kept"] = night(work / "month", files, 0, month - 1)
    ratio = results[f"{days} days, a night later"]["total_cpu_s"] / results["one day"]["total_cpu_s"]
    peak = max(results[f"{month} days, nothing kept"]["peak_mb"].values())
    return {"nights": results, "ratio": round(ratio, 3), "month_peak_mb": peak, "cores": os.cpu_count()}


def page(results: dict[str, Any]) -> str:
    """Lay the results out as a table."""
    lines = [
        "# What a night costs",
        "",
        "Made by `python benchmarks/night_cost.py`: days of the embedded sample as files, a night each time, CPU "
        "seconds of the pipeline's own commands and of building the datasets of every problem. *A night later* has one "
        "new day; the others are kept ([decision 29](../decisions/0029-a-night-costs-a-day.md)).",
        "",
        "| night | ingest | clean | validate | datasets | CPU s in all | peak MB |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, one in results["nights"].items():
        cells = [f"{one['cpu_s'][stage]:.1f}" for stage in STAGES]
        peak = max(one["peak_mb"].values())
        lines.append(f"| {name} | {' | '.join(cells)} | {one['total_cpu_s']:.1f} | {peak} |")
    lines += [
        "",
        f"A night of many days after the first costs {results['ratio']:.2f} times a night of one (at most {LIMIT}); "
        f"the largest process of the longest night takes {results['month_peak_mb']} MB (below {LIMIT_MB:.0f}).",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=14)
    parser.add_argument("--month", type=int, default=31)
    parser.add_argument("--work", type=Path, help="folder to work in and keep (default: a temporary one)")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="night-") as folder:
        results = measure((options.work or Path(folder)).resolve(), options.days, options.month)
    (options.out / "night_cost.json").write_text(json.dumps(results, indent=1) + "\n")
    (options.out / "night_cost.md").write_text(page(results))
    print(page(results))
    return 0 if results["ratio"] <= LIMIT and results["month_peak_mb"] < LIMIT_MB else 1


if __name__ == "__main__":
    run_cli(main)
