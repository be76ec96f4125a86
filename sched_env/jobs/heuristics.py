"""Heuristics of ``jobs``: hand-written schedulers, each a way to run the queue and a way to choose a card.

The choice of a card is a score on raw fields, written once for columns (the service) and scalars (the batch kernel).
How the queue is run (order, reservations, jobs a card) belongs to the environment or the controller; a heuristic that
stands for a whole scheduler says in ``DISCIPLINES`` which of the scenario's settings it replaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sched_env.jobs.features import REQUEST_FIELDS, STATE_FIELDS, estimate
from sched_env.observation import Columns, Mask, Row, Scores, columns, scalars

RANDOM, DEAL, CYCLE, KUBE, COMPLETION, TIGHTEST, SHARE, PAIR = range(8)
"""Ways to choose a card."""

CARD_RULES = {
    "random_feasible": RANDOM,
    "fifo": DEAL,  # in order of submission, dealt over the cards: fewest jobs first, lowest index on ties
    "fifo_exclusive": DEAL,  # the same, one job a card
    "kube_default": KUBE,  # kube-scheduler's LeastAllocated + BalancedAllocation of the node, whole cards
    "round_robin": CYCLE,  # the next feasible card after the last one used
    "min_completion_time": COMPLETION,  # where the job is predicted to end first, co-runners included
    "min_completion_time_reserve": COMPLETION,  # the same; big jobs that fit nowhere reserve (the upstream's rule)
    "memory_best_fit": TIGHTEST,  # least GPU memory left
    "easy_backfill": COMPLETION,  # first of the queue reserves, others fill in if they do not delay it
    "shortest_predicted_first": COMPLETION,  # shortest predicted time on the best card first
    "least_attained_service": DEAL,  # the model with the least card time so far first; needs no predictor
    "min_min": PAIR,  # the pair of a waiting job and a card that is predicted to end first (Ibarra and Kim 1977)
    "gavel_lp": SHARE,  # types of cards in the proportions of the LP that minimises the makespan of a fluid
}
NAMES = tuple(CARD_RULES)

DISCIPLINES: Mapping[str, Mapping[str, Any]] = {
    "fifo": {"queue_order": "fifo", "reservation": "none"},
    "fifo_exclusive": {"queue_order": "fifo", "reservation": "none", "max_jobs_per_card": 1},
    "kube_default": {"queue_order": "fifo", "reservation": "none", "max_jobs_per_card": 1},
    "round_robin": {"queue_order": "fifo", "reservation": "none"},
    "min_completion_time": {"queue_order": "fifo", "reservation": "none"},
    "min_completion_time_reserve": {"queue_order": "fifo", "reservation": "big"},
    "memory_best_fit": {"queue_order": "fifo", "reservation": "none"},
    "easy_backfill": {"queue_order": "fifo", "reservation": "easy"},
    "shortest_predicted_first": {"queue_order": "shortest", "reservation": "none"},
    "least_attained_service": {"queue_order": "least_attained", "reservation": "none"},
    "min_min": {"queue_order": "shortest", "reservation": "none"},
    "gavel_lp": {"queue_order": "fifo", "reservation": "none"},
}
"""Scenario keys that a heuristic replaces; ``random_feasible`` takes the scenario as it is."""

SECONDS_PER_SHARE = 1e-7
"""Makes ``gavel_lp`` prefer, among cards of one type, the one where the job ends first."""


def card_score(
    rule: int,
    index: Any,
    count: int,
    last_card: float,
    gpu_mem_after: Any,
    jobs: Any,
    cpu_after: Any,
    mem_after: Any,
    completion_s: Any,
    share: Any,
) -> Any:
    """Score a card; higher is better.

    Args:
        rule: One of the constants above.
        index: The card's number.
        count: How many cards there are.
        last_card: Where the job before went; -1: nowhere.
        gpu_mem_after: GPU memory left after the placement.
        jobs: Jobs on the card.
        cpu_after: Share of the node's cores in use after the placement.
        mem_after: Share of the node's memory in use after the placement.
        completion_s: Predicted completion, from now.
        share: By how much the card's type is behind its share of the job's model, see ``gavel_lp``.
    """
    if rule == DEAL:
        return -1.0 * jobs
    if rule == CYCLE:
        return -1.0 * ((index - last_card - 1.0) % count)
    if rule == KUBE:
        return (1.0 - 0.5 * (cpu_after + mem_after)) - np.abs(cpu_after - mem_after)
    if rule == TIGHTEST:
        return -1.0 * gpu_mem_after
    if rule == SHARE:
        return share - SECONDS_PER_SHARE * completion_s
    return -1.0 * completion_s


def score(name: str, candidates: Columns, request: Row, mask: Mask) -> Scores:
    """Score every card for one job, from raw fields; without exact predictions the features' estimate is used."""
    rule = CARD_RULES[name]
    card = dict(zip(STATE_FIELDS, columns(STATE_FIELDS, candidates), strict=True))
    job = dict(zip(REQUEST_FIELDS, scalars(REQUEST_FIELDS, request), strict=True))
    shared_s = np.where(np.isfinite(card["shared_s"]), card["shared_s"], card["alone_s"])
    estimated = estimate(card["transfer_s"], card["alone_s"], shared_s, card["busy_s"])
    completion_s = np.where(np.isnan(card["completion_s"]), estimated, card["completion_s"])
    scores: Scores = card_score(
        rule,
        np.arange(mask.size),
        mask.size,
        job["last_card"],
        card["gpu_mem_free"] - job["gpu_mem"],
        card["jobs"],
        card["node_cpu"] + job["cpu"] / card["node_cpu_total"],
        1.0 - (card["node_mem_free"] - job["mem"]) / card["node_mem_total"],
        completion_s,
        np.where(np.isnan(card["share"]), 0.0, card["share"]),
    )
    return scores
