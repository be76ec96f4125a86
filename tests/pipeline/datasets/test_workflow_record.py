"""Workflows from windows: what others ran beside them, what a start takes, and the record replayed."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import numpy as np
import pytest

from pipeline import datasets, paths, windows
from pipeline.calibrate import workflow as calibrate
from pipeline.datasets import Workload, WorkloadConfig
from pipeline.datasets.workflow import DATASET, SPEED, calibrated
from sched_env.recorded import AsRecorded, told

CONFIG = WorkloadConfig(scenario="workflow/dag")


def task(at, name, parents=None, began=60.0, workflow="w", **more):
    return {"window_start": at(began - began % 300), "cluster": "c", "workflow": workflow, "time": at(began),
            "task": name, "runtime_s": 10.0, "parents": parents, "node": "n1", "start_s": 2.0, **more}  # fmt: skip


@pytest.fixture
def record(folder, write, at):
    rows = [
        task(at, "a", runtime_s=500.0, cpu_cores=1.5, mem_gib=2.0),
        task(at, "b", "a", start_s=504.0, node="n2"),
        task(at, "only", began=400.0, workflow="v", node=None, start_s=None),
    ]
    write(folder, "tasks", rows)
    return folder


def test_an_execution_begins_among_the_tasks_of_others(record, at):
    (first, second), nodes = DATASET.load(record, at(0), at(900))
    assert first.node.tolist() == [0, 1]
    assert first.around.there.tolist() == []
    # At 400 s the first task of the other execution runs since 62 s, for 500 s; its second one is not known yet.
    assert second.around.there.tolist() == [[0, 162.0, 1.5, 2.0]]
    assert second.around.room.tolist() == np.stack([nodes.cpu, nodes.mem], axis=1).tolist()


def test_other_pods_take_their_room_and_nodes_that_are_down_have_none(record, write, at):
    pods = [
        {"window_start": at(300), "cluster": "c", "pod": "p", "node": "n1", "cpu_request_cores": 1.0,
         "mem_request_gib": 2.0, "present_ratio": 1.0, "owner_kind": kind}
        for kind in ("Deployment", "Workflow")
    ]  # fmt: skip
    write(record, "pods", [pods[0], pods[1] | {"pod": "a task"}])
    (_, second), nodes = DATASET.load(record, at(0), at(900))
    assert (np.stack([nodes.cpu, nodes.mem], axis=1) - second.around.room).tolist() == [[1.0, 2.0], [0.0, 0.0]]


def test_where_numbers_come_from_is_counted(record, at):
    found = {origin.feature: origin for origin in DATASET.origins(record, at(0), at(900))}
    counts = {name: (one.measured, one.estimated, one.assumed) for name, one in found.items()}
    assert counts["run time"] == (3, 0, 0)
    assert counts["size"] == (1, 0, 2)
    assert counts["recorded node"] == (2, 0, 1)
    assert counts["starting state"] == (2, 0, 1)
    assert counts["time to move data"] == (2, 1, 0), "nobody says how much, but when tasks began"
    assert found["size"].decides == "makespan_s"


def test_without_starts_a_start_is_assumed_and_nothing_is_compared(record, write, at):
    write(record, "tasks", [task(at, "a", start_s=None), task(at, "b", "a", start_s=None)])
    found = calibrate.fit(record, windows.Span(at(0), at(900)), CONFIG.load)
    [dispatch] = [value for value in found.values if value.name == "dispatch_s"]
    assert (dispatch.origin, dispatch.value, found.overrides) == ("assumed", 0.0, {"dispatch_s": 0.0})
    assert "start_s" in dispatch.needs
    data = Workload("workflow", CONFIG.load(), DATASET.load(record, at(0), at(900)), at(0).isoformat(),
                    at(900).isoformat())  # fmt: skip
    result, _ = calibrate.check(data, record, AsRecorded(), "as_recorded")
    assert "every task's start and node" in result.skipped


def test_a_faster_type_of_node_has_its_speed_and_work_is_the_same(sample_windows):
    days = windows.span(sample_windows)
    dags, nodes = DATASET.load(sample_windows, days.start, days.start + timedelta(days=1))
    slow = dags.types[0]
    values = [calibrate.Value(f"{SPEED}{slow}", "x", 0.5, 0.4, 0.6, 9, "estimated")]
    found = calibrate.Calibration("workflow", "", "", {}, values, {})
    again, table = calibrated((dags, nodes), found)
    assert table.speed.tolist() == [0.5 if kind == slow else 1.0 for kind in dags.types]
    dag, half = dags[0], again[0]
    there = np.array([dags.types[n] == slow for n in dag.node])
    np.testing.assert_allclose(half.runtime_s, np.where(there, dag.runtime_s * 0.5, dag.runtime_s))


def test_the_sample_is_replayed_as_it_was_measured(sample_windows, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    days = windows.span(sample_windows)
    parts = windows.splits(days.start, days.end)
    found = calibrate.fit(sample_windows, parts.train, CONFIG.load)
    known = {value.name: value for value in found.values}
    # Two seconds are the sample's truth; waits for executions that came later are in it too.
    assert 1.5 < known["dispatch_s"].value < 6.0
    assert all(value.origin == "estimated" and value.low <= value.value <= value.high for value in found.values)
    path = paths.CALIBRATION / "workflow" / "calibration.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(msgspec.json.encode(found))
    test = parts.test
    trace = datasets.apply(DATASET.load(sample_windows, test.start, test.end), "workflow", found)
    assert told(trace)
    data = Workload("workflow", CONFIG.load(found.overrides), trace, test.start.isoformat(), test.end.isoformat())
    policy = AsRecorded()
    result, both = calibrate.check(data, sample_windows, policy, "as_recorded")
    assert policy.followed == policy.decided > 500
    off = {figure.metric: figure.relative_error for figure in result.figures}
    assert set(off) == {"sla_violation_rate", "makespan_s", "makespan_p95_s", "cost_usd", "used_cores"}
    # Half a day has some forty executions: late ones are too few to compare, the rest is not.
    assert max(error for metric, error in off.items() if metric != "sla_violation_rate") < 0.1, off
    assert {"predicted_used_cores", "measured_used_cores"} <= set(both.columns)
