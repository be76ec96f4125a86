"""The sections ``functions``, ``front`` and ``jobs`` of ``quality.py``: students against the best rule.

The best rule is the best of all on the validation episodes. Every seed is one training, judged on its own validation;
its test episodes are paired with the rule's, a trace's difference being its mean over the seeds. Beside it stand the
look-ahead that knows the future (every candidate tried, the base rule going on, at every decision), a student of
shuffled futures (``evolution``: draws ranked at random), one that begins at another rule, and what validation had
promised.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from quality_cases import FRONT, FRONT_BASE, FRONT_BETAS, FRONT_SEEDS, NIGHT, Case, functions, jobs, philly
from quality_parts import (
    Figures,
    Floats,
    Shown,
    compare,
    compute,
    front_rows,
    fronts,
    interval,
    judged,
    look_ahead,
    percent,
    say,
    spent_since,
    table,
    taught,
)

from pipeline.policies import algorithms, rules
from pipeline.policies.checkpoint import Row, Trained
from pipeline.policies.scorer import Scorer
from sched_env import problems

TO_THE_END = 1_000
"""Decisions that a look-ahead takes where the algorithm has no trials of its own: more than an episode has."""
HEADROOM = 0.5
"""Share of a margin that may be used on validation, as in a night (``pipeline.train``)."""
CASES = {"functions": functions, "jobs": jobs, "jobs_philly": philly}


def limits_of(case: Case, rule: Figures) -> Row:
    """Return how much a training may be worse than the best rule, by its figures on validation."""
    return {
        name: float(rule[name].mean()) * (1.0 + HEADROOM * margin)
        for name, margin in case.shown.items()
        if case.within and margin > 0.0
    }


def student(case: Case, seed: int, limits: Row | None = None, **changes: Any) -> tuple[Trained, float]:
    """Train once, the best within the limits being chosen; returns CPU seconds too."""
    limits = limits or {}
    better = problems.get(case.problem).better(case.primary)

    def validate(policy: Scorer | str) -> Row:
        found = judged(case.validation, policy, [case.primary, *limits])
        return {name: float(found[name].mean()) for name in found}

    def objective(row: Row) -> float:
        beyond = sum(max(row[name] / most - 1.0, 0.0) / case.shown[name] for name, most in limits.items())
        return better * row[case.primary] - beyond * abs(row[case.primary])

    return taught(case, seed, validate, objective, **changes)


def measure(name: str, data: Path, seeds: int) -> dict[str, Any]:
    """Train and judge a problem."""
    case, began = CASES[name](data), time.process_time()
    problem = problems.get(case.problem)
    better, names = problem.better(case.primary), [case.primary, *case.shown]
    validated = {rule: judged(case.validation, rule, names) for rule in problem.heuristics}
    best, bar = rules.best(
        problem.heuristics,
        lambda rule: {case.primary: float(validated[rule][case.primary].mean())},
        lambda row: better * row[case.primary],
    )
    say(f"{name}: best rule on validation {best} ({better * bar:.6g})")
    settings = algorithms.settings(case.algorithm, ("quality_cases.py", case.settings))
    base, ahead = getattr(settings, "base", None) or best, getattr(settings, "decisions", TO_THE_END)
    limits = limits_of(case, validated[best])
    trained = [student(case, seed, limits) for seed in range(seeds)]
    control, _ = student(case, 0, limits, shuffled=True, **({"segments": 1} if case.algorithm == "expert" else {}))
    nights = [_exported(case, seeds + NIGHT * night, limits, better) for night in range(case.nights)]
    other_name, changes = case.other
    other, _ = student(case, 0, limits, **changes)
    promised = [max(better * row[case.primary] for row in each.curve) for each, _ in trained]
    result: dict[str, Any] = {
        "best_rule": best,
        "base_rule": base,
        "guarded": list(case.shown),
        "validation": {rule: {name: float(found[name].mean()) for name in names} for rule, found in validated.items()},
        "promised": [(value - bar) / abs(bar) for value in promised],
        "settings": {name: getattr(settings, name) for name in settings.__struct_fields__},
        "curves": [each.curve for each, _ in trained],
        "seeds": seeds,
        "cpu_s_a_training": [round(spent, 1) for _, spent in trained],
        "tests": {},
    }
    for title, part in case.tests.items():
        theirs = judged(part, best, names)
        entry = compare(case.problem, part.blocks, [judged(part, each.scorer, names) for each, _ in trained], theirs)
        entry["primary"], entry["target"] = case.primary, case.targets.get(title)
        if nights:
            shipped = [judged(part, each.scorer, names) for each, _ in nights]
            entry["nights"] = compare(case.problem, part.blocks, shipped, theirs)[case.primary]
        entry["rules"] = {
            rule: {name: float(value.mean()) for name, value in judged(part, rule, names).items()}
            for rule in problem.heuristics
            if rule not in rules.REMEMBER  # drawn at random, or a linear program for each decision
        }
        for control_name, each in (("shuffled futures", control), (f"base {other_name}", other)):
            entry[control_name] = compare(case.problem, part.blocks, [judged(part, each.scorer, names)], theirs)[
                case.primary
            ]
        if part.ahead:
            starts = part.starts[:: max(part.starts.size // part.ahead, 1)][: part.ahead]
            few = replace(part, starts=starts, blocks=np.arange(starts.size))
            known = look_ahead(few, base, ahead, names)
            entry["look-ahead"] = compare(case.problem, few.blocks, [known], judged(few, best, names))
        result["tests"][title] = entry
        gain = entry[case.primary]
        say(f"{name}, {title}: {percent(gain['gain'])} {interval(gain)}")
    return result | spent_since(began)


def _exported(case: Case, first: int, limits: Row, better: int) -> tuple[Trained, float]:
    """Train as often as a night does, and take what is best on validation, as ``export`` does."""
    trained = [student(case, seed, limits) for seed in range(first, first + NIGHT)]
    return max(trained, key=lambda each: max(better * row[case.primary] for row in each[0].curve))


def front(_name: str, data: Path, seeds: int) -> dict[str, Any]:
    """Train a student for each weight of latency against cost: what can be had for what, beside what rules give."""
    began, heuristics = time.process_time(), problems.get("functions").heuristics
    seeds = min(seeds, FRONT_SEEDS)
    points: dict[str, list[Floats]] = {}
    spent: list[float] = []
    for beta in FRONT_BETAS:
        case = functions(data, beta=beta)
        part = case.tests["10 nodes"]
        students = [student(case, seed, base=FRONT_BASE, polish=0) for seed in range(seeds)]
        spent += [round(seconds, 1) for _, seconds in students]
        named = {f"students, seed {seed}": each.scorer for seed, (each, _) in enumerate(students)}
        for name, policy in {**named, **{rule: rule for rule in heuristics}}.items():
            figures = judged(part, policy, FRONT)
            each = np.stack([figures[metric] for metric in FRONT])
            if not any(np.array_equal(each, before) for before in points.setdefault(name, [])):
                points[name].append(each)
        say(f"front, beta {beta}: " + ", ".join(f"{points[name][-1].mean(axis=1)}" for name in named))
    sets = {name: np.stack(found) for name, found in points.items()}
    ours = {name: each for name, each in sets.items() if name not in heuristics}
    ours = {"students, mean of seeds": np.mean([*ours.values()], axis=0), **ours}
    found = fronts({rule: sets[rule] for rule in heuristics}, ours, part.blocks)
    found["points"] = {name: each.mean(axis=2).tolist() for name, each in (ours | sets).items()}
    return found | {"betas": list(FRONT_BETAS), "seeds": seeds, "blocks": int(np.unique(part.blocks).size),
                    "episodes": int(part.blocks.size), "cpu_s_a_training": spent, **spent_since(began)}  # fmt: skip


def shown(name: str, found: dict[str, Any]) -> list[Shown]:
    """Say which targets are met."""
    lines = []
    for title, entry in found["tests"].items():
        row, target = entry[entry["primary"]], entry["target"]
        met = row["gain"] >= target and row["interval"][0] > 0
        short = "" if met else f", {100 * (target - row['gain']):.2f} points short"
        lines.append(
            Shown(
                f"{name}, {title}: `{entry['primary']}` against `{found['best_rule']}`",
                f"{percent(target)}, interval above 0",
                f"{percent(row['gain'], 2)} {interval(row)}",
                ("met" if met else "**missed**") + short,
            )
        )
    return lines


def front_shown(_name: str, found: dict[str, Any]) -> list[Shown]:
    """The same of the front."""
    return front_rows("functions, front over beta, 10 nodes", found)


def page(name: str, found: dict[str, Any]) -> list[str]:
    """Lay a problem's results out for people."""
    lines = ["", f"## {name}", "", f"Best rule on validation: `{found['best_rule']}`; base rule of the learner: "
             f"`{found['base_rule']}`. {compute(found)}"]  # fmt: skip
    rows, controls = [], []
    for title, entry in found["tests"].items():
        for metric in (entry["primary"], *found["guarded"]):
            row, first = entry[metric], metric == entry["primary"]
            target = entry["target"] if first else None
            met = "" if target is None else ("met" if row["gain"] >= target and row["interval"][0] > 0 else "missed")
            rows.append([
                f"{title} ({entry['episodes']} episodes, {entry['blocks']} blocks)", metric, f"{row['rule']:,.4g}",
                f"{row['ours']:,.4g}", f"**{percent(row['gain'])}**", interval(row), percent(min(row["by_seed"])),
                "" if target is None else percent(target), met,
            ])  # fmt: skip
        base = next((each for each in entry if each.startswith("base ")), "base")
        cells = [f"{percent(entry[each]['gain'])} {interval(entry[each])}" if each in entry else "not measured"
                 for each in ("shuffled futures", base)]  # fmt: skip
        if base in entry:
            cells[1] += f" (`{base.removeprefix('base ')}`)"
        ahead = entry.get("look-ahead", {})
        ahead = {entry["primary"]: ahead} if "gain" in ahead else ahead
        known = "; ".join(f"{metric} {percent(ahead[metric]['gain'])} {interval(ahead[metric])}"
                          for metric in (entry["primary"], *found["guarded"])
                          if metric in ahead and ahead[metric]["rule"])  # fmt: skip
        if "episodes" in ahead:
            known += f" ({ahead['episodes']} episodes)"
        controls.append([title, known or "not measured", *cells, percent(float(np.mean(found["promised"])))])
    lines += table(["test", "metric", "rule", "student", "gain", "95 %", "worst seed", "target", ""], rows)
    for title, entry in found["tests"].items():
        if night := entry.get("nights"):
            lines += [
                f"{title}, as nights end (of two trainings the better on validation, {len(night['by_seed'])} nights, "
                f"other seeds): {entry['primary']} **{percent(night['gain'], 2)}** {interval(night)}, worst night "
                f"{percent(min(night['by_seed']), 2)}.",
                "",
            ]
    lines += ["Controls and bounds, gain on the first metric where none is named:"]
    lines += table(["test", "look-ahead, future known", "shuffled futures, or ranking", "another base rule or start",
                    "promised by validation"], controls)  # fmt: skip
    primary = next(iter(found["tests"].values()))["primary"]
    curves = "; ".join(" → ".join(f"{row[primary]:,.4g}" for row in curve) for curve in found["curves"])
    return [*lines, f"{primary} on validation by segment, seed by seed: {curves}."]


def front_page(_name: str, found: dict[str, Any]) -> list[str]:
    """Lay the front out."""
    volumes, points = found["hypervolume"], found["points"]
    rows = []
    for name in sorted(volumes, key=lambda each: -volumes[each]):
        at = "; ".join(" / ".join(f"{value:.3f}" for value in point) for point in points.get(name, []))
        rows.append([name, f"{volumes[name]:.3f}", at])
    return [
        "",
        "## functions: the front over beta",
        "",
        f"One student for each beta of {', '.join(map(str, found['betas']))}; points are {' / '.join(FRONT)} at 10 "
        f"nodes ({found['episodes']} episodes, {found['blocks']} blocks). The hypervolume is the area that the points "
        "dominate up to the worst of all rules but the random one, as a share of the rectangle between that and the "
        "best of each. Rules but `oracle_greedy` do not know beta and are one point. " + compute(found),
        *table(["", "hypervolume", "points"], rows),
    ]
