"""Normalised observations: in their space, of one size, and still all there."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from sched_env.functions.env import ServerlessSchedulingEnv
from sched_env.normalised import CLIP, NormalisedObservation


@pytest.mark.parametrize("name", ["Fading-v0", "Serverless-v0", "Workflow-v0"])
def test_observations_are_of_order_one_and_in_their_space(name):
    env = NormalisedObservation(gymnasium.make(f"sched_env.envs:sched_env/{name}", invalid_action="penalise"))
    observation, _ = env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(30):
        assert env.observation_space.contains(observation)
        assert max(np.abs(values).max() for values in observation.values()) <= CLIP
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            observation, _ = env.reset()


def test_what_is_more_stays_more_and_the_ends_are_0_and_1():
    env = NormalisedObservation(ServerlessSchedulingEnv(4))
    raw, _ = env.unwrapped.reset(seed=0)
    empty, full = dict(raw), dict(raw)
    empty["node_deployed"], full["node_deployed"] = np.zeros((4, 2), np.float32), raw["node_capacity"]
    assert (env.observation(empty)["node_deployed"] == 0.0).all()
    assert env.observation(full)["node_deployed"] == pytest.approx(1.0)
    io = [env.observation({**raw, "current_function_io": np.full(2, x, np.float32)}) for x in (10.0, 100.0, 1000.0)]
    sizes = [float(each["current_function_io"][0]) for each in io]
    assert 0.1 < sizes[0] < sizes[1] < sizes[2] < 1.0
    assert env.observation(raw)["node_active"] is raw["node_active"]


def test_agents_that_take_no_mask_can_see_it():
    env = NormalisedObservation(ServerlessSchedulingEnv(4, invalid_action="penalise"), mask=True)
    observation, _ = env.reset(seed=0)
    for _ in range(20):
        assert env.observation_space.contains(observation)
        assert (observation["mask"] == env.unwrapped.action_masks()).all()
        observation, *_ = env.step(int(observation["mask"].argmax()))
