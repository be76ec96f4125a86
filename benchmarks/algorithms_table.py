"""Every algorithm on every problem, small, three seeds: does it learn? Writes docs/results/algorithms.{json,md}.

From nothing (no teacher, nothing imitated), on each problem's generated trace; judged greedily on 16 start points that
no training's seed draws, with the last weights, not the best ones. The margin is set before: of the way from random
feasible placement to the problem's fallback rule, in the metric the problem is judged by, at least ``MARGIN`` must be
gone, in the mean over the seeds. Finished trainings are kept in the JSON file; only missing ones are run.

    python benchmarks/algorithms_table.py [--problem vm --algorithm dqn --seeds 3]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from pipeline import train
from pipeline.policies import algorithms
from sched_env import problems, scenarios
from wire.errors import run_cli

TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "vm": ("vm/fading", {"servers": 10}),
    "functions": ("functions/serverless", {"nodes": 6, "horizon": 64}),
    "pods": ("pods/deploy", {"nodes": 5, "episode_windows": 12}),
    "workflow": ("workflow/dag", {}),
    "jobs": ("jobs/cpn", {"cards": 8, "episode_jobs": 30}),
}
GAMMA = {"vm": 0.99, "pods": 0.9, "workflow": 1.0, "jobs": 0.99}
"""How far ahead a decision matters there; otherwise the algorithm's own."""
SCALE = {"vm": 0.02, "pods": 0.1, "jobs": 1.0}
"""Brings returns to order one: +1 a placed VM adds up to a hundred."""
ON_POLICY = {"teacher": "", "hidden": 32, "missing_rate": 0.0}
BUDGET: dict[str, dict[str, Any]] = {
    "ppo": ON_POLICY
    | {"envs": 16, "rollout_steps": 32, "rollouts_per_segment": 6, "segments": 4, "batch": 128, "learning_rate": 0.003},
    "a2c": ON_POLICY | {"rollouts_per_segment": 24, "segments": 4},
    "dqn": ON_POLICY | {"rollouts_per_segment": 32, "segments": 4},
}
BUDGET |= {"maskable_ppo": BUDGET["ppo"], "sac": BUDGET["dqn"], "qmix": BUDGET["dqn"] | {"rollouts_per_segment": 64}}
MARGIN, EPISODES = 0.1, 16
OUT = Path("docs/results/algorithms.json")


def task_of(problem: str) -> train.Task:
    name, overrides = TASKS[problem]
    return train.on_scenario(scenarios.load(name, overrides), EPISODES)


def one(problem: str, algorithm: str, seed: int) -> dict[str, Any]:
    """Train once; the figures of the last weights, and the curve."""
    task = task_of(problem)
    own: dict[str, Any] = {"gamma": GAMMA[problem]} if problem in GAMMA else {}
    if problem in SCALE:
        own["reward_scale"] = SCALE[problem]
    settings = algorithms.settings(algorithm, **BUDGET[algorithm], **own)
    began = time.process_time()
    with tempfile.TemporaryDirectory() as scratch:
        trained, _ = train.learn(task, algorithm, settings, seed, Path(scratch))
    primary = task.shown[0]
    curve = [[row["steps"], row[primary]] for row in trained.curve]
    return {"curve": curve, "cpu_s": round(time.process_time() - began, 1)}


def rules(problem: str) -> dict[str, Any]:
    task = task_of(problem)
    primary, value = task.shown[0], problems.get(problem)
    found = {name: task.judge(name)[primary] for name in ("random_feasible", value.fallback)}
    return {"metric": primary, "better": value.better(primary), "fallback": value.fallback, **found}


def share(entry: dict[str, Any], figure: float) -> float:
    """Say how much of the way from random to the fallback rule a figure is."""
    chance, rule = float(entry["random_feasible"]), float(entry[entry["fallback"]])
    return (figure - chance) / (rule - chance)


