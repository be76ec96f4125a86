"""``jobs``: GPU jobs of a queue go to cards of several clusters."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from sched_env.jobs import features, heuristics, pairs
from sched_env.jobs.scenario import CpnScenario
from sched_env.problem import LOWER, Problem, Simulation
from sched_env.scenarios import Scenario


def _simulation() -> Simulation:
    from sched_env.jobs import batch, bounds, vector

    return Simulation(vector.make, batch.batch, bounds.of_starts)


def _bound_of(scenario: Scenario) -> str:
    from sched_env.jobs.bounds import stated_in

    return stated_in(cast(CpnScenario, scenario))


def _view(scenario: Scenario) -> Problem | None:
    return PAIRS if cast(CpnScenario, scenario).choice == "pair" else None


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
    guardrails=lambda _: ("makespan_s",),
    bound_metric=_bound_of,
    simulation=_simulation,
    view=_view,
    environments={"Cpn-v0": ("sched_env.jobs.env:CpnEnv", "jobs/cpn")},
)

PAIRS = replace(
    PROBLEM,
    spec=pairs.SPEC,
    state_fields=pairs.STATE_FIELDS,
    request_fields=pairs.REQUEST_FIELDS,
    build=pairs.build,
    ruled_out=pairs.ruled_out,
    gauges=pairs.gauges,
    score=pairs.score,
)
"""As it is seen where a job and a card are chosen together (``choice: pair``)."""
