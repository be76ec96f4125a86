"""Peak memory of Spark's driver while it cleans 2, 4 and 8 days on two workers; writes docs/results/spark_driver.json.

    python benchmarks/spark_driver.py [--days 2,4,8,2,4,8] [--master local-cluster[2,1,1024]]

Rows stay with the workers, which write the windows: the driver holds plans and counts. Its memory is that of the Python
process and of the Java process it starts, each at its own peak, and of Java also the peak of each quarter of the run:
days are cleaned one after another in one session, so what grows with days grows from quarter to quarter. Every
measurement is a process of its own, with the same limit on the heap. Two days is the least that have neighbours.
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
from statistics import mean
from typing import Any

import numpy as np
import pyspark
import yaml

from pipeline.ingest import IngestConfig, Range, ingest
from pipeline.sources.sample import SampleConfig
from wire.errors import run_cli

FIRST = date(2026, 1, 5)
HEAP_MB = 512
MOST_GROWTH = 1.05
"""A peak may be so many times that of the fewest days; the rest is when Java collects its garbage."""


def resident_mb(process: int, key: str = "VmHWM") -> float:
    """Resident set of a process: the largest so far, or (``VmRSS``) the present one."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return next((float(line.split()[1]) / 1024 for line in lines if line.startswith(key)), 0.0)


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
    began, peaks, curve = time.monotonic(), {"python": 0.0, "java": 0.0}, []
    with (folder / "log").open("w") as log:
        driver = subprocess.Popen(
            [sys.executable, "-m", "pipeline.clean"], cwd=folder, env=environment, stdout=log, stderr=log
        )
        while driver.poll() is None:
            peaks["python"] = max(peaks["python"], resident_mb(driver.pid))
            if java := java_of(driver.pid):
                peaks["java"] = max(peaks["java"], resident_mb(java))
                curve.append(resident_mb(java, "VmRSS"))
            time.sleep(0.2)
    if driver.returncode:
        raise SystemExit(f"clean ended with {driver.returncode}: {(folder / 'log').read_text()[-3000:]}")
    quarters = [round(max(part)) for part in np.array_split(curve, 4)]
    return {"days": days, "raw_rows": rows, "seconds": round(time.monotonic() - began)} | {
        "python_mb": round(peaks["python"]),
        "java_mb": round(peaks["java"]),
        "java_quarters_mb": quarters,
    }


def total(one: dict[str, Any]) -> float:
    """Peak of both processes, MB."""
    return float(one["python_mb"] + one["java_mb"])


def growth(results: list[dict[str, Any]]) -> float:
    """Return the mean peak of the most days over that of the fewest."""
    few, many = (choose(one["days"] for one in results) for choose in (min, max))
    return mean(map(total, _of(results, many))) / mean(map(total, _of(results, few)))


def _of(results: list[dict[str, Any]], days: int) -> list[dict[str, Any]]:
    return [one for one in results if one["days"] == days]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", default="2,4,8,2,4,8")
    parser.add_argument("--master", default="local-cluster[2,1,1024]")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    results = []
    for days in map(int, options.days.split(",")):
        with tempfile.TemporaryDirectory(prefix="spark-driver-") as folder:
            results.append(measure(Path(folder), days, options.master))
        print(json.dumps(results[-1]), flush=True)
        (options.out / "spark_driver.json").write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps({"growth": round(growth(results), 3), "most": MOST_GROWTH}))
    return 0 if growth(results) <= MOST_GROWTH else 1


if __name__ == "__main__":
    run_cli(main)
