"""Forced-candidate rollouts of ``functions`` on one core: fork, force every candidate, run a rule on; CPU time.

Every visited state is forked once for each node that can take the instance; row k is forced to place it there and goes
on by ``warm_first`` on the recorded arrivals. Timed: the copying, the forced step, the rule and its steps. Not timed:
the steps between visited states. At the end some rows are repeated one by one, and must give the same bits.

Writes docs/results/fork_speed.json (with the usual sizes); the last line of the output is the same as one JSON object.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np

from sched_env import heuristics, planning
from sched_env.vector import PlacementVectorEnv, make_vec
from wire.errors import run_cli

RULE = "warm_first"
TARGET_S = 15.0
ROLLOUTS, DECISIONS = 100_000, 32
NODES = (10, 100)
STATES = {10: 32, 100: 4}
"""States visited side by side: the rows forked from them should stay in cache."""
APART = 8
"""Decisions between two visits of a row."""


def measure(nodes: int, rollouts: int, decisions: int) -> dict[str, Any]:
    """Time so many rollouts."""
    states = STATES.get(nodes, 4)
    env = make_vec("functions/serverless", states, seed=0, num_nodes=nodes)
    env.reset(seed=0)
    fork = env.fork(np.zeros(states * nodes, np.int64))
    on, base = heuristics.batch(RULE, env), heuristics.batch(RULE, fork)
    planning.run(fork, base, 2)  # compiles
    done, spent, copying, taken, checked = 0, 0.0, 0.0, 0, 0
    while done < rollouts:
        for _ in range(APART):
            env.step(on())
        rows, actions = planning.forced(env)
        rows, actions = rows[: rollouts - done], actions[: rollouts - done]
        began = time.process_time()
        env.fork(rows, into=fork)
        forked = time.process_time()
        runs = planning.run(fork, base, decisions, actions)
        ended = time.process_time()
        spent, copying = spent + ended - began, copying + forked - began
        taken += int(runs.decisions.sum())
        if done == 0:
            checked = check(env, rows, actions, runs, decisions)
        done += rows.size
    return {
        "nodes": nodes,
        "rollouts": done,
        "decisions": taken,
        "cpu_s": round(spent, 2),
        "copying_s": round(copying, 2),
        "decisions_per_s": round(taken / spent),
        "checked": checked,
    }


def check(env: PlacementVectorEnv, rows: np.ndarray, actions: np.ndarray, runs: planning.Runs, decisions: int) -> int:
    """Repeat some of the rollouts alone, step by step; the sums must be the same bits."""
    for k in range(0, rows.size, max(rows.size // 8, 1)):
        alone = env.fork(rows[k : k + 1])
        alone.park, total, choose, action = True, 0.0, heuristics.batch(RULE, alone), actions[k : k + 1]
        for _ in range(decisions):
            total += float(alone.step(action)[1][0])
            action = choose()
        if total != runs.returns[k]:
            raise AssertionError(f"rollout {k} alone returns {total}, in the batch {runs.returns[k]}")
    return len(range(0, rows.size, max(rows.size // 8, 1)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=ROLLOUTS)
    parser.add_argument("--decisions", type=int, default=DECISIONS)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    usual = (options.rollouts, options.decisions) == (ROLLOUTS, DECISIONS)
    results = [measure(nodes, options.rollouts, options.decisions) for nodes in NODES]
    summary = {
        "benchmark": "fork_speed",
        "command": "python benchmarks/fork_speed.py",
        "machine": f"{platform.machine()}, {platform.python_implementation()} {platform.python_version()}, one core",
        "scenario": "functions/serverless",
        "rule": RULE,
        "target_cpu_s": TARGET_S if usual else None,
        "met": results[0]["cpu_s"] < TARGET_S if usual else None,
        "results": results,
    }
    if usual:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "fork_speed.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps(summary))
    return 0 if summary["met"] in (True, None) else 1


if __name__ == "__main__":
    run_cli(main)
