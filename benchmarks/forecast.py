"""What the stage ``forecast`` finds on traces of pods, and what its forecast is worth in placing.

Methods are fitted on the first half of a trace and judged on the second by the stage's own code. ``generated`` is the
trace of the environment. ``daily`` is built: no pod goes, and each function is busy at its own hours, the same every
day. Bitbrains and Alibaba GenAI are public. Windows of the second half are placed by one rule, the least that a move
adds to expected violations, by the last window taken for certain and by the forecast; start by start, in blocks of two
hours. Its weights were not searched for.

    python benchmarks/forecast.py --data ../shared/data --out docs/results
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.datasets import pod_use
from pipeline.datasets.pods import starts as starts_of
from pipeline.forecast import gate, methods, store
from pipeline.statistics import estimators
from pipeline.statistics.bootstrap import Resampler
from sched_env import scenarios
from sched_env.pods import forecast, public, synthetic
from sched_env.pods.features import SPEC
from sched_env.pods.foresight import STAKES
from sched_env.pods.tables import WINDOW_S, PodTrace
from sched_env.rollout import Policy, run_episodes
from sched_env.tables import NodeTable
from wire.errors import run_cli

NODES, DAYS, LOAD = 10, 8, 0.55
BURSTS, BURST_WINDOWS, CALM, BUSY = 3, 9, 0.5, 2.5
"""Times a day at which a function is busy, for how long, and its load otherwise and then, over that of the trace."""
LEFT = 0.3
"""Of the logarithm of what a function's load deviates by in the generated trace."""
PUBLIC = {"Bitbrains": "bitbrains-vm-5min/rnd-2013-8", "GenAI": "alibaba-genai-pods"}
EPISODES, BLOCK_S = 400, 7200.0
SHOWN = ("resource_violations", "migrations", "performance_violations")
FEATURES = [feature.name for feature in SPEC.candidate]
AT_STAKE, HERE = slice(FEATURES.index(STAKES[0]), FEATURES.index(STAKES[-1]) + 1), FEATURES.index("here")
DEAR = np.array([1.0, 1.0, 3.0, 3.0])
"""Weight of what is at stake, as ``STAKES``."""
MOVE = 0.1
"""What a move has to save."""
BESIDE = "best_single_move"

Trace = tuple[PodTrace, NodeTable]


def daily(seed: int) -> Trace:
    """Generate a trace in which functions are busy at hours of their own, and deviate little from that."""
    table = synthetic.nodes(NODES)
    plain = synthetic.generate(table, DAYS * synthetic.DAY_WINDOWS, load=LOAD, churn=0.0, seed=seed)
    functions = NODES * 10 // synthetic.PODS_PER_FUNCTION
    begins = np.random.default_rng(seed).integers(synthetic.DAY_WINDOWS, size=(functions, BURSTS))
    since = (np.arange(synthetic.DAY_WINDOWS)[:, None, None] - begins) % synthetic.DAY_WINDOWS
    course = np.where((since < BURST_WINDOWS).any(axis=2), BUSY, CALM)
    window = np.repeat(np.arange(len(plain)), np.diff(plain.window_rows))
    function = (np.arange(window.size) - plain.window_rows[window]) % functions
    amounts: dict[str, Any] = {}
    for name in ("cpu", "mem"):
        used = getattr(plain, f"{name}_used")
        level = np.zeros((len(plain), functions))
        np.add.at(level, (window, function), used)
        level /= level.mean(axis=0)
        factor = course[window % synthetic.DAY_WINDOWS, function] * level[window, function] ** (LEFT - 1.0)
        amounts[name] = getattr(plain, name) * np.repeat(factor, np.diff(plain.row_requests))
        amounts[f"{name}_used"] = used * factor
    return dataclasses.replace(plain, **amounts), table


