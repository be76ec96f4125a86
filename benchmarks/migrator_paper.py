"""The migrator's plans without an API server: the load model of ``migrator_live``, and what its guard is worth.

    python benchmarks/migrator_paper.py [--policy policy.onnx] [--seeds 21 22 … 30] [--crowds long short] \
        [--least-saved 0 1] [--out docs/results]
    … --foresight                also what a night would have made of the three days before (migrator_foresight.py)

Each window the service's own planner (``placement.kube.plan``) is given pods and nodes with the use of that window;
what it would move is elsewhere in the next. One workload in five has a PDB that lets nobody go, and what moved stays
for three windows. First placement by chance. Loads are flash crowds: services are quiet, and then several times as
busy for a heavy-tailed while, some of them together. Violations are positions of a window at which a node's cpu or
memory is above 0.8 of its capacity. It takes seconds, so that settings can be chosen on loads that the live benchmark
does not report. The last line is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from placement.kube import plan as planning
from placement.kube.config import MigratorSettings
from placement.kube.objects import Node, Pod
from placement.kube.past import Foresee, Past
from placement.kube.plan import Answer, Ask
from sched_env import heuristics
from sched_env.pods import features
from sched_env.pods.tables import WINDOW_S, PodTrace, offsets
from sched_env.tables import NodeTable
from wire import graph
from wire.errors import run_cli

POSITIONS = 21
CPU, MEM_GIB = 8.0, 32.0
REQUEST_CPU, REQUEST_GIB = 0.5, 1.0
THRESHOLD, BUDGET = 0.8, 0.05
CROWD_STEPS = {"long": 40, "short": 4, "daily": 40}
"""The shortest crowd, of 15 s steps. long: ten minutes, half of them last longer than eighteen; short: one minute, half
of them are over within two, before a migrator that looks every five minutes can do anything. daily: long ones that come
back every day at the same time."""
DAY = 288
NODES, WORKLOADS, WINDOWS = 12, 40, 24
BEFORE = 3 * DAY
"""Windows before the first that is played, where a night makes its policy of them: three days."""
COOL_DOWN, RETRY = 3, 6
"""Windows for which what moved stays, and what a PDB kept is not offered: 900 s and 1800 s."""

Where = dict[str, tuple[int, str]]
"""Pod -> workload and node."""
Trace = tuple[PodTrace, NodeTable]


class Crowds:
    """What each pod of a workload uses: [workload, window, position], cores and GiB."""

    def __init__(self, workloads: int, windows: int, seed: int, kind: str, before: int = 0) -> None:
        """Draw a load; ``before`` is how many windows of it lie before the first that is played."""
        rng = np.random.default_rng(seed)
        windows += before
        steps = windows * POSITIONS
        quiet = rng.lognormal(np.log(0.35), 0.5, workloads)
        peak = rng.uniform(2.0, 5.0, workloads)
        drawn = min(windows, DAY) if kind == "daily" else windows
        busy = np.zeros((workloads, drawn * POSITIONS))
        longest = (windows - before) * POSITIONS
        for _ in range(workloads * drawn // 40):
            start, length = int(rng.integers(busy.shape[1])), CROWD_STEPS[kind] * (1 + rng.pareto(1.2))
            crowd = rng.random(workloads) < rng.choice([1.5, 5.0]) / workloads  # alone, or together
            busy[crowd, start : start + int(min(length, longest))] = 1.0
        busy = np.tile(busy, -(-windows // drawn))[:, :steps]
        ramp = np.array([0.25, 0.5, 0.25])
        busy = np.stack([np.convolve(row, ramp, "same") for row in busy])
        noise = rng.gamma(20.0, 1 / 20.0, (workloads, steps))
        cpu = quiet[:, None] * (1.0 + busy * (peak[:, None] - 1.0)) * noise
        mem = rng.uniform(0.3, 0.9, workloads)[:, None] * (1.0 + 0.3 * busy)
        self.before = before
        self.whole = np.stack([each.reshape(workloads, windows, POSITIONS) for each in (cpu, mem)])
        """[cpu and memory, workload, window, position], those before included."""
        self.cpu, self.mem = self.whole[:, :, before:]

    def day(self, workload: int, window: int, windows: int) -> NDArray[np.float64]:
        """Return [cpu and memory, windows] of means before a window; NaN where the load had not begun."""
        end = self.before + window
        known = self.whole[:, workload, max(end - windows, 0) : end].mean(axis=-1)
        return np.pad(known, ((0, 0), (windows - known.shape[1], 0)), constant_values=np.nan)


def violations(where: Where, crowds: Crowds, window: int) -> int:
    """Count positions above the threshold, node by node."""
    loads: dict[str, NDArray[np.float64]] = {}
    for workload, node in where.values():
        use = np.stack([crowds.cpu[workload, window] / CPU, crowds.mem[workload, window] / MEM_GIB])
        loads[node] = loads.get(node, np.zeros((2, POSITIONS))) + use
    return sum(int((load.max(axis=0) > THRESHOLD * (1 + 1e-9)).sum()) for load in loads.values())


def lets_nobody_go(workload: int) -> bool:
    """Say whether a workload's PDB wants all of its pods all the time."""
    return workload % 5 == 4


