"""What a policy sees of ``jobs``: one row for each card, relative to the job that is to be placed.

The functions below are row-wise: scalars inside kernels, columns in the service, the same bits both ways. What a
card would do to the job (``transfer_s``, ``alone_s``, ``shared_s``) and the job to those already there (``harm_s``)
are raw fields, because they come from the runtime predictor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sched_env.observation import Fields, Observation, columns, scalars
from wire.contracts.feature_spec import Feature, FeatureSpec

HOURS_PER_SECOND = 1.0 / 3600.0

STATE_FIELDS: Fields = {
    "gpu_mem_total": ("GiB", 16.0),
    "price": ("USD/hour", 1.0),
    "gpu_mem_free": ("GiB", 0.0),
    "jobs": ("count", 0.0),
    "node_cpu": ("ratio", 0.0),  # share of the node's cores in use
    "node_mem_free": ("GiB", 0.0),
    "node_cpu_total": ("cores", 32.0),
    "node_mem_total": ("GiB", 128.0),
    "transfer_s": ("seconds", 0.0),  # until the job computes: to bring its data to the node, with dispatch and start-up
    "link_usd": ("USD", 0.0),  # price of that transfer
    "alone_s": ("seconds", 600.0),  # run time if the job had the card to itself
    "shared_s": ("seconds", 600.0),  # run time if the jobs now there never left; infinite: they cannot share the card
    "busy_s": ("seconds", 0.0),  # until the last of them is predicted to end
    "harm_s": ("seconds", 0.0),  # what the job would add to their run times, together
    "reserved": ("flag", 0.0),  # a job that fits nowhere waits for this card
    "allowed": ("flag", 1.0),  # 0: the placement would delay a reserved job
    "completion_s": ("seconds", np.nan),  # exact prediction, for heuristics; left out: the estimate below
    "share": ("ratio", np.nan),  # time share of the job's model on such cards in the LP of gavel_lp
}
"""Raw fields of a card: unit and the default when the live source has none."""

REQUEST_FIELDS: Fields = {
    "gpu_mem": ("GiB", 1.0),
    "mem": ("GiB", 0.0),
    "cpu": ("cores", 0.0),
    "data_gb": ("GiB", 0.0),
    "best_s": ("seconds", 600.0),  # the same and run alone, on the best card
    "waited_s": ("seconds", 0.0),
    "deadline_left_s": ("seconds", 1200.0),
    "waiting": ("count", 1.0),  # jobs in the queue, this one included
    "attempts": ("count", 0.0),  # failed ones
    "reserves": ("flag", 0.0),  # this job holds a reservation
    "cpu_threshold": ("ratio", 0.7),
    "gpu_mem_margin": ("GiB", 1.0),
    "mem_margin": ("GiB", 10.0 / 1024.0),
    "max_jobs": ("count", 3.0),
    "last_card": ("count", -1.0),  # where the job before went, for round_robin
}
"""Raw fields of a job and the limits it is judged by."""

SPEC = FeatureSpec(
    problem="jobs",
    version=1,
    candidate=(
        Feature("gpu_mem_total", "GiB", 32.0, "cards.gpu_mem_total_gib", 16.0),
        Feature("price", "USD/hour", 1.0, "cards.price_usd_per_hour", 1.0, True),
        Feature("gpu_mem_after", "GiB", 16.0, "cards.gpu_mem_free_gib - request", 0.0),
        Feature("jobs", "count", 3.0, "jobs the controller has on the card", 0.0),
        Feature("node_cpu", "ratio", 1.0, "nodes.cpu_used_mean_cores / capacity", 0.0, True),
        Feature("node_mem_after", "GiB", 64.0, "nodes.mem free - request", 0.0, True),
        Feature("transfer_s", "seconds", 300.0, "data size / bandwidth of the link", 0.0),
        Feature("alone_s", "seconds", 600.0, "runtime predictor, the job alone", 600.0),
        Feature("shared_s", "seconds", 600.0, "runtime predictor, with the jobs on the card", 600.0),
        Feature("busy_s", "seconds", 600.0, "runtime predictor, last end on the card", 0.0),
        Feature("estimate_s", "seconds", 600.0, "derived: transfer, then shared until busy_s, then alone", 600.0),
        Feature("harm_s", "seconds", 300.0, "runtime predictor, slow-down of the jobs on the card", 0.0),
        Feature("cost_usd", "USD", 1.0, "derived: card time beyond busy_s x price + transfer", 0.0),
        Feature("reserved", "flag", 1.0, "the controller's reservations", 0.0),
    ),
    request=(
        Feature("gpu_mem", "GiB", 16.0, "job gpu memory", 1.0),
        Feature("mem", "GiB", 16.0, "pod.spec.containers[].resources.requests.memory", 0.0),
        Feature("cpu", "cores", 8.0, "pod.spec.containers[].resources.requests.cpu", 0.0),
        Feature("data_gb", "GiB", 32.0, "job annotation data_size", 0.0),
        Feature("best_s", "seconds", 600.0, "runtime predictor, best of all cards", 600.0),
        Feature("waited_s", "seconds", 600.0, "the controller's clock", 0.0),
        Feature("deadline_left_s", "seconds", 1200.0, "deadline - the controller's clock", 1200.0),
        Feature("waiting", "count", 64.0, "length of the controller's queue", 1.0),
        Feature("attempts", "count", 3.0, "attempts that failed", 0.0),
        Feature("reserves", "flag", 1.0, "the controller's reservations", 0.0),
    ),
)


def estimate(transfer_s: Any, alone_s: Any, shared_s: Any, busy_s: Any) -> Any:
    """Estimate the completion from now: transfer, then shared speed while the others are there, then alone."""
    together = np.minimum(np.maximum(busy_s - transfer_s, 0.0), shared_s)
    return transfer_s + together + (1.0 - together / shared_s) * alone_s


def cost(price: Any, busy_s: Any, estimate_s: Any, link_usd: Any) -> Any:
    """Return what the placement adds to the bill, USD: card time nobody else pays for, and the transfer."""
    return price * (np.maximum(estimate_s - busy_s, 0.0) * HOURS_PER_SECOND) + link_usd


def node_fits(node_cpu: Any, node_mem_free: Any, mem: Any, cpu_threshold: Any, mem_margin: Any) -> Any:
    """Say whether a node is neither too busy nor short of memory."""
    return (node_cpu <= cpu_threshold) & (node_mem_free - mem_margin >= mem)


def card_fits(gpu_mem_free: Any, jobs: Any, gpu_mem: Any, gpu_mem_margin: Any, max_jobs: Any) -> Any:
    """Say whether a card has the memory and a place left."""
    return (gpu_mem_free - gpu_mem_margin >= gpu_mem) & (jobs < max_jobs)


def build(candidates: Mapping[str, NDArray[Any]], request: Mapping[str, float]) -> Observation:
    """Build the observation from raw fields; what is left out takes its default."""
    card = dict(zip(STATE_FIELDS, columns(STATE_FIELDS, candidates), strict=True))
    job = dict(zip(REQUEST_FIELDS, scalars(REQUEST_FIELDS, request), strict=True))
    runs = np.isfinite(card["shared_s"])
    # A set that cannot run has no times; the row is masked, and shows those of the job alone.
    card["shared_s"] = np.where(runs, card["shared_s"], card["alone_s"])
    card["estimate_s"] = estimate(*(card[name] for name in ("transfer_s", "alone_s", "shared_s", "busy_s")))
    card["cost_usd"] = cost(*(card[name] for name in ("price", "busy_s", "estimate_s", "link_usd")))
    card["gpu_mem_after"] = card["gpu_mem_free"] - job["gpu_mem"]
    card["node_mem_after"] = card["node_mem_free"] - job["mem"]
    mask = runs & (card["allowed"] > 0.0)
    mask &= node_fits(card["node_cpu"], card["node_mem_free"], job["mem"], job["cpu_threshold"], job["mem_margin"])
    mask &= card_fits(card["gpu_mem_free"], card["jobs"], job["gpu_mem"], job["gpu_mem_margin"], job["max_jobs"])
    return Observation(
        np.stack([card[feature.name] for feature in SPEC.candidate], axis=-1, dtype=np.float32),
        np.array([job[feature.name] for feature in SPEC.request], np.float32),
        mask,
    )


def ruled_out(candidates: Mapping[str, NDArray[Any]], request: Mapping[str, float]) -> dict[str, int]:
    """Say how many cards lack GPU memory or a place, are on a busy or full node, or are kept for another job."""
    card = dict(zip(STATE_FIELDS, columns(STATE_FIELDS, candidates), strict=True))
    job = dict(zip(REQUEST_FIELDS, scalars(REQUEST_FIELDS, request), strict=True))
    reasons = {
        "too little GPU memory": card["gpu_mem_free"] - job["gpu_mem_margin"] < job["gpu_mem"],
        "with as many jobs as allowed": card["jobs"] >= job["max_jobs"],
        "on a node above the cpu threshold": card["node_cpu"] > job["cpu_threshold"],
        "on a node with too little memory": card["node_mem_free"] - job["mem_margin"] < job["mem"],
        "kept for a reserved job": card["allowed"] <= 0.0,
        "that cannot run the job beside those there": ~np.isfinite(card["shared_s"]),
    }
    return {reason: int(cards.sum()) for reason, cards in reasons.items()}


def gauges(candidates: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    """Return the share of each card's memory, and of its node's cores, in use."""
    card = dict(zip(STATE_FIELDS, columns(STATE_FIELDS, candidates), strict=True))
    return {"gpu_mem": 1.0 - card["gpu_mem_free"] / card["gpu_mem_total"], "cpu": card["node_cpu"]}
