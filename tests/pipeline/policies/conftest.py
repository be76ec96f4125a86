import pytest

from pipeline.datasets import Workload
from pipeline.policies.ppo import PpoConfig
from sched_env.functions import synthetic as synthetic_functions


@pytest.fixture(scope="session")
def tiny_workload():
    """A few hundred placements on six nodes, generated."""
    nodes = synthetic_functions.nodes(6, 1000.0, 5000.0)
    trace = synthetic_functions.serverless(400, 5, float(nodes.cpu.sum()), 0.6, 0)
    return Workload("functions/serverless", {"horizon": 32}, (trace, nodes), "2026-01-01", "2026-01-02")


@pytest.fixture(scope="session")
def tiny_ppo():
    return PpoConfig(
        envs=4, rollout_steps=16, segments=4, rollouts_per_segment=1, epochs=1, batch=32, hidden=8, teacher_steps=8,
        teacher_epochs=1,
    )  # fmt: skip
