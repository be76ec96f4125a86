"""``jobs``: GPU jobs of a queue go to cards of several clusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from sched_env.jobs import features, heuristics
from sched_env.jobs.scenario import CpnScenario
from sched_env.problem import LOWER, BatchRule, Bound, Problem
from sched_env.scenarios import Scenario

if TYPE_CHECKING:
    from sched_env.vector import PlacementVectorEnv


def _make(*arguments: Any, **options: Any) -> PlacementVectorEnv:
    from sched_env.jobs.vector import make

    return make(*arguments, **options)


def _batch(name: str, env: Any, seed: int) -> BatchRule:
    from sched_env.jobs.batch import batch

    return batch(name, env, seed)


def _bounds(env: PlacementVectorEnv, starts: Sequence[int]) -> list[float | None]:
    from sched_env.jobs.bounds import of_starts

    return of_starts(env, starts)


def _bound_of(scenario: Scenario) -> str:
    from sched_env.jobs.bounds import stated_in

    return stated_in(cast(CpnScenario, scenario))


PROBLEM = Problem(
    name="jobs",
    spec=features.SPEC,
    state_fields=features.STATE_FIELDS,
    request_fields=features.REQUEST_FIELDS,
    build=features.build,
    ruled_out=features.ruled_out,
    gauges=features.gauges,
    heuristics=heuristics.NAMES,
    score=heuristics.score,
    scenario=CpnScenario,
    make=_make,
    batch=_batch,
    fallback="min_completion_time",
    primary=lambda _: "mean_completion_s",
    metrics={
        "makespan_s": LOWER,
        "mean_completion_s": LOWER,
        "mean_wait_s": LOWER,
        "max_wait_s": LOWER,
        "oom": LOWER,
        "failed": LOWER,
        "retries": LOWER,
        "moved_gb": LOWER,
        "card_hours": LOWER,
    },
    guardrails=("makespan_s",),
    bound=Bound(_bound_of, _bounds),
    environments={"Cpn-v0": ("sched_env.jobs.env:CpnEnv", "jobs/cpn")},
)
