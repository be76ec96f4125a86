"""Pods and their requests from windows, as the environment replays them."""

from datetime import UTC, datetime

import numpy as np
import pytest

from pipeline import windows
from pipeline.datasets import pods
from sched_env import scenarios
from sched_env.pods.tables import PodTrace
from sched_env.vector import make_vec

START = datetime(2026, 3, 2, tzinfo=UTC)


@pytest.fixture
def loaded(folder, at, write):
    demand = {"cluster": "c", "duration_s": 2.0, "cpu_cores": 0.5, "mem_gib": 0.25, "estimated": False}
    write(
        folder,
        "demands",
        [
            {"window_start": at(300), "pod": "b", "position": 1, "arrival_offset_s": 9.0, **demand},
            {"window_start": at(300), "pod": "b", "position": 0, "arrival_offset_s": 3.0, **demand},
            {"window_start": at(0), "pod": "a", "position": 0, "arrival_offset_s": 1.0, **demand},
            {"window_start": at(0), "pod": "stranger", "position": 0, "arrival_offset_s": 1.0, **demand},
        ],
    )
    rows = windows.read(folder, "pods", START, at(1500)).to_pylist()
    write(folder, "pods", [{**row, "function": "f"} for row in rows])  # without a workload they would be held fixed
    return pods.load(folder, START, at(1500))[0]


def test_windows_index_pods_and_pods_index_requests(loaded):
    assert loaded.window_s.tolist() == [0.0, 300.0, 600.0, 900.0, 1200.0]
    assert loaded.window_rows.tolist() == [0, 2, 5, 8, 9, 10]
    assert [loaded.pod_names[pod] for pod in loaded.pod[2:5]] == ["a", "b", "c"]
    assert np.diff(loaded.row_requests).tolist() == [1, 0, 0, 2, 0, 0, 0, 0, 0, 0]
    assert loaded.arrival_offset_s.tolist() == [1.0, 3.0, 9.0]


def test_pods_without_a_known_node_have_none(loaded):
    assert set(loaded.node.tolist()) == {-1}


def test_pods_of_a_cluster_without_nodes_are_not_put_on_those_of_another(folder, at, write):
    size = {"window_start": START, "pod": "p", "node": "n1", "cpu_request_cores": 1.0, "mem_request_gib": 1.0}
    write(folder, "pods", [{**size, "cluster": name, "requests_handled": 0} for name in "cd"])
    demand = {"duration_s": 2.0, "cpu_cores": 0.5, "mem_gib": 0.25, "estimated": False, "position": 0}
    write(folder, "demands", [{"window_start": START, "pod": "p", "cluster": "d", "arrival_offset_s": 1.0, **demand}])
    loaded, nodes = pods.load(folder, START, at(1500))
    assert loaded.pod_names == ("c/p", "d/p")
    assert [nodes.names[node] if node >= 0 else None for node in loaded.node] == ["c/n1", None]
    assert np.diff(loaded.row_requests).tolist() == [0, 1]


def test_arrays_are_mapped(loaded):
    assert isinstance(loaded.cpu_request, np.memmap)


def test_the_environment_replays_them(loaded, folder, at):
    found = pods.load(folder, START, at(1500))
    env = make_vec("pods/deploy", 1, trace=found, threshold=0.01, under_threshold=0.0)
    env.reset(options={"starts": [0], "park": True})
    while env.buffers.active[0]:
        env.step(env.buffers.mask.argmax(axis=1))
    counted = dict(zip(env.METRICS, env.buffers.metrics[0].tolist(), strict=True))
    assert (counted["windows"], counted["dealt_requests"], counted["unplaced"]) == (4, 2, 0)


def test_episodes_start_at_windows_with_something_to_decide(loaded, folder, at):
    trace = pods.load(folder, START, at(1500))
    scenario = scenarios.load("pods/deploy", {"threshold": 0.01, "under_threshold": 0.0, "episode_windows": 2})
    rows = pods.starts(trace, scenario)
    assert rows.size
    assert pods.times_s(trace, rows).max() <= 1500 - 2 * 300
    assert pods.scaled(trace, 2.0)[0].cpu.tolist() == [2 * cpu for cpu in trace[0].cpu]


def _trace(requests, used, windows=2):
    """One pod in each window with its requests (window, offset, duration, cpu) and what it used."""
    rows = sorted(requests)
    counts = np.bincount([row[0] for row in rows], minlength=windows)
    return PodTrace(
        window_s=300.0 * np.arange(windows),
        window_rows=np.arange(windows + 1),
        pod=np.zeros(windows, np.int32),
        node=np.zeros(windows, np.int32),
        cpu_request=np.ones(windows),
        mem_request=np.ones(windows),
        cpu_used=np.array(used, float),
        mem_used=np.array(used, float),
        row_requests=np.concatenate([[0], np.cumsum(counts)]),
        arrival_offset_s=np.array([row[1] for row in rows], float),
        duration_s=np.array([row[2] for row in rows], float),
        cpu=np.array([row[3] for row in rows], float),
        mem=np.array([row[3] for row in rows], float),
        pod_names=("p",),
    )


@pytest.mark.parametrize("seconds", [0.0, 60.0, 137.0, 300.0])
def test_as_exported_a_window_holds_what_the_pod_used_in_it(seconds):
    trace = _trace([(0, 10.0, 20.0, 2.0), (0, 100.0, 5.0, 1.0), (1, 30.0, 40.0, 1.0)], [0.7, 0.2])
    found, _ = pods.as_exported((trace, None), seconds)
    inside = np.minimum(found.duration_s, 300.0 - found.arrival_offset_s) / 300.0
    row = np.repeat(np.arange(2), np.diff(found.row_requests))
    assert np.bincount(row, found.cpu * inside) == pytest.approx([0.7, 0.2])


def test_averages_over_the_whole_window_are_flat_and_over_a_minute_have_its_peak():
    trace = _trace([(0, 65.0, 50.0, 3.0)], [0.5, 0.0])
    flat, _ = pods.as_exported((trace, None), 300.0)
    assert flat.cpu[:5].tolist() == pytest.approx([0.5] * 5)
    peaked, _ = pods.as_exported((trace, None), 60.0)
    assert peaked.cpu[:5].tolist() == pytest.approx([0.0, 2.5, 0.0, 0.0, 0.0])


def test_a_request_that_lasts_is_in_the_next_window_too_and_not_all_of_the_use_of_its_own():
    trace = _trace([(0, 0.0, 295.0, 1.0), (0, 295.0, 305.0, 1.0)], [0.6, 0.6])
    found, _ = pods.as_exported((trace, None), 60.0)
    assert found.cpu.tolist() == pytest.approx([0.6] * 10)


def test_a_pod_that_used_something_without_a_request_used_it_evenly():
    found, _ = pods.as_exported((_trace([], [0.4, 0.0]), None), 60.0)
    assert found.cpu.tolist() == pytest.approx([0.4] * 5 + [0.0] * 5)
