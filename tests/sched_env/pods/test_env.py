"""``DeployEnv``: names, views and behaviour that users of the original know, without its faults."""

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import sched_env  # noqa: F401 - registers the ids
from sched_env.pods.env import DeployEnv
from wire.errors import ConfigError, InfeasibleActionError


@pytest.fixture
def golden(trace_of, cluster):
    """One pod of 50 cores and 60 GiB on a node of 100 and 100, too hot; a second node is empty."""
    window = [("p", 0, 50.0, 60.0, [(90.0, 10.0)])]
    return trace_of(window, window, window, window), cluster((100, 100), (100, 100))


def test_the_golden_example_to_the_digit(golden):
    env = DeployEnv(trace=golden)
    env.reset(options={"start": 0})
    first, second = env.nodes.values()
    assert first == {
        "total_cpu": 100.0, "total_mem": 100.0, "remain_cpu": 0.0, "remain_mem": 40.0,
        "pods": [
            {"pod_name": "p", "request_cpu": 50.0, "request_mem": 60.0, "assigned_cpu": 100.0, "assigned_mem": 60.0}
        ],
    }  # fmt: skip
    assert second == {"total_cpu": 100.0, "total_mem": 100.0, "remain_cpu": 100.0, "remain_mem": 100.0, "pods": []}
    assert (env.n_node, env.t, env.offered) == (2, 0, ("p", 0))


def test_requests_are_shown_as_they_were_given(trace_of, cluster):
    window = [("a", 0, 0.1, 0.3, [(9.0, 1.0)]), ("b", 0, 0.2, 0.7, [(1.0, 1.0)])]
    env = DeployEnv(trace=(trace_of(window, window, window), cluster((9, 10), (9, 10))))
    env.reset(options={"start": 0})
    pods = {pod.pop("pod_name"): pod for pod in next(iter(env.nodes.values()))["pods"]}
    assert pods["a"] == {
        "request_cpu": 0.1,
        "request_mem": 0.3,
        "assigned_cpu": pytest.approx(3.0),
        "assigned_mem": 0.3,
    }
    assert pods["b"] == {
        "request_cpu": 0.2,
        "request_mem": 0.7,
        "assigned_cpu": pytest.approx(6.0),
        "assigned_mem": 0.7,
    }
    assert next(iter(env.nodes.values()))["remain_mem"] == pytest.approx(9.0, abs=1e-12)


def test_a_move_frees_the_node_that_was_left(golden):
    env = DeployEnv(trace=golden)
    env.reset(options={"start": 0})
    seen, *_ = env.step(1)
    assert env.t == 1
    assert [node["remain_mem"] for node in env.nodes.values()] == [100.0, 40.0]
    assert [node["remain_cpu"] for node in env.nodes.values()] == [100.0, 0.0]
    np.testing.assert_array_equal(seen["nodes"][0, 0], [100, 100, 100, 100])
    np.testing.assert_array_equal(seen["nodes"][1, :2], [[100, 100, 0, 40], [50, 60, 100, 60]])
    assert not seen["nodes"][:, 2:].any()


def test_the_present_node_means_stay(golden):
    env = DeployEnv(trace=golden)
    env.reset(options={"start": 0})
    _, reward, *_ = env.step(0)
    assert next(iter(env.nodes.values()))["pods"]
    assert reward == pytest.approx(-(0.6 * 1 + 0.4 * 1) / 2)  # 90 of 100 cores is over, 10 of 100 GiB under


def test_gymnasium_finds_nothing_to_complain_about():
    env = gymnasium.make("sched_env.envs:sched_env/Deploy-v0").unwrapped
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env)
    env.reset(options={"start": 0})
    assert env.t == 0
    assert env.observation_space["nodes"].shape == (10, 101, 4)
    assert (env.n_node, env.action_space.n) == (10, 10)
    assert [len(node["pods"]) for node in env.nodes.values()] == [10] * 10
    assert all(node["total_cpu"] == node["total_mem"] == 100.0 for node in env.nodes.values())


def test_stock_stable_baselines_learns_on_it():
    sb3 = pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    env = DeployEnv(3, pods_per_node=3, trace_windows=40, load=0.7, invalid_action="penalise")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # SB3 takes three axes for an image and prefers flat vectors; these shapes are what users know.
        warnings.filterwarnings("ignore", message=".*(image|unconventional shape).*")
        checker.check_env(env)
    model = sb3.PPO("MultiInputPolicy", env, n_steps=32, batch_size=16, n_epochs=1, device="cpu", seed=0)
    model.learn(64)
    action, _ = model.predict(env.reset(seed=1)[0], deterministic=True)
    assert env.action_space.contains(int(action))


def test_the_padded_view_shows_what_the_dict_view_says():
    env = DeployEnv(4, pods_per_node=3, trace_windows=80, load=0.7)
    seen, _ = env.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(40):
        assert env.observation_space.contains(seen)
        for n, node in enumerate(env.nodes.values()):
            np.testing.assert_allclose(seen["nodes"][n, 0, 3], node["remain_mem"], rtol=1e-6)
            rows = seen["nodes"][n, 1:]
            assert np.count_nonzero(rows[:, 0]) == len(node["pods"])
            np.testing.assert_allclose(rows[:, 2].sum(), node["total_cpu"] if node["pods"] else 0.0, rtol=1e-5)
        seen, _, terminated, truncated, _ = env.step(rng.choice(np.flatnonzero(env.action_masks())))
        if terminated or truncated:
            seen, _ = env.reset()


def test_an_infeasible_action_changes_nothing(trace_of, cluster):
    window = [("a", 0, 1.0, 6.0, [(9.0, 1.0)]), ("b", 1, 1.0, 6.0, [(1.0, 1.0)])]
    trace = trace_of(window, window, window), cluster((10, 10), (10, 10))
    for how in ("terminate", "penalise", "raise"):
        env = DeployEnv(trace=trace, invalid_action=how, invalid_penalty=3.0)
        env.reset(options={"start": 0})
        assert env.action_masks().tolist() == [True, False]  # by memory: 6 + 6 GiB do not fit into 10
        before = env.nodes
        if how == "raise":
            with pytest.raises(InfeasibleActionError, match="node 1"):
                env.step(1)
        else:
            _, reward, terminated, truncated, info = env.step(1)
            assert (terminated, truncated) == (how == "terminate", False)
            assert reward < -3.0 if terminated else reward == -3.0
            assert info["invalid"]
        assert env.nodes == before
        assert env.t == 0


def test_the_end_of_the_trace_truncates_with_the_metric_sheet(golden):
    env = DeployEnv(trace=golden, price_per_move_usd=0.5)
    env.reset(options={"start": 0})
    env.step(1)
    env.step(1)
    _, _, terminated, truncated, info = env.step(1)
    assert (terminated, truncated, info["episode_metrics"]["ended"]) == (False, True, "end_of_trace")
    sheet = info["episode_metrics"]
    assert sheet["migrations"] == 1
    assert sheet["sla_violation_rate"] == 1.0  # 90 of 100 cores, wherever it is
    assert sheet["cost_usd"] == pytest.approx(3 / 12 + 0.5)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(1)


def test_wrong_arguments_are_named():
    with pytest.raises(ConfigError, match="pod_limit is 101"):
        DeployEnv(pod_limit=101)
    with pytest.raises(ConfigError, match="invalid_action"):
        DeployEnv(invalid_action="ignore")
    with pytest.raises(ConfigError, match="under_threshold"):
        DeployEnv(under_threshold=0.9)
    with pytest.raises(ConfigError, match="PodTrace, NodeTable"):
        DeployEnv(trace=(1, 2))
