"""The section ``pods`` of ``quality.py``: can ``best_single_move`` be improved by weights beside the price it goes by?

A node's score is minus the exact penalty of the window with the pod there (what the rule counts), and minus a weighted
sum of what else is seen: peaks, 95th percentiles and means with the pod there, beyond thresholds too, change within the
window, the move itself, and, in a second search, the same exact count in the two windows before. All other weights 0
is the rule. The cross-entropy method searches them on train traces, by violations over the rule's, with more moves and
more unmet requests punished; validation chooses among the generations, the rule included. Generated traces of their own
seeds are each a block; Bitbrains is cut by time, blocks are episodes. ``no choice`` is the last generation as it is,
untouched by validation: the winner's curse. The look-ahead tries every node at every decision with the future known.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from quality_cases import PODS_ENDS, PODS_EPISODE, PODS_LOADS, PODS_STARTS, PODS_TRACES, Part
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

from sched_env import heuristics, scenarios
from sched_env.jit import lean_kernel
from sched_env.pods import trace as pod_traces
from sched_env.pods.batch import left_behind, penalty_at
from sched_env.pods.counting import SLACK
from sched_env.pods.state import CPU, MEM, PREVIOUS, ROW, WINDOW
from sched_env.vector import make_vec
from wire import closure

RULE, TARGET = "best_single_move", 0.05
METRICS = ("resource_violations", "migrations", "performance_violations", "cost_usd")
GENERATIONS, POPULATION, ELITE, INERTIA = 10, 20, 5, 0.4
WINDOWS = 2
"""Further windows that are counted, in the second search."""
TERMS = ("penalty", "peak", "peak > 0.8", "p95 > 0.8", "mean", "mean > 0.6", "move", "cpu change", "mem change")
SEARCHES = {"this window": TERMS, "three windows": (*TERMS, "one before", "two before")}
START = np.array([1.0, 1e-5, 0, 0, 0, 0, 0, 0, 0, 0, 0])
SPREAD = np.array([0.1, 0.2, 0.2, 0.2, 0.2, 0.2, 0.1, 0.1, 0.1, 0.4, 0.4])
BITBRAINS = "bitbrains-vm-5min/rnd-2013-8"


@lean_kernel
def penalties(arguments: Any, active: NDArray[np.bool_], out: Floats) -> None:
    """Write what the window would have cost with each offered pod on each node."""
    cluster, rules, state, scratch = arguments
    for b in range(active.size):
        if active[b]:
            moved = left_behind(cluster, rules, state, scratch, b)
            for n in range(out.shape[1]):
                out[b, n] = penalty_at(cluster, rules, state, scratch, b, n, moved)


@lean_kernel
def counted_before(
    arguments: Any, active: NDArray[np.bool_], rows: Ints, loads: Floats, sizes: Ints, out: Floats
) -> None:
    """Write what each offered pod would have added on each node in windows before, pods being where they are now.

    Positions above and below are counted as in this window (``serial``); a pod that was not there yet is taken as in
    the first window it is known of. ``rows``, ``loads`` [nodes, positions x 2] and ``sizes`` are room.
    """
    cluster, rules, state, _ = arguments
    nodes = cluster.nodes.shape[0]
    for b in range(active.size):
        if not active[b]:
            continue
        window, offered = state.cursor[b, WINDOW], state.cursor[b, ROW]
        first = cluster.window_rows[window]
        count = cluster.window_rows[window + 1] - first
        for k in range(count):
            rows[k] = first + k
        for back in range(out.shape[1]):
            loads[:] = 0.0
            sizes[:] = 0
            for k in range(count):
                previous = cluster.pods[rows[k], PREVIOUS]
                if previous >= 0:
                    rows[k] = cluster.window_rows[window - back - 1] + previous
                n = state.place[b, window & 1, k]
                if n < 0 or k == offered:
                    continue
                begin, end = cluster.row_requests[rows[k]], cluster.row_requests[rows[k] + 1]
                sizes[n] = max(sizes[n], end - begin)
                for q in range(2 * (end - begin)):
                    loads[n, q] += cluster.demands[2 * begin + q]
            begin, end = cluster.row_requests[rows[offered]], cluster.row_requests[rows[offered] + 1]
            for n in range(nodes):
                cpu, mem = cluster.nodes[n, CPU], cluster.nodes[n, MEM]
                change = 0.0
                for q in range(max(sizes[n], end - begin)):
                    for there in range(2):
                        load_cpu, load_mem = loads[n, 2 * q], loads[n, 2 * q + 1]
                        if there == 1 and q < end - begin:
                            load_cpu += cluster.demands[2 * (begin + q)]
                            load_mem += cluster.demands[2 * (begin + q) + 1]
                        if there == 0 and q >= sizes[n]:
                            continue
                        above = load_cpu > rules.threshold * cpu * SLACK or load_mem > rules.threshold * mem * SLACK
                        low_cpu, low_mem = rules.under_threshold * cpu, rules.under_threshold * mem
                        below = load_cpu * SLACK < low_cpu or load_mem * SLACK < low_mem
                        change += (2 * there - 1) * (rules.weight_over * above + rules.weight_under * below)
                out[b, back, n] = change


class Episodes:
    """Episodes of one trace, and how the rule fares in them."""

    def __init__(self, scenario: scenarios.Scenario, trace: Any, starts: Ints) -> None:
        self.part = Part(scenario, trace, starts, np.arange(starts.size))
        self.env = make_vec(scenario, starts.size, 0, trace)
        cluster, _, state, _ = self.env.arguments
        shape = self.env.buffers.mask.shape
        self.penalty: Floats = np.zeros(shape)
        self.before: Floats = np.zeros((shape[0], WINDOWS, shape[1]))
        self.room = (np.zeros(state.place.shape[2], np.int64), np.zeros((cluster.nodes.shape[0], state.loads.shape[2])),
                     np.zeros(cluster.nodes.shape[0], np.int64))  # fmt: skip
        self.names = [feature.name for feature in self.env.feature_spec.candidate]
        self.rule = self.run(None)

    def run(self, weights: Floats | None) -> Figures:
        """Play them by weights; None: by the rule."""
        env, b = self.env, self.env.buffers
        env.reset(options={"starts": self.part.starts, "park": True})
        rule = heuristics.batch(RULE, env)
        while b.active.any():
            if weights is None:
                env.step(rule())
                continue
            penalties(env.arguments, b.active, self.penalty)
            if weights.size > len(TERMS):
                counted_before(env.arguments, b.active, *self.room, self.before)
            seen = self._seen()[..., : weights.size]
            env.step(np.where(b.mask, -(seen @ weights), -np.inf).argmax(axis=1))
        sheet = dict(zip(env.METRICS, b.metrics.T, strict=True))
        return {name: sheet[name].copy() for name in (*METRICS, "sla_violation_rate")}

    def _seen(self) -> Floats:
        column = {name: self.env.buffers.candidates[..., place].astype(float) for place, name in enumerate(self.names)}
        peak, p95, level = (
            np.maximum(column[f"cpu_{name}_after"], column[f"mem_{name}_after"]) for name in ("max", "p95", "mean")
        )
        terms = (self.penalty * len(self.penalty[0]), peak, np.maximum(peak - 0.8, 0), np.maximum(p95 - 0.8, 0),
                 level, np.maximum(level - 0.6, 0), 1.0 - column["here"], column["cpu_change_after"],
                 column["mem_change_after"], *self.before.transpose(1, 0, 2))  # fmt: skip
        return np.stack(terms, axis=-1)


def worse(found: list[Figures], sets: list[Episodes]) -> float:
    """Violations over the rule's, with more moves and more unmet requests punished; below 1 is better than the rule."""
    share = {
        name: (sum(each[name].sum() for each in found) + 1.0) / (sum(each.rule[name].sum() for each in sets) + 1.0)
        for name in METRICS
    }
    more = sum(max(share[name] - 1.0, 0.0) for name in ("migrations", "performance_violations"))
    return float(share["resource_violations"] + 0.5 * more)


