"""What training is worth: the counterfactual learner against the best rule on held-out traces.

    python benchmarks/quality.py --problems functions jobs --data ../shared/data --out docs/results

Splits and seeds are in ``quality_cases.py``. The best rule is the best of all on the validation episodes. Every seed is
one training, judged on its own validation; its test episodes are paired with the rule's. Intervals: 95 %, whole blocks
of episodes are drawn (``pipeline.statistics``), a trace's difference being its mean over the seeds. Beside it stand the
look-ahead that knows the future (every candidate tried, the base rule going on, at every decision), a student of
shuffled futures, one with another base rule, and what validation had promised. A section is a problem; those not asked
for stay as they are. The last line is a JSON object.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from quality_cases import CASES, Case, Part, functions

from pipeline.datasets import code_of
from pipeline.policies import algorithms, rules
from pipeline.policies.checkpoint import Row, Trained
from pipeline.policies.counterfactual import Trials
from pipeline.policies.scorer import Scorer, TorchPolicy
from pipeline.policies.training import train
from pipeline.settings import var
from pipeline.statistics.bootstrap import Resampler
from pipeline.statistics.estimators import mean, relative_difference
from sched_env import problems
from sched_env.rollout import run_episodes
from sched_env.vector import make_vec
from wire import closure
from wire.errors import run_cli

SEEDS = 5
SAMPLES, BOOTSTRAP_SEED = 10_000, 20
TO_THE_END = 1_000
"""Decisions that a look-ahead takes where the algorithm has no trials of its own: more than an episode has."""
HEADROOM = 0.5
"""Share of a margin that may be used on validation, as in a night (``pipeline.train``)."""
BETAS, FRONT = (0.1, 0.3, 0.5, 0.7, 0.9), ("cost_usd", "response_ratio")
FRONT_SETTINGS = {"segments": 1, "states": 8_000, "epochs": 30}
"""A short training for each weight: what can be had at all, not the best of it."""
Figures = dict[str, NDArray[np.float64]]


def judged(part: Part, policy: Any, metrics: list[str]) -> Figures:
    """Run a part's episodes under a policy, or a rule in the scenario that is the rule's."""
    given = TorchPolicy(policy) if isinstance(policy, Scorer) else policy
    scenario = part.rules.get(policy, part.scenario) if isinstance(policy, str) else part.scenario
    rows = run_episodes(scenario, given, part.starts, trace=part.trace)
    return {name: np.array([float(row[name]) for row in rows]) for name in metrics}


def look_ahead(part: Part, base: str, decisions: int, metrics: list[str]) -> Figures:
    """Try every candidate at every decision and take the best, the future being known."""
    env = make_vec(part.scenario, part.starts.size, 0, part.trace)
    env.reset(options={"starts": part.starts, "park": True})
    trials = Trials(env, base, decisions)
    while env.buffers.active.any():
        rows = np.flatnonzero(env.buffers.active)
        actions = np.zeros(env.num_envs, np.int64)
        found = trials.of(rows)
        actions[rows] = np.where(found.mask, found.advantages, -np.inf).argmax(axis=1)
        env.step(actions)
    table = dict(zip(env.METRICS, env.buffers.metrics.T, strict=True))
    return {name: table[name].copy() for name in metrics}


def compare(case: Case, part: Part, ours: list[Figures], theirs: Figures, names: list[str]) -> dict[str, Any]:
    """Hold the seeds' figures against a rule's on the same episodes; gains are positive when better."""
    none, better = np.zeros(part.blocks.size, np.intp), problems.get(case.problem).better
    resampler = Resampler(none, part.blocks, samples=SAMPLES, seed=BOOTSTRAP_SEED)
    found: dict[str, Any] = {"episodes": int(part.blocks.size), "blocks": int(np.unique(part.blocks).size)}
    for name in names:
        gains = np.stack(
            [relative_difference(each[name], theirs[name], none, higher=better(name) > 0) for each in ours]
        )
        estimate = resampler.estimate(mean(gains.mean(axis=0)))
        found[name] = {
            "rule": float(theirs[name].mean()),
            "ours": float(np.mean([each[name].mean() for each in ours])),
            "gain": estimate.value,
            "interval": [estimate.lower, estimate.upper],
            "by_seed": gains.mean(axis=1).tolist(),
        }
    return found


def taught(case: Case, seed: int, limits: Row | None = None, **changes: Any) -> tuple[Trained, float]:
    """Train once, the best within the limits being chosen; returns CPU seconds too."""
    limits = limits or {}
    scenario, trace = case.train
    better = problems.get(case.problem).better(case.primary)

    def validate(policy: Scorer | str) -> Row:
        found = judged(case.validation, policy, [case.primary, *limits])
        return {name: float(found[name].mean()) for name in found}

    def objective(row: Row) -> float:
        beyond = sum(max(row[name] / most - 1.0, 0.0) / case.shown[name] for name, most in limits.items())
        return better * row[case.primary] - beyond * abs(row[case.primary])

    settings = algorithms.settings(case.algorithm, ("quality_cases.py", case.settings), **changes)
    scratch = folder(case, settings, seed)
    spent = scratch / "cpu_s.json"
    before, began = float(json.loads(spent.read_text())) if spent.exists() else 0.0, time.process_time()

    def report(segment: int, row: Row) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        spent.write_text(json.dumps(before + time.process_time() - began))
        say(f"  seed {seed} {changes or ''} segment {segment}: {json.dumps(row)}")

    trained = train(
        lambda count: make_vec(scenario, count, seed, trace, copy=True),
        case.algorithm,
        settings,
        seed=seed,
        scratch=scratch,
        validate=validate,
        objective=objective,
        report=report,
    )
    return trained, float(json.loads(spent.read_text()))


def limits_of(case: Case, rule: Figures) -> Row:
    """Return how much a training may be worse than the best rule, by its figures on validation."""
    return {
        name: float(rule[name].mean()) * (1.0 + HEADROOM * margin)
        for name, margin in case.shown.items()
        if case.within and margin > 0.0
    }


def folder(case: Case, settings: Any, seed: int) -> Path:
    """Name the place of a training by all it depends on: the benchmark goes on where it was stopped."""
    code = closure.fingerprint("pipeline.policies.training", *code_of(case.problem))
    starts = case.validation.starts.tobytes()
    digest = hashlib.sha256(repr((settings, case.train[0], case.validation.scenario, code)).encode() + starts)
    return var() / "scratch" / "quality" / f"{case.problem}-{seed}-{digest.hexdigest()[:16]}"


def say(line: str) -> None:
    """Tell how far it is."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def measure(case: Case, seeds: int) -> dict[str, Any]:
    """Train and judge a problem."""
    problem, began = problems.get(case.problem), time.process_time()
    better, names = problem.better(case.primary), [case.primary, *case.shown]
    validated = {rule: judged(case.validation, rule, names) for rule in problem.heuristics}
    best, bar = rules.best(
        problem.heuristics,
        lambda rule: {case.primary: float(validated[rule][case.primary].mean())},
        lambda row: better * row[case.primary],
    )
    say(f"{case.problem}: best rule on validation {best} ({better * bar:.6g})")
    settings = algorithms.settings(case.algorithm, ("quality_cases.py", case.settings))
    base, ahead = getattr(settings, "base", None) or best, getattr(settings, "decisions", TO_THE_END)
    limits = limits_of(case, validated[best])
    trained = [taught(case, seed, limits) for seed in range(seeds)]
    control, _ = taught(case, 0, limits, shuffled=True, **({"segments": 1} if case.algorithm == "expert" else {}))
    other_name, changes = case.other
    other, _ = taught(case, 0, limits, **changes)
    promised = [max(better * row[case.primary] for row in each.curve) for each, _ in trained]
    result: dict[str, Any] = {
        "best_rule": best,
        "base_rule": base,
        "guarded": list(case.shown),
        "validation": {rule: {name: float(found[name].mean()) for name in names} for rule, found in validated.items()},
        "promised": [(value - bar) / abs(bar) for value in promised],
        "settings": {name: getattr(settings, name) for name in settings.__struct_fields__},
        "curves": [each.curve for each, _ in trained],
        "cpu_s_a_training": [round(spent, 1) for _, spent in trained],
        "tests": {},
    }
    for title, part in case.tests.items():
        theirs = judged(part, best, names)
        entry = compare(case, part, [judged(part, each.scorer, names) for each, _ in trained], theirs, names)
        entry["primary"], entry["target"] = case.primary, case.targets.get(title)
        entry["rules"] = {
            rule: {name: float(value.mean()) for name, value in judged(part, rule, names).items()}
            for rule in problem.heuristics
            if rule not in rules.REMEMBER  # drawn at random, or a linear program for each decision
        }
        for name, student in (("shuffled futures", control), (f"base {other_name}", other)):
            entry[name] = compare(case, part, [judged(part, student.scorer, names)], theirs, names)[case.primary]
        if part.ahead:
            starts = part.starts[:: max(part.starts.size // part.ahead, 1)][: part.ahead]
            few = replace(part, starts=starts, blocks=np.arange(starts.size))
            known = look_ahead(few, base, ahead, names)
            entry["look-ahead"] = compare(case, few, [known], judged(few, best, names), names)[case.primary]
        result["tests"][title] = entry
        gain = entry[case.primary]
        say(f"{case.problem}, {title}: {_percent(gain['gain'])} {_interval(gain)}")
    result["cpu_s"] = round(time.process_time() - began, 1)
    result["load_average"] = round(os.getloadavg()[0], 1)
    return result


def front(data: Path, **changes: Any) -> dict[str, Any]:
    """One student for each weight of latency against cost: what can be had for what, beside what rules give.

    Rules but ``oracle_greedy`` do not know the weight and are a point each; hypervolumes are what the points dominate
    up to the worst of all rules, as a share of the rectangle between that and the best of each.
    """
    points: dict[str, list[list[float]]] = {"student": []}
    for beta in BETAS:
        case = functions(data, beta=beta)
        part = case.tests["10 nodes"]
        trained, _ = taught(case, 0, **changes)
        for name in ("student", *problems.get("functions").heuristics):
            found = judged(part, trained.scorer if name == "student" else name, list(FRONT))
            point = [float(found[metric].mean()) for metric in FRONT]
            if point not in points.setdefault(name, []):
                points[name].append(point)
    everything = np.array([point for name, found in points.items() if name != "student" for point in found])
    worst, best = everything.max(axis=0), np.array([point for found in points.values() for point in found]).min(axis=0)
    area = {name: hypervolume(np.array(found), worst) / float(np.prod(worst - best)) for name, found in points.items()}
    area["all rules"] = hypervolume(everything, worst) / float(np.prod(worst - best))
    lines = [f"Front over beta {', '.join(map(str, BETAS))} ({' and '.join(FRONT)}, 10 nodes, one seed each):", "",
             "| | share of the hypervolume | points |", "| --- | --- | --- |"]  # fmt: skip
    for name, share in sorted(area.items(), key=lambda item: -item[1]):
        shown = "; ".join(" / ".join(f"{value:.3f}" for value in point) for point in points.get(name, []))
        lines.append(f"| {name} | {share:.3f} | {shown} |")
    return {"points": points, "hypervolume": area, "page": lines}


def hypervolume(points: NDArray[np.float64], worst: NDArray[np.float64]) -> float:
    """Return the area that points of two metrics, less being better, dominate up to the worst."""
    area, reached = 0.0, float(worst[1])
    for first, second in points[np.lexsort((points[:, 1], points[:, 0]))]:
        if first < worst[0] and second < reached:
            area += (float(worst[0]) - first) * (reached - second)
            reached = second
    return area


def page(results: dict[str, Any]) -> str:
    """Lay the results out for people."""
    lines = ["# What training is worth", "", "Made by `python benchmarks/quality.py --data ../shared/data --out "
             "docs/results`; splits and seeds: `benchmarks/quality_cases.py`. Gains are "
             "against the best rule of all, chosen on validation, positive when better, over the mean of the rule; "
             "intervals 95 %, paired, whole blocks of episodes drawn; figures are means over all training "
             "seeds."]  # fmt: skip
    for problem, found in results.items():
        seeds = len(found["promised"])
        lines += ["", f"## {problem}", "",
                  f"Best rule on validation: `{found['best_rule']}`; base rule of the learner: `{found['base_rule']}`. "
                  f"{seeds} training seeds, {np.mean(found['cpu_s_a_training']):.0f} s of CPU time each; the whole "
                  f"section {found['cpu_s'] / 60:.0f} minutes of CPU time beside other work (load average "
                  f"{found['load_average']}).", "",
                  "| test | metric | rule | student | gain | 95 % | worst seed | target | |",
                  "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
        for title, entry in found["tests"].items():
            for metric in (entry["primary"], *found["guarded"]):
                row, first = entry[metric], metric == entry["primary"]
                target = entry["target"] if first else None
                met = (
                    "" if target is None else ("met" if row["gain"] >= target and row["interval"][0] > 0 else "missed")
                )
                lines.append(
                    f"| {title} ({entry['episodes']} episodes, {entry['blocks']} blocks) | {metric} "
                    f"| {row['rule']:,.4g} | {row['ours']:,.4g} | **{_percent(row['gain'])}** | {_interval(row)} "
                    f"| {_percent(min(row['by_seed']))} | {'' if target is None else _percent(target)} | {met} |"
                )
        lines += ["", "Controls and bounds, gain on the first metric:", "",
                  "| test | look-ahead, future known | shuffled futures | another base rule | promised by validation |",
                  "| --- | --- | --- | --- | --- |"]  # fmt: skip
        for title, entry in found["tests"].items():
            base = next((name for name in entry if name.startswith("base ")), "base")
            cells = [f"{_percent(entry[name]['gain'])} {_interval(entry[name])}" if name in entry else "not measured"
                     for name in ("look-ahead", "shuffled futures", base)]  # fmt: skip
            if base in entry:
                cells[2] += f" (`{base.removeprefix('base ')}`)"
            lines.append(f"| {title} | {' | '.join(cells)} | {_percent(float(np.mean(found['promised'])))} |")
        if "front" in found:
            lines += ["", *found["front"]["page"]]
        if "note" in found:
            lines += ["", found["note"]]
    return "\n".join(lines) + "\n"


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _interval(row: dict[str, Any]) -> str:
    return "[" + ", ".join(f"{100 * value:.1f}" for value in row["interval"]) + "]"


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", default=list(CASES), choices=tuple(CASES))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--front", action="store_true", help="functions: students over beta too, five more trainings")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the public traces")
    parser.add_argument("--out", type=Path, help="folder for quality.json and quality.md; other sections are kept")
    options = parser.parse_args()
    file = options.out / "quality.json" if options.out else None
    results: dict[str, Any] = json.loads(file.read_text()) if file and file.exists() else {}
    for name in options.problems:
        kept = {key: results[name][key] for key in ("front", "note") if key in results.get(name, {})}
        results[name] = measure(CASES[name](options.data), options.seeds) | kept
        if name == "functions" and options.front:
            results[name]["front"] = front(options.data, **FRONT_SETTINGS)
        if file:
            file.write_text(json.dumps(results, indent=1) + "\n")
            file.with_suffix(".md").write_text(page(results))
    gains = {
        name: {title: round(entry[entry["primary"]]["gain"], 4) for title, entry in found["tests"].items()}
        for name, found in results.items()
    }
    say(json.dumps(gains))
    return 0


if __name__ == "__main__":
    run_cli(main)
