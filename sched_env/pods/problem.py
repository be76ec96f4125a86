"""``pods``: pods of stressed nodes move, or stay, every five minutes."""

from __future__ import annotations

from sched_env.pods import features, heuristics
from sched_env.pods.scenario import DeployScenario
from sched_env.problem import LOWER, Earlier, Problem, Simulation, by_name


def _simulation() -> Simulation:
    from sched_env.pods import batch, bounds, vector

    return Simulation(vector.make, batch.batch, bounds.of_starts)


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
    earlier=Earlier(features.BEFORE, by_name(features.build, features.SPEC, features.BEFORE)),
    environments={"Deploy-v0": ("sched_env.pods.env:DeployEnv", "pods/deploy")},
)
