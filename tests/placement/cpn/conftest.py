"""Queues, topologies and played worlds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from placement.cpn.config import CpnSettings
from placement.cpn.records import Job
from placement.cpn.submission import Known, read
from placement.cpn.topology import Network
from placement.cpn.topology import read as read_topology
from sched_env.jobs import synthetic
from sched_env.jobs.tables import JobTrace
from tests.placement.cpn.played import Rehearsal, World
from tests.placement.kube.conftest import kube, recovery  # noqa: F401 - fixtures

MODELS = {model.name: model for model in synthetic.MODELS}


def manifest(
    name: str, model: str = "cnn-small", *, epochs: float = 1000, gb: float = 0, **notes: Any
) -> dict[str, Any]:
    known = MODELS.get(model)
    requests = {"cpu": str(known.cpu), "memory": f"{known.mem}Gi"} if known else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "annotations": {"model_name": model, "data_size": gb, "epoch": epochs, "title": name, **notes},
        },
        "spec": {
            "template": {
                "spec": {"containers": [{"name": "main", "image": "work", "resources": {"requests": requests}}]},
            }
        },
    }


def topology_text(counts: dict[str, int]) -> str:
    """The simulator's own network as a description: nodes dealt over three data centres, data in a store outside."""
    table = synthetic.topology(counts)
    clusters: dict[int, list[dict[str, Any]]] = {0: [], 1: [], 2: []}
    for n, node in enumerate(table.nodes):
        cards = np.flatnonzero(table.card_node == n)
        kind = table.card_types[table.card_type[cards[0]]]
        clusters[int(table.node_cluster[n])].append(
            {
                "name": node,
                "cpu_cores": float(table.node_cpu[n]),
                "mem_gib": float(table.node_mem[n]),
                "cpu_used": float(table.node_cpu_used[n]),
                "cards": [
                    {
                        "type": kind,
                        "mem_gib": float(table.card_mem[cards[0]]),
                        "usd_per_hour": float(table.card_usd_per_hour[cards[0]]),
                        "count": len(cards),
                    }
                ],
            }
        )
    places: list[dict[str, Any]] = [{"name": "store"}]
    places += [
        {"name": f"dc-{c}", "clusters": [{"name": f"cluster-{c}", "nodes": nodes}]}
        for c, nodes in clusters.items()
        if nodes
    ]
    return yaml.safe_dump({"datacenters": places, "default_link": {"bandwidth_mb_s": 100, "usd_per_gb": 0.02}})


def known(network: Network, max_attempts: int = 3) -> Known:
    return Known(
        {name: model.gpu_mem * 1024 for name, model in MODELS.items()},
        network.table.datacenters,
        float(network.table.card_mem.max()) - 1.0,
        float(network.table.node_mem.max()) - 10.0 / 1024.0,
        max_attempts,
    )


@pytest.fixture
def rehearse(tmp_path: Path) -> Iterator[Callable[..., Rehearsal]]:
    """Make a controller over played clusters; its store is closed in the end, so that its lock is nobody's garbage."""
    made: list[Rehearsal] = []

    def make(counts: dict[str, int] | None = None, *, startup_s: float = 0.0, **settings: Any) -> Rehearsal:
        counts = counts or {"RTX4090": 2, "A100": 1, "P100": 6}
        path = tmp_path / "topology.yaml"
        path.write_text(topology_text(counts))
        network = read_topology(path.read_text(), "test")
        table = synthetic.runtime(network.table.card_types)
        world = World(table, network, startup_s)
        chosen = CpnSettings(topology=str(path), topology_reload_s=1e-6, **{"retry_backoff_s": 10.0, **settings})
        made.append(Rehearsal(chosen, world, f"sqlite:///{tmp_path}/jobs.db", str(path)))
        return made[-1]

    yield make
    for one in made:
        one.store.close()


@pytest.fixture
def submit() -> Callable[..., Job]:
    def one(
        rehearsal: Rehearsal, name: str, model: str = "cnn-small", *, tenant: str | None = None, **about: Any
    ) -> Job:
        body = manifest(name, model, **about)
        job, kept = read(body, known(rehearsal.controller.network), now=rehearsal.world.now, tenant=tenant, key=None)
        accepted = rehearsal.submit(job, kept)
        assert accepted is not None
        return accepted[0]

    return one


def queue_jobs(trace: JobTrace) -> list[dict[str, Any]]:
    """The jobs of a simulator's queue as manifests, in order."""
    return [
        manifest(
            f"job-{row:04d}",
            trace.model_names[trace.model[row]],
            epochs=float(trace.epochs[row]),
            gb=float(trace.data_gb[row]),
        )
        for row in range(len(trace))
    ]
