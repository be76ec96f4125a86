"""Workflows from windows: whole executions as DAGs, in order of time, on the nodes of their clusters."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.datasets.workflow import DATASET
from pipeline.errors import DataError
from pipeline.windows import span
from sched_env import scenarios
from sched_env.rollout import run_episodes


def task(at: Any, name: str, parents: str | None, seconds: float = 60.0, **more: Any) -> dict[str, Any]:
    return {"window_start": at(seconds - seconds % 300), "cluster": "c", "workflow": "w", "time": at(seconds),
            "task": name, "runtime_s": 10.0, "parents": parents, **more}  # fmt: skip


@pytest.fixture
def flows(folder: Path, write: Any, at: Any) -> Path:
    rows = [
        task(at, "a", "z", cpu_cores=1.5, mem_gib=2.0, parent_mb="7.5"),
        task(at, "b", "a z"),
        task(at, "z", None, input_mb=3.0),
        task(at, "only", None, 400.0),
    ]
    write(folder, "tasks", rows)
    return folder


def test_tasks_become_dags_in_order_of_time(flows: Path, at: Any) -> None:
    (first, second), nodes = DATASET.load(flows, at(0), at(600))
    assert first.name == "c/w"
    assert first.edges.tolist() == [[2, 0], [0, 1], [2, 1]]
    assert first.order.tolist() == [2, 0, 1]
    assert first.edge_mb.tolist() == [7.5, 0.0, 0.0]
    assert first.input_mb.tolist() == [0.0, 0.0, 3.0]
    assert first.cpu.tolist() == [1.5, 1.0, 1.0]
    assert first.mem.tolist() == [2.0, 1.0, 1.0]
    assert len(second) == 1
    assert nodes.names == ("n1", "n2")


def test_an_execution_that_cannot_have_ended_is_not_known_yet(flows: Path, at: Any) -> None:
    trace = DATASET.load(flows, at(0), at(300))
    assert [len(dag) for dag in trace[0]] == [3]
    with pytest.raises(DataError, match="no workflow that began and can have ended"):
        DATASET.load(flows, at(0), at(89))
    assert len(DATASET.load(flows, at(0), at(90))[0]) == 1


def test_more_load_is_more_data(flows: Path, at: Any) -> None:
    trace = DATASET.load(flows, at(0), at(600))
    more = DATASET.scaled(trace, 2.0)
    assert more[0][0].edge_mb.tolist() == [15.0, 0.0, 0.0]
    assert more[0][0].runtime_s.tolist() == trace[0][0].runtime_s.tolist()
    assert DATASET.times_s(more, np.array([0, 1])).tolist() == [60.0, 400.0]


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ({"a": "b", "b": "a"}, r"'c/w': the tasks form a cycle.*mend the execution.*clean the day again"),
        ({"a": "b", "b": "ghost"}, r"task 'b' of 'c/w' has the parent 'ghost'.*clean the day again"),
    ],
)
def test_what_is_no_workflow_says_what_to_do(
    flows: Path, at: Any, write: Any, parents: dict[str, str], message: str
) -> None:
    write(flows, "tasks", [task(at, name, of) for name, of in parents.items()])
    with pytest.raises(DataError, match=message):
        DATASET.load(flows, at(0), at(600))


def test_windows_without_tasks_say_so(folder: Path, at: Any) -> None:
    with pytest.raises(DataError, match=r"no workflow that began.*lands tasks"):
        DATASET.load(folder, at(0), at(600))


def test_the_sample_plays_whole_episodes(sample_windows: Path) -> None:
    days = span(sample_windows)
    trace = DATASET.load(sample_windows, days.start, days.start + timedelta(days=1))
    dags, nodes = trace
    assert len(nodes) == 5
    scenario = scenarios.load("workflow/dag")
    starts = DATASET.starts(trace, scenario)
    assert 80 < len(starts) == len(dags)
    assert (np.diff(DATASET.times_s(trace, starts)) >= 0).all()
    for policy in ("first_fit", "random_feasible"):
        episodes = run_episodes(scenario, policy, starts[:5], trace=trace)
        assert [episode["placed"] for episode in episodes] == [len(dag) for dag in dags[:5]]
