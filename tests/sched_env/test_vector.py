"""What every problem's vector environment promises, shown on each problem that exists."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from sched_env import heuristics, vector
from sched_env.vector import SHEET, make_vec
from sched_env.vm.synthetic import generate
from wire.errors import ConfigError

CASES = {
    "vm/fading": {"servers": 3},
    "vm/recovering": {"servers": 3},
    "vm/expanding": {"servers": 2, "max_servers": 6},
    "functions/serverless": {"num_nodes": 6},
    "pods/deploy": {"n_node": 6},
    "workflow/dag": {"num_nodes": 6, "workflows": 30, "tasks": 60},
}
WAIT = ("vm/recovering", {"servers": 2, "ending": "wait"})


def lives_known():
    """Return VMs of most of whose lives something is expected."""
    trace, rng = generate(20_000), np.random.default_rng(0)
    expected = np.sort(rng.exponential(4000.0, (len(trace), 3)), axis=1).astype(np.float32)
    return dataclasses.replace(trace, expected=expected * (rng.random((len(trace), 1)) < 0.9))


KNOWN = {"trace": lives_known()}
ALL = [
    *CASES.items(),
    WAIT,
    pytest.param("vm/recovering", {"servers": 3, **KNOWN}, id="vm/recovering with lives"),
    pytest.param("vm/expanding", {"servers": 2, "max_servers": 6, **KNOWN}, id="vm/expanding with lives"),
    pytest.param(WAIT[0], {**WAIT[1], **KNOWN}, id="vm waiting with lives"),
]


def random_actions(env, rng):
    """Draw from each environment's own generator, so that the draws do not depend on the batch."""
    mask = env.observe()["mask"]
    return [int(rng[b].choice(np.flatnonzero(mask[b]))) for b in range(env.num_envs)]


@pytest.mark.parametrize(("scenario", "keys"), ALL, ids=str)
def test_same_seed_same_actions_same_bits_whatever_the_batch(scenario, keys):
    trails = []
    for size in (1, 3, 8):
        env = make_vec(scenario, size, seed=5, **keys)
        env.reset(seed=5)
        rng = [np.random.default_rng(b) for b in range(size)]
        trail = []
        for _ in range(120):
            width = int(env.buffers.mask[0].nonzero()[0].max()) + 1
            _, reward, terminated, truncated, _ = env.step(random_actions(env, rng))
            seen = env.observe()
            trail.append(
                (
                    width,
                    reward[0],
                    terminated[0],
                    truncated[0],
                    seen["request"][0].tobytes(),
                    env.buffers.candidates[0].tobytes(),
                    env.buffers.mask[0].tobytes(),
                    env.buffers.start[0],
                )
            )
        trails.append(trail)
    assert trails[0] == trails[1] == trails[2]


@pytest.mark.parametrize(("scenario", "keys"), ALL, ids=str)
def test_the_incremental_observation_equals_a_full_rebuild(scenario, keys):
    env = make_vec(scenario, 4, seed=1, **keys)
    env.reset()
    rng = [np.random.default_rng(b) for b in range(4)]
    for _ in range(300):
        env.step(random_actions(env, rng))
        for b in range(4):
            whole = env.rebuild(b)
            width = len(whole.mask)
            assert env.buffers.candidates[b, :width].tobytes() == whole.candidates.tobytes()
            assert env.buffers.request[b].tobytes() == whole.request.tobytes()
            assert env.buffers.mask[b, :width].tobytes() == whole.mask.tobytes()
            assert env.buffers.feasible[b] == whole.mask.sum() == env.buffers.mask[b].sum()


@pytest.mark.parametrize(("scenario", "keys"), CASES.items(), ids=str)
def test_an_episode_restarts_in_the_step_that_ends_it(scenario, keys):
    env = make_vec(scenario, 2, seed=3, horizon=25, **keys)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    env.reset()
    rng = [np.random.default_rng(b) for b in range(2)]
    returns, ended = np.zeros(2), 0
    for _ in range(120):
        episode = env.buffers.episode.copy()
        seen, reward, terminated, truncated, infos = env.step(random_actions(env, rng))
        over = terminated | truncated
        returns += reward
        assert bool(over.any()) == bool(infos)
        np.testing.assert_array_equal(env.buffers.episode - episode, over)
        if over.any():
            np.testing.assert_array_equal(infos["_episode"], over)
            np.testing.assert_array_equal(infos["_final_obs"], over)
            assert set(SHEET) <= set(infos["episode"])
            for b in np.flatnonzero(over):
                ended += 1
                assert infos["episode"]["return"][b] == pytest.approx(returns[b])
                assert infos["episode"]["placed"][b] <= infos["episode"]["requests"][b]
                assert 0.0 <= infos["episode"]["sla_violation_rate"][b] <= 1.0
                assert infos["episode"]["cost_usd"][b] >= 0.0
                last = infos["final_obs"]["candidates"][b]
                assert last.shape == env.single_observation_space["candidates"].shape
            returns[over] = 0.0
        assert seen["mask"].any(axis=1).all()
    assert ended >= 4


