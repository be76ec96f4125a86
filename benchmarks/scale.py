"""How state, decisions and windows grow with nodes, pods, clusters and days, as far as this machine goes.

    python benchmarks/scale.py [--nodes 100 1000 10000 100000] [--pods 10] [--out docs/results]

For each number of nodes: time of a watch event, and of a change right after a state was taken (which copies it), memory
that the watched arrays and the objects behind them take, time to take a state, time of a decision (with the shortlist
above its size); then many clusters of 100 nodes in one process.
CPU time of one thread. Windows are measured by ``benchmarks/clean_speed.py``. The last line is JSON.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
from decide_speed import Alone

from placement.decide import Decider
from placement.decision_log import DecisionLog
from placement.kube.cluster import Cluster
from placement.kube.objects import Node, Pod
from placement.metrics import Metrics
from placement.settings import Settings
from wire.contracts.place import PlacementRequest


def node(index: int) -> Node:
    said = {"metadata": {"name": f"node-{index}"}, "status": {"allocatable": {"cpu": "16", "memory": "64Gi"}}}
    return msgspec.convert(said, Node)


def pod(index: int, nodes: int) -> Pod:
    asked = {"cpu": f"{100 + index % 900}m", "memory": "1Gi"}
    said = {
        "metadata": {"name": f"p{index}", "uid": f"p{index}"},
        "spec": {"nodeName": f"node-{index % nodes}", "containers": [{"resources": {"requests": asked}}]},
    }
    return msgspec.convert(said, Pod)


def resident_mib() -> float:
    gc.collect()
    return float(psutil.Process().memory_info().rss / 2**20)


def filled(nodes: int, pods: int) -> Cluster:
    cluster = Cluster("scale")
    for index in range(nodes):
        cluster.put_node(node(index))
    for index in range(nodes * pods):
        cluster.put_pod(pod(index, nodes))
    return cluster


def timed(work: Any, least: int, seconds: float = 1.0, before: Any = lambda: None) -> dict[str, float]:
    work()
    spent: list[int] = []
    until = time.monotonic() + seconds
    while len(spent) < least or time.monotonic() < until:
        before()
        started = time.thread_time_ns()
        work()
        spent.append(time.thread_time_ns() - started)
    p50, p99 = np.percentile(spent, [50, 99]) / 1e3
    return {"p50_us": round(float(p50), 1), "p99_us": round(float(p99), 1)}


def measure(nodes: int, pods: int, decider: Decider) -> dict[str, Any]:
    before = resident_mib()
    cluster = filled(nodes, pods)
    held = resident_mib() - before
    request = PlacementRequest("pod", {"cpu": 0.5, "mem": 1.0})
    events = [pod(index, nodes) for index in range(1000)]

    def many_events() -> None:
        for one in events:
            cluster.put_pod(one)

    event = timed(many_events, 5, 0.5)["p50_us"] / len(events)
    changes = itertools.cycle([pod(0, nodes), pod(1 + nodes, nodes)])
    return {
        "pods": nodes * pods,
        "resident_mib": round(held, 1),
        "event_us": round(event, 2),
        "first_event_after_a_state": timed(
            lambda: cluster.put_pod(msgspec.structs.replace(next(changes), metadata=events[0].metadata)),
            20,
            before=lambda: cluster.state("functions"),
        ),
        "state": timed(lambda: cluster.state("functions"), 20),
        "decide": timed(lambda: decider.decide(cluster.state("functions"), [request], 5), 20),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1_000, 10_000, 100_000])
    parser.add_argument("--pods", type=int, default=10, help="a node")
    parser.add_argument("--clusters", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = {"nodes": {}, "clusters": {}}
    with tempfile.TemporaryDirectory() as folder:
        settings, metrics = Settings(log_dir=Path(folder), deadline_ms=10_000), Metrics()
        log = DecisionLog(settings, metrics)
        decider = Decider(Alone(64), settings, metrics, log)  # type: ignore[arg-type]
        for count in options.nodes:
            results["nodes"][str(count)] = found = measure(count, options.pods, decider)
            print(count, found, flush=True)
        for count in options.clusters:
            before = resident_mib()
            many = [filled(100, options.pods) for _ in range(count)]
            held = resident_mib() - before
            results["clusters"][str(count)] = {"nodes": 100 * count, "resident_mib": round(held, 1)}
            print(count, "clusters of 100 nodes", results["clusters"][str(count)], flush=True)
            del many
        decider.close()
        log.close()
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "load": round(os.getloadavg()[0], 1)}
    report = {"benchmark": "scale", "pods_a_node": options.pods, "machine": machine, "results": results}
    if options.out:
        (options.out / "scale.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
