"""Generated workflows and the nodes they run on, so that nothing needs a download.

Three shapes, which the public collections of workflows are made of: ``chain`` (one task after another), ``fan`` (one
task, many side by side, one that joins them, several times over) and ``layered`` (random layers, each task fed by
one to three tasks of the layer before).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sched_env.tables import Floats, Ints, NodeTable
from sched_env.workflow.tables import Dag

SHAPES = ("chain", "fan", "layered")
MOST_PARENTS = 3
MEAN_RUNTIME_S = 60.0
CORES = (1.0, 2.0, 4.0)
CORE_CHANCES = (0.4, 0.3, 0.3)
"""Functions that are worth a node of their own for a minute: from a single core to half a small node."""


class NodeType(NamedTuple):
    """One row of a price list, with the speed of a core relative to the first."""

    name: str
    cpu: float
    mem: float
    price_usd_per_hour: float
    speed: float


NODE_TYPES = (
    NodeType("m5.2xlarge", 8, 32, 0.384, 1.0),
    NodeType("m6i.2xlarge", 8, 32, 0.384, 1.15),
    NodeType("r6i.xlarge", 4, 32, 0.252, 1.15),
    NodeType("c7i.2xlarge", 8, 16, 0.357, 1.4),
)
"""AWS on-demand list prices, us-east-1. The speeds are assumptions, a step of 15 % from one generation to the next and
some more for the compute type: replace them by measured ones (``nodes.csv``, column speed)."""


def nodes(count: int, net_mb_s: float) -> NodeTable:
    """Return a table of nodes that takes the types in turn."""
    types = [NODE_TYPES[index % len(NODE_TYPES)] for index in range(count)]
    return NodeTable(
        names=tuple(f"node-{index:04d}-{kind.name}" for index, kind in enumerate(types)),
        cpu=np.array([kind.cpu for kind in types]),
        mem=np.array([kind.mem for kind in types]),
        net=np.full(count, net_mb_s),
        disk=np.full(count, 5000.0),
        price_usd_per_hour=np.array([kind.price_usd_per_hour for kind in types]),
        speed=np.array([kind.speed for kind in types]),
    )


def workflows(count: int, shape: str, tasks: int, data_share: float, net_mb_s: float, seed: int) -> tuple[Dag, ...]:
    """Generate workflows.

    Args:
        count: How many.
        shape: One of ``SHAPES``, or ``mixed``: each in turn.
        tasks: Mean number of tasks; a workflow has half to one and a half times as many.
        data_share: Mean time to move an edge's data over the mean run time of a task.
        net_mb_s: Network of the nodes they are meant for.
        seed: Names them.
    """
    rng = np.random.default_rng(seed)
    result = []
    for index in range(count):
        kind = SHAPES[index % len(SHAPES)] if shape == "mixed" else shape
        size = max(1, round(tasks * rng.uniform(0.5, 1.5)))
        edges = {"chain": _chain, "fan": _fan, "layered": _layered}[kind](size, rng)
        data_mb = data_share * MEAN_RUNTIME_S * net_mb_s
        cores = rng.choice(CORES, size, p=CORE_CHANCES)
        result.append(
            Dag(
                name=f"{kind}-{index:05d}",
                runtime_s=np.maximum(_log_normal(rng, size, MEAN_RUNTIME_S), 0.1),
                cpu=cores,
                mem=np.clip(cores * _log_normal(rng, size, 2.0), 0.125, 16.0),
                edges=edges,
                edge_mb=_log_normal(rng, len(edges), data_mb),
                input_mb=np.where(np.bincount(edges[:, 1], minlength=size) > 0, 0.0, _log_normal(rng, size, data_mb)),
            )
        )
    return tuple(result)


def _log_normal(rng: np.random.Generator, size: int, mean: float) -> Floats:
    """Draw with a spread as between the tasks of real workflows: the 90th percentile is three times the median."""
    values: Floats = mean * rng.lognormal(-0.405, 0.9, size)  # exp(0.9^2 / 2 - 0.405) = 1
    return values


def _chain(size: int, _rng: np.random.Generator) -> Ints:
    return np.stack([np.arange(size - 1), np.arange(1, size)], axis=1)


def _fan(size: int, rng: np.random.Generator) -> Ints:
    edges, source = [], 0
    while source < size - 1:
        width = min(int(rng.integers(2, max(size // 2, 2) + 1)), size - source - 1)
        side = range(source + 1, source + 1 + width)
        edges += [(source, task) for task in side]
        join = source + 1 + width
        if join < size:
            edges += [(task, join) for task in side]
        source = join
    return np.array(edges, np.int64).reshape(-1, 2)


def _layered(size: int, rng: np.random.Generator) -> Ints:
    edges: list[tuple[int, int]] = []
    before, begin = range(0), 0
    while begin < size:
        layer = range(begin, min(begin + int(rng.integers(1, max(int(2 * size**0.5), 2) + 1)), size))
        for task in layer if before else ():
            parents = rng.choice(len(before), min(len(before), int(rng.integers(1, MOST_PARENTS + 1))), replace=False)
            edges += [(before[int(parent)], task) for parent in np.sort(parents)]
        before, begin = layer, layer.stop
    return np.array(edges, np.int64).reshape(-1, 2)
