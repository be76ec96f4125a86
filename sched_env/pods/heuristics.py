"""Heuristics of ``pods``: where an offered pod of a stressed node goes, or whether it stays.

One scoring function, for columns (the service) and scalars (the batch kernel).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sched_env.observation import Columns, Mask, Row, Scores
from sched_env.pods.features import complete

NAMES = ("random_feasible", "no_migration", "descheduler", "hottest_to_coolest", "best_single_move")
RANDOM, STAY, DESCHEDULER, COOLEST, SINGLE_MOVE = range(len(NAMES))

DEVIATION = 0.1
"""LowNodeUtilization with ``useDeviationThresholds``: a node is low (high) when it uses that much less (more) of its
cpu and memory than the mean of all nodes. Use is that of the window, not the requests, which best-effort pods set at
will."""

PENALTY_PER_PEAK = 1e-6
"""Violations are counted: many nodes would do equally well. ``best_single_move`` then takes the coolest."""


def is_high(cpu: Any, mem: Any, mean_cpu: Any, mean_mem: Any) -> Any:
    """Say whether a node uses too much of either resource."""
    return (cpu > mean_cpu + DEVIATION) | (mem > mean_mem + DEVIATION)


def node_score(
    rule: int,
    here: Any,
    cpu: Any,
    mem: Any,
    cpu_mean_after: Any,
    mem_mean_after: Any,
    cpu_max_after: Any,
    mem_max_after: Any,
    mem_after: Any,
    mean_cpu: float,
    mean_mem: float,
    evicts: bool,
    penalty: Any,
) -> Any:
    """Score a node for the offered pod; higher is better.

    Args:
        rule: One of the constants above.
        here: 1 where the pod is.
        cpu: Mean share of the node's cpu in use.
        mem: The same of its memory.
        cpu_mean_after: Mean share with the pod there.
        mem_mean_after: The same of memory.
        cpu_max_after: Highest share with the pod there.
        mem_max_after: The same of memory.
        mem_after: Share of the memory that is requested, with the pod there.
        mean_cpu: Mean of ``cpu`` over all nodes.
        mean_mem: The same of ``mem``.
        evicts: Whether the pod's own node is high.
        penalty: What the window would have cost in reward with the pod there.
    """
    moved = 1.0 - here
    if rule == STAY:  # a pod that is nowhere yet goes where most memory is left
        return here - moved * mem_after
    if rule == DESCHEDULER:
        low = (cpu < mean_cpu - DEVIATION) & (mem < mean_mem - DEVIATION)
        stays_low = (cpu_mean_after <= mean_cpu + DEVIATION) & (mem_mean_after <= mean_mem + DEVIATION)
        wanted = (low & stays_low & evicts) * 1.0
        # Stay is 0. Evicted pods are placed by kube-scheduler's LeastAllocated, on low nodes only.
        return moved * (wanted * (3.0 - 0.5 * (cpu_mean_after + mem_mean_after)) - 1.0)
    peak = np.maximum(cpu_max_after, mem_max_after)
    if rule == COOLEST:
        return -1.0 * peak
    return -1.0 * penalty - PENALTY_PER_PEAK * peak


def score(name: str, candidates: Columns, request: Row, _mask: Mask) -> Scores:
    """Score every node for one pod, from raw fields.

    Without exact penalties ``best_single_move`` goes by the highest use, as ``hottest_to_coolest``.
    """
    rule = NAMES.index(name)
    node, _ = complete(candidates, request)
    cpu, mem = node["cpu_mean"] / node["cpu_capacity"], node["mem_mean"] / node["mem_capacity"]
    mean_cpu, mean_mem = _mean(cpu), _mean(mem)
    high = is_high(cpu, mem, mean_cpu, mean_mem)
    peak = np.maximum(node["cpu_max_after"], node["mem_max_after"])
    scores: Scores = node_score(
        rule,
        node["here"],
        cpu,
        mem,
        node["cpu_mean_after"],
        node["mem_mean_after"],
        node["cpu_max_after"],
        node["mem_max_after"],
        node["mem_after"],
        mean_cpu,
        mean_mem,
        bool((high & (node["here"] > 0.0)).any()),
        np.where(np.isnan(node["penalty"]), peak, node["penalty"]),
    )
    return scores


def _mean(values: NDArray[np.float64]) -> float:
    """Add up in order, as the kernel does: numpy's own sum is pairwise."""
    return float(np.cumsum(values)[-1] / values.size)
