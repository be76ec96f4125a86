"""Steps a second of every problem through ``make_vec``, on one core; writes docs/results/env_speed.{json,md}.

Timed: drawing an action for every environment (compiled) and the step with mask, observation and autoreset. Not timed:
one environment step in 1,000 is rebuilt from raw state and compared bit for bit. The figure is the median of blocks
of CPU time, because other work on the machine must not count.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from plain_python_vm import Cluster

from sched_env.draws import bits
from sched_env.jit import lean_kernel
from sched_env.vector import PlacementVectorEnv, make_vec
from sched_env.vm.synthetic import generate
from wire.errors import run_cli

BATCH = 512
BATCHES = {"pods deploy": 64}
"""Ten pods and fifty requests a node are a larger state: 512 of them fall out of cache, at two thirds of the speed."""
CASES: list[tuple[str, str, int, dict[str, Any]]] = [
    # label, scenario, candidates' parents (servers, nodes), overrides
    ("vm fading", "vm/fading", 5, {"servers": 5}),
    ("vm recovering", "vm/recovering", 5, {"servers": 5}),
    ("vm fading", "vm/fading", 100, {"servers": 100}),
    ("vm recovering", "vm/recovering", 100, {"servers": 100}),
    ("vm recovering", "vm/recovering", 1000, {"servers": 1000}),
    ("vm recovering", "vm/recovering", 5000, {"servers": 5000}),
    ("functions serverless", "functions/serverless", 100, {"num_nodes": 100}),
    ("functions serverless", "functions/serverless", 1000, {"num_nodes": 1000}),
    ("functions serverless", "functions/serverless", 5000, {"num_nodes": 5000}),
    ("functions workflow", "workflow/dag", 100, {"num_nodes": 100}),
    ("functions workflow", "workflow/dag", 1000, {"num_nodes": 1000}),
    ("functions workflow", "workflow/dag", 5000, {"num_nodes": 5000}),
    # Long queues, so that cards are shared: one to two jobs on each, up to two co-runners for the next.
    ("jobs cpn", "jobs/cpn", 100, {"cards": 100, "episode_jobs": 1000}),
    ("jobs cpn", "jobs/cpn", 1000, {"cards": 1000, "episode_jobs": 5000}),
    ("jobs cpn", "jobs/cpn", 5000, {"cards": 5000, "episode_jobs": 15000}),
    # Ten pods and fifty requests a node in a window; so hot that the budget, not the last stressed node, ends a window.
    ("pods deploy", "pods/deploy", 100, {"n_node": 100, "load": 0.6, "trace_windows": 60}),
    ("pods deploy", "pods/deploy", 1000, {"n_node": 1000, "load": 0.6, "trace_windows": 24, "episode_windows": 12}),
    ("pods deploy", "pods/deploy", 5000, {"n_node": 5000, "load": 0.6, "trace_windows": 12, "episode_windows": 6}),
]
TARGETS = {
    ("vm fading", 5): 8e6,
    ("vm recovering", 5): 8e6,
    ("vm fading", 100): 1.5e6,
    ("vm recovering", 100): 1.5e6,
    ("functions serverless", 100): 3e5,
    ("functions workflow", 100): 3e5,
    ("jobs cpn", 100): 3e5,
    ("pods deploy", 100): 3e5,
}
C_REFERENCE = {5: 30.7e6, 100: 18.1e6, 1000: 2.95e6}
"""Mask + first-fit + update in C, 64 environments in cache, float32, no observation (reference/problems.md, 6)."""


@lean_kernel
def draw(mask: np.ndarray, feasible: np.ndarray, actions: np.ndarray, counter: int) -> None:
    """Draw a feasible candidate for each environment, with equal chance."""
    for b in range(actions.size):
        actions[b] = 0
        if feasible[b] > 0:
            left = np.int64(((bits(7, b, counter) >> np.uint64(32)) * np.uint64(feasible[b])) >> np.uint64(32))
            row = mask[b]
            for candidate in range(row.size):
                left -= row[candidate]
                if left < 0:
                    actions[b] = candidate
                    break


def measure(env: PlacementVectorEnv, blocks: int, steps: int) -> dict[str, Any]:
    """Time blocks of random steps; check one step in 1,000 against a full rebuild."""
    env.reset(seed=0)
    actions, buffers = np.zeros(env.num_envs, np.int64), env.buffers
    rates, counter, checked = [], 0, 0
    for block in range(blocks + 1):
        began = time.process_time()
        for _ in range(steps):
            draw(buffers.mask, buffers.feasible, actions, counter)
            env.step(actions)
            counter += 1
        spent = time.process_time() - began
        if block:  # the first warms up compiler, caches and branch predictors
            rates.append(steps * env.num_envs / spent)
        for k in range(max(1, steps * env.num_envs // 1000)):
            check(env, (block * 37 + k) % env.num_envs)
            checked += 1
    return {"steps_per_s": statistics.median(rates), "best": max(rates), "worst": min(rates), "checked": checked}


def check(env: PlacementVectorEnv, b: int) -> None:
    """Compare an environment's incremental observation with a full rebuild, bit for bit."""
    whole = env.rebuild(b)
    width = len(whole.mask)
    np.testing.assert_array_equal(env.buffers.candidates[b, :width], whole.candidates)
    np.testing.assert_array_equal(env.buffers.request[b], whole.request)
    np.testing.assert_array_equal(env.buffers.mask[b, :width], whole.mask)
    if env.buffers.mask[b, width:].any() or env.buffers.feasible[b] != whole.mask.sum():
        raise AssertionError(f"environment {b}: mask or count beyond its candidates")


