"""How long a newcomer waits for the first ``env.step`` of every registered environment, nothing compiled before.

Each id has a process of its own with an empty cache of machine code: import, make, reset, one step. CPU time is what
counts, because other work on the machine must not; on an idle machine it is also the time that passes. The figure is
the least of several runs, as compiling is the same work every time.

Writes docs/results/first_step.json (when no id is chosen); the last line of the output is the same as one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from sched_env import problems
from wire.errors import run_cli

TARGET_S = 10.0
SCRIPT = """
import json, sys, time
import gymnasium
import sched_env.envs
env = gymnasium.make(sys.argv[1], disable_env_checker=True)
imported = time.process_time()
env.reset(seed=0)
env.step(env.action_space.sample())
print(json.dumps({"cpu_s": round(time.process_time(), 1), "after_make_s": round(time.process_time() - imported, 1)}))
"""


def measure(name: str) -> dict[str, Any]:
    """Return the CPU seconds until the first step has returned, in a process that finds nothing compiled."""
    with tempfile.TemporaryDirectory() as empty:
        result = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", SCRIPT, name],
            env={**os.environ, "NUMBA_CACHE_DIR": empty},
            capture_output=True,
            text=True,
            check=True,
        )
    return dict(json.loads(result.stdout))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="ids that contain this, without writing the file")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    results = []
    for problem in problems.names():
        for name in problems.get(problem).environments:
            if options.only in name:
                best = min((measure(f"sched_env/{name}") for _ in range(options.runs)), key=lambda run: run["cpu_s"])
                results.append({"id": f"sched_env/{name}", **best})
                print(json.dumps(results[-1]), flush=True)
    report = {
        "benchmark": "first_step",
        "command": "python benchmarks/first_step.py",
        "machine": f"{platform.machine()}, CPython {platform.python_version()}",
        "runs": options.runs,
        "target_cpu_s": TARGET_S,
        "met": all(row["cpu_s"] <= TARGET_S for row in results),
        "results": results,
    }
    if not options.only:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "first_step.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))
    return 0 if report["met"] else 1


if __name__ == "__main__":
    run_cli(main)
