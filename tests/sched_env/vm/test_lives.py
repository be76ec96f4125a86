"""Expected lives of VMs in the simulator: what is seen of them, how they move on, and what forks and futures keep."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from sched_env import futures, heuristics
from sched_env.vector import make_vec
from sched_env.vm import lives
from sched_env.vm.synthetic import generate
from sched_env.vm.tables import VmTrace
from wire.errors import TraceError

ENDS, LIFE = 8, 6
"""Columns of a candidate and of the request."""


def expecting(trace: VmTrace, *of_creations: tuple[float, ...]) -> VmTrace:
    """Give the creations of a trace, in order, what is expected of their lives."""
    expected = np.zeros((len(trace), len(of_creations[0])))
    expected[np.flatnonzero(trace.kind == 0)] = of_creations
    return dataclasses.replace(trace, expected=expected)


def known(trace: VmTrace, seed: int = 0) -> VmTrace:
    """Expect something of nine VMs in ten: quantiles around nothing in particular."""
    rng = np.random.default_rng(seed)
    expected = np.sort(rng.exponential(4000.0, (len(trace), 3)), axis=1).astype(np.float32)
    return dataclasses.replace(trace, expected=expected * (rng.random((len(trace), 1)) < 0.9))


def test_what_is_expected_moves_on_as_a_vm_lives_on(vms):
    trace = expecting(
        vms((0, None, 4, 8), (30, None, 4, 8), (50, None, 4, 8), (120, None, 4, 8), (320, None, 4, 8), (330, 9, 4, 8)),
        (40, 100),
        (60, 90),
        (0, 0),
        (5, 6),
        (7, 7),
        (1, 1),
    )
    env = make_vec("vm/recovering", 1, trace=trace, servers=2, start_min=0, double_threshold=1e9)
    env.reset(options={"starts": [0]})
    left, life = env.buffers.candidates[0, :, ENDS].tolist, env.buffers.request[0].tolist
    assert (left(), life()[LIFE]) == ([0, 0, 0, 0], 40)
    env.step([0])  # at 30: ten seconds to its median
    assert (left(), life()[LIFE]) == ([10, 10, 0, 0], 60)
    env.step([1])  # at 50: the first has outlived its median, the last of the server counts
    assert (left(), life()[LIFE]) == ([50, 50, 0, 0], 0)
    env.step([2])  # at 120: both have outlived all, the older by as long again; of the third nothing is known
    assert (left(), life()[LIFE]) == ([120, 120, 0, 0], 5)
    env.step([3])
    assert (left(), life()[LIFE]) == ([320, 320, 200, 200], 7)


def test_a_vm_that_is_gone_counts_no_longer(vms):
    trace = expecting(vms((0, 20, 4, 8), (10, None, 4, 8), (30, None, 4, 8)), (500,), (50,), (9,))
    env = make_vec("vm/recovering", 1, trace=trace, servers=1, start_min=0, double_threshold=1e9)
    env.reset(options={"starts": [0]})
    env.step([0])
    assert env.buffers.candidates[0, :, ENDS].tolist() == [490, 490]
    env.step([0])
    assert env.buffers.candidates[0, :, ENDS].tolist() == [30, 30]


def test_who_was_there_before_has_lived_before(vms):
    trace = expecting(vms((0, None, 4, 8), (10, None, 4, 8), (20, None, 4, 8)), (100, 150), (100, 100), (9, 9))
    there = dataclasses.replace(
        trace, node=[1, -1, -1], servers=[2], up=np.ones((1, 1, 2), bool), lived_s=[120.0, 0.0, 0.0]
    )
    env = make_vec("vm/recovering", 1, trace=there, servers=2, start_min=0, double_threshold=1e9)
    env.reset(options={"starts": [1]})
    assert env.buffers.candidates[0, :, ENDS].tolist() == [0, 0, 20, 20]
    env.step([0])
    assert env.buffers.candidates[0, :, ENDS].tolist() == [90, 90, 10, 10]


def test_where_requests_wait_a_life_begins_when_its_vm_is_placed(vms):
    trace = expecting(vms((0, 100, 40, 8), (0, 100, 40, 8), (10, 100, 40, 8), (20, 9, 1, 1)), (90,), (90,), (30,), (9,))
    env = make_vec("vm/recovering", 1, trace=trace, servers=1, start_min=0, double_threshold=1e9, ending="wait")
    env.reset(options={"starts": [0]})
    env.step([0])
    env.step([1])  # the third waits until both are gone, at 100
    assert (env.buffers.time_s[0], env.buffers.candidates[0, :, ENDS].tolist()) == (100.0, [0, 0])
    env.step([0])
    assert env.buffers.candidates[0, :, ENDS].tolist() == [30, 30]


def test_least_extension_takes_the_server_whose_end_moves_least_and_without_lives_the_first(vms):
    trace = expecting(
        vms((0, None, 4, 8), (0, None, 4, 8), (1, None, 4, 8), (1, None, 4, 8)), (10,), (80,), (61,), (0,)
    )
    env = make_vec("vm/recovering", 1, trace=trace, servers=3, start_min=0, double_threshold=1e9)
    env.reset(options={"starts": [0]})
    rule = heuristics.batch("least_extension", env)
    assert rule().tolist() == [0]  # all alike: ties go to the first
    env.step([0])
    env.step([2])
    assert env.buffers.candidates[0, ::2, ENDS].tolist() == [9, 79, 0]
    assert rule().tolist() == [2]  # 61 s are over before the second server's 79
    env.step([2])
    assert rule().tolist() == [0]  # nothing is known of it


@pytest.mark.parametrize("name", ["least_extension", "numa_first_fit"])
@pytest.mark.parametrize("ending", ["terminate", "wait"])
def test_single_and_batch_agree_where_lives_are_expected(name, ending):
    env = make_vec("vm/recovering", 3, seed=2, servers=4, trace=known(generate(12_000)), ending=ending)
    env.reset()
    rule, scores = heuristics.batch(name, env), np.empty((3, env.width))
    for _ in range(100):
        actions = rule(scores).copy()
        for b in range(3):
            single = heuristics.score("vm", name, *env.raw_fields(b), env.buffers.mask[b])
            np.testing.assert_array_equal(single, scores[b])
        env.step(actions)


@pytest.mark.parametrize("ending", ["terminate", "wait"])
def test_a_fork_sees_what_its_original_sees(ending):
    env = make_vec("vm/recovering", 2, seed=4, servers=3, trace=known(generate(12_000)), ending=ending)
    env.reset()
    rule = heuristics.batch("least_extension", env)
    for _ in range(60):
        env.step(rule())
    fork = env.fork([1, 0])
    again = heuristics.batch("least_extension", fork)
    for _ in range(40):
        np.testing.assert_array_equal(fork.buffers.candidates[0], env.buffers.candidates[1])
        np.testing.assert_array_equal(fork.state.ends[0], env.state.ends[1])
        env.step(rule())
        fork.step(again())


def test_in_another_future_a_request_brings_its_own_expectation():
    env = make_vec("vm/recovering", 1, seed=4, servers=3, trace=known(generate(12_000)), ending="wait")
    env.reset()
    rule = heuristics.batch("first_fit", env)
    for _ in range(30):
        env.step(rule())
    future = futures.draw(env, None, "arrivals", seed=1)
    fork = env.fork([0], future=future)
    rows = np.flatnonzero(env.events.slot[: future.source.size] >= 0)
    rows = rows[rows >= future.first]
    np.testing.assert_array_equal(fork.events.expected[rows], env.events.expected[future.source[rows]])
    assert (fork.events.expected[rows] != env.events.expected[rows]).any()


def test_ends_are_worked_out_alike_by_who_calls_the_service():
    told = np.array([[40.0, 100.0], [60.0, 90.0], [0.0, 0.0]])
    assert lives.ends_s(np.array([30.0, 10.0, 5.0]), told) == 50.0
    assert lives.ends_s(np.array([100.0]), told[:1]) == 100.0
    assert lives.ends_s(np.array([5.0]), told[2:]) == 0.0
    assert lives.ends_s(np.empty(0), told[:0]) == 0.0


@pytest.mark.parametrize(
    ("expected", "said"),
    [([[1.0]], "has shape"), ([[2.0, 1.0]] * 2, "of row 0"), ([[np.inf]] * 2, "of row 0"), ([[-1.0]] * 2, "rising")],
)
def test_expectations_that_cannot_be_are_refused(vms, expected, said):
    trace = vms((0, None, 4, 8), (1, None, 4, 8))
    with pytest.raises(TraceError, match=said):
        dataclasses.replace(trace, expected=np.array(expected))