class Used:
    """The use of one window, as the planner asks for it."""

    positions = POSITIONS

    def __init__(self, where: Where, crowds: Crowds, window: int, nodes: int) -> None:
        self._where, self._crowds, self._window = where, crowds, window
        self._nodes = {f"node-{index:02d}": np.zeros((2, POSITIONS)) for index in range(nodes)}
        self._pods: dict[str, NDArray[np.float64]] = {}
        for name, (workload, node) in where.items():
            series = np.stack([crowds.cpu[workload, window], crowds.mem[workload, window]])
            self._pods[f"default/{name}"] = series
            self._nodes[node] += series

    def _of(self, name: str) -> dict[str, NDArray[np.float64]]:
        return self._nodes if name.startswith("node") else self._pods

    def get(self, name: str, key: str) -> NDArray[np.float64] | None:
        """Return a window."""
        found = self._of(name).get(key)
        return None if found is None else found[int(name.endswith("mem"))]

    def keys(self, name: str) -> set[str]:
        """Return of what a query is known."""
        return set(self._of(name))

    def day(self, name: str, windows: int) -> dict[str, NDArray[np.float64]]:
        """Return the means of the windows before, of pods that are where they were."""
        known = {key: workload for key, (workload, _) in self._where.items() if "-moved-" not in key}
        return {
            f"default/{key}": self._crowds.day(workload, self._window, windows)[int(name.endswith("mem"))]
            for key, workload in known.items()
        }


def scored_by(policy: bytes | None, *, foresight: bool = False) -> Ask:
    """Return who answers: a policy, or without one the rule that the service falls back to."""
    session = None if policy is None else graph.open_session(policy)
    build = features.build if foresight else features.build_before

    def ask(names: list[str], columns: Any, request: Any) -> Answer | None:
        seen = build(columns, request.fields)
        if session is None:
            scores = heuristics.score("pods", "hottest_to_coolest", columns, request.fields, seen.mask)
        else:
            scores = graph.scores(
                session, seen.candidates[np.newaxis], seen.request[np.newaxis], seen.mask[np.newaxis]
            )[0]
        best = int(np.where(seen.mask, scores, -np.inf).argmax())
        return Answer(names[best], None, session is None, "") if seen.mask.any() else None

    return ask


def replay(
    first: Where,
    crowds: Crowds,
    windows: int,
    nodes: int,
    ask: Ask,
    least_saved: int,
    foresee: Foresee | None = None,
) -> tuple[int, int]:
    """Plan window after window from a first placement; returns violations and moves."""
    where, counted, moves = dict(first), 0, 0
    at = [0]
    past = Past(foresee, lambda: WINDOW_S * (at[0] + 1000)) if foresee else None
    stays_until: dict[str, int] = {}
    machines = [_node(f"node-{index:02d}") for index in range(nodes)]
    settings = MigratorSettings("paper", threshold=THRESHOLD, budget=BUDGET, least_saved=least_saved)
    for window in range(windows):
        counted += violations(where, crowds, window)

        def stays(pod: Pod, window: int = window) -> str | None:
            return "it is too young" if stays_until.get(pod.metadata.uid, 0) > window else None

        pods = [_pod(name, *place) for name, place in where.items()]
        used, at[0] = Used(where, crowds, window, nodes), window
        foreseen = past.expected(pods, used) if past else None
        for move in planning.make(machines, pods, used, settings, ask, stays, lambda _: 1.0, foreseen).moves:
            name = move.pod.metadata.name
            workload = where[name][0]
            if lets_nobody_go(workload):
                stays_until[name] = window + RETRY
                continue
            del where[name]
            moves += 1
            where[f"w-{workload}-moved-{moves}"] = (workload, move.target)
            stays_until[f"w-{workload}-moved-{moves}"] = window + COOL_DOWN
    return counted, moves


def _node(name: str) -> Node:
    allocatable = {"cpu": str(int(CPU)), "memory": f"{int(MEM_GIB)}Gi", "pods": "110"}
    said = {"metadata": {"name": name}, "status": {"allocatable": allocatable}}
    return msgspec.convert(said, Node)


