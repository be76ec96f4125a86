"""Pods: can ``best_single_move`` be improved by weights beside the price of a move that it goes by?

    python benchmarks/quality_pods.py --data ../shared/data --out docs/results

A node's score is minus the exact penalty of the window with the pod there (what the rule counts), and minus a weighted
sum of what else is seen: peaks, 95th percentiles and means with the pod there, beyond thresholds too, change within the
window, and the move itself. All weights 0 is the rule. The cross-entropy method searches them on train traces, by
violations over the rule's, with more moves and more unmet requests punished; validation chooses among the generations,
the rule included. Generated traces of their own seeds are each a block; Bitbrains is cut by time, blocks are episodes.
``no choice`` is the last generation as it is, untouched by validation: the winner's curse. The look-ahead tries every
node at every decision with the future known. The last line is a JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from quality import BOOTSTRAP_SEED, SAMPLES, look_ahead, say
from quality_cases import Part

from pipeline.statistics.bootstrap import Resampler
from pipeline.statistics.estimators import mean
from sched_env import heuristics, scenarios
from sched_env.jit import lean_kernel
from sched_env.pods import trace as pod_traces
from sched_env.pods.batch import left_behind, penalty_at
from sched_env.vector import make_vec
from wire.errors import run_cli

RULE, EPISODE = "best_single_move", 48
METRICS = ("resource_violations", "migrations", "performance_violations", "cost_usd")
SEEDS, GENERATIONS, POPULATION, ELITE, INERTIA = 2, 10, 12, 3, 0.4
TERMS = ("penalty", "peak", "peak > 0.8", "p95 > 0.8", "mean", "mean > 0.6", "move", "cpu change", "mem change")
START = np.array([1.0, 1e-5, 0, 0, 0, 0, 0, 0, 0])
SPREAD = np.array([0.1, 0.2, 0.2, 0.2, 0.2, 0.2, 0.1, 0.1, 0.1])
LOADS = {"generated": 0.58, "Bitbrains": 0.5}
"""At which the rule leaves 5 to 15 % of the positions in violation."""
BITBRAINS = "bitbrains-vm-5min/rnd-2013-8"
Floats = NDArray[np.float64]
Sheet = dict[str, Floats]


@lean_kernel
def penalties(arguments: Any, active: NDArray[np.bool_], out: Floats) -> None:
    """Write what the window would have cost with each offered pod on each node."""
    cluster, rules, state, scratch = arguments
    for b in range(active.size):
        if active[b]:
            moved = left_behind(cluster, rules, state, scratch, b)
            for n in range(out.shape[1]):
                out[b, n] = penalty_at(cluster, rules, state, scratch, b, n, moved)


class Episodes:
    """Episodes of one trace, and how the rule fares in them."""

    def __init__(self, scenario: scenarios.Scenario, trace: Any, starts: NDArray[np.int64]) -> None:
        self.part = Part(scenario, trace, starts, np.arange(starts.size))
        self.env = make_vec(scenario, starts.size, 0, trace)
        self.penalty: Floats = np.zeros(self.env.buffers.mask.shape)
        self.names = [feature.name for feature in self.env.feature_spec.candidate]
        self.rule = self.run(None)

    def run(self, weights: Floats | None) -> Sheet:
        """Play them by weights; None: by the rule."""
        env, b = self.env, self.env.buffers
        env.reset(options={"starts": self.part.starts, "park": True})
        rule = heuristics.batch(RULE, env)
        while b.active.any():
            if weights is None:
                env.step(rule())
                continue
            penalties(env.arguments, b.active, self.penalty)
            env.step(np.where(b.mask, -(self._seen() @ weights), -np.inf).argmax(axis=1))
        sheet = dict(zip(env.METRICS, b.metrics.T, strict=True))
        return {name: sheet[name].copy() for name in (*METRICS, "sla_violation_rate")}

    def _seen(self) -> Floats:
        column = {name: self.env.buffers.candidates[..., place].astype(float) for place, name in enumerate(self.names)}
        peak, p95, level = (
            np.maximum(column[f"cpu_{name}_after"], column[f"mem_{name}_after"]) for name in ("max", "p95", "mean")
        )
        terms = (self.penalty * len(self.penalty[0]), peak, np.maximum(peak - 0.8, 0), np.maximum(p95 - 0.8, 0),
                 level, np.maximum(level - 0.6, 0), 1.0 - column["here"], column["cpu_change_after"],
                 column["mem_change_after"])  # fmt: skip
        return np.stack(terms, axis=-1)


def worse(found: list[Sheet], sets: list[Episodes]) -> float:
    """Violations over the rule's, with more moves and more unmet requests punished; below 1 is better than the rule."""
    share = {
        name: (sum(each[name].sum() for each in found) + 1.0) / (sum(each.rule[name].sum() for each in sets) + 1.0)
        for name in METRICS
    }
    more = sum(max(share[name] - 1.0, 0.0) for name in ("migrations", "performance_violations"))
    return float(share["resource_violations"] + 0.5 * more)


