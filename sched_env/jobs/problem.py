"""``jobs``: GPU jobs of a queue go to cards of several clusters."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import msgspec

from sched_env.jobs import features, heuristics, pairs
from sched_env.jobs.scenario import CpnScenario
from sched_env.problem import LOWER, Earlier, Problem, Simulation
from sched_env.scenarios import Scenario


def _simulation() -> Simulation:
    from sched_env.jobs import batch, bounds, vector

    return Simulation(vector.make, batch.batch, bounds.of_starts)


def _bound_of(scenario: Scenario) -> str:
    from sched_env.jobs.bounds import stated_in

    return stated_in(cast(CpnScenario, scenario))


def _view(scenario: Scenario) -> Problem | None:
    return CARDS if cast(CpnScenario, scenario).choice == "card" else None


def _of_cards(scenario: Scenario) -> Scenario:
    """Return the scenario for a policy of cards: jobs are offered to it as the controller does."""
    given = cast(CpnScenario, scenario)
    if given.choice == "card":
        return given
    return msgspec.structs.replace(given, choice="card", queue_order="fifo", reservation="big")


PROBLEM = Problem(
    name="jobs",
    spec=pairs.SPEC,
    state_fields=features.STATE_FIELDS,
    request_fields=features.REQUEST_FIELDS,
    signed=frozenset({"deadline_left_s"}),
    build=pairs.build,
    ruled_out=pairs.ruled_out,
    gauges=pairs.gauges,
    heuristics=heuristics.NAMES,
    score=pairs.score,
    scenario=CpnScenario,
    fallback="min_min",
    replayed="min_completion_time",
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
    earlier=Earlier(features.SPEC, pairs.of_offered, _of_cards),
    view=_view,
    environments={"Cpn-v0": ("sched_env.jobs.env:CpnEnv", "jobs/cpn")},
)

CARDS = replace(
    PROBLEM,
    spec=features.SPEC,
    build=features.build,
    ruled_out=features.ruled_out,
    gauges=features.gauges,
    score=heuristics.score,
    fallback="min_completion_time",
    earlier=None,
)
"""As it is seen where a card is chosen for the job that the queue offers (``choice: card``)."""
