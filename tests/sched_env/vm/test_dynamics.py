"""The kernels against an oracle in plain Python, step by step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sched_env.vector import ENDED, make_vec
from sched_env.vm.huawei import events_of
from wire.errors import ConfigError, InfeasibleActionError, TraceError

FLAVOURS = [(1, 2), (2, 4), (4, 16), (8, 32), (16, 32), (32, 64), (64, 128), (0.1, 0.3), (2.5, 0.7)]
VM = st.tuples(st.integers(0, 30), st.one_of(st.none(), st.integers(0, 60)), st.sampled_from(FLAVOURS))
RELAXED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def trace_of(rows):
    arrival = np.array([row[0] for row in rows], float)
    life = np.array([np.inf if row[1] is None else row[1] for row in rows], float)
    size = np.array([row[2] for row in rows], float)
    order = np.argsort(arrival, kind="stable")
    return events_of(np.arange(len(rows)), size[order, 0], size[order, 1], arrival[order], (arrival + life)[order])


@RELAXED
@given(
    rows=st.lists(VM, min_size=1, max_size=40),
    servers=st.integers(1, 3),
    threshold=st.sampled_from([10.0, 32.0]),
    releases=st.booleans(),
    growing=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_step_is_the_oracles(rows, servers, threshold, releases, growing, seed, oracle):
    trace = trace_of([*rows, (0, None, (1, 2))])
    keys = {"servers": servers, "double_threshold": threshold, "releases": releases}
    if growing:
        keys |= {"growing_servers": 2, "max_servers": servers + 3, "expand_threshold": 0.5}
    env = make_vec("vm/recovering", 1, trace=trace, **keys)
    env.reset(options={"starts": [0], "park": True})
    simple = oracle(trace, **keys)
    simple.begin(0)
    rng, placed, ended = np.random.default_rng(seed), 0, None
    while ended is None:
        expected = simple.mask(simple.row)
        assert env.observe()["mask"][0].tolist() == expected
        action = int(rng.choice(np.flatnonzero(expected)))
        _, reward, terminated, truncated, infos = env.step([action])
        ended = simple.step(action)
        placed += 1
        assert reward[0] == 1.0
        free = np.array(simple.free).reshape(-1, 2)
        width = len(free)
        np.testing.assert_allclose(env.state.cpu[0, :width], free[:, 0], atol=1e-9)
        np.testing.assert_allclose(env.state.mem[0, :width], free[:, 1], atol=1e-9)
        assert bool(terminated[0]) == (ended == "full")
        assert bool(truncated[0]) == (ended == "end_of_trace")
    episode = {name: column[0] for name, column in infos["episode"].items()}
    assert ENDED[int(episode["ended"])] == ended
    assert (episode["placed"], episode["end_row"], episode["servers"]) == (placed, simple.row, len(simple.free))
    assert episode["requests"] == placed + (ended == "full")


@RELAXED
@given(
    rows=st.lists(VM, min_size=1, max_size=40),
    servers=st.integers(1, 2),
    extra=st.integers(0, 12),
    seed=st.integers(0, 99),
)
def test_waiting_times_are_the_oracles(rows, servers, extra, seed, oracle):
    trace = trace_of([*rows, (0, None, (1, 2))])
    keys = {"servers": servers, "double_threshold": 10.0, "queue_extra": extra}
    simple = oracle(trace, **keys)
    rng = np.random.default_rng(seed)
    draws: list[int] = []

    def choose(mask):
        draws.append(int(rng.choice(np.flatnonzero(mask))))
        return draws[-1]

    expected = simple.run_wait(0, choose)
    env = make_vec("vm/recovering", 1, trace=trace, ending="wait", **keys)
    env.reset(options={"starts": [0], "park": True})
    waits, total = [], 0.0
    for action in draws:
        assert env.buffers.active[0]
        _, reward, _, _, infos = env.step([action])
        waits.append(float(env.buffers.wait_s[0]))
        total += reward[0]
    assert not env.buffers.active[0], "the queue should be over with the oracle's"
    assert waits == pytest.approx(expected, abs=1e-6)
    episode = {name: column[0] for name, column in infos["episode"].items()}
    queue = simple.queue(0)
    assert episode["requests"] == len(queue)
    late = sum(wait > 300.0 for wait in expected) + len(queue) - len(expected)
    assert episode["sla_violation_rate"] == pytest.approx(late / len(queue))
    if len(expected) == len(queue):
        assert -total == episode["wait_s"] == pytest.approx(sum(expected), abs=1e-6)
    else:
        assert ENDED[int(episode["ended"])] == "full"


def test_a_release_frees_capacity_and_skipping_deletions_does_not(vms):
    trace = vms((0, 5, 40, 90), (10, None, 40, 90), (11, None, 40, 90))
    for releases, placed in ((True, 3), (False, 2)):
        env = make_vec("vm/recovering", 1, trace=trace, servers=1, double_threshold=1e9, releases=releases)
        env.reset(options={"starts": [0], "park": True})
        while env.buffers.active[0]:
            env.step(env.buffers.mask.argmax(axis=1))
        assert env.buffers.metrics[0, env.METRICS.index("placed")] == placed


def test_a_large_request_takes_half_from_each_half(vms):
    env = make_vec("vm/recovering", 1, trace=vms((0, None, 64, 128), (1, None, 1, 1)), servers=2, double_threshold=32)
    env.reset(options={"starts": [0], "park": True})
    assert env.observe()["mask"][0].all()
    env.step([3])
    assert env.state.cpu[0].tolist() == [40, 40, 8, 8]
    assert env.state.mem[0].tolist() == [90, 90, 26, 26]


def test_the_threshold_looks_at_memory_or_at_cpu(vms):
    trace = vms((0, None, 8, 64))
    for resource, double in (("mem", 1.0), ("cpu", 0.0)):
        env = make_vec("vm/fading", 1, trace=trace, double_threshold=32, double_resource=resource)
        assert env.reset(options={"starts": [0]})[0]["request"][0, 2] == double


def test_an_infeasible_action_changes_nothing_anywhere(vms):
    trace = vms(*[(k, None, 30, 60) for k in range(9)])
    env = make_vec("vm/recovering", 3, trace=trace, servers=2, double_threshold=1e9)
    env.reset(options={"starts": [0, 0, 0]})
    env.step([0, 1, 2])
    before = [array.copy() for array in (*env.buffers, *env.state)]
    for actions in ([1, 1, 0], [1, 0, 99], [1, 0, -1]):
        with pytest.raises(InfeasibleActionError, match="nothing was changed"):
            env.step(actions)
        for old, new in zip(before, (*env.buffers, *env.state), strict=True):
            np.testing.assert_array_equal(old, new)
    env.step([1, 0, 0])


def test_cost_is_hours_of_servers_that_hold_a_vm_times_price(vms):
    trace = vms((0, 3600, 40, 90), (1800, 1800, 40, 90), (7200, None, 1, 1), (10_800, None, 1, 1))
    env = make_vec("vm/recovering", 1, trace=trace, double_threshold=1e9, server_price_usd_per_hour=2.0)
    env.reset(options={"starts": [0], "park": True})
    for action in (0, 2, 0, 0):  # servers 0 and 1, then 0 alone from 7200 s on
        env.step([action])
    assert env.buffers.metrics[0, env.METRICS.index("cost_usd")] == pytest.approx(2.0 * (1.0 + 0.5 + 1.0))


@pytest.mark.parametrize(("reward", "expected"), [("+1", 1.0), (1, 1.0), ("cpu", 4.0), ("wait", 0.0)])
def test_rewards(vms, reward, expected):
    env = make_vec("vm/fading", 1, trace=vms((0, None, 4, 8), (1, None, 1, 1)), reward=reward)
    env.reset(options={"starts": [0]})
    assert env.step([0])[1][0] == expected


def test_the_horizon_truncates(vms):
    env = make_vec("vm/fading", 1, trace=vms(*[(k, None, 1, 1) for k in range(9)]), horizon=3)
    env.reset(options={"starts": [0]})
    flags = [(bool(terminated[0]), bool(truncated[0])) for _, _, terminated, truncated, _ in map(env.step, [[0]] * 3)]
    assert flags == [(False, False), (False, False), (False, True)]
    assert ENDED[env.buffers.ended[0]] == "horizon"


def test_expanding_really_adds_candidates(vms):
    trace = vms(*[(k, None, 10, 10) for k in range(60)])
    keys = {"servers": 2, "growing_servers": 2, "max_servers": 5, "expand_threshold": 0.7}
    env = make_vec("vm/expanding", 1, trace=trace, double_threshold=1e9, **keys)
    env.reset(options={"starts": [0], "park": True})
    widths, used = [], 0.0
    while env.buffers.active[0]:
        seen = env.observe()
        widths.append(seen["mask"].shape[1])
        assert seen["candidates"].shape[1] == widths[-1] == 2 * env.state.env.servers[0]
        assert widths[-1] == 10 or used / (40 * widths[-1]) <= 0.7
        env.step(seen["mask"].argmax(axis=1))
        used += 10
    assert sorted(set(widths)) == [4, 8, 10]
    assert len(widths) == 40  # 5 servers of 80 cores, all of them used in the end


def test_a_trace_that_fits_nowhere_and_a_start_beyond_the_trace_are_errors(vms):
    with pytest.raises(TraceError, match="none of the 1 requests"):
        make_vec("vm/fading", 1, trace=vms((0, None, 64, 20)))
    env = make_vec("vm/fading", 1, trace=vms((0, 3, 1, 1)))
    for start in (1, 7):  # row 1 is the deletion
        with pytest.raises(ConfigError, match=f"start {start} "):
            env.reset(options={"starts": [start]})


def test_deleting_an_unknown_vm_is_ignored_and_reused_ids_are_told_apart():
    from sched_env.vm.tables import VmTrace

    trace = VmTrace(
        vmid=np.array([9, 1, 1, 1, 7, 1, 2]),
        cpu=np.array([1, 40, 40, 20, 5, 20, 1.0]),
        mem=np.ones(7),
        time=np.arange(7.0),
        kind=np.array([0, 0, 1, 0, 1, 1, 0]),
    )
    env = make_vec("vm/recovering", 1, trace=trace, servers=1)
    env.reset(options={"starts": [0], "park": True})
    for action, free in ((0, [39, 40]), (1, [39, 40]), (1, [39, 40])):
        env.step([action])
        assert env.state.cpu[0].tolist() == free
