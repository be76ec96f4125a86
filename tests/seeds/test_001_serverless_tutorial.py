"""001, "使用强化学习进行工作流放置": the tutorial's blocks, in its order, against ``functions/tutorial``."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from sched_env.functions.env import ServerlessSchedulingEnv

TASK = {"cpu_request": 1.0, "mem_request": 2.0, "io_network": 50.0, "io_disk": 500.0, "requests": 10}


def load_dataset():
    """As in 2.1."""

    def _task_generator():
        while True:
            yield {
                "cpu_request": np.random.uniform(0.1, 4.0),
                "mem_request": np.random.uniform(0.1, 8.0),
                "io_network": np.random.uniform(10, 100),
                "io_disk": np.random.uniform(100, 1000),
                "requests": np.random.randint(1, 100),
            }

    return _task_generator()


def make_env():
    """As in 2.1, with the tutorial's constants and shorter episodes."""
    dataset = load_dataset()
    env = ServerlessSchedulingEnv(num_nodes=10, num_functions=5, scenario="functions/tutorial", horizon=50)
    env.set_dataset(dataset)
    return env


def tutorial(**keys):
    return ServerlessSchedulingEnv(num_nodes=10, num_functions=5, scenario="functions/tutorial", **keys)


def test_1_1_state_space():
    num_nodes, num_functions = 10, 5
    expected = {
        "node_utilization": ((num_nodes, 4), np.float32),
        "node_capacity": ((num_nodes, 2), np.float32),
        "node_price": ((num_nodes,), np.float32),
        "node_deployed": ((num_nodes, 2), np.float32),
        "node_active": ((num_nodes,), np.int8),
        "current_function_request": ((2,), np.float32),
        "current_function_io": ((2,), np.float32),
        "current_function_requests": ((1,), np.int32),
        "current_function_rart": ((1,), np.float32),
        "cluster_function_requests": ((num_functions,), np.int32),
    }
    space = ServerlessSchedulingEnv(num_nodes=num_nodes, num_functions=num_functions).observation_space
    assert {name: (each.shape, each.dtype.type) for name, each in space.items()} == expected


def test_1_2_action_space():
    assert tutorial().action_space == spaces.Discrete(10)


def test_1_3_dataset():
    """An iterator or a generator; when it is exhausted it begins again."""
    env = tutorial(horizon=2)
    env.set_dataset(iter([{**TASK, "cpu_request": cpu} for cpu in (1.0, 2.0)]))
    for _ in range(2):
        observation, _ = env.reset()
        assert observation["current_function_request"].tolist() == [1.0, 2.0]
        observation, *_ = env.step(0)
        assert observation["current_function_request"].tolist() == [2.0, 2.0]
        env.step(0)


def test_1_4_reset():
    env = tutorial()
    env.set_dataset([TASK])
    observation, info = env.reset(seed=None)
    assert observation["current_function_request"].tolist() == [1.0, 2.0]
    assert observation["current_function_io"].tolist() == [50.0, 500.0]
    assert observation["current_function_requests"].tolist() == [10]
    assert observation["current_function_rart"].tolist() == [0.5]
    assert isinstance(info, dict)


def test_1_5_step_returns_the_tuple_and_an_invalid_action_ends_the_episode():
    env = tutorial()
    env.set_dataset([{**TASK, "cpu_request": 4.0, "mem_request": 8.0}] * 20)
    env.reset()
    for _ in range(20):
        observation, reward, done, truncated, info = env.step(2)  # 4 cores: room for one
        if done:
            break
    assert (done, truncated, info["invalid"]) == (True, False, True)
    assert isinstance(reward, float)
    assert env.observation_space.contains(observation)


def test_1_5_is_action_valid():
    env = tutorial()
    observation, _ = env.reset(seed=0)
    for _ in range(30):
        free = observation["node_capacity"] - observation["node_deployed"]
        valid = observation["node_active"].astype(bool) & (free >= observation["current_function_request"]).all(axis=1)
        np.testing.assert_array_equal(env.action_masks(), valid)
        observation, *_ = env.step(int(np.flatnonzero(valid)[-1]))


def test_1_5_calculate_reward_of_the_response_after_the_placement():
    """The tutorial's formula; with the RART after the action instead of the one before (problems.md, section 9)."""
    env = tutorial()
    observation, _ = env.reset(seed=0)
    for action in (0, 1, 2, 3, 0, 1):
        prices = observation["node_price"]
        after, reward, *_, info = env.step(action)
        beta, low, high = 0.7, 0.1, 5.0
        norm_rart = np.clip((info["r1"] - low) / (high - low), 0.0, 1.0)
        norm_cost = (prices[action] - prices.min()) / (prices.max() - prices.min())
        assert reward == pytest.approx(-(beta * norm_rart + (1 - beta) * norm_cost), abs=1e-6)
        assert info["rfrt"] == info["r1"]
        observation = after


