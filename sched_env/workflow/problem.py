"""``workflow``: the tasks of a DAG of functions go to nodes."""

from __future__ import annotations

from sched_env.problem import LOWER, Earlier, Problem, Simulation
from sched_env.workflow import features, heuristics
from sched_env.workflow.scenario import WorkflowScenario


def _simulation() -> Simulation:
    from sched_env.workflow import batch, bounds, vector

    return Simulation(vector.make, batch.batch, bounds.of_starts)


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
    earlier=Earlier(features.BEFORE, features.build_before),
    fallback="earliest_finish",
    primary=lambda _: "makespan_s",
    metrics={
        "makespan_s": LOWER,
        "response_ratio": LOWER,
        "moved_mb": LOWER,
        "nodes_used": LOWER,
        "cost_ratio": LOWER,
    },
    bound_metric=lambda _: "makespan_s",
    simulation=_simulation,
    environments={
        "Workflow-v0": ("sched_env.workflow.env:WorkflowEnv", "workflow/dag"),
        "WorkflowPlan-v0": ("sched_env.workflow.env:WorkflowPlanEnv", "workflow/dag"),
    },
)
