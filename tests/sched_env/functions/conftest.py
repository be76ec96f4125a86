from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sched_env.functions.tables import FunctionTrace
from sched_env.functions.vector import ServerlessVectorEnv
from sched_env.tables import NodeTable
from sched_env.vector import make_vec


@pytest.fixture
def two_nodes() -> NodeTable:
    return NodeTable(
        names=("small", "large"),
        cpu=np.array([4.0, 8.0]),
        mem=np.array([8.0, 32.0]),
        net=np.array([1000.0, 1000.0]),
        disk=np.array([5000.0, 5000.0]),
        price_usd_per_hour=np.array([0.2, 0.4]),
    )


@pytest.fixture
def tasks() -> Callable[..., FunctionTrace]:
    """Make a trace of equal instances; every column can be replaced by one value or by one a row."""

    def make(arrivals: list[float], **columns: Any) -> FunctionTrace:
        rows = len(arrivals)
        values = {
            "function": 0, "cpu": 1.0, "mem": 1.0, "net": 0.0, "disk": 0.0, "requests": 100, "duration_s": 100.0,
            "response_s": 0.5, **columns,
        }  # fmt: skip
        arrays = {name: np.broadcast_to(value, rows).copy() for name, value in values.items()}
        return FunctionTrace(arrival_s=np.array(arrivals, float), **arrays)

    return make


@pytest.fixture
def one(two_nodes: NodeTable) -> Callable[..., ServerlessVectorEnv]:
    """Make one environment on two nodes that begins at the first row of a trace and rests at its end."""

    def make(trace: FunctionTrace, nodes: NodeTable = two_nodes, **overrides: Any) -> ServerlessVectorEnv:
        settings = {"horizon": 0, "cold_start_s": 0.0, "cooldown_s": 60.0, **overrides}
        env = make_vec("functions/serverless", 1, 0, (trace, nodes), **settings)
        env.reset(options={"starts": [0], "park": True})
        return env

    return make


@pytest.fixture
def play() -> Callable[..., dict[str, float]]:
    """Step an environment through a list of actions and return its last episode's metrics."""

    def run(env: ServerlessVectorEnv, actions: list[int]) -> dict[str, float]:
        for action in actions:
            env.step(np.array([action]))
        assert not env.buffers.active[0], "the episode goes on: more actions are needed"
        return dict(zip(env.METRICS, env.buffers.metrics[0].tolist(), strict=True))

    return run