def traces(data: Path | None, seed: int) -> Iterator[tuple[str, Trace]]:
    """Make or read the traces; public ones where they are."""
    table = synthetic.nodes(NODES)
    yield "generated", (synthetic.generate(table, DAYS * synthetic.DAY_WINDOWS, load=LOAD, seed=seed), table)
    yield "daily", daily(seed)
    for name, folder in PUBLIC.items():
        if data is not None and (data / folder).is_dir():
            yield name, public.read(data / folder, pods_per_node=10, load=0.5)


def laid(pods: PodTrace) -> tuple[np.ndarray, np.ndarray]:
    """Lay a trace out as the stage sees windows: [windows, pods, 2], and the window of each row."""
    window = np.repeat((pods.window_s // WINDOW_S).astype(np.int64), np.diff(pods.window_rows))
    use = np.full((int(window[-1]) + 1, len(pods.pod_names), 2), np.nan)
    use[window, pods.pod] = np.stack([pods.cpu_used, pods.mem_used], axis=1)
    return use, window


def judged(trace: Trace, folder: Path) -> tuple[dict[str, Any], Trace]:
    """Fit on the first half, judge on the second; also the trace with its forecast."""
    pods, nodes = trace
    use, window = laid(pods)
    half = len(use) // 2
    held = methods.asked(use, half)
    train = methods.asked(use[:half])
    ways = methods.weights(train)
    verdicts, errors = gate.judge(ways, held)
    found: dict[str, Any] = {"pods": use.shape[1], "windows": len(use), "rows": len(held.truth)}
    fitted = gate.chosen(ways, verdicts, train)
    inside = methods.covered(fitted, held).ravel()
    for k, (name, verdict) in enumerate(verdicts.items()):
        found[name] = {"errors": {way: float(error[k]) for way, error in errors.items()}, **verdict._asdict()}
        found[name]["within_80"] = float(inside[k])
    store.write(folder, fitted, held, {})
    model = pod_use.opened(folder)
    assert model is not None
    said = forecast.expected(model, forecast.rows_of(use, window, pods.pod))
    return found, (dataclasses.replace(pods, forecast=said), nodes)


def least_added(candidates: np.ndarray, _request: np.ndarray, _mask: np.ndarray) -> np.ndarray:
    """Score nodes by what the pod adds to the violations that are expected there, and whether it has to move."""
    return np.asarray(MOVE * candidates[..., HERE] - candidates[..., AT_STAKE] @ DEAR)


def placed(trace: Trace, foreseen: Trace) -> dict[str, Any]:
    """Place the second half with and without the forecast: violations, moves and the paired difference."""
    scenario = scenarios.load("pods/deploy", {"episode_windows": 24, "foresight": True})
    half = int(np.searchsorted(trace[0].window_s, trace[0].window_s[-1] / 2.0))
    ours, theirs = ((pods.windows(half, len(pods)), nodes) for pods, nodes in (foreseen, trace))
    rows = starts_of(theirs, scenario)
    if not rows.size:
        return {"episodes": 0}
    rows = np.unique(rows[np.linspace(0, rows.size - 1, min(EPISODES, rows.size)).astype(np.int64)])
    ways: dict[str, tuple[Policy, Trace]] = {
        "forecast": (least_added, ours), "last window": (least_added, theirs), BESIDE: (BESIDE, theirs),
    }  # fmt: skip
    runs = {name: run_episodes(scenario, rule, rows, trace=one) for name, (rule, one) in ways.items()}
    numbers = {
        name: {key: float(np.mean([sheet[key] for sheet in sheets])) for key in SHOWN} for name, sheets in runs.items()
    }
    violations = {name: np.array([sheet["resource_violations"] for sheet in sheets]) for name, sheets in runs.items()}
    scenario_of = np.zeros(len(rows), np.intp)
    draws = Resampler(scenario_of, (theirs[0].window_s[rows] // BLOCK_S).astype(int), samples=10_000, seed=0)
    gain = estimators.relative_difference(
        violations["forecast"], violations["last window"], scenario_of, higher=False
    )  # fmt: skip
    estimate = draws.estimate(estimators.mean(gain))
    shown = {"gain": estimate.value, "lower": estimate.lower, "upper": estimate.upper, "blocks": draws.blocks()}
    return {"episodes": len(rows), **numbers, **shown}


def page(results: dict[str, Any]) -> str:
    """Write the tables."""
    names = list(results)
    lines = [
        "# What pods will use",
        "",
        "Made by `python benchmarks/forecast.py --data ../shared/data --out docs/results`; nothing here is timed. "
        + " ".join(__doc__.split("\n\n")[1].split()).replace("``", "`"),
        "",
        f"Mean absolute error over the mean, second half, cpu / memory. Intervals are at {gate.CONFIDENCE:.2%}: "
        "for all methods, resources and horizons together at 95 %.",
        "",
        "| | " + " | ".join(names) + " |",
        "| --- |" + " --- |" * len(names),
    ]
    for horizon in forecast.HORIZONS:
        for way in methods.METHODS:
            both = [[one["errors"][way] for one in _both(found, horizon)] for found in results.values()]
            cells = [f"{cpu:.3f} / {mem:.3f}" for cpu, mem in both]
            lines.append(f"| {horizon}: {way} | " + " | ".join(cells) + " |")
    for name in gate.FORESEEN:
        cells = [_verdict(found[name]) for found in results.values()]
        lines.append(f"| method for {name} | " + " | ".join(cells) + " |")
    for horizon in forecast.HORIZONS:
        both = [[one["within_80"] for one in _both(found, horizon)] for found in results.values()]
        cells = [f"{cpu:.1%} / {mem:.1%}" for cpu, mem in both]
        lines.append(f"| {horizon}: within 1.28 deviations | " + " | ".join(cells) + " |")
    sizes = [f"{one['pods']:,}, {one['windows']:,}" for one in results.values()]
    lines.append("| pods, windows | " + " | ".join(sizes) + " |")
    lines += [
        "",
        "## In placing",
        "",
        "Resource violations, moves and performance violations an episode of two hours; fewer resource violations with "
        f"the forecast are a gain (95 %). `{BESIDE}`, which simulates the last window, stands beside them.",
        "",
        f"| trace | forecast | last window | gain | `{BESIDE}` | episodes, blocks |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, found in results.items():
        worth = found.get("placing", {"episodes": 0})
        if worth["episodes"]:
            sides = [_side(worth[side]) for side in ("forecast", "last window", BESIDE)]
            gain = f"{worth['gain']:+.1%} [{worth['lower']:+.1%}, {worth['upper']:+.1%}]"
            row = [name, *sides[:2], gain, sides[2], f"{worth['episodes']}, {worth['blocks']}"]
            lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def _verdict(found: dict[str, Any]) -> str:
    if found["best"] == methods.LAST:
        return "nothing is nearer"
    ships = found["method"] != methods.LAST
    said = f"{found['best']} {found['gain']:+.1%} [{found['lower']:+.1%}, {found['upper']:+.1%}]"
    return said if ships else f"no: {said}"


def _both(found: dict[str, Any], horizon: str) -> list[dict[str, Any]]:
    return [found[f"{resource}_{horizon}"] for resource, _ in forecast.RESOURCES]


def _side(numbers: dict[str, float]) -> str:
    return ", ".join(f"{numbers[name]:.1f}" for name in SHOWN)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of public traces")
    parser.add_argument("--out", type=Path, help="folder for forecast.json and forecast.md")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for name, trace in traces(options.data, options.seed):
        with tempfile.TemporaryDirectory() as folder:
            results[name], foreseen = judged(trace, Path(folder) / "model")
        results[name]["placing"] = placed(trace, foreseen)
        sys.stderr.write(f"{name}: {json.dumps(results[name])}\n")
    if options.out is not None:
        (options.out / "forecast.json").write_text(json.dumps(results, indent=1) + "\n")
        (options.out / "forecast.md").write_text(page(results))
    print(json.dumps(results))
    return 0


if __name__ == "__main__":
    run_cli(main)
