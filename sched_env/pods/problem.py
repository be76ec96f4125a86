"""``pods``: pods of stressed nodes move, or stay, every five minutes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sched_env.pods import features, heuristics
from sched_env.pods.scenario import DeployScenario
from sched_env.problem import LOWER, BatchRule, Bound, Problem

if TYPE_CHECKING:
    from sched_env.vector import PlacementVectorEnv


def _make(*arguments: Any, **options: Any) -> PlacementVectorEnv:
    from sched_env.pods.vector import make

    return make(*arguments, **options)


def _batch(name: str, env: Any, seed: int) -> BatchRule:
    from sched_env.pods.batch import batch

    return batch(name, env, seed)


def _bounds(env: PlacementVectorEnv, starts: Sequence[int]) -> list[float | None]:
    from sched_env.pods.bounds import of_starts

    return of_starts(env, starts)


PROBLEM = Problem(
    name="pods",
    spec=features.SPEC,
    state_fields=features.STATE_FIELDS,
    request_fields=features.REQUEST_FIELDS,
    build=features.build,
    ruled_out=features.ruled_out,
    gauges=features.gauges,
    heuristics=heuristics.NAMES,
    score=heuristics.score,
    scenario=DeployScenario,
    make=_make,
    batch=_batch,
    fallback="no_migration",
    primary=lambda _: "resource_violations",
    metrics={
        "resource_violations": LOWER,
        "performance_violations": LOWER,
        "performance_violation_rate": LOWER,
        "migrations": LOWER,
        "under_rate": LOWER,
        "crowded_requests": LOWER,
        "displaced": LOWER,
        "unplaced": LOWER,
    },
    guardrails=("performance_violation_rate",),
    bound=Bound(lambda _: "resource_violations", _bounds),
    environments={"Deploy-v0": ("sched_env.pods.env:DeployEnv", "pods/deploy")},
)