def searched(train: list[Episodes], validation: list[Episodes], seed: int) -> tuple[Floats, Floats, list[float]]:
    """Return the weights that validation chose, those of the last generation, and the curve on validation."""
    rng, centre, spread = np.random.default_rng(seed), START.copy(), SPREAD.copy()
    chosen, curve = START, [1.0]
    for generation in range(GENERATIONS):
        half = rng.normal(size=(POPULATION // 2, centre.size))
        draws = centre + spread * np.concatenate([half, -half])
        order = np.argsort([worse([each.run(draw) for each in train], train) for draw in draws], kind="stable")
        best = draws[order[:ELITE]]
        centre = INERTIA * centre + (1 - INERTIA) * best.mean(axis=0)
        spread = INERTIA * spread + (1 - INERTIA) * best.std(axis=0)
        found = worse([each.run(centre) for each in validation], validation)
        if found < min(curve):
            chosen = centre.copy()
        curve.append(found)
        say(f"  seed {seed} generation {generation + 1}: {found:.4f}")
    return chosen, centre, curve


def generated(load: float, seeds: range, starts: int) -> list[Episodes]:
    """Traces of these seeds."""
    sets = []
    for seed in seeds:
        scenario = scenarios.load("pods/deploy", {"load": load, "trace_seed": seed})
        first = np.linspace(0, scenario.trace_windows - EPISODE - 1, starts).astype(np.int64)  # type: ignore[attr-defined]
        sets.append(Episodes(scenario, pod_traces.load(None, scenario), first))  # type: ignore[arg-type]
    return sets


def bitbrains(data: Path, load: float) -> tuple[list[Episodes], ...]:
    """Half of the windows to train, a seventh to validate, the rest to test."""
    scenario = scenarios.load("pods/deploy", {"load": load})
    trace = pod_traces.load(data / BITBRAINS, scenario)  # type: ignore[arg-type]
    windows = make_vec(scenario, 1, 0, trace).arguments[0].window_rows.size - 1
    ends = [0, windows // 2, 9 * windows // 14, windows - EPISODE - 1]
    return tuple(
        [Episodes(scenario, trace, np.linspace(first, last - EPISODE, count).astype(np.int64))]
        for first, last, count in zip(ends, ends[1:], (16, 12, 24), strict=False)
    )


def compared(found: list[Sheet], sets: list[Episodes], *, whole: bool) -> dict[str, Any]:
    """Hold tests against the rule; ``whole``: a trace is a block, else an episode."""
    rows = {name: np.concatenate([each[name] for each in found]) for name in METRICS}
    rule = {name: np.concatenate([each.rule[name] for each in sets]) for name in METRICS}
    sizes = [each.part.starts.size for each in sets]
    blocks = np.repeat(np.arange(len(sets)), sizes) if whole else np.arange(sum(sizes))
    resampler = Resampler(np.zeros(blocks.size, np.intp), blocks, samples=SAMPLES, seed=BOOTSTRAP_SEED)
    result: dict[str, Any] = {"episodes": int(blocks.size), "blocks": int(np.unique(blocks).size)}
    for name in METRICS:
        estimate = resampler.estimate(mean((rows[name] - rule[name]) / max(rule[name].mean(), 1e-9)))
        result[name] = {"rule": float(rule[name].mean()), "ours": float(rows[name].mean()),
                        "change": estimate.value, "interval": [estimate.lower, estimate.upper]}  # fmt: skip
    return result


def measure(data: Path, seeds: int, traces: list[str]) -> dict[str, Any]:
    """Search and judge on each kind of trace."""
    result: dict[str, Any] = {}
    for title in traces:
        load, began = LOADS[title], time.process_time()
        if title == "generated":
            train, validation, test = (generated(load, each, 8) for each in (range(3), range(10, 13), range(20, 26)))
        else:
            train, validation, test = bitbrains(data, load)
        share = float(np.mean([each.rule["sla_violation_rate"].mean() for each in test]))
        found = [searched(train, validation, seed) for seed in range(seeds)]
        whole = title == "generated"
        entry: dict[str, Any] = {"load": load, "share": share, "curves": [each[2] for each in found]}
        for name, tried in (
            ("chosen on validation", [one[0] for one in found]),
            ("no choice", [one[1] for one in found]),
        ):
            sheets = [[each.run(weights) for each in test] for weights in tried]
            means = [
                {name: np.mean([s[k][name] for s in sheets], axis=0) for name in METRICS} for k in range(len(test))
            ]
            entry[name] = compared(means, test, whole=whole)
        first = test[0]
        ahead = look_ahead(first.part, RULE, 40, list(METRICS))
        few = Episodes(first.part.scenario, first.part.trace, first.part.starts[: ahead[METRICS[0]].size])
        entry["look-ahead"] = compared([ahead], [few], whole=False)
        entry["weights"] = [dict(zip(TERMS, np.round(one[0], 4).tolist(), strict=True)) for one in found]
        entry |= {"seeds": seeds, "cpu_s": round(time.process_time() - began, 1),
                  "load_average": round(os.getloadavg()[0], 1)}  # fmt: skip
        result[title] = entry
        say(json.dumps({title: entry["chosen on validation"]["resource_violations"]}))
    return result


def page(result: dict[str, Any]) -> str:
    """Lay the results out for people."""
    lines = ["# Pods: weights beside the price of a move", "", "Made by `python benchmarks/quality_pods.py --data "
             "../shared/data --out docs/results`. Against `best_single_move` on test traces, negative is better; 95 % "
             "intervals over blocks."]  # fmt: skip
    for title, entry in result.items():
        if not isinstance(entry, dict):
            continue
        lines += ["", f"## {title}, load {entry['load']}: {100 * entry['share']:.1f} % violated under the rule", "",
                  "| | metric | rule | ours | change | 95 % |",
                  "| --- | --- | --- | --- | --- | --- |"]  # fmt: skip
        for name in ("chosen on validation", "no choice", "look-ahead"):
            part = entry[name]
            for metric in METRICS:
                row = part[metric]
                low, high = (100 * value for value in row["interval"])
                lines.append(f"| {name} ({part['episodes']} episodes, {part['blocks']} blocks) | {metric} "
                             f"| {row['rule']:,.4g} | {row['ours']:,.4g} | {100 * row['change']:+.1f} % "
                             f"| [{low:.1f}, {high:.1f}] |")  # fmt: skip
        promised = ", ".join(f"{100 * (min(curve) - 1):+.1f} %" for curve in entry["curves"])
        lines += ["", f"Promised by validation, seed by seed: {promised}. {entry['cpu_s']:.0f} s of CPU time beside "
                  f"other work (load average {entry['load_average']})."]  # fmt: skip
    if "note" in result:
        lines += ["", result["note"]]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", nargs="+", default=list(LOADS), choices=tuple(LOADS))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the public traces")
    parser.add_argument("--out", type=Path, help="folder for quality_pods.json and quality_pods.md; other traces stay")
    options = parser.parse_args()
    file = options.out / "quality_pods.json" if options.out else None
    before = json.loads(file.read_text()) if file and file.exists() else {}
    result = before | measure(options.data, options.seeds, options.traces)
    if file:
        file.write_text(json.dumps(result, indent=1) + "\n")
        file.with_suffix(".md").write_text(page(result))
    chosen = {title: round(result[title]["chosen on validation"]["resource_violations"]["change"], 4)
              for title in options.traces}  # fmt: skip
    say(json.dumps(chosen))
    return 0


if __name__ == "__main__":
    run_cli(main)
