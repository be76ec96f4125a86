"""Which rule should answer when no policy can: every heuristic as a stateless call, on the validation windows.

A stateless call sees the raw fields of one decision and nothing else: no queue to reorder, no exact look-ahead that
only the simulator can work out. Each rule of each problem is run that way on the validation windows of the embedded
sample, and judged by the problem's own metric; the best is what ``Problem.fallback`` must say (a test compares). Needs
``data/windows`` (``dvc repro clean``); writes docs/results/fallbacks.{json,md}.

    python benchmarks/fallbacks.py --out docs/results
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.datasets import Workload, workload
from sched_env import heuristics, problems
from sched_env.vector import make_vec
from wire.errors import run_cli

PRIVILEGED = ("penalty", "completion_s", "share")
"""Raw fields that only the simulator knows exactly; a live caller leaves them out."""


def play(data: Workload, rule: str, starts: Any) -> float:
    """Mean of the primary metric over the episodes from some starts, every decision a call of its own."""
    env = make_vec(data.scenario, 1, trace=data.trace)
    primary = env.METRICS.index(env.problem.primary(data.scenario))
    rng, found = np.random.default_rng(0), []
    for start in starts:
        env.reset(options={"starts": [int(start)], "park": True})
        while env.buffers.active[0]:
            state, request = env.raw_fields(0)
            for name in PRIVILEGED:
                state.pop(name, None)
            mask = env.buffers.mask[0, : env.width]
            scores = heuristics.score(data.problem, rule, state, request, mask, rng)
            env.step([int(np.argmax(scores))])
        found.append(float(env.buffers.metrics[0, primary]))
    return float(np.mean(found))


def measure(problem: str, episodes: int) -> dict[str, Any]:
    """Run every rule of a problem."""
    data = workload(problem, "validation")
    value = problems.get(problem)
    metric = value.primary(data.scenario)
    starts = data.starts(episodes)
    means = {rule: play(data, rule, starts) for rule in value.heuristics}
    order = sorted(means, key=lambda rule: -value.better(metric) * means[rule])
    return {"problem": problem, "metric": metric, "episodes": episodes, "best": order[0], "fallback": value.fallback,
            "means": {rule: means[rule] for rule in order}}  # fmt: skip


def page(results: list[dict[str, Any]]) -> str:
    """The table for people."""
    lines = ["# Fallbacks", "", "Made by `python benchmarks/fallbacks.py --out docs/results`: every heuristic as a "
             "stateless call on the validation windows of the embedded sample, best first.", ""]  # fmt: skip
    for result in results:
        lines += [f"## {result['problem']}", "", f"Mean {result['metric']} over {result['episodes']} episodes.", ""]
        lines += ["| rule | mean |", "| --- | --- |"]
        lines += [f"| {'**' + rule + '**' if rule == result['fallback'] else rule} | {mean:,.4g} |"
                  for rule, mean in result["means"].items()]  # fmt: skip
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", choices=problems.names(), action="append", help="default: all")
    parser.add_argument("--episodes", type=int, default=40, help="start points, spread over the validation windows")
    parser.add_argument("--out", type=Path, help="folder for fallbacks.json and fallbacks.md")
    options = parser.parse_args()
    results = []
    for problem in options.problem or problems.names():
        results.append(measure(problem, options.episodes))
        print(json.dumps(results[-1]), flush=True)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "fallbacks.json").write_text(json.dumps(results, indent=1) + "\n")
        (options.out / "fallbacks.md").write_text(page(results))
    print(json.dumps({"best": {result["problem"]: result["best"] for result in results}}))
    return 0


if __name__ == "__main__":
    run_cli(main)
