"""Is it worth training early when the load has shifted? What was live against what is trained on the new load.

    python benchmarks/shifted.py --data ../shared/data --out docs/results

Azure's arrivals on ten nodes, as ``quality_cases.py`` cuts them. *Before*: the load as recorded, the policy that is
live is trained on it. *After*: the same functions call twice as often from the end of the train part on. The early
night is trained on calls after the shift (half of the validation part), and chosen on the other half; both are judged
on the test part, shifted too, on the same episodes, beside the best rule (chosen where the early night was). The gate's
own words for it: the primary metric's lower bound above zero, guardrails within their margins. Last line: JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from quality_cases import AZURE, HORIZON, TRAIN, VALIDATION, Case, Part
from quality_parts import compare, judged, say
from quality_students import student

from sched_env import problems, scenarios
from sched_env.functions import trace as function_traces
from wire.errors import run_cli

FACTOR = 2.0
NAMES = ("return", "sla_violation_rate", "cost_usd")
MARGINS = {"sla_violation_rate": 0.05, "cost_usd": 0.01}
"""Relative, as the guardrails of ``quality_cases.py``; the gate's own are in ``pipeline/gate/config.py``."""


def cases(data: Path) -> tuple[Case, Case, Part]:
    """Cut the trace: what is live learned before the shift, the early night after it, the test is after both."""
    world = scenarios.load("functions/serverless", {"horizon": HORIZON})
    trace, nodes = function_traces.load(data / AZURE, world)  # type: ignore[arg-type]
    rows = trace.arrival_s.size
    first, second = int(TRAIN * rows), int(VALIDATION * rows)
    moment = float(trace.arrival_s[first])
    faster = np.where(np.arange(rows) < first, trace.arrival_s, moment + (trace.arrival_s - moment) / FACTOR)
    shifted = dataclasses.replace(trace, arrival_s=faster), nodes
    settings = {"decisions": 40, "states": 12_000, "segments": 2}

    def part(begin: int, end: int, count: int, table: Any) -> Part:
        starts = np.linspace(begin, end - HORIZON, count).astype(np.int64)
        return Part(world, table, starts, (starts - starts[0]) // HORIZON)

    def case(begin: int, cut: int, end: int, table: Any) -> Case:
        train = scenarios.load(world, {"start_min": begin, "start_max": cut - HORIZON})
        return Case("functions", (train, table), part(cut, end, 24, table), {}, "return", MARGINS, settings)

    middle = (first + second) // 2
    before = case(0, int(0.8 * first), first, (trace, nodes))
    after = case(first, middle, second, shifted)
    return before, after, part(second, rows, 64, shifted)


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the public traces")
    parser.add_argument("--out", type=Path, help="folder for shifted.json and shifted.md")
    options = parser.parse_args()
    began = time.process_time()
    before, after, test = cases(options.data)
    problem = problems.get("functions")
    by_rule = {rule: judged(after.validation, rule, list(NAMES)) for rule in problem.heuristics}
    best = max(by_rule, key=lambda rule: float(by_rule[rule]["return"].mean()))
    old = [student(before, seed)[0].scorer for seed in range(options.seeds)]
    new = [student(after, seed)[0].scorer for seed in range(options.seeds)]
    rule = judged(test, best, list(NAMES))
    theirs = [judged(test, one, list(NAMES)) for one in old]
    ours = [judged(test, one, list(NAMES)) for one in new]
    live = {name: np.mean([one[name] for one in theirs], axis=0) for name in NAMES}
    result: dict[str, Any] = {
        "factor": FACTOR,
        "seeds": options.seeds,
        "best_rule": best,
        "new against old": compare(after.problem, test.blocks, ours, live),
        "new against the best rule": compare(after.problem, test.blocks, ours, rule),
        "old against the best rule": compare(after.problem, test.blocks, theirs, rule),
    }
    result["cpu_s"], result["load_average"] = round(time.process_time() - began, 1), round(os.getloadavg()[0], 1)
    found = result["new against old"]
    kept = all(found[name]["interval"][0] > -margin for name, margin in MARGINS.items())
    result["passes"] = bool(found["return"]["interval"][0] > 0 and kept)
    if options.out:
        (options.out / "shifted.json").write_text(json.dumps(result, indent=1) + "\n")
        (options.out / "shifted.md").write_text(page(result))
    say(json.dumps({"passes": result["passes"], **{name: found[name]["gain"] for name in NAMES}}))
    return 0


def page(result: dict[str, Any]) -> str:
    """Lay the result out for people."""
    episodes, blocks = (result["new against old"][name] for name in ("episodes", "blocks"))
    lines = ["# Training early on a shifted load", "",
             "Made by `python benchmarks/shifted.py --data ../shared/data --out docs/results`. Azure's arrivals on ten "
             f"nodes; every function calls {result['factor']:g} times as often from the middle of the trace on. *old*: "
             "trained before the shift; *new*: trained on an eighth of the trace after it. Judged after both, on "
             f"{episodes} paired episodes ({blocks} blocks), {result['seeds']} training seeds; gains positive when "
             f"better, 95 % intervals. {result['cpu_s']:.0f} s of CPU time, load average "
             f"{result['load_average']}.", "",
             "| | metric | | rival | gain | 95 % | worst seed |",
             "| --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for title, found in result.items():
        if not isinstance(found, dict):
            continue
        for name in NAMES:
            row = found[name]
            low, high = (100 * value for value in row["interval"])
            lines.append(
                f"| {title} | {name} | {row['ours']:.4g} | {row['rule']:.4g} | {100 * row['gain']:+.1f} % "
                f"| [{low:.1f}, {high:.1f}] | {100 * min(row['by_seed']):+.1f} % |"
            )
    word = "passes" if result["passes"] else "does not pass"
    margins = ", ".join(f"{100 * value:g} %" for value in MARGINS.values())
    lines += ["", f"Best rule after the shift: `{result['best_rule']}`. By the gate's words (lower bound of the return "
              f"above zero, SLA and cost within {margins}) the new policy **{word}** against the old one."]  # fmt: skip
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    run_cli(main)
