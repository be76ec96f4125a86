"""A workload and a training small enough for any test; imported when asked for, because torch is heavy."""

import pytest


@pytest.fixture(scope="session")
def tiny_workload():
    """A few hundred placements on six nodes, generated."""
    from pipeline.datasets import Workload
    from sched_env import scenarios
    from sched_env.functions import synthetic

    nodes = synthetic.nodes(6, 1000.0, 5000.0)
    trace = synthetic.serverless(400, 5, float(nodes.cpu.sum()), 0.6, 0)
    scenario = scenarios.load("functions/serverless", {"horizon": 32})
    return Workload("functions", scenario, (trace, nodes), "2026-01-01", "2026-01-02")


@pytest.fixture(scope="session")
def tiny_ppo():
    from pipeline.policies import algorithms

    return algorithms.settings(
        "maskable_ppo", envs=4, rollout_steps=16, segments=4, rollouts_per_segment=1, epochs=1, batch=32, hidden=8,
        teacher_steps=8, teacher_epochs=1,
    )  # fmt: skip
