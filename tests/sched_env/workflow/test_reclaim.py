"""A plan whose slack is reclaimed ends when it did, costs no more, and still is a plan."""

from __future__ import annotations

import numpy as np

from sched_env import heuristics
from sched_env.vector import make_vec
from sched_env.workflow.reclaim import reclaimed
from sched_env.workflow.state import CPU, INPUT, MEM, SECONDS_PER_MB

FLOWS = 9


def placed_by_heft():
    env = make_vec("workflow/dag", FLOWS, nodes=5, tasks=30, workflows=FLOWS, dispatch_s=2.0)
    rule = heuristics.batch("heft", env)
    env.reset(options={"starts": np.arange(FLOWS), "park": True})
    while env.buffers.active.any():
        env.step(rule())
    return env, dict(zip(env.METRICS, env.buffers.metrics.T, strict=True))


def check(env, flow, plan):
    """Hold a plan to the rules of the simulator: data there in time, and room on every node at every moment."""
    first, last = env.plan.first[flow : flow + 2]
    tasks, per_mb = env.plan.tasks[first:last], env.plan.nodes[:, SECONDS_PER_MB]
    for task in range(last - first):
        n, ready = plan.node[task], tasks[task, INPUT] * per_mb[plan.node[task]]
        for edge in range(*env.plan.parents[first + task : first + task + 2]):
            source = env.plan.parent[edge]
            slower = max(per_mb[n], per_mb[plan.node[source]])
            moving = 0.0 if plan.node[source] == n else env.plan.edge_mb[edge] * slower
            ready = max(ready, plan.finish_s[source] + moving)
        assert plan.start_s[task] >= ready + env.plan.dispatch_s - 1e-6
        together = (plan.node == n) & (plan.start_s <= plan.start_s[task]) & (plan.start_s[task] < plan.finish_s)
        for column in (CPU, MEM):
            assert tasks[together, column].sum() <= env.plan.nodes[n, column] + 1e-6


def test_slack_is_reclaimed_for_less_money_at_the_same_end_within_the_rules():
    env, sheet = placed_by_heft()
    saved = 0.0
    for flow in range(FLOWS):
        plan = reclaimed(env, flow)
        check(env, flow, plan)
        assert plan.makespan_s <= sheet["makespan_s"][flow] * (1 + 1e-9)
        assert plan.usd <= sheet["cost_usd"][flow] * (1 + 1e-9)
        saved += 1.0 - plan.usd / sheet["cost_usd"][flow]
    assert saved / FLOWS > 0.005


def test_the_bill_of_a_plan_is_the_simulators(monkeypatch):
    env, sheet = placed_by_heft()
    monkeypatch.setattr("sched_env.workflow.reclaim.MOST_SWEEPS", 0)
    for flow in range(FLOWS):
        np.testing.assert_allclose(reclaimed(env, flow).usd, sheet["cost_usd"][flow], rtol=1e-12)