def test_1_5_get_next_state():
    env = tutorial()
    env.set_dataset([TASK, {**TASK, "cpu_request": 2.0}])
    before, _ = env.reset()
    after, _, _, _, info = env.step(3)
    capacity = before["node_capacity"][3]
    np.testing.assert_allclose(after["node_deployed"][3], [1.0, 2.0])
    np.testing.assert_allclose(after["node_utilization"][3], [1.0 / capacity[0], 2.0 / capacity[1], 0.05, 0.1])
    node_load = np.mean(after["node_utilization"][3, :2])
    assert info["r1"] == pytest.approx(0.1 + 4.9 * node_load)
    assert after["current_function_request"][0] == 2.0
    assert before["node_deployed"][3].tolist() == [0.0, 0.0], "what was kept is not changed"


def test_1_5_nodes_fail_and_come_back():
    """``node_active`` is not always 1: by a rate here, by ``FunctionTrace.up`` where it was recorded."""
    env = tutorial(outages_per_hour=60.0, outage_s=60.0)
    observation, _ = env.reset(seed=0)
    seen = []
    for _ in range(300):
        seen.append(observation["node_active"])
        mask = env.action_masks()
        assert not mask[observation["node_active"] == 0].any()
        observation, *_ = env.step(int(np.flatnonzero(mask)[0]))
    seen = np.array(seen)
    assert 0.2 < seen.mean() < 0.9
    assert (np.diff(seen.astype(int), axis=0) == 1).any()
    assert (np.diff(seen.astype(int), axis=0) == -1).any()


def test_1_5_a_node_whose_resources_are_exceeded_is_inactive():
    """Adapted: cpu and memory cannot be exceeded, as nothing infeasible is placed; network and disk can."""
    env = tutorial(exceeded="inactive")
    env.set_dataset([{**TASK, "cpu_request": 0.1, "mem_request": 0.1, "io_network": 600.0}] * 5)
    observation, _ = env.reset()
    assert observation["node_active"].all()
    for _ in range(2):  # 1,200 of 1,000 MB/s
        observation, *_ = env.step(3)
    assert observation["node_active"].tolist() == [1, 1, 1, 0, 1, 1, 1, 1, 1, 1]
    assert not env.action_masks()[3]


def test_1_6_template():
    env = tutorial(render_mode="ansi")
    env.reset(seed=0)
    assert "cpu" in env.render()


class Test2:
    """The training flow with stock SB3; far fewer steps."""

    @pytest.fixture
    def sb3(self):
        return pytest.importorskip("stable_baselines3")

    def test_2_1_and_2_2_definition_and_check(self, sb3):
        from stable_baselines3.common.env_checker import check_env
        from stable_baselines3.common.vec_env import DummyVecEnv

        env = DummyVecEnv([make_env])
        check_env(env.envs[0], warn=False)

    def test_2_3_to_2_6_model_training_evaluation_and_inference(self, sb3, tmp_path):
        """``MlpPolicy`` and the list around ``net_arch`` are what SB3 no longer takes for a Dict observation."""
        from stable_baselines3.common.evaluation import evaluate_policy
        from stable_baselines3.common.vec_env import DummyVecEnv

        env = DummyVecEnv([make_env])
        model = sb3.PPO(
            "MultiInputPolicy",
            env,
            learning_rate=3e-4,
            n_steps=64,
            batch_size=64,
            gamma=0.99,
            verbose=0,
            tensorboard_log=str(tmp_path / "logs"),
            policy_kwargs={"net_arch": {"pi": [128, 128], "vf": [128, 128]}},
        )
        model.learn(total_timesteps=128, tb_log_name="ppo_serverless", progress_bar=True)
        model.save(tmp_path / "ppo_serverless_scheduling")
        mean_reward, std_reward = evaluate_policy(model, DummyVecEnv([make_env]), n_eval_episodes=2, deterministic=True)
        assert np.isfinite([mean_reward, std_reward]).all()
        assert list((tmp_path / "logs").rglob("events*"))

        model = sb3.PPO.load(tmp_path / "ppo_serverless_scheduling", env=env)
        obs = env.reset()
        for _ in range(120):
            action, _ = model.predict(obs, deterministic=True)
            obs, reward, done, info = env.step(action)
        single = make_env()
        obs, _ = single.reset()
        for _ in range(60):
            action, _ = model.predict(obs, deterministic=True)
            obs, reward, done, truncated, info = single.step(action)
            if done or truncated:
                obs, _ = single.reset()