def searched(train: list[Episodes], validation: list[Episodes], terms: int, seed: int) -> dict[str, list[float]]:
    """Return the weights that validation chose, those of the last generation, and the curve on validation."""
    rng, centre, spread = np.random.default_rng(seed), START[:terms].copy(), SPREAD[:terms].copy()
    chosen, curve = centre, [1.0]
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
        say(f"  pods, {terms} terms, seed {seed} generation {generation + 1}: {found:.4f}")
    return {"chosen on validation": chosen.tolist(), "no choice": centre.tolist(), "curve": curve}


def generated(load: float, seeds: range) -> list[Episodes]:
    """Traces of these seeds."""
    sets = []
    for seed in seeds:
        scenario = scenarios.load("pods/deploy", {"load": load, "trace_seed": seed})
        first = np.linspace(0, scenario.trace_windows - PODS_EPISODE - 1, 8).astype(np.int64)  # type: ignore[attr-defined]
        sets.append(Episodes(scenario, pod_traces.load(None, scenario), first))  # type: ignore[arg-type]
    return sets


def bitbrains(data: Path, load: float) -> tuple[list[Episodes], ...]:
    """Half of the windows to train, a seventh to validate, the rest to test."""
    scenario = scenarios.load("pods/deploy", {"load": load})
    trace = pod_traces.load(data / BITBRAINS, scenario)  # type: ignore[arg-type]
    windows = make_vec(scenario, 1, 0, trace).arguments[0].window_rows.size - 1
    ends = [*(int(windows * share) for share in PODS_ENDS[:-1]), windows - PODS_EPISODE - 1]
    return tuple(
        [Episodes(scenario, trace, np.linspace(first, last - PODS_EPISODE, count).astype(np.int64))]
        for first, last, count in zip(ends, ends[1:], PODS_STARTS, strict=False)
    )


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
    code = closure.fingerprint("sched_env.pods.batch", "sched_env.pods.vector", "sched_env.pods.trace")
    result: dict[str, Any] = {"traces": {}}
    for title, load in PODS_LOADS.items():
        if title == "generated":
            train, validation, test = (generated(load, each) for each in PODS_TRACES)
        else:
            train, validation, test = bitbrains(data, load)
        share = float(np.mean([each.rule["sla_violation_rate"].mean() for each in test]))
        entry: dict[str, Any] = {"load": load, "share": share, "searches": {}}
        for search, terms in SEARCHES.items():
            found = []
            for seed in range(seeds):
                starts = [each.part.starts.tolist() for each in (*train, *validation)]
                depends = (title, load, starts, terms, START, SPREAD, GENERATIONS, POPULATION, ELITE, INERTIA, code)
                search_once = partial(searched, train, validation, len(terms), seed)
                weights, seconds = kept(f"pods-{seed}", depends, search_once)
                found.append(weights)
                spent.append(round(seconds, 1))
            shown_weights = [dict(zip(terms, np.round(one["chosen on validation"], 4).tolist(), strict=True))
                             for one in found]  # fmt: skip
            entry["searches"][search] = {"curves": [one["curve"] for one in found], "weights": shown_weights} | {
                name: compared([[each.run(np.array(one[name])) for each in test] for one in found], test)
                for name in ("chosen on validation", "no choice")
            }
            say(f"pods, {title}, {search}: {entry['searches'][search]['chosen on validation'][METRICS[0]]}")
        known = look_ahead(test[0].part, RULE, 40, METRICS)
        entry["look-ahead"] = compared([[known]], test[:1])
        result["traces"][title] = entry
    return result | {"seeds": seeds, "cpu_s_a_training": spent, **spent_since(began)}


