"""All heuristics on all scenarios, on the public traces, with the gap to what no policy can beat.

Writes docs/results/heuristics.{json,md}:

    python benchmarks/heuristics_table.py --data ../shared/data

Start points: the 64 of VMAgent's baseline for small clusters; the first 16 of them where an episode runs through the
whole trace; rows spread evenly over the trace for the others. A case whose trace is absent is left out, and said so.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sched_env import problems, scenarios
from sched_env.jobs import trace as job_traces
from sched_env.metrics import summarise
from sched_env.rollout import run_episodes
from sched_env.vector import make_vec
from sched_env.vm import bounds as vm_bounds
from wire.errors import ConfigError, run_cli

SEED = 1234
"""The baseline's seed of random decisions."""
UPSTREAM_STARTS = np.random.RandomState(0).randint(1000, 9999, 64)  # as the baseline drew them
LATE_STARTS = np.random.RandomState(1).randint(140_000, 220_000, 200)  # the last third of the trace


class Case(NamedTuple):
    """One table."""

    title: str
    scenario: str
    trace: str
    """Below the data folder."""
    starts: list[int]
    keys: dict[str, Any]
    columns: tuple[str, ...]
    read: Callable[[Path], Any] | None = None
    """Makes a trace of the path, where the environment does not."""


PLACED = ("placed", "return_std", "cpu_rate", "mem_rate", "sla_violation_rate", "cost_usd")
WAITED = ("wait_s", "wait_s_trimmed", "p99_wait_s", "sla_violation_rate", "cost_usd")
QUEUED = ("mean_completion_s", "makespan_s", "mean_wait_s", "sla_violation_rate", "cost_usd")
SERVED = ("return", "sla_violation_rate", "cost_usd", "response_ratio", "cold_starts", "wait_s")
PLANNED = ("makespan_s", "response_ratio", "sla_violation_rate", "cost_usd", "moved_mb", "nodes_used")
MIGRATED = (
    "return", "resource_violations", "sla_violation_rate", "performance_violation_rate", "cost_usd", "migrations",
)  # fmt: skip
HUAWEI, AZURE_VM = "huawei-east-1/events.csv.gz", "azure-vm-arrivals-2017/arrivals_days_20_24.csv.gz"
AZURE_FUNCTIONS = "azure-functions-2019"
WFINSTANCES = "wfinstances"
BITBRAINS, GENAI, GPU_PODS = "bitbrains-vm-5min/rnd-2013-8", "alibaba-genai-pods", "alibaba-gpu-k8s"
PHILLY = "gpu-jobs/philly_jobs.csv.gz"
FEW = UPSTREAM_STARTS[:16].tolist()
ALL = UPSTREAM_STARTS.tolist()
EVEN = np.linspace(1000, 250_000, 16).astype(int).tolist()
EVEN_SHORT = np.linspace(0, 40_000, 16).astype(int).tolist()


def philly(path: Path) -> Any:
    """Single-card Philly jobs in three weeks' order, four times as dense as recorded: nine cards, not thousands."""
    profiles = path.parents[1] / "cpn-gpu-profiles" / job_traces.COLOCATIONS
    return job_traces.philly_workload(path, profiles, rows=2000, seed=0, speed_up=4.0)


CASES = [
    *(Case(f"fading, {n} servers", "vm/fading", HUAWEI, ALL, {"servers": n}, PLACED) for n in (5, 20, 50)),
    *(Case(f"recovering, {n} servers", "vm/recovering", HUAWEI, ALL, {"servers": n}, PLACED) for n in (5, 20)),
    Case("recovering, 50 servers", "vm/recovering", HUAWEI, FEW, {"servers": 50}, PLACED),
    Case("recovering-l, 100 servers", "vm/recovering-l", HUAWEI, FEW, {}, PLACED),
    Case("expanding, 20 to 100 servers", "vm/expanding", HUAWEI, FEW, {}, (*PLACED, "servers")),
    Case("waiting, 5 servers", "vm/recovering", HUAWEI, ALL, {"ending": "wait"}, WAITED),
    Case("waiting, 5 servers, late trace", "vm/recovering", HUAWEI, LATE_STARTS.tolist(), {"ending": "wait"}, WAITED),
    Case("waiting, 20 servers", "vm/recovering", HUAWEI, ALL, {"servers": 20, "ending": "wait"}, WAITED),
    Case(
        "recovering, 50 servers, Azure",
        "vm/recovering",
        AZURE_VM,
        EVEN,
        {"servers": 50, "double_threshold": 32},
        PLACED,
    ),
    Case("serverless, 10 nodes, Azure", "functions/serverless", AZURE_FUNCTIONS, EVEN_SHORT, {}, SERVED),
    *(
        Case(f"workflows, {n} nodes", "workflow/dag", WFINSTANCES, list(range(105)), {"nodes": n}, PLANNED)
        for n in (4, 16, 64)
    ),
    Case("pods, 10 nodes, Bitbrains", "pods/deploy", BITBRAINS, list(range(0, 8000, 1000)), {}, MIGRATED),
    Case("pods, 11 nodes, Alibaba GenAI", "pods/deploy", GENAI, list(range(0, 224, 28)), {"load": 0.25}, MIGRATED),
    Case("pods, Alibaba GPU", "pods/deploy", GPU_PODS, list(range(0, 1920, 240)), {}, MIGRATED),
    Case("jobs, 9 cards, Philly", "jobs/testbed", PHILLY, list(range(0, 1600, 100)), {}, QUEUED, philly),
]


