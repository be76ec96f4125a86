"""Heuristics of ``functions``, written once: on columns for one decision, on scalars inside the batch kernel.

"After" is what a node would have after the placement; shares are of the node's own capacity. Ties go to the lowest
index.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sched_env.functions.features import complete, terms
from sched_env.observation import Columns, Mask, Row, Scores

NAMES = (
    "random_feasible",
    "first_fit",  # lowest index
    "round_robin",  # the first feasible node after the one before
    "best_fit",  # tightest: smallest share of the scarcer resource left
    "worst_fit",  # the opposite of best_fit
    "least_allocated",  # largest mean free share (Kubernetes' LeastAllocated)
    "most_allocated",  # the opposite
    "balanced_allocation",  # cpu and memory shares come closest (Kubernetes' BalancedAllocation)
    "dot_product",  # free capacity most aligned with the request (Tetris)
    "dot_product_tight",  # the other sign: least free capacity along the request
    "fragmentation",  # expected unusable capacity over typical requests grows least (after FGD)
    "cheapest_fit",  # adds least to the bill; among equals the lowest price for a core
    "warm_first",  # an idle container of the function if there is one; among equals as least_allocated
    "oracle_greedy",  # highest reward of this very placement, exactly
)
(
    RANDOM_FEASIBLE,
    FIRST_FIT,
    ROUND_ROBIN,
    BEST_FIT,
    WORST_FIT,
    LEAST_ALLOCATED,
    MOST_ALLOCATED,
    BALANCED_ALLOCATION,
    DOT_PRODUCT,
    DOT_PRODUCT_TIGHT,
    FRAGMENTATION,
    CHEAPEST_FIT,
    WARM_FIRST,
    ORACLE_GREEDY,
) = range(len(NAMES))

TYPICAL_REQUESTS = np.array(
    # cores, GiB, popularity: the sizes FaaS platforms sell, small ones most often
    [(0.25, 0.5, 0.3), (0.5, 1.0, 0.3), (1.0, 2.0, 0.2), (2.0, 4.0, 0.15), (4.0, 8.0, 0.05)]
)
LIVE_BETA, LIVE_R1_RANGE = 0.7, (1.0, 3.0)
"""What ``oracle_greedy`` takes for a single decision, without a scenario; R2 is scaled by the highest price."""


def _fragment(cpu_free: Any, mem_free: Any, cpu_capacity: Any, mem_capacity: Any, shapes: NDArray[np.float64]) -> Any:
    """Return the free capacity of a node that a typical request could not use, in nodes."""
    free = 0.5 * (cpu_free / cpu_capacity + mem_free / mem_capacity)
    lost = 0.0 * free
    for shape in range(shapes.shape[0]):
        fits = ((cpu_free >= shapes[shape, 0]) & (mem_free >= shapes[shape, 1])) * 1.0
        lost = lost + shapes[shape, 2] * (1.0 - fits) * free
    return lost


def node_score(
    rule: int,
    index: Any,
    count: int,
    sequence: float,
    cpu_capacity: Any,
    mem_capacity: Any,
    price: Any,
    cpu_after: Any,
    mem_after: Any,
    warm: Any,
    cost_change: Any,
    cpu: float,
    mem: float,
    shapes: NDArray[np.float64],
) -> Any:
    """Score placing an instance on a node; higher is better. ``oracle_greedy`` is not here: it needs the reward.

    Args:
        rule: One of the constants above.
        index: The node's number.
        count: How many nodes there are.
        sequence: How many instances were placed before.
        cpu_capacity: Cores of the node.
        mem_capacity: GiB of the node.
        price: USD/hour.
        cpu_after: Share of the cores requested after the placement.
        mem_after: Share of the memory requested after the placement.
        warm: Idle containers of the function.
        cost_change: What the placement adds to the hourly cost.
        cpu: Requested cores.
        mem: Requested GiB.
        shapes: ``TYPICAL_REQUESTS``.
    """
    if rule == FIRST_FIT:
        return -1.0 * index
    if rule == ROUND_ROBIN:
        return -1.0 * ((index - sequence) % count)
    cpu_left, mem_left = 1.0 - cpu_after, 1.0 - mem_after
    if rule == BEST_FIT:
        return -np.minimum(cpu_left, mem_left)
    if rule == WORST_FIT:
        return np.minimum(cpu_left, mem_left)
    if rule == BALANCED_ALLOCATION:
        return -np.abs(cpu_left - mem_left)
    if rule in (DOT_PRODUCT, DOT_PRODUCT_TIGHT):
        cpu_share, mem_share = cpu / cpu_capacity, mem / mem_capacity
        product = (cpu_left + cpu_share) * cpu_share + (mem_left + mem_share) * mem_share
        return product if rule == DOT_PRODUCT else -product
    if rule == FRAGMENTATION:
        cpu_free, mem_free = cpu_left * cpu_capacity, mem_left * mem_capacity
        before = _fragment(cpu_free + cpu, mem_free + mem, cpu_capacity, mem_capacity, shapes)
        return before - _fragment(cpu_free, mem_free, cpu_capacity, mem_capacity, shapes)
    if rule == CHEAPEST_FIT:
        return -(cost_change + 1e-6 * (price / cpu_capacity))
    free = 0.5 * (cpu_left + mem_left)
    if rule == WARM_FIRST:
        return (warm > 0.0) * 2.0 + free
    return -free if rule == MOST_ALLOCATED else free


def score(name: str, candidates: Columns, request: Row, mask: Mask) -> Scores:
    """Score every node for one instance, from raw state fields."""
    rule = NAMES.index(name)
    node, asked = complete(candidates, request)
    after = terms(node, asked)
    if rule == ORACLE_GREEDY:
        low, high = LIVE_R1_RANGE
        latency = np.clip((after.response_ratio - low) / (high - low), 0.0, 1.0)
        cost = np.clip(after.cost_change / max(float(node["price"].max()), 1e-6), 0.0, 1.0)
        result: Scores = -(LIVE_BETA * latency + (1.0 - LIVE_BETA) * cost)
        return result
    scores: Scores = node_score(
        rule, np.arange(mask.size), mask.size, asked["sequence"], node["cpu_capacity"], node["mem_capacity"],
        node["price"], after.cpu_after, after.mem_after, node["warm"], after.cost_change, asked["cpu"], asked["mem"],
        TYPICAL_REQUESTS,
    )  # fmt: skip
    return scores
