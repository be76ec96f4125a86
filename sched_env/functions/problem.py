"""``functions``: instances of serverless functions go to priced nodes."""

from __future__ import annotations

from sched_env.functions import features, heuristics
from sched_env.functions.scenario import ServerlessScenario
from sched_env.problem import LOWER, Problem, Simulation, Steps


def _simulation() -> Simulation:
    from sched_env.functions import batch, bounds, vector

    return Simulation(vector.make, batch.batch, bounds.of_starts)


PROBLEM = Problem(
    name="functions",
    spec=features.SPEC,
    state_fields=features.STATE_FIELDS,
    request_fields=features.REQUEST_FIELDS,
    build=features.build,
    steps=Steps(features.prepare, features.finish),
    ruled_out=features.ruled_out,
    quick=features.quick,
    gauges=features.gauges,
    heuristics=heuristics.NAMES,
    score=heuristics.score,
    scenario=ServerlessScenario,
    fallback="worst_fit",
    primary=lambda _: "return",
    metrics={
        "response_ratio": LOWER,
        "response_ratio_p99": LOWER,
        "cold_starts": LOWER,
        "rejected": LOWER,
    },
    # Proved on the bill alone: the return also values latency, whose bound is not known.
    bound_metric=lambda _: "cost_usd",
    simulation=_simulation,
    environments={"Serverless-v0": ("sched_env.functions.env:ServerlessSchedulingEnv", "functions/serverless")},
)
