"""Rows that are kept, put back or forked go on bit for bit, in every problem."""

from __future__ import annotations

import functools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sched_env import heuristics, planning
from sched_env.vector import make_vec
from wire.errors import ConfigError

BATCH = 5
CASES = {
    "vm recovering": ("vm/recovering", {"servers": 3, "horizon": 60}),
    "vm expanding": ("vm/expanding", {"servers": 2, "max_servers": 6, "horizon": 60}),
    "vm waiting": ("vm/recovering", {"servers": 2, "ending": "wait", "horizon": 60}),
    "functions": ("functions/serverless", {"num_nodes": 4, "horizon": 60}),
    "pods": ("pods/deploy", {"n_node": 5, "horizon": 40}),
    "pods parallel": ("pods/deploy", {"n_node": 5, "arrival": "parallel", "horizon": 40}),
    "workflow": ("workflow/dag", {"num_nodes": 4, "workflows": 20, "tasks": 30}),
    "jobs": ("jobs/cpn", {"cards": 5, "episode_jobs": 25, "failure_rate": 0.2, "cancel_rate": 0.2, "load": 3.0}),
    "jobs pairs": ("jobs/cpn", {"cards": 4, "episode_jobs": 25, "choice": "pair", "shown_jobs": 3, "load": 3.0}),
    "jobs reserving": ("jobs/cpn", {"cards": 4, "episode_jobs": 25, "reservation": "easy", "load": 3.0}),
}


@functools.cache
def made(case):
    scenario, keys = CASES[case]
    return make_vec(scenario, BATCH, **keys)


def started(case, seed, steps):
    """An environment some random steps after a reset."""
    env = made(case)
    env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        env.step(drawn(env, rng))
    return env, rng


def drawn(env, rng):
    mask = env.buffers.mask
    return np.array([rng.choice(np.flatnonzero(row)) if row.any() else 0 for row in mask])


def assert_same(one, other):
    for group in ("state", "buffers"):
        ours, theirs = getattr(one, group), getattr(other, group)
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert ours[name].tobytes() == theirs[name].tobytes(), f"{group}.{name}"


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    steps=st.integers(0, 150),
    rows=st.lists(st.integers(0, BATCH - 1), min_size=1, max_size=9),
    on=st.integers(1, 90),
)
def test_forked_rows_replay_bit_for_bit_over_the_ends_of_episodes(case, seed, steps, rows, on):
    env, rng = started(case, seed, steps)
    fork = env.fork(rows)
    assert fork.observation_space.contains({name: array.copy() for name, array in fork.observe().items()}) or (
        fork.width < fork.buffers.mask.shape[1]  # a cluster that grows shows less than its space
    )
    assert_same(fork.get_state(), env.get_state(rows))
    for _ in range(on):
        actions = drawn(env, rng)
        env.step(actions)
        fork.step(actions[rows])
        assert_same(fork.get_state(), env.get_state(rows))
    np.testing.assert_array_equal(fork.rebuild(0).candidates, env.rebuild(rows[0]).candidates)


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**31), steps=st.integers(0, 100), on=st.integers(1, 60))
def test_a_kept_state_comes_back_and_what_a_fork_does_stays_there(case, seed, steps, on):
    env, rng = started(case, seed, steps)
    kept = pickle.loads(pickle.dumps(env.get_state()))
    actions = rng.bit_generator.state
    fork = env.fork([0, 0, BATCH - 1])
    for _ in range(on):
        fork.step(drawn(fork, rng))
    assert_same(env.get_state(), kept)
    rng.bit_generator.state = actions
    for _ in range(on):
        env.step(drawn(env, rng))
    after = env.get_state()
    env.reset(seed=seed + 1, options={"park": True})
    env.set_state(kept)
    assert (env.seed, env.park) == (seed, False)
    rng.bit_generator.state = actions
    for _ in range(on):
        env.step(drawn(env, rng))
    assert_same(env.get_state(), after)


