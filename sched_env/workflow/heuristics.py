"""Heuristics of workflows, written once: on columns for one decision, on scalars inside the batch kernel.

Ties go to the lowest index. The order in which tasks are offered is the environment's; a heuristic that stands for a
whole scheduler says in ``ORDERS`` which one it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from sched_env.observation import Columns, Mask, Row, Scores
from sched_env.workflow.features import terms

NAMES = (
    "random_feasible",
    "first_fit",  # lowest index: everything on one node, as far as it fits
    "round_robin",  # the first feasible node after the one before
    "heft",  # by falling upward rank, each where it ends first, data and waiting included (Topcuoglu et al. 2002)
    "earliest_finish",  # the same in the order of the trace: what an engine does that plans nothing
    "cheapest",  # least price for a core's work; among equals what adds least to the bill
    "min_transfer",  # fewest bytes over the network; among equals where it ends first
    "thrifty",  # by rank, the cheaper node where the mean way to the end stays within the critical path
)
RANDOM_FEASIBLE, FIRST_FIT, ROUND_ROBIN, HEFT, EARLIEST_FINISH, CHEAPEST, MIN_TRANSFER, THRIFTY = range(len(NAMES))

ORDERS: Mapping[str, Literal["rank", "trace"]] = {"heft": "rank", "earliest_finish": "trace", "thrifty": "rank"}
"""The order a heuristic needs; the others take the scenario's."""

TIE = 1e-6
"""Weight of the end (in critical paths) beside cost (in least costs) and megabytes, and of those beside the price of a
core's work: breaks ties, decides nothing."""
THRIFT = 0.1
"""Weight of the price (in least costs) beside that of ending late (in critical paths) in ``thrifty``: on every second
of the public workflows the bill is 6 % below HEFT's at the same end, between 0.3 and 0.01 it hardly matters."""


def node_score(
    rule: int,
    index: Any,
    count: int,
    sequence: float,
    finish: Any,
    path: Any,
    moved_mb: Any,
    cost: Any,
    core_price: Any,
) -> Any:
    """Score placing a task on a node; higher is better.

    Args:
        rule: One of the constants above.
        index: The node's number.
        count: How many nodes there are.
        sequence: How many tasks were placed before.
        finish: End of the task there, in critical paths.
        path: The same with the mean way from there to the end of the workflow.
        moved_mb: Data that would go over the network.
        cost: What it adds to the bill, in least costs.
        core_price: Of a core of speed 1, USD/hour.
    """
    if rule == FIRST_FIT:
        return -1.0 * index
    if rule == ROUND_ROBIN:
        return -1.0 * ((index - sequence) % count)
    if rule == CHEAPEST:
        return -(core_price + TIE * (cost + TIE * finish))
    if rule == MIN_TRANSFER:
        return -(moved_mb + TIE * finish)
    if rule == THRIFTY:
        return -((1.0 - THRIFT) * np.maximum(path - 1.0, 0.0) + THRIFT * cost + TIE * finish)
    return -1.0 * finish


def score(name: str, candidates: Columns, request: Row, mask: Mask) -> Scores:
    """Score every node for one task, from raw fields."""
    rule = NAMES.index(name)
    node, task = terms(candidates, request)
    scores: Scores = node_score(
        rule,
        np.arange(mask.size),
        mask.size,
        task["sequence"],
        node["finish"],
        node["path"],
        node["moved_mb"],
        node["cost"],
        node["price"] * (1.0 / node["speed"]) / node["cpu_capacity"],
    )
    return scores
