"""Function instances from windows: every created pod once, nothing of a later split, nodes of its clusters only."""

from datetime import UTC, datetime

import numpy as np
import pytest

from pipeline import windows
from pipeline.datasets import functions
from pipeline.errors import DataError
from wire import closure

START = datetime(2026, 3, 2, tzinfo=UTC)


def test_each_created_pod_is_one_request_in_order_of_arrival(folder, at):
    trace, _ = functions.load(folder, START, at(1500))
    assert trace.arrival_s.tolist() == [30.0, 60.0, 400.0]
    assert [trace.function_names[index] for index in trace.function] == ["f", "g", "f"]
    assert trace.duration_s.tolist() == [900.0, 1440.0, 1100.0]
    assert trace.cpu.tolist() == [1.0, 1.0, 0.5]
    assert trace.mem.tolist() == [2.0, 2.0, 1.5]
    assert trace.net.tolist() == [10.0, 20.0, 15.0]
    assert trace.requests.tolist() == [6, 5, 6]
    assert trace.slo_s.tolist() == [1.0, 4.0, 1.0]


def test_nothing_after_the_end_is_seen(folder, at):
    trace, _ = functions.load(folder, START, at(600))
    assert (trace.arrival_s + trace.duration_s).max() <= 600
    assert trace.requests.tolist() == [4, 2, 3]


def test_functions_have_one_number_in_every_split(folder, at):
    early, _ = functions.load(folder, START, at(300))
    late, _ = functions.load(folder, at(300), at(1500))
    assert early.function_names == late.function_names == ("f", "g")


def test_nodes_are_as_they_were_last(folder, at):
    _, nodes = functions.load(folder, START, at(1500))
    assert nodes.names == ("n1", "n2")
    assert nodes.cpu.tolist() == [16.0, 8.0]
    assert nodes.net.tolist() == [500.0, windows.DEFAULT_NET_MB_S]
    assert nodes.price_usd_per_hour.tolist() == [0.8, 1.0]


def test_arrays_are_mapped_once_and_shared(folder, at, tmp_path):
    first, _ = functions.load(folder, START, at(1500))
    cached = list((tmp_path / "var" / "cache" / "windows").iterdir())
    second, _ = functions.load(folder, START, at(1500))
    assert list((tmp_path / "var" / "cache" / "windows").iterdir()) == cached
    for trace in (first, second):
        assert isinstance(trace.cpu.base, np.memmap)
        assert not trace.cpu.flags.writeable


def test_other_windows_are_other_arrays(folder, at, write, event):
    before, _ = functions.load(folder, START, at(1500))
    write(folder, "events", [event("z", 5.0, "create", "f", cpu_cores=3.0, mem_gib=3.0)])
    after, _ = functions.load(folder, START, at(1500))
    assert len(before) == 3
    assert after.cpu.tolist() == [3.0]


def test_a_span_without_pods_is_a_clear_error(folder, at):
    with pytest.raises(DataError, match="no pod created"):
        functions.load(folder, at(3000), at(6000))


def test_arrays_of_other_code_are_not_mapped(folder, at, tmp_path, monkeypatch):
    functions.load(folder, START, at(1500))
    monkeypatch.setattr(closure, "fingerprint", lambda *modules: f"changed {modules}")
    functions.load(folder, START, at(1500))
    assert len(list((tmp_path / "var" / "cache" / "windows").iterdir())) == 2


def test_clusters_without_functions_bring_no_nodes_and_no_names(folder, at, write, event):
    alone, nodes = functions.load(folder, START, at(1500))
    rows = windows.frame_of(folder, "events", START, at(1500), ["entity", "time", "kind", "action", "function",
                                                               "cpu_cores", "mem_gib"]).to_dict("records")  # fmt: skip
    write(folder, "events", [*rows, {**event("job-1", 40.0, "create", "bert", "job"), "cluster": "gpu"}])
    seen = windows.read(folder, "nodes", START, at(1500)).to_pylist()
    write(folder, "nodes", [*seen, {**seen[0], "cluster": "gpu", "node": "g1"}])
    beside, same_nodes = functions.load(folder, START, at(1500))
    assert beside.function_names == alone.function_names == ("f", "g")
    assert same_nodes.names == nodes.names == ("n1", "n2")
    np.testing.assert_array_equal(beside.arrival_s, alone.arrival_s)


def test_starts_have_a_whole_episode_after_them_and_keep_their_recorded_time(folder, at):
    from sched_env import scenarios

    trace = functions.load(folder, START, at(1500))
    rows = functions.starts(trace, scenarios.load("functions/serverless", {"horizon": 2}))
    assert rows.tolist() == [0]
    busy = functions.scaled(trace, 2.0)
    assert busy[0].arrival_s.tolist() == [15.0, 30.0, 200.0]
    assert functions.times_s(trace, rows).tolist() == [30.0]