@pytest.mark.parametrize(("scenario", "keys"), CASES.items(), ids=str)
def test_parked_environments_rest_when_their_episode_is_over(scenario, keys):
    env = make_vec(scenario, 3, **keys, horizon=7)
    env.reset(options={"starts": [1, 2, 3], "park": True})
    rule = heuristics.batch("random_feasible", env)
    for _ in range(12):
        env.step(rule())
    assert not env.buffers.active.any()
    assert not env.buffers.mask.any()
    assert env.buffers.final_start.tolist() == [1, 2, 3]
    frozen = env.buffers.metrics.copy()
    _, reward, terminated, _, infos = env.step([0, 0, 0])
    assert not reward.any()
    assert not terminated.any()
    assert infos == {}
    np.testing.assert_array_equal(env.buffers.metrics, frozen)


def test_copies_are_the_callers_and_buffers_are_ours():
    for copy in (True, False):
        env = make_vec("vm/fading", 2, copy=copy)
        first = env.reset(seed=0)[0]
        kept = {name: array.copy() for name, array in first.items()}
        env.step(env.buffers.mask.argmax(axis=1))
        same = all(np.array_equal(first[name], kept[name]) for name in kept)
        assert same == copy


def test_a_seed_starts_the_sequence_anew_and_no_seed_goes_on():
    env = make_vec("vm/fading", 4, seed=9)
    env.reset(seed=9)
    first = env.buffers.start.copy()
    env.reset()
    second = env.buffers.start.copy()
    env.reset(seed=9)
    np.testing.assert_array_equal(env.buffers.start, first)
    assert (first != second).any()
    assert len({make_started(seed) for seed in range(20)}) > 10


def make_started(seed):
    env = make_vec("vm/fading", 1, seed=seed)
    env.reset()
    return int(env.buffers.start[0])


def test_observations_lie_in_their_space():
    env = make_vec("vm/recovering", 3)
    seen, _ = env.reset()
    seen = {**seen, "mask": seen["mask"].astype(np.int8)}
    assert env.observation_space.contains(seen)
    assert env.action_space.contains(env.buffers.mask.argmax(axis=1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda env: env.step([0]), "actions have shape"),
        (lambda env: env.reset(options={"starts": [1]}), "starts has shape"),
        (lambda env: make_vec("vm/fading", 0), "num_envs is 0"),
    ],
)
def test_wrong_shapes_are_named(call, message):
    env = make_vec("vm/fading", 2)
    env.reset()
    with pytest.raises(ConfigError, match=message):
        call(env)


def test_the_module_holds_no_problem_of_its_own():
    assert "sched_env.vm" not in Path(vector.__file__).read_text()


def test_a_final_observation_keeps_servers_that_the_next_episode_has_not():
    env = make_vec("vm/expanding", 1, servers=1, max_servers=3, horizon=60, expand_threshold=0.0)
    env.reset(seed=0)
    infos = {}
    while not infos:
        seen, *_, infos = env.step(env.buffers.mask.argmax(axis=1))
    assert seen["mask"].shape == (1, 2)
    assert infos["final_obs"]["candidates"][0, :, 4].tolist() == [40.0] * 6  # capacity of all three servers


def test_actions_of_any_layout_and_type_are_understood():
    wide = np.zeros((4, 3), np.int32)
    wide[:, 1] = [0, 2, 4, 6]
    placed = []
    for actions in ([0, 2, 4, 6], wide[:, 1], np.array([0.0, 2.0, 4.0, 6.0])):
        env = make_vec("vm/fading", 4)
        env.reset(seed=0)
        env.step(actions)
        placed.append(env.state.cpu[:4].copy())
    np.testing.assert_array_equal(placed[0], placed[1])
    np.testing.assert_array_equal(placed[0], placed[2])
    assert (placed[0] < 40).any(axis=1).all()
