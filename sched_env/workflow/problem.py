"""``workflow``: the tasks of a DAG of functions go to nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sched_env.problem import LOWER, BatchRule, Bound, Problem
from sched_env.workflow import features, heuristics
from sched_env.workflow.scenario import WorkflowScenario

if TYPE_CHECKING:
    from sched_env.vector import PlacementVectorEnv


def _make(*arguments: Any, **options: Any) -> PlacementVectorEnv:
    from sched_env.workflow.vector import make

    return make(*arguments, **options)


def _batch(name: str, env: Any, seed: int) -> BatchRule:
    from sched_env.workflow.batch import batch

    return batch(name, env, seed)


def _bounds(env: PlacementVectorEnv, starts: Sequence[int]) -> list[float | None]:
    from sched_env.workflow.bounds import of_starts

    return of_starts(env, starts)


PROBLEM = Problem(
    name="workflow",
    spec=features.SPEC,
    state_fields=features.STATE_FIELDS,
    request_fields=features.REQUEST_FIELDS,
    build=features.build,
    ruled_out=features.ruled_out,
    gauges=features.gauges,
    heuristics=heuristics.NAMES,
    score=heuristics.score,
    scenario=WorkflowScenario,
    make=_make,
    batch=_batch,
    fallback="earliest_finish",
    primary=lambda _: "makespan_s",
    metrics={"makespan_s": LOWER, "response_ratio": LOWER, "moved_mb": LOWER, "nodes_used": LOWER},
    bound=Bound(lambda _: "makespan_s", _bounds),
    environments={
        "Workflow-v0": ("sched_env.workflow.env:WorkflowEnv", "workflow/dag"),
        "WorkflowPlan-v0": ("sched_env.workflow.env:WorkflowPlanEnv", "workflow/dag"),
    },
)