def shown(_name: str, result: dict[str, Any]) -> list[Shown]:
    """Say which targets are met."""
    lines = []
    for title, entry in result["traces"].items():
        for search, found in entry["searches"].items():
            row = found["chosen on validation"]
            first, moves, cost = (row[name] for name in (METRICS[0], "migrations", "cost_usd"))
            met = first["gain"] >= TARGET and first["interval"][0] > 0 and min(moves["gain"], cost["gain"]) > -0.005
            lines.append(
                Shown(
                    f"pods, {title} (load {entry['load']}), {search}: violations against `{RULE}`",
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
        for name, part in {**parts, "look-ahead": entry["look-ahead"]}.items():
            for metric in METRICS:
                row = part[metric]
                rows.append([f"{name} ({part['episodes']} episodes, {part['blocks']} blocks)", metric,
                             f"{row['rule']:,.4g}", f"{row['ours']:,.4g}", f"**{percent(row['gain'])}**",
                             interval(row), percent(min(row["by_seed"]))])  # fmt: skip
        lines += table(["", "metric", "rule", "ours", "gain", "95 %", "worst seed"], rows)
        for search, found in entry["searches"].items():
            promised = ", ".join(percent(1.0 - min(curve)) for curve in found["curves"])
            lines += [f"- {search}: promised by validation, seed by seed: {promised}"]
        last = next(reversed(entry["searches"].values()))["weights"]
        middle = {term: float(np.median([each[term] for each in last])) for term in last[0]}
        lines += ["- weights of the second search, median of the seeds: "
                  + ", ".join(f"{term} {value:+.3f}" for term, value in middle.items())]  # fmt: skip
    return lines
