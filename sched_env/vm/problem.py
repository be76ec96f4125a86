"""``vm``: VMs of a trace go to NUMA halves of servers."""

from __future__ import annotations

from typing import cast

from sched_env.problem import HIGHER, LOWER, Earlier, Problem, Simulation, by_name
from sched_env.scenarios import Scenario
from sched_env.vm import features, heuristics
from sched_env.vm.scenario import VmScenario


def _simulation() -> Simulation:
    from sched_env.vm import batch, bounds, vector

    return Simulation(vector.make, batch.batch, bounds.of_starts)


def _metric(scenario: Scenario) -> str:
    return cast(VmScenario, scenario).metric


def _guardrails(scenario: Scenario) -> tuple[str, ...]:
    """A bill is compared only where everything is placed."""
    return ("placed",) if _metric(scenario) == "cost_usd" else ()


PROBLEM = Problem(
    name="vm",
    spec=features.SPEC,
    state_fields=features.STATE_FIELDS,
    request_fields=features.REQUEST_FIELDS,
    build=features.build,
    ruled_out=features.ruled_out,
    gauges=features.gauges,
    heuristics=heuristics.NAMES,
    score=heuristics.score,
    fallback="numa_first_fit",
    scenario=VmScenario,
    primary=_metric,
    metrics={"cpu_rate": HIGHER, "mem_rate": HIGHER, "placed_cpu": HIGHER, "servers": LOWER},
    bound_metric=_metric,
    guardrails=_guardrails,
    simulation=_simulation,
    earlier=Earlier(features.BEFORE, by_name(features.build, features.SPEC, features.BEFORE)),
    environments={
        f"{name}-v0": ("sched_env.vm.env:SchedEnv", f"vm/{scenario}")
        for name, scenario in {
            "Fading": "fading",
            "Recovering": "recovering",
            "Expanding": "expanding",
            "RecoveringL": "recovering-l",
        }.items()
    },
)
