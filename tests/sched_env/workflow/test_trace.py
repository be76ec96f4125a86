"""Workflows from tables, files and generators; what cannot be run is named."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from sched_env import scenarios
from sched_env.vector import make_vec
from sched_env.workflow import synthetic as synthetic_workflows
from sched_env.workflow import trace as workflows
from sched_env.workflow.tables import Dag
from wire.errors import ConfigError, TraceError

SHARED = Path(os.environ.get("LOADMASTER_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))
SCENARIO = scenarios.load("workflow/dag", {"workflows": 9, "tasks": 20})


def dag(**columns):
    values = {
        "name": "w",
        "runtime_s": [1.0, 2.0, 3.0],
        "cpu": [1.0] * 3,
        "mem": [1.0] * 3,
        "edges": [[0, 1], [1, 2]],
        "edge_mb": [5.0, 6.0],
        **columns,
    }
    return Dag(**values)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"edges": [[0, 1], [1, 0]]}, "cycle through 0"),
        ({"edges": [[1, 1], [1, 2]]}, "cycle through 1"),
        ({"edges": [[0, 1], [1, 3]]}, r"edge \[1, 3\]; expected tasks 0 to 2"),
        ({"edges": [[0, 1], [-1, 2]]}, r"edge \[-1, 2\]"),
        ({"edges": [[0, 1], [0, 1]]}, "an edge twice"),
        ({"runtime_s": [1.0, -2.0, 3.0]}, "runtime_s of task 1 is -2.0"),
        ({"runtime_s": [1.0, np.nan, 3.0]}, "runtime_s of task 1 is nan"),
        ({"runtime_s": [0.0, 0.0, 0.0]}, "all run times are 0"),
        ({"runtime_s": []}, "has no task"),
        ({"cpu": [1.0, 0.0, 1.0]}, "cpu of task 1 is 0.0; expected a positive number"),
        ({"mem": [1.0, 1.0]}, "mem has shape"),
        ({"mem": ["a", "b", "c"]}, "mem: could not convert"),
        ({"edge_mb": [1.0, -1.0]}, "edge_mb of task 1 is -1.0"),
        ({"input_mb": [1.0, np.inf, 1.0]}, "input_mb of task 1 is inf"),
        ({"deadline_s": 0.0}, "deadline 0.0"),
    ],
)
def test_what_cannot_be_run_is_named(columns, message):
    with pytest.raises(TraceError, match=message):
        dag(**columns)


def test_tasks_may_come_in_any_order():
    flow = dag(edges=[[2, 0], [1, 0]])
    assert flow.order.tolist() == [1, 2, 0]
    assert dag().order.tolist() == [0, 1, 2]
    env = make_vec(SCENARIO, 1, 0, flow)
    assert env.plan.parent.tolist() == [0, 1]
    assert env.plan.tasks[-1, 2] == 1.0  # task 0, the child of both


@pytest.mark.parametrize("shape", [*synthetic_workflows.SHAPES, "mixed"])
@pytest.mark.parametrize("tasks", [1, 2, 30])
def test_generated_workflows_look_like_their_shape(shape, tasks):
    flows = synthetic_workflows.workflows(9, shape, tasks, 1.0, 100.0, seed=1)
    again = synthetic_workflows.workflows(9, shape, tasks, 1.0, 100.0, seed=1)
    assert len(flows) == 9
    for flow, same in zip(flows, again, strict=True):
        np.testing.assert_array_equal(flow.runtime_s, same.runtime_s)
        np.testing.assert_array_equal(flow.edges, same.edges)
        assert max(1, tasks // 2) <= len(flow) <= 1.5 * tasks + 1
        parents = np.bincount(flow.edges[:, 1], minlength=len(flow))
        children = np.bincount(flow.edges[:, 0], minlength=len(flow))
        kind = flow.name.partition("-")[0]
        assert kind == shape or shape == "mixed"
        if kind == "chain":
            assert parents.max() <= 1
            assert (parents == 0).sum() == 1
        elif kind == "fan":
            assert (parents == 0).sum() == 1
            assert (children == 0).sum() == 1 or (parents[children == 0] == 1).all()  # joined, or cut before the join
        else:
            assert parents.max() <= synthetic_workflows.MOST_PARENTS
        assert (flow.input_mb > 0).tolist() == (parents == 0).tolist()


def test_data_is_as_heavy_as_asked_for():
    flows = synthetic_workflows.workflows(60, "layered", 100, 0.5, 80.0, seed=0)
    moving_s = np.concatenate([flow.edge_mb for flow in flows]).mean() / 80.0
    running_s = np.concatenate([flow.runtime_s for flow in flows]).mean()
    assert moving_s / running_s == pytest.approx(0.5, rel=0.05)


def document(**run):
    tasks = [
        {"id": "a", "parents": [], "inputFiles": ["in"], "outputFiles": ["x"]},
        {"id": "b", "parents": ["a"], "inputFiles": ["x"], "outputFiles": []},
    ]
    sizes = {"in": 3e6, "x": 2e6}
    runs = [
        {"id": "a", "runtimeInSeconds": 4, "avgCPU": 130.0, "memoryInBytes": 2**31, **run},
        {"id": "b", "runtimeInSeconds": 5},
    ]
    return {
        "workflow": {
            "specification": {"tasks": tasks, "files": [{"id": k, "sizeInBytes": v} for k, v in sizes.items()]},
            "execution": {"makespanInSeconds": 9, "tasks": runs},
        }
    }


def test_recorded_executions_become_workflows(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "w.json").write_text(json.dumps(document()))
    (tmp_path / "v.json.gz").write_bytes(gzip.compress(json.dumps(document()).encode()))
    (tmp_path / "index.csv").write_text("not read\n")
    flows, nodes = workflows.load(tmp_path, SCENARIO)
    assert [flow.name for flow in flows] == ["w", "v"]
    assert len(nodes) == SCENARIO.nodes
    flow = flows[0]
    assert flow.cpu.tolist() == [2.0, 1.0]  # whole cores; one where nothing is known
    assert flow.mem.tolist() == [2.0, 1.0]
    assert flow.input_mb.tolist() == [3.0, 0.0]
    assert flow.edge_mb.tolist() == [2.0]
    (tmp_path / "nodes.csv").write_text("cpu,mem,net,disk,price_usd_per_hour,speed\n4,8,100,1,1,2\n4,8,100,1,1,1\n")
    assert workflows.read(tmp_path)[1].speed.tolist() == [2.0, 1.0]
    assert len(workflows.load(tmp_path / "one" / "w.json", SCENARIO)[0]) == 1


def test_wrong_files_are_named(tmp_path):
    with pytest.raises(TraceError, match="has no"):
        workflows.read(tmp_path)
    with pytest.raises(TraceError, match="does not exist"):
        workflows.load(tmp_path / "nothing.json", SCENARIO)
    (tmp_path / "w.json").write_text(json.dumps(document(runtimeInSeconds=-1)))
    with pytest.raises(TraceError, match="task 'a' has the run time -1"):
        workflows.load(tmp_path, SCENARIO)


def test_tables_are_taken_as_they_are_and_other_things_refused():
    assert workflows.load([dag()], SCENARIO)[0][0].name == "w"
    for wrong, message in (
        ([], "no workflow"),
        ([dag(), 3], "holds int"),
        ((dag(), "x"), "holds str"),
        (3, "is a int"),
    ):
        with pytest.raises(ConfigError, match=message):
            workflows.load(wrong, SCENARIO)


@pytest.mark.shared
def test_the_public_collection_is_read():
    folder = SHARED / "wfinstances"
    if not folder.exists():
        pytest.skip(f"the public traces are not in {SHARED} (LOADMASTER_SHARED_DATA names another place)")
    flows, _ = workflows.load(folder, SCENARIO)
    assert len(flows) == 105
    assert sum(len(flow) for flow in flows) == 31_210
