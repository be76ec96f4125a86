"""``pods``: pods of stressed nodes move, or stay, every five minutes."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import msgspec

from sched_env.pods import features, heuristics
from sched_env.pods.scenario import DeployScenario
from sched_env.problem import LOWER, Earlier, Problem, Simulation
from sched_env.scenarios import Scenario


def _simulation() -> Simulation:
    from sched_env.pods import batch, bounds, vector

    return Simulation(vector.make, batch.batch, bounds.of_starts)


def _view(scenario: Scenario) -> Problem | None:
    return None if cast(DeployScenario, scenario).foresight else SHORT_SIGHTED


def _without_foresight(scenario: Scenario) -> Scenario:
    return msgspec.structs.replace(cast(DeployScenario, scenario), foresight=False)


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
    fallback="hottest_to_coolest",
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
    guardrails=lambda _: ("performance_violation_rate",),
    bound_metric=lambda _: "resource_violations",
    simulation=_simulation,
    earlier=Earlier(features.BEFORE, features.build_before, _without_foresight),
    view=_view,
    environments={"Deploy-v0": ("sched_env.pods.env:DeployEnv", "pods/deploy")},
)

SHORT_SIGHTED = replace(PROBLEM, spec=features.BEFORE, build=features.build_before, earlier=None)
"""As it is seen without ``foresight``: the window that was."""
