"""What the sections of ``quality.py`` share: trainings that are kept, comparisons over blocks, and tables."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from quality_cases import Case, Part

from pipeline.datasets import code_of
from pipeline.policies import algorithms
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

SAMPLES, BOOTSTRAP_SEED = 10_000, 20
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Figures = dict[str, Floats]
ALL_RULES = "all rules"


class Shown(NamedTuple):
    """A line of the table of targets: what was asked, what was found, and whether that is it."""

    what: str
    asked: str
    found: str
    verdict: str


def say(line: str) -> None:
    """Tell how far it is."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def judged(part: Part, policy: Any, metrics: Iterable[str]) -> Figures:
    """Run a part's episodes under a policy, or a rule in the scenario that is the rule's."""
    given = TorchPolicy(policy) if isinstance(policy, Scorer) else policy
    scenario = part.rules.get(policy, part.scenario) if isinstance(policy, str) else part.scenario
    rows = run_episodes(scenario, given, part.starts, trace=part.trace)
    return {name: np.array([float(row[name]) for row in rows]) for name in metrics}


def look_ahead(part: Part, base: str, decisions: int, metrics: Iterable[str]) -> Figures:
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


def compare(problem: str, blocks: Ints, ours: list[Figures], theirs: Figures) -> dict[str, Any]:
    """Hold the seeds' figures against a rule's on the same episodes; gains are positive when better."""
    none, better = np.zeros(blocks.size, np.intp), problems.get(problem).better
    resampler = Resampler(none, blocks, samples=SAMPLES, seed=BOOTSTRAP_SEED)
    found: dict[str, Any] = {"episodes": int(blocks.size), "blocks": int(np.unique(blocks).size)}
    for name, rule in theirs.items():
        gains = np.stack([relative_difference(each[name], rule, none, higher=better(name) > 0) for each in ours])
        estimate = resampler.estimate(mean(gains.mean(axis=0)))
        found[name] = {
            "rule": float(rule.mean()),
            "ours": float(np.mean([each[name].mean() for each in ours])),
            "gain": estimate.value,
            "interval": [estimate.lower, estimate.upper],
            "by_seed": gains.mean(axis=1).tolist(),
        }
    return found


def taught(
    case: Case, seed: int, validate: Callable[[Scorer | str], Row], objective: Callable[[Row], float], **changes: Any
) -> tuple[Trained, float]:
    """Train once, or go on with what an earlier run left; returns CPU seconds of all runs too."""
    scenario, trace = case.train
    settings = algorithms.settings(case.algorithm, ("quality_cases.py", case.settings), **changes)
    scratch = folder(case, settings, seed)
    spent = scratch / "cpu_s.json"
    before, began = float(json.loads(spent.read_text())) if spent.exists() else 0.0, time.process_time()

    def report(segment: int, row: Row) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        spent.write_text(json.dumps(before + time.process_time() - began))
        say(f"  {case.problem} seed {seed} {changes or ''} segment {segment}: {json.dumps(row)}")

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


def folder(case: Case, settings: Any, seed: int) -> Path:
    """Name the place of a training by all it depends on: the benchmark goes on where it was stopped."""
    code = closure.fingerprint("pipeline.policies.training", *code_of(case.problem))
    data = pickle.dumps((case.train[1], case.validation.trace, case.validation.starts))
    digest = hashlib.sha256(repr((settings, case.train[0], case.validation.scenario, code)).encode() + data)
    return var() / "scratch" / "quality" / f"{case.problem}-{seed}-{digest.hexdigest()[:16]}"


def kept(name: str, depends: Any, make: Callable[[], Any]) -> tuple[Any, float]:
    """Return what a search found (numbers that JSON can hold), from a file if it is there, and its CPU seconds."""
    digest = hashlib.sha256(repr(depends).encode()).hexdigest()[:16]
    file = var() / "scratch" / "quality" / f"{name}-{digest}.json"
    if not file.exists():
        began = time.process_time()
        found = make()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps([found, time.process_time() - began]))
    found, spent = json.loads(file.read_text())
    return found, float(spent)


