"""Every registered environment in the loop that users of Stable-Baselines3 write, as they write it."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from sched_env import envs, problems

sb3 = pytest.importorskip("stable_baselines3")
from stable_baselines3.common.monitor import Monitor  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize  # noqa: E402

IDS = [f"{envs.NAMESPACE}/{short}" for name in problems.names() for short in problems.get(name).environments]
SMALL = {
    "RecoveringL-v0": {"servers": 10},
    "Deploy-v0": {"nodes": 3, "pods_per_node": 3, "trace_windows": 40, "load": 0.7},
    "Cpn-v0": {"cards": 4, "episode_jobs": 6, "trace_rows": 100},
    "Workflow-v0": {"tasks": 8, "workflows": 10},
    "WorkflowPlan-v0": {"tasks": 8, "workflows": 10},
}
"""Smaller than the scenarios, where those would make the networks and traces of a test large."""


def make(name, **keys):
    short = name.partition("/")[2]
    horizon = {} if short.startswith("WorkflowPlan") else {"horizon": 6}
    return gymnasium.make(f"sched_env.envs:{name}", **SMALL.get(short, {}), **horizon, **keys)


def stock_model(env):
    return sb3.PPO("MultiInputPolicy", env, n_steps=8, batch_size=8, n_epochs=1, device="cpu", seed=0)


def equal(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return np.array_equal(one, other)


@pytest.mark.parametrize("name", IDS)
def test_what_predict_returns_is_an_action(name):
    env = make(name)
    model = stock_model(env).learn(16)
    observation, _ = env.reset(seed=0)
    episodes = 0
    for _ in range(20):
        action, _ = model.predict(observation)
        observation, reward, terminated, truncated, info = env.step(action)
        assert env.observation_space.contains(observation)
        assert np.isfinite(reward)
        assert isinstance(info["invalid"], bool)
        if terminated or truncated:
            episodes += 1
            assert set(env.unwrapped.many.METRICS) | {"start", "infeasible", "ended"} == set(info["episode_metrics"])
            observation, _ = env.reset()
    assert episodes


@pytest.mark.parametrize("name", IDS)
def test_monitor_vector_environments_and_normalisation_take_it(name):
    env = make(name)
    scaled = [key for key, space in env.observation_space.spaces.items() if isinstance(space, spaces.Box)]
    venv = VecNormalize(DummyVecEnv([lambda: Monitor(make(name))] * 2), norm_obs_keys=scaled)
    model = stock_model(venv).learn(32)
    observation, episodes = venv.reset(), []
    for _ in range(20):
        action, _ = model.predict(observation)
        observation, reward, done, infos = venv.step(action)
        assert np.isfinite(reward).all()
        for over, info in zip(done, infos, strict=True):
            if over:
                assert info["episode"]["r"] == pytest.approx(info["episode_metrics"]["return"], abs=1e-4)
                episodes.append(info["terminal_observation"])
    assert episodes


@pytest.mark.parametrize("name", IDS)
def test_processes_of_their_own_give_the_same(name):
    multiprocessing.set_forkserver_preload(["sched_env.envs", "stable_baselines3.common.vec_env"])
    here, there = (kind([partial(make, name, seed=3)]) for kind in (DummyVecEnv, SubprocVecEnv))
    try:
        for each in (here, there):
            each.seed(3)
        assert equal(here.reset(), there.reset())
        here.action_space.seed(0)
        for _ in range(8):
            action = np.array([here.action_space.sample()])
            one, other = here.step(action), there.step(action)
            assert equal(one[0], other[0])
            assert np.float32(one[1]) == np.float32(other[1])  # DummyVecEnv rounds rewards, SubprocVecEnv does not
            assert one[2] == other[2]
    finally:
        there.close()


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("twin", [lambda env: pickle.loads(pickle.dumps(env)), copy.deepcopy], ids=["pickle", "copy"])
def test_a_copy_goes_its_own_way_and_the_same_way(name, twin):
    env = make(name, invalid_action="penalise").unwrapped
    env.reset(seed=1)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(5)]
    env.step(actions[0])
    before = env._observe()
    other = twin(env)
    theirs = [other.step(action)[:4] for action in actions if not other._over]
    assert equal(env._observe(), before)
    ours = [env.step(action)[:4] for action in actions if not env._over]
    assert len(ours) == len(theirs)
    for one, two in zip(ours, theirs, strict=True):
        assert equal(one[0], two[0])
        assert one[1:] == two[1:]
