"""The benchmark of forks runs and repeats what it times; how fast it is, is not for tests on a busy machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_benchmark_runs_as_many_rollouts_as_asked_for_and_repeats_some_alone(tmp_path):
    run = subprocess.run(
        [sys.executable, "benchmarks/fork_speed.py", "--rollouts", "500", "--decisions", "4", "--out", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    summary = json.loads(run.stdout.splitlines()[-1])
    assert summary["met"] is None  # other sizes than those of the target are not judged
    assert [row["nodes"] for row in summary["results"]] == [10, 100]
    for row in summary["results"]:
        assert (row["rollouts"], row["decisions"]) == (500, 2000)
        assert row["checked"] > 0
    assert not list(tmp_path.iterdir())
