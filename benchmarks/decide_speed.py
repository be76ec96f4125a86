"""Time of one decision inside the process, on one core: state as a watched cluster holds it, features included.

    python benchmarks/decide_speed.py [--candidates 100 1000 5000] [--hidden 64] [--out docs/results]

``watched`` takes the state from a cluster that is kept up to date by events (nodes and pods, no body to decode), for
one pod, and ranks it; before each decision a pod comes or goes, which is the watch's work and not in the figure, so
that no two decisions see the same state. ``body`` starts from the same candidates as JSON, as ``POST /v1/place`` gets
them. The network is the shipped one: the scorer of ``pipeline/policies`` as ``export`` writes it, untrained. The
figures are CPU time of the one thread, because other work on the machine must not count. The last line is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from pipeline.policies.onnx_graph import to_onnx
from pipeline.policies.scorer import Scorer
from placement import asked
from placement.decide import Decider
from placement.decision_log import DecisionLog
from placement.kube.cluster import Cluster
from placement.kube.objects import Node, Pod
from placement.live import Live
from placement.metrics import Metrics
from placement.policy import open_policy
from placement.settings import Settings
from sched_env import problems
from wire import bundle, sample_bundle
from wire.contracts.place import PlacementRequest
from wire.errors import run_cli

TARGETS_MS = {100: ("p50", 0.1), 1000: ("p99", 1.0), 5000: ("p99", 4.0), 100_000: ("p99", 10.0)}


class Alone:
    """One policy that is always live."""

    def __init__(self, hidden: int) -> None:
        torch.manual_seed(0)
        spec = problems.spec("functions")
        files = sample_bundle.assemble(spec, to_onnx(Scorer(spec, hidden), spec))
        self._live = Live(policy=open_policy(bundle.check(files, problems.spec), "none"))

    def get(self, _: str) -> Live:
        """Return it."""
        return self._live


def watched_cluster(count: int, rng: np.random.Generator) -> Cluster:
    cluster = Cluster("bench")
    for index in range(count):
        cpu = str(int(rng.choice([4, 8, 16])))
        said = {"metadata": {"name": f"node-{index}"}, "status": {"allocatable": {"cpu": cpu, "memory": "32Gi"}}}
        cluster.put_node(msgspec.convert(said, Node))
        pod = {
            "metadata": {"name": f"p{index}", "uid": f"p{index}"},
            "spec": {
                "nodeName": f"node-{index}",
                "containers": [
                    {"resources": {"requests": {"cpu": f"{int(rng.integers(100, 3000))}m", "memory": "1Gi"}}}
                ],
            },
        }
        cluster.put_pod(msgspec.convert(pod, Pod))
    return cluster


def pods_that_come_and_go(cluster: Cluster, rng: np.random.Generator) -> list[Callable[[], None]]:
    """Return events: a hundred pods come to nodes, and go again."""
    count = cluster.size()[0]
    events: list[Callable[[], None]] = []
    for index in range(100):
        pod = {
            "metadata": {"name": f"e{index}", "uid": f"e{index}"},
            "spec": {
                "nodeName": f"node-{int(rng.integers(count))}",
                "containers": [{"resources": {"requests": {"cpu": "100m", "memory": "128Mi"}}}],
            },
        }
        events.append(partial(cluster.put_pod, msgspec.convert(pod, Pod)))
    return events + [partial(cluster.drop_pod, f"e{index}") for index in range(100)]


def measure(work: Callable[[], Any], seconds: float, before: Callable[[], Any] = lambda: None) -> dict[str, float]:
    for _ in range(20):
        before()
        work()
    spent: list[int] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(spent) < 200:
        before()
        started = time.thread_time_ns()
        work()
        spent.append(time.thread_time_ns() - started)
    p50, p99 = np.percentile(spent, [50, 99]) / 1e6
    return {"calls": len(spent), "p50_ms": round(float(p50), 4), "p99_ms": round(float(p99), 4)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, nargs="+", default=[100, 1000, 5000])
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(log_dir=Path(folder), deadline_ms=10_000)
        metrics = Metrics()
        log = DecisionLog(settings, metrics)
        decider = Decider(Alone(options.hidden), settings, metrics, log)  # type: ignore[arg-type]
        results: dict[str, Any] = {}
        request = PlacementRequest("pod", {"cpu": 0.5, "mem": 1.0})
        for count in options.candidates:
            cluster = watched_cluster(count, np.random.default_rng(0))
            state = cluster.state("functions")
            body = msgspec.json.encode(
                {
                    "problem": "functions",
                    "requests": [request],
                    "candidates": [
                        {"name": name, "state": {field: float(column[row]) for field, column in state.columns.items()}}
                        for row, name in enumerate(state.names)
                    ],
                }
            )

            events = itertools.cycle(pods_that_come_and_go(cluster, np.random.default_rng(1)))

            def from_watch(cluster: Cluster = cluster) -> None:
                decider.decide(cluster.state("functions"), [request], 5)

            def from_body(body: bytes = body) -> None:
                read = asked.read(body, settings)
                assert read.state is not None
                decider.decide(read.state, read.call.requests, 5)

            def event(events: Iterator[Callable[[], None]] = events) -> None:
                next(events)()

            result: dict[str, Any] = {"watched": measure(from_watch, options.seconds, event)}
            if count <= 20_000:
                result["body"] = measure(from_body, options.seconds)
            if count in TARGETS_MS:
                which, limit = TARGETS_MS[count]
                result["target"] = f"watched {which} <= {limit} ms"
                result["met"] = result["watched"][f"{which}_ms"] <= limit
            results[str(count)] = result
            print(count, result, flush=True)
        decider.close()
        log.close()
    report = {
        "benchmark": "decide_speed",
        "hidden": options.hidden,
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "load": round(os.getloadavg()[0], 1)},
        "results": results,
    }
    if options.out:
        (options.out / "decide_speed.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    run_cli(main)
