"""Other futures: what has been seen stays, what comes is drawn, and rows of one future meet the same one."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sched_env import futures, heuristics, planning
from sched_env.functions.state import ARRIVAL, DURATION, FUNCTION, most_alive
from sched_env.heap import ITEM, TIME
from sched_env.vector import make_vec
from wire.errors import ConfigError

CASES = {
    "functions": ("functions/serverless", {"num_nodes": 4, "horizon": 200}, "least_allocated"),
    "jobs": ("jobs/cpn", {"cards": 5, "episode_jobs": 60, "load": 2.0, "cancel_rate": 0.2}, "fifo"),
    "vm": ("vm/recovering", {"servers": 2, "ending": "wait"}, "first_fit"),
}


@functools.cache
def made(case):
    scenario, keys, _ = CASES[case]
    return make_vec(scenario, 3, **keys)


def started(case, seed, steps):
    env = made(case)
    env.reset(seed=seed)
    rule = heuristics.batch(CASES[case][2], env)
    for _ in range(steps):
        env.step(rule())
    return env


def trail(fork, rule_name, decisions):
    """Everything that is seen on the way."""
    rule, seen = heuristics.batch(rule_name, fork), []
    fork.park = True
    for _ in range(decisions):
        if not fork.buffers.active.all():
            break
        fork.step(rule())
        seen.append((fork.buffers.request.tobytes(), fork.buffers.time_s.tobytes(), fork.buffers.reward.tobytes()))
    return seen


@pytest.mark.parametrize("kind", ["arrivals", "lives"])
@pytest.mark.parametrize("case", CASES)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**31), steps=st.integers(0, 60))
def test_rows_of_one_future_meet_the_same_one_and_other_seeds_others(case, kind, seed, steps):
    env = started(case, seed, steps)
    before = env.get_state()
    future = futures.draw(env, [1], kind, seed=seed)
    fork = env.fork([1, 1], future=future)
    again = env.fork([1], future=futures.draw(env, [1], kind, seed=seed))
    other = env.fork([1], future=futures.draw(env, [1], kind, seed=seed + 1))
    np.testing.assert_array_equal(fork.buffers.request[0], env.buffers.request[1])  # what is seen now is as it was
    rule = CASES[case][2]
    twice = trail(fork, rule, 30)
    once = trail(again, rule, 30)
    assert all(a[0][: len(a[0]) // 2] == a[0][len(a[0]) // 2 :] == b[0] for a, b in zip(twice, once, strict=True))
    if kind == "arrivals" and len(once) == 30:  # a VM does not tell its life
        recorded = trail(env.fork([1]), rule, 30)
        assert once != recorded or trail(other, rule, 30) != recorded
    for name, array in before.state.items():
        assert np.asarray(getattr(env.state, name))[: env.num_envs].tobytes() == array.tobytes()


@pytest.mark.parametrize("case", CASES)
def test_the_first_rows_of_a_future_are_the_record(case):
    env = started(case, 4, 30)
    record = env.record()
    first = int(env.seen_until(np.arange(3)).max())
    for kind in ("arrivals", "lives"):
        future = futures.draw(env, None, kind, seed=1)
        assert future.first == first
        np.testing.assert_array_equal(future.source[:first], np.arange(first))
        np.testing.assert_array_equal(future.life[:first], np.arange(first))
        times = future.arrival_s[record.rows]
        assert (np.diff(times) >= 0).all()
        np.testing.assert_array_equal(times[record.rows < first], record.arrival_s[record.rows < first])
        ahead = record.rows[record.rows >= first]
        if kind == "lives":
            kinds = dict(zip(record.rows.tolist(), record.kind.tolist(), strict=True))
            assert all(kinds[a] == kinds[b] for a, b in zip(ahead.tolist(), future.life[ahead].tolist(), strict=True))
            assert (future.life[ahead] != ahead).any()
        else:
            assert set(future.source[ahead]) <= set(record.rows.tolist())


def test_more_instances_at_once_than_the_record_ever_had_find_room():
    env = started("functions", 0, 50)
    count = len(env.trace)
    longest = int(env.trace.duration_s.argmax())
    now = int(env.state.cursor[0, 0])
    source = np.arange(count)
    source[now + 1 :] = longest
    times = env.trace.arrival_s.copy()
    times[now + 1 :] = times[now]
    fork = env.fork([0], future=futures.Future(now + 1, source, source, times, 0))
    tasks = fork.cluster.tasks
    assert fork.state.rates.shape[1] == most_alive(tasks[:, ARRIVAL], tasks[:, DURATION]) > env.state.rates.shape[1]
    planning.run(fork, heuristics.batch("least_allocated", fork), 150)
    links = fork.state.links[0]
    assert (links[:, 0] <= fork.state.rates.shape[1]).all()
    assert int(tasks[now + 1, FUNCTION]) == int(env.cluster.tasks[longest, FUNCTION])


def test_vms_that_are_there_live_on_as_others_of_their_age_did():
    env = started("vm", 2, 40)
    fork = env.fork([0, 0], future=futures.draw(env, [0], "lives", seed=9))
    count, now = int(env.state.env.leaving[0]), env.buffers.time_s[0]
    ours, theirs = env.state.leaving[0, :count], fork.state.leaving[0, :count]
    assert sorted(ours[:, ITEM]) == sorted(theirs[:, ITEM])
    assert (theirs[:, TIME] > now).all()
    assert (np.sort(ours[:, TIME]) != np.sort(theirs[:, TIME])).any()
    assert fork.state.leaving[0].tobytes() == fork.state.leaving[1].tobytes()


def test_a_future_that_contradicts_what_was_seen_is_refused():
    env = started("functions", 0, 30)
    early = futures.draw(env, [0], "arrivals", seed=0)
    rule = heuristics.batch("least_allocated", env)
    env.step(rule())
    with pytest.raises(ConfigError, match="where the future begins"):
        env.fork([0], future=early)
    with pytest.raises(ConfigError, match="one or the other"):
        env.fork([0], into=env.fork([0]), future=futures.draw(env, [0], "arrivals", seed=0))
    with pytest.raises(ConfigError, match="arrivals or lives"):
        futures.draw(env, [0], "weather", seed=0)
    with pytest.raises(ConfigError, match="no future but the recorded one"):
        futures.draw(make_vec("workflow/dag", 1, num_nodes=4, workflows=5, tasks=10), [0], "arrivals", seed=0)