def measure_plain_python(servers: int, seconds: float = 2.0) -> float:
    """Return the steps a second of the loop in VMAgent's style with random feasible actions."""
    cluster, rng = Cluster(generate(), servers, 10.0), random.Random(0)
    cluster.reset(1000)
    steps, began = 0, time.process_time()
    while time.process_time() - began < seconds:
        valid = cluster.avail().nonzero()[0].tolist()
        cluster.obs()
        cluster.req()
        if not valid or cluster.step(rng.choice(valid)):
            cluster.reset(rng.randrange(1000, 9999))
        steps += 1
    return steps / (time.process_time() - began)


def run(case: tuple[str, str, int, dict[str, Any]], budget: float) -> dict[str, Any]:
    label, scenario, size, overrides = case
    most = BATCHES.get(label, BATCH)
    batch = max(8, min(most, most * 100 // size))
    steps = max(4, int(budget * 2e6 / max(size, 20) * 10 / batch / 10))
    row: dict[str, Any] = {"case": label, "size": size, "batch": batch, "target": TARGETS.get((label, size))}
    row.update(measure(make_vec(scenario, batch, 0, **overrides), 9, steps))
    row["with_copies"] = measure(make_vec(scenario, batch, 0, copy=True, **overrides), 3, steps)["steps_per_s"]
    if label.startswith("vm"):
        row["plain_python"] = measure_plain_python(size, 2.0 * budget)
        row["c_reference"] = C_REFERENCE.get(size)
    return row


def table(rows: list[dict[str, Any]], command: str) -> str:
    def figure(value: float | None) -> str:
        return "–" if value is None else f"{value:,.0f}"

    lines = [
        "# Speed of the environments",
        "",
        f"Made by `{command}` on {platform.machine()}, {platform.python_implementation()} "
        f"{platform.python_version()}, one core. Steps a second of CPU time: median of 9 blocks (worst – best); "
        "random feasible actions drawn by a compiled kernel, whose time is included; mask and observation built at "
        "every step, buffers reused. One step in 1,000 was compared with a full rebuild, bit for bit.",
        "",
        "| environment | N | B | steps/s | worst – best | target | with copies | plain Python, VMAgent's style "
        "| C, no observation |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        cells = [row["case"], row["size"], row["batch"], figure(row["steps_per_s"])]
        cells += [f"{figure(row['worst'])} – {figure(row['best'])}", figure(row["target"]), figure(row["with_copies"])]
        cells += [figure(row.get("plain_python")), figure(row.get("c_reference"))]
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    lines += [
        "",
        "The C column is quoted from the reference notes (64 environments in cache, float32), not re-measured.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run the cases whose name contains this, without writing files")
    parser.add_argument("--budget", type=float, default=1.0, help="scales the time spent on each case")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    rows = []
    for case in CASES:
        if options.only in f"{case[0]} {case[2]}":
            rows.append(run(case, options.budget))
            print(json.dumps(rows[-1]), flush=True)
    if not options.only:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "env_speed.json").write_text(json.dumps(rows, indent=1) + "\n")
        (options.out / "env_speed.md").write_text(table(rows, "python benchmarks/env_speed.py"))
    missed = [row for row in rows if row["target"] and row["steps_per_s"] < row["target"]]
    return 1 if missed else 0


if __name__ == "__main__":
    run_cli(main)