def _pod(name: str, workload: int, node: str) -> Pod:
    owners = [{"kind": "ReplicaSet", "name": f"w-{workload}-rs", "controller": True}]
    container = {"resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}
    said = {
        "metadata": {"name": name, "namespace": "default", "uid": name, "ownerReferences": owners},
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": "Running"},
    }
    return msgspec.convert(said, Pod)


def by_chance(seed: int) -> Where:
    """Place two pods of each workload; no node gets more than it has cores for."""
    places = np.random.default_rng([seed, 7]).permutation(np.repeat(np.arange(NODES), int(2 * CPU)))
    return {f"w-{pod // 2}-{pod}": (pod // 2, f"node-{places[pod]:02d}") for pod in range(2 * WORKLOADS)}


def trace_of(first: Where, crowds: Crowds, nodes: int, begin: int = 0) -> Trace:
    """Return the load from a window of the whole on, from the same placement, as a trace of the simulator."""
    names = sorted(first)
    node = np.array([int(first[name][1].split("-")[1]) for name in names])
    workload = np.array([first[name][0] for name in names])
    cpu, mem = crowds.whole[:, workload, begin:].transpose(0, 2, 1, 3)
    windows, size = cpu.shape[:2]
    trace = PodTrace(
        window_s=np.arange(windows, dtype=np.float64) * WINDOW_S,
        window_rows=np.arange(windows + 1) * size,
        pod=np.tile(np.arange(size), windows),
        node=np.tile(node, windows),
        cpu_request=np.full(windows * size, REQUEST_CPU),
        mem_request=np.full(windows * size, REQUEST_GIB),
        cpu_used=cpu.mean(axis=2).ravel(),
        mem_used=mem.mean(axis=2).ravel(),
        row_requests=offsets(np.full(windows * size, POSITIONS)),
        arrival_offset_s=np.tile(np.arange(POSITIONS) * WINDOW_S / POSITIONS, windows * size),
        duration_s=np.full(windows * size * POSITIONS, WINDOW_S / POSITIONS),
        cpu=cpu.ravel(),
        mem=mem.ravel(),
        pod_names=tuple(names),
    )
    table = NodeTable(
        tuple(f"node-{index:02d}" for index in range(nodes)), np.full(nodes, CPU), np.full(nodes, MEM_GIB),
        np.full(nodes, 1000.0), np.full(nodes, 5000.0), np.ones(nodes),
    )  # fmt: skip
    return trace, table


def _nightly(seed: int, load: Crowds) -> tuple[Ask, Foresee]:
    """Return the policy that a night makes of the days before a load, and its forecast."""
    from migrator_foresight import foreseeing, night

    with tempfile.TemporaryDirectory() as folder:
        made = night(by_chance(seed), load, NODES, Path(folder))
    print(f"seed {seed}: promised {made.promised:.1%}, weights {np.round(made.weights, 3).tolist()}", flush=True)
    return scored_by(made.policy, foresight=True), foreseeing(made)


def fewer(ours: list[int], theirs: list[int]) -> list[float]:
    """Return the share of violations that are saved over all seeds, and its 95 % interval by resampling seeds."""
    both = np.array([ours, theirs], float)
    drawn = both[:, np.random.default_rng(0).integers(both.shape[1], size=(10_000, both.shape[1]))].sum(axis=2)
    saved = 1.0 - drawn[0] / np.maximum(drawn[1], 1.0)
    found = [1.0 - both[0].sum() / max(both[1].sum(), 1.0), *np.percentile(saved, [2.5, 97.5])]
    return [round(float(each), 3) for each in found]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path, help="a trained policy.onnx of pods; without it the rule answers")
    parser.add_argument("--foresight", action="store_true", help="a policy with a forecast, of the days before")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(21, 31)))
    parser.add_argument("--crowds", nargs="+", choices=list(CROWD_STEPS), default=["long", "short"])
    parser.add_argument("--least-saved", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--out", type=Path, help="folder for migrator_paper.json")
    options = parser.parse_args()
    results = []
    for kind in options.crowds:
        loads = {s: Crowds(WORKLOADS, WINDOWS, s, kind, BEFORE if options.foresight else 0) for s in options.seeds}
        stay = {s: sum(violations(by_chance(s), load, at) for at in range(WINDOWS)) for s, load in loads.items()}
        policy = None if options.policy is None else options.policy.read_bytes()
        who: dict[str, dict[int, tuple[Ask, Foresee | None]]] = {
            "hottest_to_coolest" if policy is None else "policy": dict.fromkeys(loads, (scored_by(policy), None))
        }
        if options.foresight:
            who["foresight"] = {seed: _nightly(seed, load) for seed, load in loads.items()}
        for name, least in itertools.product(who, options.least_saved):
            found = {}
            for seed, load in loads.items():
                ask, foresee = who[name][seed]
                found[seed] = replay(by_chance(seed), load, WINDOWS, NODES, ask, least, foresee)
            falls = [1 - found[seed][0] / max(stay[seed], 1) for seed in loads]
            results.append(
                {
                    "crowds": kind,
                    "answered_by": name,
                    "least_saved": least,
                    "no_migration": sum(stay.values()),
                    "migrator": sum(counted for counted, _ in found.values()),
                    "mean_fall": round(float(np.mean(falls)), 3),
                    "worst_fall": round(min(falls), 3),
                    "seeds_that_got_worse": sum(fall < 0 for fall in falls),
                    "moves_a_seed": round(float(np.mean([moves for _, moves in found.values()])), 1),
                    "by_seed": [counted for counted, _ in found.values()],
                }
            )
            rule = next((one for one in results if (one["crowds"], one["least_saved"]) == (kind, least)), None)
            if rule and rule["answered_by"] != name:
                results[-1]["fewer_than_the_rule"] = fewer(results[-1]["by_seed"], rule["by_seed"])
            print(results[-1], flush=True)
    report = {
        "benchmark": "migrator_paper",
        "seeds": options.seeds,
        "results": results,
    }
    if options.out:
        (options.out / "migrator_paper.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    run_cli(main)