@pytest.mark.parametrize("case", CASES)
def test_rows_move_within_a_batch_and_between_environments_of_one_world(case):
    env, rng = started(case, 3, 40)
    kept = env.get_state([4, 1])
    scenario, keys = CASES[case]
    other = make_vec(scenario, 3, seed=3, **keys)
    other.reset()
    other.set_state(kept, [0, 2])
    for _ in range(30):
        actions = drawn(env, rng)
        env.step(actions)
        mine = drawn(other, rng)
        mine[[0, 2]] = actions[[4, 1]]
        other.step(mine)
    assert_same(other.get_state([0, 2]), env.get_state([4, 1]))


@pytest.mark.parametrize("case", CASES)
def test_a_fork_is_filled_again_and_its_spare_rows_rest(case):
    env, rng = started(case, 8, 20)
    fork = env.fork(np.arange(BATCH).repeat(2))
    rule = heuristics.batch("random_feasible", fork)
    planning.run(fork, rule, 10)
    env.step(drawn(env, rng))
    rows, actions = planning.forced(env, [1])
    rows, actions = rows[:6], actions[:6]
    assert env.fork(rows, into=fork) is fork
    assert_same(fork.get_state(np.arange(rows.size)), env.get_state(rows))
    assert not fork.buffers.active[rows.size :].any()
    runs = planning.run(fork, rule, 6, actions)
    assert (runs.decisions[: rows.size] >= 1).all()
    assert not runs.decisions[rows.size :].any()
    assert not runs.returns[rows.size :].any()


@pytest.mark.parametrize("case", ["vm recovering", "functions", "jobs", "pods", "workflow"])
def test_a_forced_run_equals_stepping_by_hand(case):
    env, _ = started(case, 5, 10)
    name = {"vm recovering": "first_fit", "functions": "warm_first", "jobs": "fifo", "pods": "no_migration"}.get(case)
    name = name or env.problem.heuristics[-1]
    rows, actions = planning.forced(env)
    fork = env.fork(rows)
    runs = planning.run(fork, heuristics.batch(name, fork), 7, actions)
    for k in np.random.default_rng(0).choice(rows.size, 6):
        alone = env.fork([rows[k]])
        alone.park = True
        choose, total, action, count = heuristics.batch(name, alone), 0.0, actions[k : k + 1], 0
        while count < 7 and alone.buffers.active[0]:
            total += alone.step(action)[1][0]
            action, count = choose(), count + 1
        assert (runs.returns[k], runs.decisions[k]) == (total, count)
        assert runs.ended[k] == (not alone.buffers.active[0])


def test_what_cannot_be_put_there_is_refused_and_changes_nothing():
    env, _ = started("functions", 0, 5)
    before = env.get_state()
    other = make_vec("functions/serverless", BATCH, num_nodes=4, horizon=61)
    other.reset()
    for wrong, rows, words in (
        (before, [0], "5 rows"),
        (other.get_state(), None, "another scenario or trace"),
        (made_otherwise(env), [0, 1, 2, 3, 4], "seed"),
    ):
        with pytest.raises(ConfigError, match=words):
            env.set_state(wrong, rows)
    for rows in ([], [BATCH], [-1], [0.5], [[0]]):
        with pytest.raises(ConfigError, match="row"):
            env.fork(rows)
    with pytest.raises(ConfigError, match="not a fork"):
        env.fork([0], into=other)
    with pytest.raises(ConfigError, match="at least as many"):
        env.fork([0, 1], into=env.fork([0]))
    with pytest.raises(ConfigError, match="at least 1"):
        planning.run(env, heuristics.batch("first_fit", env), 0)
    assert_same(env.get_state(), before)


def made_otherwise(env):
    kept = env.get_state()
    return planning.Snapshot(kept.world, kept.state, kept.buffers, kept.seed + 1, kept.park)
