"""What a policy sees of ``jobs`` where it chooses a waiting job and a card together, or to wait; numpy alone.

Candidate ``slot * cards + card`` is the job shown in a slot on a card; the last one is to wait. The card's columns are
those of ``features``, what that module has in the request is said of each candidate, and the request is the queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sched_env.jobs import features, heuristics
from sched_env.jobs.heuristics import CARD_RULES, PAIR
from sched_env.observation import Fields, Observation, columns, scalars
from wire.contracts.feature_spec import Feature, FeatureSpec

CARD_COLUMNS = len(features.SPEC.candidate)
"""Columns of a candidate that say what the card would be to the job; those of the job follow."""
JOB_FIELDS = ("gpu_mem", "mem", "cpu", "data_gb", "best_s", "waited_s", "deadline_left_s", "attempts", "reserves")
LIMITS = ("cpu_threshold", "gpu_mem_margin", "mem_margin", "max_jobs", "last_card")

STATE_FIELDS: Fields = {
    **features.STATE_FIELDS,
    **{name: features.REQUEST_FIELDS[name] for name in JOB_FIELDS},
    "slot": ("count", 0.0),  # place of the job among those shown; 0: the one that the queue offers
    "wait": ("flag", 0.0),  # this candidate is to wait for the next event; ``allowed``: there will be one
    "shown": ("flag", 1.0),  # 0: no job is shown in this slot
}
"""Raw fields of a candidate."""

REQUEST_FIELDS: Fields = {
    "waiting": features.REQUEST_FIELDS["waiting"],
    "shown_jobs": ("count", 1.0),
    "idle_cards": ("count", 0.0),
    "next_end_s": ("seconds", 0.0),  # predicted; 0: nothing runs
    **{name: features.REQUEST_FIELDS[name] for name in LIMITS},
}
"""Raw fields of the queue, and the limits that jobs are judged by."""

SPEC = FeatureSpec(
    problem="jobs",
    version=1,
    candidate=(
        *features.SPEC.candidate,
        *(feature for feature in features.SPEC.request if feature.name in JOB_FIELDS),
        Feature("slot", "count", 8.0, "place among the waiting jobs that fit somewhere, in the queue's order", 0.0),
        Feature("wait", "flag", 1.0, "the candidate that places nothing", 0.0),
    ),
    request=(
        Feature("waiting", "count", 64.0, "length of the controller's queue", 1.0),
        Feature("shown_jobs", "count", 8.0, "waiting jobs that fit somewhere, at most so many", 1.0),
        Feature("idle_cards", "count", 16.0, "cards on which the controller has no job", 0.0),
        Feature("next_end_s", "seconds", 600.0, "runtime predictor, first end on any card", 0.0),
    ),
)

LATER = 1e12
"""What each place further back costs a rule that takes the queue's word for the job: more than any score."""


def _fields(
    candidates: Mapping[str, NDArray[Any]], request: Mapping[str, float]
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    pair: dict[str, NDArray[Any]] = dict(zip(STATE_FIELDS, columns(STATE_FIELDS, candidates), strict=True))
    pair["shown"] = (pair["shown"] > 0.0) & (pair["wait"] <= 0.0)
    return pair, dict(zip(REQUEST_FIELDS, scalars(REQUEST_FIELDS, request), strict=True))


def build(candidates: Mapping[str, NDArray[Any]], request: Mapping[str, float]) -> Observation:
    """Build the observation from raw fields; what is left out takes its default."""
    pair, queue = _fields(candidates, request)
    shown, runs = pair["shown"], np.isfinite(pair["shared_s"])
    # A set that cannot run has no times: the row shows those of the job alone; one without a job shows nothing.
    pair["shared_s"] = np.where(shown, np.where(runs, pair["shared_s"], pair["alone_s"]), 1.0)
    pair["estimate_s"] = features.estimate(*(pair[name] for name in ("transfer_s", "alone_s", "shared_s", "busy_s")))
    pair["cost_usd"] = features.cost(*(pair[name] for name in ("price", "busy_s", "estimate_s", "link_usd")))
    pair["gpu_mem_after"] = pair["gpu_mem_free"] - pair["gpu_mem"]
    pair["node_mem_after"] = pair["node_mem_free"] - pair["mem"]
    mask = shown & runs
    mask &= features.node_fits(
        pair["node_cpu"], pair["node_mem_free"], pair["mem"], queue["cpu_threshold"], queue["mem_margin"]
    )
    mask &= features.card_fits(
        pair["gpu_mem_free"], pair["jobs"], pair["gpu_mem"], queue["gpu_mem_margin"], queue["max_jobs"]
    )
    mask = (mask | (pair["wait"] > 0.0)) & (pair["allowed"] > 0.0)
    always = ("gpu_mem_total", "price", "wait")
    return Observation(
        np.stack(
            [
                pair[feature.name] if feature.name in always else np.where(shown, pair[feature.name], 0.0)
                for feature in SPEC.candidate
            ],
            axis=-1,
            dtype=np.float32,
        ),
        np.array([queue[feature.name] for feature in SPEC.request], np.float32),
        mask,
    )


def ruled_out(candidates: Mapping[str, NDArray[Any]], request: Mapping[str, float]) -> dict[str, int]:
    """Say how many pairs are infeasible for each of the reasons that hold of a card, added up over the jobs shown."""
    pair, queue = _fields(candidates, request)
    reasons: dict[str, int] = {}
    for slot in np.unique(pair["slot"][pair["shown"]]):
        of_job = pair["shown"] & (pair["slot"] == slot)
        job = {name: float(pair[name][of_job][0]) for name in JOB_FIELDS}
        cards = {name: pair[name][of_job] for name in features.STATE_FIELDS}
        for reason, count in features.ruled_out(cards, {**job, **{name: queue[name] for name in LIMITS}}).items():
            reasons[reason] = reasons.get(reason, 0) + count
    return reasons


def gauges(candidates: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    """Return the share of each card's memory, and of its node's cores, in use."""
    pair, _ = _fields(candidates, {})
    first = pair["shown"] & (pair["slot"] == 0.0)
    return features.gauges({name: pair[name][first] for name in features.STATE_FIELDS})


def score(
    name: str,
    candidates: Mapping[str, NDArray[Any]],
    request: Mapping[str, float],
    mask: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Score every pair; to wait comes last, and but for ``min_min`` so do jobs that the queue does not offer."""
    pair, queue = _fields(candidates, request)
    scores, rule = np.full(mask.size, -np.inf), CARD_RULES[name]
    for slot in np.unique(pair["slot"][pair["shown"]]):
        of_job = pair["shown"] & (pair["slot"] == slot)
        job = {name: float(pair[name][of_job][0]) for name in JOB_FIELDS}
        cards = {name: pair[name][of_job] for name in features.STATE_FIELDS}
        limits = {name: queue[name] for name in LIMITS}
        scores[of_job] = heuristics.score(name, cards, {**job, **limits}, mask[of_job])
        if rule != PAIR:
            scores[of_job] -= LATER * slot
    scores[pair["wait"] > 0.0] = -LATER * mask.size
    return scores
