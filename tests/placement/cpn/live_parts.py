"""What live tests of the controller are made of: a real API server, kwok's nodes, the service, played pods.

The driver that plays pods, and the service, are those of the live benchmark (``benchmarks/cpn_live.py``).
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from placement.cpn.clock import Clock
from sched_env.jobs import synthetic
from tests.placement.kube.control_plane import ControlPlane
from tests.servers import free_port, program

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
CARDS = {f"here/n{node}/gpu{card}": "P100" for node in range(2) for card in range(2)}


def benchmark_module(name: str) -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(BENCHMARKS))


def nodes(kube: ControlPlane) -> None:
    """Add two nodes of two cards, kept by kwok, whose pods are left to the driver."""
    program("kwok")
    for name in ("n0", "n1"):
        kube.add_nodes([name], cpu="32", memory="128Gi", **{"kubernetes.io/hostname": name})
    stages = kube.folder / "kwok.yaml"
    stages.write_text(benchmark_module("cpn_clusters").KWOK_STAGES)
    kube.run(
        "kwok", f"--kubeconfig={kube.kubeconfig}", f"--config={stages}", "--manage-all-nodes=true",
        "--node-lease-duration-seconds=40", f"--server-address=127.0.0.1:{free_port()}",
    )  # fmt: skip


def topology(kube: ControlPlane, path: Path) -> Path:
    """Describe that cluster."""
    cards = [{"type": "P100", "mem_gib": 16, "usd_per_hour": 0.6, "count": 2}]
    there = [{"name": name, "cpu_cores": 32, "mem_gib": 128, "cards": cards} for name in ("n0", "n1")]
    cluster = {"name": "here", "kubeconfig": str(kube.kubeconfig), "context": "test", "nodes": there}
    path.write_text(yaml.safe_dump({"datacenters": [{"name": "dc", "clusters": [cluster]}]}))
    return path


@contextmanager
def played(kube: ControlPlane, scale: float) -> Iterator[Any]:
    """Let pods run as the simulator's generated run times say."""
    clusters = benchmark_module("cpn_clusters")
    driver = clusters.Driver(
        {"here": kube}, synthetic.runtime(("P100",)), CARDS, Clock(scale), 1.0, scale, lambda *_: None
    )
    before = threading.active_count()
    driver.start()
    assert threading.active_count() > before
    try:
        yield driver
    finally:
        driver.stopped.set()