def spent_since(began: float) -> dict[str, float]:
    """Say what a section took beside what else ran; trainings that were kept are not in it."""
    return {"cpu_s": round(time.process_time() - began, 1), "load_average": round(os.getloadavg()[0], 1)}


def hypervolume(points: Floats, worst: Floats) -> float:
    """Return the area that points of two metrics, less being better, dominate up to the worst."""
    area, reached = 0.0, float(worst[1])
    for first, second in points[np.lexsort((points[:, 1], points[:, 0]))]:
        if first < worst[0] and second < reached:
            area += (float(worst[0]) - first) * (reached - second)
            reached = second
    return area


def fronts(rules: Mapping[str, Floats], ours: Mapping[str, Floats], blocks: Ints) -> dict[str, Any]:
    """Return hypervolumes of sets of points, and by how much the first of ours is above the best rule and all of them.

    A set is [points, 2, episodes]; its points are means over episodes. The area reaches up to the worst of all rules
    but the random one, and is a share of the rectangle between that and the best of each metric.
    """
    sets = {**ours, **rules, ALL_RULES: np.concatenate([*rules.values()])}
    if ALL_RULES in rules:
        raise ValueError(f"a rule is called {ALL_RULES!r}")
    worst = np.concatenate([each for name, each in rules.items() if name != "random_feasible"]).mean(axis=2).max(axis=0)
    area = float(np.prod(worst - np.concatenate([*sets.values()]).mean(axis=2).min(axis=0)))

    def share(points: Floats, counts: Floats) -> Floats:
        drawn = np.einsum("bn,pmn->bpm", counts, points) / counts.sum(axis=1)[:, None, None]
        return np.array([hypervolume(each, worst) / area for each in drawn])

    volumes = {name: float(share(each, np.ones((1, blocks.size)))[0]) for name, each in sets.items()}
    first, best = next(iter(ours)), max(rules, key=lambda name: volumes[name])
    resampler = Resampler(np.zeros(blocks.size, np.intp), blocks, samples=SAMPLES // 5, seed=BOOTSTRAP_SEED)
    above = {}
    for name in (best, ALL_RULES):
        found = resampler.estimate(lambda counts, name=name: share(sets[first], counts) - share(sets[name], counts))  # type: ignore[misc]
        above[name] = {"difference": found.value, "interval": [found.lower, found.upper]}
    return {"hypervolume": volumes, "ours": first, "best_rule": best, "above": above}


def front_rows(what: str, found: Mapping[str, Any]) -> list[Shown]:
    """Say whether a front is above that of the best rule, and of all rules."""
    volumes, lines = found["hypervolume"], []
    for name, row in found["above"].items():
        low, high = row["interval"]
        against = f"`{name}`, the best rule" if name != ALL_RULES else "all rules together"
        lines.append(
            Shown(
                f"{what}: hypervolume against {against}",
                "above" if name != ALL_RULES else "(not asked)",
                f"{volumes[found['ours']]:.4f} against {volumes[name]:.4f}: {row['difference']:+.4f} "
                f"[{low:.4f}, {high:.4f}]",
                "met" if low > 0 else ("**below**" if high < 0 else "**inconclusive**"),
            )
        )
    return lines


def percent(share: float, digits: int = 1) -> str:
    """Write a share as a change."""
    return f"{100 * share:+.{digits}f} %"


def interval(row: Mapping[str, Any], digits: int = 1) -> str:
    """Write an interval of shares in percent."""
    return "[" + ", ".join(f"{100 * value:.{digits}f}" for value in row["interval"]) + "]"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Lay out a table."""
    names = [*head]
    return ["", *("| " + " | ".join(row) + " |" for row in (names, ["---"] * len(names), *rows)), ""]


def compute(section: Mapping[str, Any]) -> str:
    """Say what a section's trainings and judging took."""
    each = section["cpu_s_a_training"]
    return (
        f"{section['seeds']} training seeds, {np.mean(each):.0f} s of CPU time a training ({len(each)} in all, "
        f"{sum(each):.0f} s); the last run, without trainings that it found done, {section['cpu_s']:.0f} s beside "
        f"other work (load average {section['load_average']})."
    )
