"""``vm``: VMs of a trace go to NUMA halves of servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sched_env.problem import HIGHER, LOWER, BatchRule, Bound, Problem
from sched_env.scenarios import Scenario
from sched_env.vm import features, heuristics
from sched_env.vm.scenario import VmScenario

if TYPE_CHECKING:
    from sched_env.vector import PlacementVectorEnv


def _make(*arguments: Any, **options: Any) -> PlacementVectorEnv:
    from sched_env.vm.vector import make

    return make(*arguments, **options)


def _batch(name: str, env: Any, seed: int) -> BatchRule:
    from sched_env.vm.batch import batch

    return batch(name, env, seed)


def _bounds(env: PlacementVectorEnv, starts: Sequence[int]) -> list[float | None]:
    from sched_env.vm.bounds import of_starts

    return of_starts(env, starts)


def _judged_by(scenario: Scenario) -> str:
    """Return the metric of the scenario's ending: placements up to the first misfit, or seconds of waiting."""
    return "wait_s" if isinstance(scenario, VmScenario) and scenario.ending == "wait" else "placed"


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
    fallback="best_fit",
    scenario=VmScenario,
    primary=_judged_by,
    metrics={"cpu_rate": HIGHER, "mem_rate": HIGHER, "placed_cpu": HIGHER, "servers": LOWER},
    make=_make,
    batch=_batch,
    bound=Bound(_judged_by, _bounds),
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