def write(document: dict[str, Any], out: Path) -> None:
    out.write_text(json.dumps(document, indent=1) + "\n")
    names = [name for name in BUDGET if any(name in entry["runs"] for entry in document.values())]
    counts = sorted({len(runs) for entry in document.values() for runs in entry["runs"].values()})
    lines = [
        "# Algorithms on problems",
        "",
        "`python benchmarks/algorithms_table.py`. From nothing, small, three seeds: mean share of the way from random",
        "feasible placement (0 %) to the problem's fallback rule (100 %), in the metric the problem is judged by,",
        "after the last step; in brackets the worst and the best seed. Above 100 % it beats the rule. Asked for:",
        f"at least {MARGIN:.0%} in the mean. The rules see what the network sees; budgets are seconds, not nights.",
        "An empty cell, or a problem that is missing, has not been run yet: the command runs what is missing.",
        f"Seeds a cell so far: {counts}.",
        "",
        "| problem | scenario | metric | random | fallback |",
        "| --- | --- | --- | --- | --- |",
    ]
    for problem, entry in document.items():
        scenario, overrides = TASKS[problem]
        words = ", ".join(f"{key} {value}" for key, value in overrides.items())
        rule = entry["fallback"]
        lines.append(
            f"| {problem} | `{scenario}` {words} | {entry['metric']} | {entry['random_feasible']:.4g} "
            f"| {rule} {entry[rule]:.4g} |"
        )
    lines += ["", f"| problem | {' | '.join(names)} |", "| --- |" + " --- |" * len(names)]
    for problem, entry in document.items():
        lines.append(f"| {problem} | {' | '.join(cell(entry, name) for name in names)} |")
    lines += ["", "Learning curves: share of the way by decisions, mean over the seeds.", ""]
    for problem, entry in document.items():
        lines += [f"**{problem}**", "", "| algorithm | untrained, then every segment | decisions | CPU s |"]
        lines.append("| --- | --- | --- | --- |")
        for name in names:
            if seeds := list(entry["runs"].get(name, {}).values()):
                steps = [
                    statistics.mean(share(entry, run["curve"][k][1]) for run in seeds)
                    for k in range(len(seeds[0]["curve"]))
                ]
                cpu = statistics.mean(run["cpu_s"] for run in seeds)
                shown = ", ".join(f"{step:.0%}" for step in steps)
                lines.append(f"| {name} | {shown} | {seeds[0]['curve'][-1][0]:,.0f} | {cpu:.0f} |")
        lines.append("")
    out.with_suffix(".md").write_text("\n".join(lines))


def cell(entry: dict[str, Any], algorithm: str) -> str:
    runs = entry["runs"].get(algorithm, {})
    if not runs:
        return ""
    shares = [share(entry, run["curve"][-1][1]) for run in runs.values()]
    mean = statistics.mean(shares)
    note = "" if mean >= MARGIN else " (below)"
    return f"{mean:.0%} [{min(shares):.0%}, {max(shares):.0%}]{note}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problem", action="append", choices=tuple(TASKS))
    parser.add_argument("--algorithm", action="append", choices=tuple(BUDGET))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=OUT, help="what is there is kept (default: %(default)s)")
    options = parser.parse_args()
    document: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    for seed in range(options.seeds):
        for problem in options.problem or TASKS:
            if problem not in document:
                document[problem] = {**rules(problem), "runs": {}}
            entry = document[problem]
            for algorithm in options.algorithm or BUDGET:
                runs = entry["runs"].setdefault(algorithm, {})
                if str(seed) in runs:
                    continue
                runs[str(seed)] = run = one(problem, algorithm, seed)
                gone = share(entry, run["curve"][-1][1])
                print(f"{problem} {algorithm} {seed}: {gone:.0%} in {run['cpu_s']} s", flush=True)
                write(document, options.out)
    reached = {
        f"{problem}/{algorithm}": statistics.mean(share(entry, run["curve"][-1][1]) for run in runs.values())
        for problem, entry in document.items()
        for algorithm, runs in entry["runs"].items()
    }
    write(document, options.out)
    print(json.dumps({"below_margin": sorted(name for name, gone in reached.items() if gone < MARGIN), **reached}))
    return 0


if __name__ == "__main__":
    run_cli(main)
