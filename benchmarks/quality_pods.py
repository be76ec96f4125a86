"""The section ``pods`` of ``quality.py``: can ``best_single_move`` be improved by what is expected?

A node's score is minus a weighted sum of what the pod is expected to add to its violations, in the next window and an
hour later, and of the move. That is what a night trains where ``foresight`` is on; the forecast is fitted on the train
traces by the stage's own code. ``shuffled``: the same search where the forecasts of a window are those of other pods.

The cross-entropy method searches the weights on train traces, by violations over the rule's, with more moves and more
unmet requests punished; validation chooses among the generations, the rule included. Generated traces of their own
seeds are each a block; Bitbrains is cut by time, blocks are episodes. ``no choice`` is the last generation as it is,
untouched by validation: the winner's curse. The look-ahead tries every node at every decision with the future known.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from quality_cases import PODS_ENDS, PODS_EPISODE, PODS_FURTHER, PODS_LOADS, PODS_STARTS, PODS_TRACES, Part
from quality_parts import (
    Figures,
    Floats,
    Ints,
    Shown,
    compare,
    compute,
    interval,
    kept,
    look_ahead,
    percent,
    say,
    spent_since,
    table,
)

from pipeline.forecast import gate, methods
from sched_env import heuristics, scenarios
from sched_env.pods import forecast
from sched_env.pods import trace as pod_traces
from sched_env.pods.foresight import STAKES
from sched_env.pods.tables import WINDOW_S, PodTrace
from sched_env.vector import make_vec
from wire import closure

RULE, TARGET = "best_single_move", 0.05
METRICS = ("resource_violations", "migrations", "performance_violations", "cost_usd")
GENERATIONS, POPULATION, ELITE, INERTIA = 20, 20, 5, 0.4
TERMS = ("move", *STAKES)
START, SPREAD = np.array([0.02, 0.35, 0.35, 1.0, 1.0]), np.array([0.02, 0.2, 0.2, 0.5, 0.5])
SEARCH, CONTROL = "ahead", "ahead, shuffled"
GENERATED, FURTHER = "generated", "generated, further traces"
BITBRAINS = "bitbrains-vm-5min/rnd-2013-8"
Trace = tuple[PodTrace, Any]


def used(pods: PodTrace) -> tuple[Floats, Ints]:
    """Lay a trace out as the stage sees windows: [windows, pods, 2], and the window of each row."""
    window = np.repeat((pods.window_s // WINDOW_S).astype(np.int64), np.diff(pods.window_rows))
    use = np.full((int(window[-1]) + 1, len(pods.pod_names), 2), np.nan)
    use[window, pods.pod] = np.stack([pods.cpu_used, pods.mem_used], axis=1)
    return use, window


def fitted(train: list[Trace], held: list[Trace]) -> methods.Fitted:
    """Fit a forecast as a night does: on what trains, the methods chosen on what validates."""
    rows, other = (_together([methods.asked(used(pods)[0]) for pods, _ in part]) for part in (train, held))
    ways = methods.weights(rows)
    return gate.chosen(ways, gate.judge(ways, other)[0], rows)


def _together(parts: list[methods.Asked]) -> methods.Asked:
    """Put traces one after another."""
    first = np.cumsum([0, *[int(each.window[-1]) + gate.BLOCK_WINDOWS for each in parts]])
    return methods.together(
        [each._replace(window=each.window + begin) for each, begin in zip(parts, first, strict=False)]
    )


def foreseen(trace: Trace, model: methods.Fitted, shuffled: int | None = None) -> Trace:
    """Return a trace with what a forecast says of its pods; ``shuffled``: of other pods of the same window."""
    pods, nodes = trace
    use, window = used(pods)
    known = forecast.rows_of(use, window, pods.pod).reshape(window.size, 2, -1).astype(np.float64)
    said = methods.predicted(model, known)
    if shuffled is not None:
        rng = np.random.default_rng(shuffled)
        said = said[np.lexsort((rng.random(window.size), window))]
    return dataclasses.replace(pods, forecast=said), nodes


class Episodes:
    """Episodes of one trace, and how the rule fares in them."""

    def __init__(self, scenario: scenarios.Scenario, trace: Trace, starts: Ints) -> None:
        self.scenario, self.trace, self.starts = scenarios.load(scenario, {"foresight": True}), trace, starts
        self.part = Part(self.scenario, trace, starts, np.arange(starts.size))
        self.env = make_vec(self.scenario, starts.size, 0, trace)
        self.names = [feature.name for feature in self.env.feature_spec.candidate]
        self.rule = self.run(None)

    def run(self, weights: Floats | None) -> Figures:
        """Play them by weights; None: by the rule."""
        env, b = self.env, self.env.buffers
        env.reset(options={"starts": self.starts, "park": True})
        rule = heuristics.batch(RULE, env)
        while b.active.any():
            if weights is None:
                env.step(rule())
            else:
                seen = np.stack([1.0 - self._column("here"), *map(self._column, STAKES)], axis=-1)
                env.step(np.where(b.mask, -(seen @ weights), -np.inf).argmax(axis=1))
        sheet = dict(zip(env.METRICS, b.metrics.T, strict=True))
        return {name: sheet[name].copy() for name in (*METRICS, "sla_violation_rate")}

    def _column(self, name: str) -> Floats:
        return self.env.buffers.candidates[..., self.names.index(name)].astype(float)


def worse(found: list[Figures], sets: list[Episodes]) -> float:
    """Violations over the rule's, with more moves and more unmet requests punished; below 1 is better than the rule."""
    share = {
        name: (sum(each[name].sum() for each in found) + 1.0) / (sum(each.rule[name].sum() for each in sets) + 1.0)
        for name in METRICS
    }
    more = sum(max(share[name] - 1.0, 0.0) for name in ("migrations", "performance_violations"))
    return float(share["resource_violations"] + 0.5 * more)


