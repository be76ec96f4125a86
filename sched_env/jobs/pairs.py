"""What a policy sees of ``jobs`` where it chooses a waiting job and a card together, or to wait; numpy alone.

Candidate ``slot * cards + card`` is the job shown in a slot on a card; the last one is to wait. The card's columns are
those of ``features``, what that module has in the request is said of each candidate, and the request is the queue.

Raw fields are those of ``features`` for the job that the queue offers, which is in slot 0, and columns for the jobs
beside it. So a question about one job and its cards, as ``/v1/place`` asks it, is the same with nobody beside it.

Times above ``LONG_S`` are told shorter, the longer one always the longer: a scorer clips at ten scales, and could not
tell jobs of hours apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from sched_env.jobs import features, heuristics
from sched_env.jobs.features import REQUEST_FIELDS
from sched_env.jobs.heuristics import CARD_RULES, PAIR
from sched_env.observation import Fields, Observation, columns, scalars
from wire.contracts.feature_spec import Feature, FeatureSpec

CARD_COLUMNS = len(features.SPEC.candidate)
"""Columns of a candidate that say what the card would be to the job; those of the job follow."""
JOB_FIELDS = ("gpu_mem", "mem", "cpu", "data_gb", "best_s", "waited_s", "deadline_left_s", "attempts", "reserves")
LIMITS = ("cpu_threshold", "gpu_mem_margin", "mem_margin", "max_jobs", "last_card")

STATE_FIELDS: Fields = {
    **features.STATE_FIELDS,
    "delay_s": ("seconds", np.nan),  # by how much the jobs there would end later, exact; left out: ``harm_s``
    "next_end_s": ("seconds", 0.0),  # until the first of the jobs there is predicted to end; 0: none is
    **{name: REQUEST_FIELDS[name] for name in JOB_FIELDS},  # left out: those of the job that is asked about
    "slot": ("count", 0.0),  # place of the job among those shown; 0: the one that the queue offers
    "wait": ("flag", 0.0),  # this candidate is to wait for the next event; ``allowed``: there will be one
    "shown": ("flag", 1.0),  # 0: no job is shown in this slot
}
"""Raw fields of a candidate; those of the request are ``features.REQUEST_FIELDS``, of the offered job."""

TIME_SCALE = 600.0
LONG_S = 5.0 * TIME_SCALE
"""Times beyond this are told shorter. Ten scales, where a scorer clips, are then for ever away."""


def _is_time(feature: Feature) -> bool:
    """Say whether a feature is a duration; a deadline may lie in the past."""
    return feature.unit == "seconds" and feature.name != "deadline_left_s"


def _scaled(feature: Feature) -> Feature:
    return replace(feature, scale=TIME_SCALE) if _is_time(feature) else feature


SPEC = FeatureSpec(
    problem="jobs",
    version=3,
    candidate=(
        *map(_scaled, features.SPEC.candidate),
        *(_scaled(feature) for feature in features.SPEC.request if feature.name in JOB_FIELDS),
        Feature("slot", "count", 8.0, "place among the waiting jobs that fit somewhere, in the queue's order", 0.0),
        Feature("wait", "flag", 1.0, "the candidate that places nothing", 0.0),
        Feature("completion_s", "seconds", TIME_SCALE, "runtime predictor, what-if: the job's end from now", 600.0),
        Feature("delay_s", "seconds", TIME_SCALE, "runtime predictor, what-if: how much later those there end", 0.0),
    ),
    request=(
        Feature("waiting", "count", 64.0, "length of the controller's queue", 1.0),
        Feature("shown_jobs", "count", 8.0, "waiting jobs that fit somewhere, at most so many", 1.0),
        Feature("idle_cards", "count", 16.0, "cards on which the controller has no job", 0.0),
        Feature("next_end_s", "seconds", TIME_SCALE, "runtime predictor, first end on any card", 0.0),
    ),
)

TIMES = tuple(place for place, feature in enumerate(SPEC.candidate) if _is_time(feature))
"""Columns that ``told_s`` is asked about."""
LATER = 1e12
"""What each place further back costs a rule that takes the queue's word for the job: more than any score."""


def told_s(seconds: Any) -> Any:
    """Return a time as it is told: itself up to ``LONG_S``, then ever slower towards twice that."""
    beyond = np.maximum(seconds - LONG_S, 0.0)
    return np.minimum(seconds, LONG_S) + (LONG_S - LONG_S * LONG_S / (LONG_S + beyond))


def _fields(
    candidates: Mapping[str, NDArray[Any]], request: Mapping[str, float]
) -> tuple[dict[str, NDArray[Any]], dict[str, float]]:
    job = dict(zip(REQUEST_FIELDS, scalars(REQUEST_FIELDS, request), strict=True))
    fields = {name: (unit, job.get(name, default)) for name, (unit, default) in STATE_FIELDS.items()}
    pair: dict[str, NDArray[Any]] = dict(zip(fields, columns(fields, candidates), strict=True))
    pair["shown"] = (pair["shown"] > 0.0) & (pair["wait"] <= 0.0)
    return pair, job