def run(case: Case, path: Path) -> dict[str, Any]:
    """Run every heuristic on a case; one row of the metric sheet each, and the bound they share."""
    trace = case.read(path) if case.read else path
    began = time.process_time()
    env = make_vec(case.scenario, 1, trace=trace, **case.keys)
    metric = env.problem.bound_metric(env.scenario)
    if metric is None:
        raise ConfigError(f"{env.problem.name} has no bound", "a problem with one: the table is about the way to it")
    limits = env.problem.simulation().bounds(env, case.starts)
    sign = env.problem.better(metric)
    result: dict[str, Any] = {
        "metric": metric,
        "sign": sign,
        "bound": _mean(limits),
        "bound_cpu_s": round(time.process_time() - began, 1),
        "rows": [],
    }
    print(case.title, {key: result[key] for key in ("metric", "bound", "bound_cpu_s")}, flush=True)
    for name in problems.get(scenarios.load(case.scenario).problem).heuristics:
        began = time.process_time()
        episodes = run_episodes(case.scenario, name, case.starts, trace=trace, seed=SEED, **case.keys)
        beaten = [
            each["start"]
            for each, limit in zip(episodes, limits, strict=True)
            if limit is not None and sign * (each[metric] - limit) > 1e-6 * abs(limit)
        ]
        if beaten:
            raise AssertionError(f"{case.title}: {name} beats the bound from start {beaten[0]}; the bound is wrong")
        sheet = {"policy": name, **summarise(episodes), "cpu_s": round(time.process_time() - began, 1)}
        del sheet["decision_us"], sheet["gap_closed"]  # a batch on a shared machine; nothing was learnt here
        sheet["bound"], sheet["gap"] = result["bound"], gap(result, sheet)
        result["rows"].append(sheet)
        print(case.title, name, {column: sheet[column] for column in case.columns}, flush=True)
    if env.problem.name == "vm" and any(set(row["ended"]) == {"end_of_trace"} for row in result["rows"]):
        log = vm_bounds.log_of(env)
        result["cost_bound"] = float(np.mean([vm_bounds.least_cost(log, start) for start in case.starts]))
    return result


def _mean(limits: list[float | None]) -> float | None:
    """Return the mean bound; None when one of them is not known."""
    known = [limit for limit in limits if limit is not None]
    return float(np.mean(known)) if len(known) == len(limits) else None


def gap(result: dict[str, Any], sheet: dict[str, Any]) -> float | None:
    """Return how far a mean is from the bound, as a share of the bound."""
    if not result["bound"]:
        return None
    return float(result["sign"] * (result["bound"] - sheet[result["metric"]]) / abs(result["bound"]))


def table(case: Case, result: dict[str, Any]) -> list[str]:
    lines = [
        f"## {case.title}",
        "",
        f"`{case.scenario}` {case.keys or ''} on `{case.trace}`, {len(case.starts)} start points.",
    ]
    metric = result["metric"]
    if result["bound"] is not None:
        lines[-1] += f" Bound: `{metric}` {_number(result['bound'])}, in {result['bound_cpu_s']:g} s."
    if "cost_bound" in result:
        lines[-1] += f" Placing everything costs at least {_number(result['cost_bound'])} USD."
    lines += [
        "",
        "| policy | " + " | ".join(case.columns) + " | gap | ended |",
        "| --- |" + " --- |" * (len(case.columns) + 2),
    ]
    for row in result["rows"]:
        cells = [_number(row[column]) for column in case.columns]
        cells.append("–" if row["gap"] is None else f"{100 * row['gap']:.3g} %")
        ended = ", ".join(f"{how} {count}" for how, count in sorted(row["ended"].items()))
        lines.append(f"| {row['policy']} | " + " | ".join(cells) + f" | {ended} |")
    return [*lines, ""]


def _number(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def write(folder: Path, results: dict[str, Any]) -> None:
    """Write what is known so far; a run of hours must not be lost to its last case."""
    lines = [
        "# Heuristics on the public traces",
        "",
        "Made by `python benchmarks/heuristics_table.py --data ../shared/data`. Means over the start points (the "
        "traces are not part of this repository; servers without a price count 1 USD an hour). `placed` up, "
        "`wait_s`, `sla_violation_rate` and `cost_usd` down is better; `return_std` is the spread over start points. "
        "`gap`: how far the mean is from the bound, in per cent of the bound. Bounds hold for every policy, also one "
        "that knows the future, and are checked against every episode of the table: [bounds.md](../bounds.md).",
        "",
    ]
    for case in CASES:
        if case.title in results:
            lines += table(case, results[case.title])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "heuristics.json").write_text(json.dumps(results, indent=1) + "\n")
    (folder / "heuristics.md").write_text("\n".join(lines))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("LOADMASTER_SHARED_DATA", "../shared/data")))
    parser.add_argument("--only", default="", help="cases whose title contains this; the others keep their figures")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    stored = options.out / "heuristics.json"
    results: dict[str, Any] = json.loads(stored.read_text()) if stored.exists() else {}
    for case in CASES:
        if options.only not in case.title:
            continue
        if not (options.data / case.trace).exists():
            print(f"{case.title}: {options.data / case.trace} is absent, left out")
            continue
        results[case.title] = run(case, options.data / case.trace)
        write(options.out, results)
    return 0


if __name__ == "__main__":
    run_cli(main)
