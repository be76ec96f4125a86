"""The speed benchmark runs, and checks what it times; how fast it is, is not for tests on a busy machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_benchmark_measures_and_compares_with_full_rebuilds():
    run = subprocess.run(
        [sys.executable, "benchmarks/env_speed.py", "--only", "vm fading 5", "--budget", "0.05"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    (line,) = run.stdout.splitlines()
    row = json.loads(line)
    assert (row["case"], row["size"], row["batch"]) == ("vm fading", 5, 512)
    assert row["checked"] > 0
    assert row["steps_per_s"] > 10 * row["plain_python"] > 0
    assert row["with_copies"] > 0
