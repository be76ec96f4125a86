"""The migrator on a real API server, beside what the simulator predicts and beside no migration.

    loadmaster train --env pods/deploy --alg maskable_ppo --seed 0 --set segments=4 --set envs=16 \
        --set rollout_steps=64 --set reward_scale=0.1 --set teacher=hottest_to_coolest --out /tmp/pods-policy
    KUBE_ASSETS=$(../shared/kube/unpack) python benchmarks/migrator_live.py --policy /tmp/pods-policy/policy.onnx
    … --seeds 1 2 3 4 5 --crowds long short     each seed with each load; without --policy the rule answers
    … --least-saved 0                           without the guard against moves that would not have helped
    … --foresight             the policy and the forecast that a night would make of the three days before each load

Real: etcd, kube-apiserver, kube-scheduler with our extender, the controllers of Deployments and PDBs, kwok as kubelet,
the placement service with the policy live, the migrator with its placeholders and evictions. Played: what pods use, by
a load model that no training of ours has seen (flash crowds: services are quiet, and then several times as busy for a
heavy-tailed while, some of them together; training's generator deals one even stream and swings over the day). A window
of the model is one cycle; its 300 s are not waited for, and ages count accordingly. Violations are counted as the
simulator counts them: positions of a window at which a node's cpu or memory is above 0.8 of its capacity.

The simulator replays the same load from the same first placement, with the same policy; it has no guard
(``least_saved``), PDBs or cool-down. ``on_paper`` is the planner itself without an API server (``migrator_paper.py``).
The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
from migrator_foresight import ahead, night
from migrator_foresight import foreseeing as as_answered
from migrator_paper import (
    BEFORE,
    BUDGET,
    CPU,
    CROWD_STEPS,
    POSITIONS,
    THRESHOLD,
    Crowds,
    Trace,
    lets_nobody_go,
    replay,
    scored_by,
    trace_of,
    violations,
)
from numpy.typing import NDArray

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from placement.kube.clusters import connect, watch_cluster  # noqa: E402
from placement.kube.config import ClusterSettings, MigratorSettings, PrometheusSettings  # noqa: E402
from placement.kube.lease import Lease  # noqa: E402
from placement.kube.migrator import Migrator, Report  # noqa: E402
from placement.kube.past import Past  # noqa: E402
from placement.kube.rest import Rest  # noqa: E402
from placement.migrate import asking, foreseeing  # noqa: E402
from sched_env.metrics import summarise  # noqa: E402
from sched_env.pods.features import BEFORE as WITHOUT_FORESIGHT  # noqa: E402
from sched_env.pods.features import SPEC  # noqa: E402
from sched_env.pods.forecast import NAME  # noqa: E402
from sched_env.pods.tables import WINDOW_S  # noqa: E402
from sched_env.rollout import run_episodes  # noqa: E402

KIT: Any = importlib.import_module("tests.placement.conftest")
PLANE: Any = importlib.import_module("tests.placement.kube.control_plane")
PLAYING: Any = importlib.import_module("tests.placement.kube.playing")

GIB = 2.0**30
STEP_S = 15
MIN_AGE_S = 8
"""Of a pod that may move: two to four cycles here, as 900 s are three windows."""


class Played:
    """Makes a played Prometheus answer for the pods that are there now, in the window that is played now."""

    def __init__(self, kube: Any, crowds: Crowds) -> None:
        self.kube, self.crowds, self.window = kube, crowds, 0
        self.prometheus = PLAYING.PlayedPrometheus()
        self.prometheus.answer = self.answer

    def answer(self, asked: dict[str, list[str]]) -> dict[str, Any]:
        """Return a matrix as Prometheus would."""
        name, start, step = asked["query"][0], float(asked["start"][0]), float(asked["step"][0])
        if name.startswith("avg_over_time"):
            return self.past("mem" if "mem" in name else "cpu", start, float(asked["end"][0]))
        load = self.crowds.cpu if name.endswith("cpu") else self.crowds.mem * GIB
        result: list[dict[str, Any]] = []
        if name.endswith(("cpu", "mem")):
            nodes = {f"node-{index:02d}": np.zeros(POSITIONS) for index in range(1000)}
            series: dict[str, NDArray[np.float64]] = {}
            for pod, (workload, node) in placement(self.kube).items():
                series[pod] = load[workload, self.window]
                nodes[node] = nodes[node] + series[pod]
            known = {one["metadata"]["name"] for one in self.kube.call("GET", "/api/v1/nodes")["items"]}
            chosen = {k: v for k, v in nodes.items() if k in known} if name.startswith("node") else series
            for key, values in chosen.items():
                labels = {"node": key} if name.startswith("node") else {"namespace": "default", "pod": key}
                samples = [[start + k * step, repr(float(value))] for k, value in enumerate(values)]
                result.append({"metric": labels, "values": samples})
        return {"status": "success", "data": {"resultType": "matrix", "result": result}}

    def past(self, resource: str, start: float, end: float) -> dict[str, Any]:
        """Return means of the windows before the one that is played, as if the wall clock had gone on with them."""
        first = round((time.time() - start) / WINDOW_S)
        count = round((end - start) / WINDOW_S) + 1
        result = []
        for pod, (workload, _) in placement(self.kube).items():
            cpu, mem = self.crowds.day(workload, self.window, first)[:, :count]
            known = cpu if resource == "cpu" else mem * GIB
            samples = [[start + k * WINDOW_S, repr(float(mean))] for k, mean in enumerate(known) if not np.isnan(mean)]
            result.append({"metric": {"namespace": "default", "pod": pod}, "values": samples})
        return {"status": "success", "data": {"resultType": "matrix", "result": result}}


def placement(kube: Any) -> dict[str, tuple[int, str]]:
    """Pod -> workload and node, of those that run."""
    return {
        one["metadata"]["name"]: (int(one["metadata"]["labels"]["app"].split("-")[1]), one["spec"]["nodeName"])
        for one in kube.pods()
        if "app" in (one["metadata"].get("labels") or {})
        and one["spec"].get("nodeName")
        and not one["metadata"].get("deletionTimestamp")
    }


class Budgets(threading.Thread):
    """Looks all the time whether a workload has fewer pods that serve than its PDB demands."""

    def __init__(self, kube: Any, demanded: dict[int, int]) -> None:
        super().__init__(daemon=True)
        self.kube, self.demanded = kube, demanded
        self.looks = self.broken = 0
        self.stopped = threading.Event()

    def run(self) -> None:
        """Look until stopped."""
        while not self.stopped.wait(0.05):
            with contextlib.suppress(OSError):
                serving = Counter(
                    int(one["metadata"]["labels"]["app"].split("-")[1])
                    for one in self.kube.pods()
                    if "app" in (one["metadata"].get("labels") or {})
                    and one["status"].get("phase") == "Running"
                    and not one["metadata"].get("deletionTimestamp")
                )
                self.looks += 1
                self.broken += sum(serving[workload] < least for workload, least in self.demanded.items())


def pushed(client: httpx.Client, bundle: dict[str, bytes]) -> str:
    """Push a bundle; returns its digest."""
    answer = KIT.push(client, bundle, counter=1, problem="pods")
    assert answer.status_code == 200, answer.text
    return str(answer.json()["digest"])


def live(options: argparse.Namespace, crowds: Crowds, folder: Path) -> dict[str, Any]:
    """Run the real thing."""
    workshop = KIT.Workshop(folder)
    with PLANE.running(folder / "kube") as kube:
        kube.start_kubelet()
        kube.start_controllers()
        kube.add_placeholder_class()
        kube.add_nodes([f"node-{index:02d}" for index in range(options.nodes)], cpu=str(int(CPU)), memory="32Gi")
        played = Played(kube, crowds)
        file = folder / "clusters.yaml"
        file.write_text(f"clusters: {{lab: {{kubeconfig: {kube.kubeconfig}}}}}\nextender: {{cluster: lab}}\n")
        settings = msgspec.structs.replace(KIT.settings_in(folder, workshop), clusters_file=file)
        with KIT.listening(settings) as url, httpx.Client(base_url=url, timeout=60) as client:
            digest = None
            if options.policy is not None:
                digest = pushed(client, workshop.around(WITHOUT_FORESIGHT, options.policy.read_bytes()))
            kube.start_scheduler({
                "urlPrefix": f"{url}/extender", "prioritizeVerb": "prioritize", "weight": 100, "enableHTTPS": False,
                "httpTimeout": "5s", "nodeCacheCapable": True, "ignorable": True,
            })  # fmt: skip
            demanded = {}
            for index in range(options.workloads):
                kube.add_deployment(f"w-{index}", 2, cpu="500m", memory="1Gi")
                # One workload in five lets nobody go: its PDB wants both pods all the time.
                demanded[index] = 2 if lets_nobody_go(index) else 1
                kube.add_budget(f"w-{index}", min_available=demanded[index])
            kube.until(lambda: len(placement(kube)) == 2 * options.workloads, "the pods to be bound", 240)
            time.sleep(MIN_AGE_S + 1)
            first, played_s, past, made = placement(kube), WINDOW_S * 1000, None, None
            if options.foresight:  # the days before, with the pods where they stand now
                made = night(first, crowds, options.nodes, folder)
                digest = pushed(client, workshop.around(SPEC, made.policy, models={NAME: made.model}))
                past = Past(foreseeing(url), lambda: played_s + WINDOW_S * played.window)
            budgets = Budgets(kube, demanded)
            budgets.start()
            counted, reports = [], list[Report]()
            prom = PrometheusSettings(
                played.prometheus.url,
                every_s=3600,
                window_s=300,
                step_s=STEP_S,
                queries=PLAYING.PlayedPrometheus.QUERIES,
            )
            cluster = ClusterSettings(kubeconfig=str(kube.kubeconfig), prometheus=prom)
            given = MigratorSettings(
                "lab", apply=True, min_age_s=MIN_AGE_S, threshold=THRESHOLD, budget=BUDGET, retry_s=20,
                least_saved=options.least_saved,
            )  # fmt: skip
            api = connect("lab", cluster)
            watched = watch_cluster("lab", cluster, api)
            lease = Lease(api, "default", "loadmaster-migrator-lab", "benchmark")
            migrator = Migrator(Rest(api), watched, lease, given, asking(url), reports.append, past)
            for part in (*watched.watches, lease):
                part.start()
            usage = watched.usage
            assert usage is not None
            kube.until(lambda: watched.whole() and lease.leading, "the migrator to see")
            for window in range(options.windows):
                played.window = window
                kube.until(lambda: len(placement(kube)) == 2 * options.workloads, "every pod to be back", 60)
                counted.append(violations(placement(kube), crowds, window))
                usage.ask()
                report = migrator.cycle()
                print(
                    f"window {window}: {counted[-1]} violations, {Counter(m.outcome for m in report.moves)}", flush=True
                )
            lease.stop()
            watched.stop()
            budgets.stopped.set()
            budgets.join(10)
        played.prometheus.close()
    moves = [move for report in reports for move in report.moves]
    names = [move.pod for move in moves if move.outcome == "moved"]
    locked = [move for move in moves if demanded[int(move.workload.split("-")[1])] == 2]
    done = [move for move in moves if move.outcome == "moved"]
    return {
        "digest": digest,
        "night": made,
        "first": first,
        "no_migration": [violations(first, crowds, window) for window in range(options.windows)],
        "migrator": counted,
        "moves": dict(Counter(move.outcome.partition(":")[0] for move in moves)),
        "landed_on_target": sum(move.landed == move.target for move in done),
        "landed_elsewhere": sum(move.landed not in (None, move.target) for move in done),
        "not_seen_back_in_time": sum(move.landed is None for move in done),
        "policy_answered": sum(not move.fallback for move in moves),
        "pods_evicted_twice": len(names) - len(set(names)),
        "moved_against_a_pdb": sum(move.outcome == "moved" for move in locked),
        "refused_by_pdb": sum(move.outcome == "refused_by_pdb" for move in locked),
        "looks_at_pdbs": budgets.looks,
        "pdbs_seen_broken": budgets.broken,
        "cycle_seconds_mean": round(float(np.mean([report.seconds for report in reports])), 2),
        "passed_over": [report.passed_over for report in reports if report.passed_over],
    }


def simulated(policy: str, trace: Trace, windows: int, *, foresight: bool = False) -> dict[str, float]:
    """Replay with a policy; windows are counted as the live ones are."""
    found = summarise(
        run_episodes(
            "pods/deploy", policy, [0], trace=trace, episode_windows=windows, threshold=THRESHOLD,
            migration_budget=BUDGET, pod_limit=110, foresight=foresight,
        )
    )  # fmt: skip
    return {name: float(found[name]) for name in ("resource_violations", "migrations", "windows")}


def main() -> None:
    """Run live and simulated, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path, help="a trained policy.onnx of pods; without it the rule answers")
    parser.add_argument("--foresight", action="store_true", help="what a night would make of the days before")
    parser.add_argument("--nodes", type=int, default=12)
    parser.add_argument("--workloads", type=int, default=40)
    parser.add_argument("--windows", type=int, default=24)
    parser.add_argument("--seeds", type=int, nargs="+", default=[2026])
    parser.add_argument("--crowds", nargs="+", choices=list(CROWD_STEPS), default=["long"])
    parser.add_argument("--least-saved", type=int, default=1, help="setting of the migrator; 0: no guard")
    parser.add_argument("--out", type=Path, help="folder for migrator_live.json")
    options = parser.parse_args()
    runs = []
    for kind in options.crowds:
        for seed in options.seeds:
            runs.append(compared(options, seed, kind))
            print(json.dumps(runs[-1]), flush=True)
    result = {
        "benchmark": "migrator_live",
        "nodes": options.nodes,
        "pods": 2 * options.workloads,
        "windows": options.windows,
        "answered_by": "foresight" if options.foresight else "policy" if options.policy else "hottest_to_coolest",
        "least_saved": options.least_saved,
        "falls": {kind: falls([run for run in runs if run["crowds"] == kind]) for kind in options.crowds},
        "runs": runs,
    }
    if options.out:
        (options.out / "migrator_live.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))


def compared(options: argparse.Namespace, seed: int, kind: str) -> dict[str, Any]:
    """Run one load live and simulated."""
    crowds = Crowds(options.workloads, options.windows, seed, kind, BEFORE if options.foresight else 0)
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        found = live(options, crowds, Path(folder))
    first, made = found.pop("first"), found.pop("night")
    trace = trace_of(first, crowds, options.nodes, crowds.before)
    policy = made.policy if made else options.policy.read_bytes() if options.policy else None
    ask, guess = scored_by(policy, foresight=bool(made)), as_answered(made) if made else None
    paper = replay(first, crowds, options.windows, options.nodes, ask, options.least_saved, guess)
    sims = {name: simulated(name, trace, options.windows) for name in ("no_migration", "hottest_to_coolest")}
    if policy is not None:
        played = ahead(first, crowds, options.nodes, made.fitted) if made else trace
        with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
            Path(file.name).write_bytes(policy)
            sims["policy"] = simulated(file.name, played, options.windows, foresight=bool(made))
    stay, moved = sum(found["no_migration"]), sum(found["migrator"])
    asked = sims.get("policy", sims["hottest_to_coolest"])["resource_violations"]
    rule = replay(first, crowds, options.windows, options.nodes, scored_by(None), options.least_saved)
    night_said = {"night": {"weights": made.weights, "promised": made.promised}} if made else {}
    return {
        "seed": seed,
        "crowds": kind,
        "load_average": {"before": before, "after": os.getloadavg()[0]},
        **night_said,
        "live": found,
        "live_violations": {"no_migration": stay, "migrator": moved, "fall": round(1 - moved / max(stay, 1), 3)},
        "simulated": sims,
        "on_paper": {"violations": paper[0], "moves": paper[1], "fall": round(1 - paper[0] / max(stay, 1), 3)},
        "rule_on_paper": {"violations": rule[0], "moves": rule[1], "fall": round(1 - rule[0] / max(stay, 1), 3)},
        "simulated_fall": round(1 - asked / max(sims["no_migration"]["resource_violations"], 1), 3),
    }


def falls(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Put the seeds together: violations of all of them, and the interval of the mean fall by resampling seeds."""
    live_falls = np.array([run["live_violations"]["fall"] for run in runs])
    drawn = np.random.default_rng(0).choice(live_falls, (10_000, len(live_falls))).mean(axis=1)
    totals = {name: sum(run["live_violations"][name] for run in runs) for name in ("no_migration", "migrator")}
    return {
        "seeds": len(runs),
        **totals,
        "fall_of_the_sum": round(1 - totals["migrator"] / max(totals["no_migration"], 1), 3),
        "mean_fall": round(float(live_falls.mean()), 3),
        "interval_95": [round(float(edge), 3) for edge in np.percentile(drawn, [2.5, 97.5])],
        "paper_mean_fall": round(float(np.mean([run["on_paper"]["fall"] for run in runs])), 3),
        "simulated_mean_fall": round(float(np.mean([run["simulated_fall"] for run in runs])), 3),
    }


if __name__ == "__main__":
    main()
