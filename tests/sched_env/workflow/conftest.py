from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sched_env.tables import NodeTable
from sched_env.workflow.env import WorkflowEnv
from sched_env.workflow.tables import Dag


def make_dag(runtime_s: list[float], edges: dict[tuple[int, int], float] | None = None, **columns: Any) -> Dag:
    """Make a workflow of tasks that take a core and a GiB each, unless told otherwise."""
    edges, rows = edges or {}, len(runtime_s)
    values = {name: np.broadcast_to(columns.pop(name, 1.0), rows).astype(float) for name in ("cpu", "mem")}
    return Dag(
        name="small",
        runtime_s=np.array(runtime_s, float),
        edges=np.array(list(edges), np.int64).reshape(-1, 2),
        edge_mb=np.array(list(edges.values()), float),
        **values,
        **columns,
    )


def make_nodes(**columns: Any) -> NodeTable:
    """Two nodes: a slow one with two cores and a fast link, and a fast one with one core and a slow link."""
    values = {
        "cpu": [2.0, 1.0],
        "mem": [4.0, 4.0],
        "net": [100.0, 50.0],
        "disk": [1.0, 1.0],
        "price_usd_per_hour": [0.36, 0.72],
        "speed": [1.0, 2.0],
        **columns,
    }
    count = len(values["cpu"])
    return NodeTable(names=tuple(f"n{k}" for k in range(count)), **{name: np.array(v) for name, v in values.items()})


@pytest.fixture
def dag() -> Callable[..., Dag]:
    return make_dag


@pytest.fixture
def nodes() -> Callable[..., NodeTable]:
    return make_nodes


@pytest.fixture
def chain() -> Dag:
    """Two tasks of 10 s, 100 MB from one to the other."""
    return make_dag([10.0, 10.0], {(0, 1): 100.0})


@pytest.fixture
def play() -> Callable[..., tuple[Any, Any, dict[str, float]]]:
    """Place a workflow node by node, tasks as they stand in it; return starts, ends and the metric sheet."""

    def run(flow: Dag, actions: list[int], table: NodeTable | None = None, **keys: Any) -> Any:
        env = WorkflowEnv(trace=((flow,), table or make_nodes()), invalid_action="raise", **{"order": "trace", **keys})
        env.reset()
        total = 0.0
        for action in actions:
            _, reward, terminated, truncated, info = env.step(action)
            total += reward
        assert terminated or truncated, "the episode goes on: more actions are needed"
        sheet = info["episode_metrics"]
        assert sheet["return"] == pytest.approx(total)
        return info["schedule"]["start_s"].tolist(), info["schedule"]["finish_s"].tolist(), sheet

    return run
