"""VMs from windows: events in order, episodes that can be played, nothing of a later span."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import windows
from pipeline.datasets import lifetimes
from pipeline.datasets.vm import DATASET
from pipeline.errors import DataError
from pipeline.lifetime_model import model, seen, store
from pipeline.windows import span
from sched_env import scenarios
from sched_env.rollout import run_episodes


def test_events_are_in_order_with_the_size_of_their_vm(folder: Path, at: Any) -> None:
    trace = DATASET.load(folder, at(0), at(300))
    assert trace.kind.tolist() == [0, 0, 1]
    assert trace.vmid.tolist() == [0, 1, 0]
    assert trace.cpu.tolist() == [4.0, 2.0, 4.0]
    assert trace.time.tolist() == [10.0, 20.0, 50.0]


def test_vms_come_more_densely_and_live_as_long(folder: Path, at: Any) -> None:
    trace = DATASET.scaled(DATASET.load(folder, at(0), at(300)), 2.0)
    assert trace.time.tolist() == [5.0, 10.0, 45.0]
    dense = DATASET.scaled(trace, 0.1)
    assert dense.kind.tolist() == [0, 1, 0]
    assert dense.time.tolist() == [50.0, 90.0, 100.0]


def test_the_sample_plays_whole_episodes(sample_windows: Path) -> None:
    days = span(sample_windows)
    trace = DATASET.load(sample_windows, days.start, days.start + timedelta(days=1))
    scenario = scenarios.load("vm/recovering", {"servers": 2, "horizon": 64})
    starts = DATASET.starts(trace, scenario)
    assert len(starts) > 1000
    assert (trace.kind[starts] == 0).all()
    times = DATASET.times_s(trace, starts)
    assert (np.diff(times) >= 0).all()
    assert times[0] >= 0
    assert times[-1] < 86_400
    for policy in ("first_fit", "random_feasible"):
        episodes = run_episodes(scenario, policy, starts[[0, len(starts) // 2, -1]], trace=trace)
        assert {episode["ended"] for episode in episodes} <= {"horizon", "full"}
        assert all(episode["placed"] > 0 for episode in episodes)


def test_nothing_of_a_later_span_is_seen(sample_windows: Path) -> None:
    days = span(sample_windows)
    noon = days.start + timedelta(hours=12)
    morning, whole = (DATASET.load(sample_windows, days.start, end) for end in (noon, days.end))
    assert morning.time.max() < 12 * 3600
    assert morning.cpu.tolist() == whole.cpu[: len(morning)].tolist()


def test_windows_without_a_vm_say_what_is_missing(folder: Path, at: Any, write: Any, event: Any) -> None:
    with pytest.raises(DataError, match=r"no VM with a size created.*events of kind vm.*docs/sources\.md"):
        DATASET.load(folder, at(300), at(600))
    write(folder, "events", [event("vm-9", 400.0, "delete", None, "vm", cpu_cores=1.0, mem_gib=1.0)])
    with pytest.raises(DataError, match="no VM with a size created"):
        DATASET.load(folder, at(300), at(600))


SIZE = {"cpu_cores": 4.0, "mem_gib": 8.0}


@pytest.fixture
def two_hosts(tmp_path: Path, at: Any, write: Any, event: Any) -> Path:
    """Two hosts alike and a larger one: vm-1 is there before the second window, vm-4 is refused."""
    out = tmp_path / "hosts"
    rows = [
        ("vm-1", 10.0, "h2"),
        ("vm-2", 320.0, "h1"),
        ("vm-3", 330.0, "h2"),
        ("vm-4", 340.0, None),
        ("vm-5", 350.0, "big"),
    ]
    events = [event(name, when, "create", None, "vm", **SIZE) | {"node": node} for name, when, node in rows]
    write(out, "events", [*events, event("vm-1", 400.0, "delete", None, "vm")])
    node = {"cluster": "c", "cpu_capacity_cores": 16.0, "mem_capacity_gib": 64.0, "price_usd_per_hour": 2.0}
    sizes = {"h1": node, "h2": node, "big": node | {"cpu_capacity_cores": 64.0}}
    down = {"h1": [True, False], "h2": [True, True], "big": [True, True]}
    nodes = [
        {"window_start": at(300 * n), "node": name, **size, "active": down[name][n]}
        for name, size in sizes.items()
        for n in (0, 1)
    ]
    write(out, "nodes", nodes)
    return out


def test_a_span_brings_its_servers_and_begins_with_the_vms_that_were_there(two_hosts: Path, at: Any) -> None:
    trace = DATASET.load(two_hosts, at(300), at(600))
    assert trace.time.tolist() == [0.0, 20.0, 30.0, 40.0, 100.0]
    assert trace.node.tolist() == [1, 0, 1, -1, -1], "vm-5, of a machine of another size, is left out"
    assert trace.there_before.tolist() == [True, False, False, False, False]
    assert trace.servers.tolist() == [2]
    assert trace.up.tolist() == [[[False, True]]]
    assert DATASET.brings is not None
    assert DATASET.brings(trace) == {
        "servers": 2, "half_cpu_cores": 8.0, "half_mem_gib": 32.0, "server_price_usd_per_hour": 2.0,
        "start_min": 0, "start_max": 0,
    }  # fmt: skip
    assert DATASET.origins is not None
    counts = {o.feature: (o.measured, o.estimated, o.assumed) for o in DATASET.origins(two_hosts, at(300), at(600))}
    assert counts["recorded server"] == (2, 0, 1)
    assert counts["life"] == (0, 3, 0), "they live on"
    assert counts["starting state"] == (1, 0, 0)
    assert counts["price"] == (2, 0, 0)


def test_where_nobody_tells_of_vms_pods_come_and_go(folder: Path, at: Any, write: Any) -> None:
    events = windows.read(folder, "events", at(0), at(3600)).to_pylist()
    write(folder, "events", [row for row in events if row["kind"] == "pod"])
    trace = DATASET.load(folder, at(0), at(3600))
    assert trace.kind.tolist() == [0, 0, 0, 1]
    assert trace.cpu.tolist() == [1.0, 1.0, 0.5, 1.0]


@pytest.fixture
def told(tmp_path: Path, two_hosts: Path, at: Any) -> Any:
    """The second window of two hosts, with what a model of one life for all expects."""
    ones, life = np.ones(200), np.arange(1.0, 201.0)
    some = seen.Lives(4.0 * ones, 8.0 * ones, 0.0 * ones, life, ones > 0, 1e9 * ones)
    store.write(tmp_path / "models" / lifetimes.NAME, some, model.fit(some), {})
    trace = DATASET.load(two_hosts, at(300), at(600))
    assert DATASET.believed is not None
    return trace, DATASET.believed(trace, tmp_path / "models"), tmp_path


def test_the_shipped_model_says_what_is_expected_of_each_vm(told: Any) -> None:
    trace, expecting, root = told
    made = trace.kind == 0
    assert expecting.expected[made].tolist() == [[100.0, 150.0, 180.0]] * int(made.sum())
    assert not expecting.expected[~made].any()
    assert trace.lived_s.tolist()[0] == 290.0  # it came ten seconds after the windows began
    assert not trace.lived_s[1:].any()
    assert not DATASET.believed(trace, root / "nothing").expected.size  # type: ignore[misc]


def test_traces_that_are_scaled_or_resized_keep_what_is_expected(told: Any) -> None:
    _, expecting, _ = told
    scenario = scenarios.load("vm/recovering", DATASET.brings(expecting))  # type: ignore[misc]
    grown, _ = DATASET.resized(expecting, scenario, 2.0)  # type: ignore[misc]
    for changed in (DATASET.scaled(expecting, 3.0), grown):
        made = changed.kind == 0
        assert (changed.expected[made] == [100.0, 150.0, 180.0]).all()
        assert not changed.expected[~made].any()
        assert (changed.lived_s > 0).tolist() == (made & (changed.time <= 0)).tolist()
