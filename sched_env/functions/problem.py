"""``functions``: instances of serverless functions go to priced nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sched_env.functions import features, heuristics
from sched_env.functions.scenario import ServerlessScenario
from sched_env.problem import LOWER, BatchRule, Bound, Problem

if TYPE_CHECKING:
    from sched_env.vector import PlacementVectorEnv


def _make(*arguments: Any, **options: Any) -> PlacementVectorEnv:
    from sched_env.functions.vector import make

    return make(*arguments, **options)


def _batch(name: str, env: Any, seed: int) -> BatchRule:
    from sched_env.functions.batch import batch

    return batch(name, env, seed)


def _bounds(env: PlacementVectorEnv, starts: Sequence[int]) -> list[float | None]:
    from sched_env.functions.bounds import of_starts

    return of_starts(env, starts)


PROBLEM = Problem(
    name="functions",
    spec=features.SPEC,
    state_fields=features.STATE_FIELDS,
    request_fields=features.REQUEST_FIELDS,
    build=features.build,
    ruled_out=features.ruled_out,
    gauges=features.gauges,
    heuristics=heuristics.NAMES,
    score=heuristics.score,
    scenario=ServerlessScenario,
    make=_make,
    batch=_batch,
    fallback="least_allocated",
    primary=lambda _: "return",
    metrics={
        "response_ratio": LOWER,
        "response_ratio_p99": LOWER,
        "cold_starts": LOWER,
        "rejected": LOWER,
    },
    # Proved on the bill alone: the return also values latency, whose bound is not known.
    bound=Bound(lambda _: "cost_usd", _bounds),
    environments={"Serverless-v0": ("sched_env.functions.env:ServerlessSchedulingEnv", "functions/serverless")},
)