def searched(
    train: list[Episodes], validation: list[Episodes], seed: int, generations: int = GENERATIONS
) -> dict[str, Any]:
    """Return the weights that validation chose (None: the rule), those of the last generation, and its curve there."""
    rng, centre, spread = np.random.default_rng(seed), START.copy(), SPREAD.copy()
    chosen, curve = None, [1.0]
    for generation in range(generations):
        half = rng.normal(size=(POPULATION // 2, centre.size))
        draws = np.maximum(centre + spread * np.concatenate([half, -half]), 0.0)
        order = np.argsort([worse([each.run(draw) for each in train], train) for draw in draws], kind="stable")
        best = draws[order[:ELITE]]
        centre = INERTIA * centre + (1 - INERTIA) * best.mean(axis=0)
        spread = INERTIA * spread + (1 - INERTIA) * best.std(axis=0)
        found = worse([each.run(centre) for each in validation], validation)
        if found < min(curve):
            chosen = centre.tolist()
        curve.append(found)
        say(f"  pods, seed {seed} generation {generation + 1}: {found:.4f}")
    return {"chosen on validation": chosen, "no choice": centre.tolist(), "curve": curve}


def generated(load: float, seeds: Iterable[int]) -> list[tuple[scenarios.Scenario, Trace, Ints]]:
    """Traces of these seeds."""
    sets = []
    for seed in seeds:
        scenario = scenarios.load("pods/deploy", {"load": load, "trace_seed": seed})
        first = np.linspace(0, scenario.trace_windows - PODS_EPISODE - 1, 8).astype(np.int64)  # type: ignore[attr-defined]
        sets.append((scenario, pod_traces.load(None, scenario), first))  # type: ignore[arg-type]
    return sets


def bitbrains(data: Path, load: float) -> tuple[list[tuple[scenarios.Scenario, Trace, Ints]], ...]:
    """Half of the windows to train, a seventh to validate, the rest to test."""
    scenario = scenarios.load("pods/deploy", {"load": load})
    trace = pod_traces.load(data / BITBRAINS, scenario)  # type: ignore[arg-type]
    windows = len(trace[0])
    ends = [*(int(windows * share) for share in PODS_ENDS[:-1]), windows - PODS_EPISODE - 1]
    return tuple(
        [(scenario, trace, np.linspace(first, last - PODS_EPISODE, count).astype(np.int64))]
        for first, last, count in zip(ends, ends[1:], PODS_STARTS, strict=False)
    )


def parts(title: str, load: float, data: Path, shuffled: int | None = None) -> list[list[Episodes]]:
    """Make the episodes of train, validation, test and, of generated traces, further ones, with what is expected."""
    if title == GENERATED:
        sets = [generated(load, each) for each in (*PODS_TRACES, PODS_FURTHER)]
    else:
        sets = [*bitbrains(data, load), []]
    if title == GENERATED:
        model = fitted([trace for _, trace, _ in sets[0]], [trace for _, trace, _ in sets[1]])
    else:  # one trace, cut by time
        pods, nodes = sets[0][0][1]
        first, second = (int(len(pods) * share) for share in PODS_ENDS[1:3])
        model = fitted([(pods.windows(0, first), nodes)], [(pods.windows(first, second), nodes)])
    said: dict[int, Trace] = {}
    for part in sets:
        for _, trace, _ in part:
            said.setdefault(id(trace), foreseen(trace, model, shuffled))
    return [[Episodes(scenario, said[id(trace)], starts) for scenario, trace, starts in part] for part in sets]


def compared(found: list[list[Figures]], sets: list[Episodes]) -> dict[str, Any]:
    """Hold tests, by seed and trace, against the rule; a trace is a block, an episode where there is one trace."""
    sizes = [each.part.starts.size for each in sets]
    blocks = np.repeat(np.arange(len(sets)), sizes) if len(sets) > 1 else np.arange(sizes[0])
    rule = {name: np.concatenate([each.rule[name] for each in sets]) for name in METRICS}
    ours = [{name: np.concatenate([each[name] for each in one]) for name in METRICS} for one in found]
    return compare("pods", blocks, ours, rule)


def measure(_name: str, data: Path, seeds: int) -> dict[str, Any]:
    """Search and judge on each kind of trace."""
    began, spent = time.process_time(), []
    code = closure.fingerprint(
        "sched_env.pods.batch", "sched_env.pods.vector", "sched_env.pods.trace", "pipeline.forecast.gate"
    )
    result: dict[str, Any] = {"traces": {}}
    for title, load in PODS_LOADS.items():
        entry: dict[str, Any] = {"load": load, "searches": {}}
        result["traces"][title] = entry
        for search, shuffled, count in ((SEARCH, None, seeds), (CONTROL, 0, 1)):
            train, validation, test, further = parts(title, load, data, shuffled)
            starts = [each.starts.tolist() for each in (*train, *validation)]
            settings = (START, SPREAD, GENERATIONS, POPULATION, ELITE, INERTIA)
            depends = (title, load, shuffled, PODS_TRACES, starts, settings, code)
            found = [kept(f"pods-{seed}", depends, partial(searched, train, validation, seed)) for seed in range(count)]
            spent += [round(seconds, 1) for _, seconds in found]
            entry["searches"][search] = _entry([weights for weights, _ in found], test)
            if further and search == SEARCH:
                result["traces"][FURTHER] = {
                    "load": load,
                    "searches": {SEARCH: _entry([weights for weights, _ in found], further)},
                    "share": _violated(further),
                }
            say(f"pods, {title}, {search}: {entry['searches'][search]['chosen on validation'][METRICS[0]]}")
        entry["share"] = _violated(test)
        entry["look-ahead"] = compared([[look_ahead(test[0].part, RULE, 40, METRICS)]], test[:1])
    return result | {"seeds": seeds, "cpu_s_a_training": spent, **spent_since(began)}


def _violated(sets: list[Episodes]) -> float:
    """Return the share of positions that the rule leaves in violation."""
    return float(np.mean([each.rule["sla_violation_rate"].mean() for each in sets]))


def _entry(found: list[dict[str, Any]], test: list[Episodes]) -> dict[str, Any]:
    """Judge what the seeds of a search found; a search of which validation kept nothing is the rule."""

    def played(weights: list[float] | None) -> list[Figures]:
        return [each.run(None if weights is None else np.array(weights)) for each in test]

    entry: dict[str, Any] = {
        name: compared([played(one[name]) for one in found], test) for name in ("chosen on validation", "no choice")
    }
    weights = [dict(zip(TERMS, np.round(one["chosen on validation"] or one["no choice"], 4).tolist(), strict=True))
               for one in found]  # fmt: skip
    return entry | {"curves": [one["curve"] for one in found], "weights": weights}


def shown(_name: str, result: dict[str, Any]) -> list[Shown]:
    """Say which targets are met."""
    lines = []
    for title, entry in result["traces"].items():
        row = entry["searches"][SEARCH]["chosen on validation"]
        first, moves, cost = (row[name] for name in (METRICS[0], "migrations", "cost_usd"))
        met = first["gain"] >= TARGET and first["interval"][0] > 0 and min(moves["gain"], cost["gain"]) > -0.005
        lines.append(
            Shown(
                f"pods, {title} (load {entry['load']}): violations against `{RULE}`",
                f"{percent(TARGET)}, no more moves, no higher cost",
                f"{percent(first['gain'])} {interval(first)}; moves {percent(moves['gain'])} {interval(moves)}, "
                f"cost {percent(cost['gain'])}",
                "met" if met else f"**missed**, {100 * (TARGET - first['gain']):.1f} points short",
            )
        )
    return lines


def page(_name: str, result: dict[str, Any]) -> list[str]:
    """Lay the results out for people."""
    lines = [f"Against `{RULE}` on test traces, gains are positive when better; 95 % intervals over blocks. "
             + compute(result)]  # fmt: skip
    for title, entry in result["traces"].items():
        lines += ["", f"## {title}, load {entry['load']}: {100 * entry['share']:.1f} % violated under the rule"]
        parts = {f"{search}, {name}": found[name] for search, found in entry["searches"].items()
                 for name in ("chosen on validation", "no choice")}  # fmt: skip
        rows = []
        ahead = {"look-ahead": entry["look-ahead"]} if "look-ahead" in entry else {}
        for name, part in {**parts, **ahead}.items():
            for metric in METRICS:
                row = part[metric]
                rows.append([f"{name} ({part['episodes']} episodes, {part['blocks']} blocks)", metric,
                             f"{row['rule']:,.4g}", f"{row['ours']:,.4g}", f"**{percent(row['gain'])}**",
                             interval(row), percent(min(row["by_seed"]))])  # fmt: skip
        lines += table(["", "metric", "rule", "ours", "gain", "95 %", "worst seed"], rows)
        for search, found in entry["searches"].items():
            promised = ", ".join(percent(1.0 - min(curve)) for curve in found["curves"])
            lines += [f"- {search}: promised by validation, seed by seed: {promised}"]
        last = entry["searches"][SEARCH]["weights"]
        middle = {term: float(np.median([each[term] for each in last])) for term in last[0]}
        lines += ["- weights, median of the seeds: "
                  + ", ".join(f"{term} {value:+.3f}" for term, value in middle.items())]  # fmt: skip
    return lines
