"""Function instances from windows: every created pod once, nothing of a later split, nodes of its clusters only."""

from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest

from pipeline import windows
from pipeline.datasets import functions
from pipeline.errors import DataError
from sched_env.tables import NodeTable
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
    # What windows say of pods, and what is left of the counts of f and g in the first window: 5 each.
    assert trace.requests.tolist() == [6 + 3, 5 + 4, 6]
    assert trace.slo_s.tolist() == [1.0, 4.0, 1.0]


def test_nothing_after_the_end_is_seen(folder, at):
    trace, _ = functions.load(folder, START, at(600))
    assert (trace.arrival_s + trace.duration_s).max() <= 600
    assert trace.requests.tolist() == [4 + 3, 2 + 4, 3]


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
    first.cpu[:] = -1.0
    assert second.cpu.min() > 0.0, "what one writes nobody else sees"
    assert functions.load(folder, START, at(1500))[0].cpu.min() > 0.0, "nor does it reach the file"


def test_a_mapped_array_is_of_the_type_that_kernels_are_compiled_for(folder, at):
    trace, _ = functions.load(folder, START, at(1500))
    assert all(array.flags.writeable for array in (trace.cpu, trace.up, trace.pace)), "else numba compiles them again"


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


def test_time_blocks_that_nobody_sets_are_as_long_as_the_longest_episode(folder, at):
    from pipeline import datasets
    from sched_env import scenarios
    from wire.errors import ConfigError

    trace = functions.load(folder, START, at(1500))
    scenario = scenarios.load("functions/serverless", {"horizon": 2})
    assert functions.longest_s(trace, scenario) == 400.0 - 60.0
    data = datasets.Workload("functions", scenario, trace, START.isoformat(), at(1500).isoformat())
    assert data.blocks(np.array([0, 2]), None).tolist() == [0, 0], "a thousand seconds are the shortest block"
    assert data.blocks(np.array([0, 2]), 100.0).tolist() == [0, 4]
    with pytest.raises(ConfigError, match=r"evaluate\.vm\.block_seconds"):
        data._replace(problem="vm").blocks(np.array([0]), None)


def test_pods_from_before_are_the_first_rows_on_their_nodes(folder, at, write, event):
    size = {"cpu_cores": 1.0, "mem_gib": 2.0}
    rows = [
        event("old", 30.0, "create", "f", node="n1", **size),
        event("gone", 40.0, "create", "f", node="n1", **size),
        event("gone", 290.0, "delete", "f"),
        event("new", 400.0, "create", "g", node="n2", **size),
        event("daemon", 20.0, "create", None, node="n2", cpu_cores=0.5, mem_gib=0.5),
    ]
    write(folder, "events", rows)
    write(folder, "pods", [{"window_start": at(300), "cluster": "c", "pod": "old", "node": "n1"}])
    capacity = {"cpu_capacity_cores": 8.0, "mem_capacity_gib": 32.0}
    hosts = [{"window_start": at(300), "cluster": "c", "node": node, **capacity} for node in ("n1", "n2")]
    write(folder, "nodes", hosts)
    trace, nodes = functions.load(folder, at(300), at(1500))
    assert trace.arrival_s.tolist() == [0.0, 0.0, 100.0]
    assert trace.held.tolist() == [True, False, False]
    assert [nodes.names[node] for node in trace.node] == ["n2", "n1", "n2"]
    assert trace.cpu.tolist() == [0.5, 1.0, 1.0]
    from sched_env import scenarios

    assert functions.starts((trace, nodes), scenarios.load("functions/serverless", {"horizon": 1})).tolist() == []


def test_a_name_that_lives_twice_is_two_lives(folder, at, write, event):
    size = {"cpu_cores": 1.0, "mem_gib": 2.0}
    rows = [event("db-0", second, action, "f", **size) for second, action in
            ((10.0, "create"), (400.0, "delete"), (420.0, "create"), (900.0, "delete"))]  # fmt: skip
    write(folder, "events", rows)
    write(folder, "pods", [{"window_start": START, "cluster": "c", "pod": "db-0", "node": "n1"}])
    trace, _ = functions.load(folder, START, at(1500))
    assert trace.arrival_s.tolist() == [10.0, 420.0]
    assert trace.duration_s.tolist() == [390.0, 480.0]


def test_nodes_are_down_when_they_say_so_or_are_silent_while_others_report(folder, at, write):
    rows = [{"window_start": at(300 * n), "cluster": "c", "node": node, "active": active}
            for n in range(12) for node, active in (("n1", n != 2), ("n2", True))
            if not (node == "n2" and 4 <= n < 10) and n != 11]  # fmt: skip
    write(folder, "nodes", rows)
    up = windows.up(folder, START, at(3600), ["c"], ["n1", "n2"])
    assert up[:, 0].tolist() == [True, True, False] + [True] * 9
    # Three windows of silence are a gap, and so are three before it is back; a cluster that is silent is as it was.
    assert up[:, 1].tolist() == [True] * 12
    longer = [row for row in rows if row["node"] != "n2" or row["window_start"] < at(600)]
    write(folder, "nodes", longer)
    assert windows.up(folder, START, at(3600), ["c"], ["n1", "n2"])[:, 1].tolist() == [True] * 5 + [False] * 7


def test_clusters_are_separate_domains(folder, at, write, event):
    size = {"cpu_cores": 1.0, "mem_gib": 2.0}
    write(
        folder, "events", [event("a", 30.0, "create", **size), {**event("b", 40.0, "create", **size), "cluster": "d"}]
    )
    seen = windows.read(folder, "nodes", START, at(1500)).to_pylist()
    write(folder, "nodes", [*seen, {**seen[0], "cluster": "d"}])
    trace, nodes = functions.load(folder, START, at(1500))
    assert trace.domain.tolist() == [0, 1]
    assert dict(zip(nodes.names, nodes.domain.tolist(), strict=True)) == {"c/n1": 0, "c/n2": 0, "d/n2": 1}


def test_origins_say_what_was_measured_estimated_and_assumed(folder, at):
    found = {origin.feature: origin for origin in functions.origins(folder, START, at(1500))}
    assert (found["price"].measured, found["price"].assumed) == (1, 1)
    assert found["calls"].measured == 6 + 5 + 6
    assert found["calls"].estimated == 3 + 4
    assert found["standard response"].estimated == 24, "by calls, not by pods"
    assert found["recorded node"].assumed_share == 1.0
    assert "request log" in found["calls"].needs


@pytest.mark.parametrize(("kind", "ends"), [("Deployment", 50.0), ("CronJob", 60.0)])
def test_a_deletion_is_moved_to_make_room_and_a_completion_is_not(kind, ends):
    """A deletion is known to a scrape; a job that completed was there until then."""
    rows = pd.DataFrame(
        {
            "begin_s": [10.0, 50.0], "end_s": [60.0, 500.0], "cpu": [3.0, 3.0], "mem": [1.0, 1.0], "home": [0, 0],
            "held": [False, False], "owner_kind": [kind, "Deployment"],
        }
    )  # fmt: skip
    nodes = NodeTable(("n",), *(np.array([size]) for size in (4.0, 8.0, 1.0, 1.0, 1.0)))
    assert functions._made_room(rows, nodes)["end_s"].tolist() == [ends, 500.0]
