"""Peak memory of Spark's driver while it cleans 1, 4 and 8 days on two workers; writes docs/results/spark_driver.*.

    python benchmarks/spark_driver.py [--days 1,4,8] [--master local-cluster[2,1,1024]]

Rows stay with the workers, which write the windows: the driver holds plans and counts. Its memory is that of the Python
process and of the Java process it starts, each at its own peak. Every measurement is a process of its own, with the
same limit on the heap.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import pyspark
import yaml

from pipeline.ingest import IngestConfig, Range, ingest
from pipeline.sources.sample import SampleConfig
from wire.errors import run_cli

FIRST = date(2026, 1, 5)
HEAP_MB = 512
MOST_GROWTH = 1.1
"""A peak may be so many times that of one day; the rest is when Java collects its garbage."""


def peak_mb(process: int) -> float:
    """Largest resident set of a process so far."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return next((float(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def java_of(process: int) -> int | None:
    """The Java process that a driver has started."""
    children = Path(f"/proc/{process}/task/{process}/children")
    found = children.read_text().split() if children.exists() else []
    for child in map(int, found):
        if Path(f"/proc/{child}/comm").read_text().strip() == "java":
            return child
    return None


def measure(work: Path, days: int, master: str) -> dict[str, Any]:
    """Clean some days; returns the peaks of both processes and the seconds it took."""
    folder = work / str(days)
    os.environ["LOADMASTER_VAR"] = str(folder / "made")
    sample = SampleConfig(
        start=FIRST, days=days, nodes=4, functions=4, vms_per_day=0, jobs_per_day=0, workflows_per_day=0
    )
    rows = sum(ingest(IngestConfig(sample=sample), Range(), folder / "data" / "raw").rows.values())
    root = Path(__file__).resolve().parents[1]
    options = {
        "spark.executorEnv.PYTHONPATH": str(root),
        "spark.executor.memory": "768m",
        "spark.driver.host": "127.0.0.1",
    }
    clean = {"engine": "spark", "spark_master": master, "memory_mb": HEAP_MB, "spark_options": options}
    (folder / "params.yaml").write_text(yaml.safe_dump({"clean": clean}))
    home = {"SPARK_HOME": str(Path(pyspark.__file__).parent), "PYSPARK_PYTHON": sys.executable}
    environment = {**os.environ, **home, "LOADMASTER_VAR": str(folder / "var"), "PYTHONPATH": str(root)}
    began, peaks = time.monotonic(), {"python": 0.0, "java": 0.0}
    with (folder / "log").open("w") as log:
        driver = subprocess.Popen(
            [sys.executable, "-m", "pipeline.clean"], cwd=folder, env=environment, stdout=log, stderr=log
        )
        while driver.poll() is None:
            peaks["python"] = max(peaks["python"], peak_mb(driver.pid))
            if java := java_of(driver.pid):
                peaks["java"] = max(peaks["java"], peak_mb(java))
            time.sleep(0.2)
    if driver.returncode:
        raise SystemExit(f"clean ended with {driver.returncode}: {(folder / 'log').read_text()[-3000:]}")
    seconds = round(time.monotonic() - began)
    return {"days": days, "raw_rows": rows, "seconds": seconds} | {
        f"{name}_mb": round(mb) for name, mb in peaks.items()
    }


def total(one: dict[str, Any]) -> float:
    """Peak of both processes, MB."""
    return float(one["python_mb"] + one["java_mb"])


def page(results: list[dict[str, Any]], master: str) -> str:
    """Lay the results out as a table."""
    lines = [
        "# Memory of Spark's driver",
        "",
        f"Made by `python benchmarks/spark_driver.py --days {','.join(str(one['days']) for one in results)}` on "
        f"`{master}`, the driver's heap limited to {HEAP_MB} MB. Rows stay with the workers, which write the windows; "
        f"the driver's two processes together peak at {total(results[-1]) / total(results[0]):.2f} times what they "
        f"peak at with {results[0]['days']} day(s); at most {MOST_GROWTH} is asked. What is kept on the driver, and "
        "what had grown: [decision 30](../decisions/0030-where-it-outgrows-one-machine.md).",
        "",
        "| days | raw rows | Python's peak, MB | Java's peak, MB | s |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {one['days']} | {one['raw_rows']:,} | {one['python_mb']} | {one['java_mb']} | {one['seconds']} |"
        for one in results
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", default="1,4,8")
    parser.add_argument("--master", default="local-cluster[2,1,1024]")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    results = []
    for days in map(int, options.days.split(",")):
        with tempfile.TemporaryDirectory(prefix="spark-driver-") as folder:
            results.append(measure(Path(folder), days, options.master))
        print(json.dumps(results[-1]), flush=True)
    (options.out / "spark_driver.json").write_text(json.dumps(results, indent=1) + "\n")
    (options.out / "spark_driver.md").write_text(page(results, options.master))
    return 0 if total(results[-1]) <= MOST_GROWTH * total(results[0]) else 1


if __name__ == "__main__":
    run_cli(main)