def _queue(pair: Mapping[str, NDArray[Any]], waiting: float) -> NDArray[np.float32]:
    """Return what all candidates share; the offered job is on every card, so its rows are the cards."""
    cards = pair["shown"] & (pair["slot"] == 0.0)
    busy = cards & (pair["jobs"] > 0.0)
    said = {
        "waiting": waiting,
        "shown_jobs": pair["slot"][pair["shown"]].max(initial=-1.0) + 1.0,
        "idle_cards": np.count_nonzero(cards & ~busy),
        "next_end_s": told_s(pair["next_end_s"][busy].min()) if busy.any() else 0.0,
    }
    return np.array([said[feature.name] for feature in SPEC.request], np.float32)


def build(candidates: Mapping[str, NDArray[Any]], request: Mapping[str, float]) -> Observation:
    """Build the observation from raw fields; what is left out takes its default."""
    pair, job = _fields(candidates, request)
    shown, runs = pair["shown"], np.isfinite(pair["shared_s"])
    # A set that cannot run has no times: the row shows those of the job alone; one without a job shows nothing.
    pair["shared_s"] = np.where(shown, np.where(runs, pair["shared_s"], pair["alone_s"]), 1.0)
    pair["estimate_s"] = features.estimate(*(pair[name] for name in ("transfer_s", "alone_s", "shared_s", "busy_s")))
    pair["cost_usd"] = features.cost(*(pair[name] for name in ("price", "busy_s", "estimate_s", "link_usd")))
    pair["gpu_mem_after"] = pair["gpu_mem_free"] - pair["gpu_mem"]
    pair["node_mem_after"] = pair["node_mem_free"] - pair["mem"]
    mask = shown & runs
    mask &= features.node_fits(
        pair["node_cpu"], pair["node_mem_free"], pair["mem"], job["cpu_threshold"], job["mem_margin"]
    )
    mask &= features.card_fits(
        pair["gpu_mem_free"], pair["jobs"], pair["gpu_mem"], job["gpu_mem_margin"], job["max_jobs"]
    )
    mask &= pair["allowed"] > 0.0
    # What-ifs are worked out where the job may go.
    for name, otherwise in (("completion_s", "estimate_s"), ("delay_s", "harm_s")):
        pair[name] = np.where(mask, np.where(np.isnan(pair[name]), pair[otherwise], pair[name]), 0.0)
    mask |= (pair["wait"] > 0.0) & (pair["allowed"] > 0.0)
    always = ("gpu_mem_total", "price", "wait")
    seen = [
        pair[feature.name] if feature.name in always else np.where(shown, pair[feature.name], 0.0)
        for feature in SPEC.candidate
    ]
    for column in TIMES:
        seen[column] = told_s(seen[column])
    return Observation(np.stack(seen, axis=-1, dtype=np.float32), _queue(pair, job["waiting"]), mask)


def of_offered(candidates: Mapping[str, NDArray[Any]], request: Mapping[str, float]) -> Observation:
    """Build what a policy of cards sees (``features.SPEC``): the offered job alone, and it cannot wait."""
    pair, _ = _fields(candidates, request)
    offered = pair["shown"] & (pair["slot"] == 0.0)
    with np.errstate(all="ignore"):  # rows without a job have no times
        seen = features.build({name: pair[name] for name in features.STATE_FIELDS}, request)
    return Observation(np.where(offered[:, None], seen.candidates, np.float32(0.0)), seen.request, seen.mask & offered)


def ruled_out(candidates: Mapping[str, NDArray[Any]], request: Mapping[str, float]) -> dict[str, int]:
    """Say how many pairs are infeasible for each of the reasons that hold of a card, added up over the jobs shown."""
    pair, asked = _fields(candidates, request)
    reasons: dict[str, int] = {}
    for slot in np.unique(pair["slot"][pair["shown"]]):
        of_job = pair["shown"] & (pair["slot"] == slot)
        job = {name: float(pair[name][of_job][0]) for name in JOB_FIELDS}
        cards = {name: pair[name][of_job] for name in features.STATE_FIELDS}
        for reason, count in features.ruled_out(cards, {**job, **{name: asked[name] for name in LIMITS}}).items():
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
    pair, asked = _fields(candidates, request)
    scores, rule = np.full(mask.size, -np.inf), CARD_RULES[name]
    if rule == PAIR:  # whichever the job: one go instead of one for each
        with np.errstate(all="ignore"):  # rows without a job have no node
            of_pair = heuristics.score(name, {name: pair[name] for name in features.STATE_FIELDS}, asked, mask)
        np.copyto(scores, of_pair, where=pair["shown"])
        scores[pair["wait"] > 0.0] = -LATER * mask.size
        return scores
    for slot in np.unique(pair["slot"][pair["shown"]]):
        of_job = pair["shown"] & (pair["slot"] == slot)
        job = {name: float(pair[name][of_job][0]) for name in JOB_FIELDS}
        cards = {name: pair[name][of_job] for name in features.STATE_FIELDS}
        limits = {name: asked[name] for name in LIMITS}
        scores[of_job] = heuristics.score(name, cards, {**job, **limits}, mask[of_job]) - LATER * slot
    scores[pair["wait"] > 0.0] = -LATER * mask.size
    return scores
