from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from sched_env import heuristics
from sched_env.functions.calibration import calibrate, main
from sched_env.functions.env import ServerlessSchedulingEnv
from sched_env.functions.state import R1, R2
from sched_env.scenarios import load
from sched_env.vector import make_vec
from wire.errors import ConfigError

sys.path.insert(0, str(Path(__file__).parent))  # where reward_examples is, as a user's module would be on the path


@pytest.fixture
def step(one, tasks):
    """Place one instance of four cores and 101 calls on the small node and return the environment."""

    def run(**overrides):
        env = one(tasks([0.0, 1.0], cpu=4.0, requests=101, response_s=1.0), **overrides)
        env.step(np.array([0]))
        return env

    return run


def test_the_reward_weighs_response_against_cost_after_the_placement(step):
    env = step(r1_range=[1.0, 5.0], r2_range=[0.0, 0.4], beta=0.7)
    assert env.state.last[0, R1] == pytest.approx(3.0)  # a full node
    assert env.buffers.reward[0] == pytest.approx(-(0.7 * 0.5 + 0.3 * 0.5))


@pytest.mark.parametrize(("beta", "expected"), [(1.0, -0.5), (0.0, -0.5), (0.5, -0.5)])
def test_beta_goes_from_cost_alone_to_latency_alone(step, beta, expected):
    assert step(r1_range=[1.0, 5.0], r2_range=[0.0, 0.4], beta=beta).buffers.reward[0] == pytest.approx(expected)


def test_norms_are_clipped(step):
    assert step(r1_range=[1.0, 2.0], r2_range=[0.0, 0.1]).buffers.reward[0] == pytest.approx(-1.0)
    assert step(r1_range=[4.0, 5.0], r2_range=[0.3, 0.4]).buffers.reward[0] == pytest.approx(0.0)


def test_bounds_closer_than_a_millionth_count_as_nothing(step):
    assert step(r1_range=[1.0, 1.0 + 1e-7], r2_range=[0.2, 0.2]).buffers.reward[0] == 0.0


def test_bounds_the_wrong_way_round_are_refused():
    with pytest.raises(ConfigError, match="r2_range"):
        make_vec("functions/serverless", 1, 0, r2_range=[1.0, 0.0])


def test_without_bounds_r2_is_scaled_by_the_highest_price(step):
    assert step(r2_range=None, beta=0.0).buffers.reward[0] == pytest.approx(-0.5)


def test_slo_cost_counts_calls_above_the_slo_instead_of_r1(step):
    # Three times slower, SLO twice: every call is late.
    assert step(reward="slo_cost", beta=1.0).buffers.reward[0] == pytest.approx(-1.0)
    assert step(reward="slo_cost", beta=0.0, r2_range=[0.0, 0.4]).buffers.reward[0] == pytest.approx(-0.5)


def test_slo_cost_counts_the_calls_that_wait_for_a_cold_container(one, tasks):
    env = one(tasks([0.0, 1.0], cpu=0.1, requests=101, response_s=1.0), reward="slo_cost", beta=1.0, cold_start_s=10.0)
    env.step(np.array([1]))
    assert -env.buffers.reward[0] == pytest.approx((1 + 9) / 101, rel=1e-3)


def test_a_users_reward_is_called_for_all_environments_at_once(two_nodes, tasks):
    env = make_vec(
        "functions/serverless", 2, 0, (tasks([0.0, 1.0, 2.0], cpu=[1.0, 2.0, 1.0]), two_nodes), horizon=2,
        reward="reward_examples:memory_of_everything", r1_range=[0.0, 1.0], r2_range=[0.0, 0.1],
    )  # fmt: skip
    env.reset(options={"starts": [0, 1]})
    env.step(np.array([1, 0]))
    # Both norms are clipped at 1: 1 + 10, the cpu times 100, the node times 1000.
    np.testing.assert_allclose(env.buffers.reward, [1111.0, 211.0])


def test_a_users_reward_adds_up_to_the_return_over_restarts():
    env = make_vec("functions/serverless", 3, 0, horizon=20, reward="reward_examples:thrift")
    env.reset()
    rule, sums, returns = heuristics.batch("first_fit", env), np.zeros(3), []
    for _ in range(60):
        _, reward, _, truncated, infos = env.step(rule())
        sums += reward
        if truncated.any():
            returns.append(infos["episode"]["return"].copy())
            np.testing.assert_allclose(returns[-1], sums, atol=1e-12)
            sums[:] = 0.0
    assert len(returns) == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("speed", "unknown"),
        ("no_such_module:f", "cannot be imported"),
        ("reward_examples:absent", "cannot be imported"),
        ("reward_examples:not_a_function", "is a int"),
    ],
)
def test_a_reward_that_cannot_be_used_is_named(name, message):
    with pytest.raises(ConfigError, match=message):
        make_vec("functions/serverless", 1, 0, reward=name)


def test_a_reward_of_the_wrong_shape_is_refused():
    env = make_vec("functions/serverless", 1, 0, reward="reward_examples:wrong_shape")
    env.reset()
    with pytest.raises(ConfigError, match="wrong_shape"):
        env.step(env.buffers.mask.argmax(1))


def test_rejections_are_taken_off_a_users_reward_too(one, tasks):
    trace = tasks([0.0, 1.0, 2.0], cpu=[8.0, 8.0, 1.0])
    env = one(trace, reward="reward_examples:thrift", rejection_penalty=5.0)
    env.step(np.array([1]))
    assert env.buffers.reward[0] == pytest.approx(-0.4 - 5.0)


def test_calibration_is_repeatable_and_holds_what_the_random_policy_sees():
    bounds = calibrate("functions/serverless", steps=200, trace_rows=2000)
    assert bounds == calibrate("functions/serverless", steps=200, trace_rows=2000)
    assert bounds["r1_range"][0] == pytest.approx(1.0, abs=0.01)
    assert bounds["r2_range"][0] == 0.0
    env = make_vec("functions/serverless", 8, 3, trace_rows=2000)
    env.reset()
    rule, inside = heuristics.batch("random_feasible", env, 3), []
    for _ in range(300):
        env.step(rule())
        inside.append(
            (env.state.last[:, R1] <= bounds["r1_range"][1]) & (env.state.last[:, R2] <= bounds["r2_range"][1])
        )
    assert 0.8 < np.mean(inside) < 1.0


def test_the_stored_bounds_are_those_of_a_calibration_run():
    scenario = load("functions/serverless")
    bounds = calibrate(scenario)
    assert scenario.r1_range == pytest.approx(bounds["r1_range"], rel=0.02)
    assert scenario.r2_range == pytest.approx(bounds["r2_range"], abs=0.01)


def test_calibration_writes_a_file_whose_keys_are_scenario_keys(tmp_path):
    import json

    path = tmp_path / "bounds.json"
    assert main(["--steps", "20", "--out", str(path)]) == 0
    assert load("functions/serverless", json.loads(path.read_text())).r1_range[0] == pytest.approx(1.0, abs=0.01)
    assert not list(tmp_path.glob("*.tmp"))


class TestRange:
    def test_without_a_range_an_infeasible_action_might_pay_and_terminate_is_refused(self):
        with pytest.raises(ConfigError, match="reward_range"):
            ServerlessSchedulingEnv(3, reward="reward_examples:thrift")
        ServerlessSchedulingEnv(3, reward="reward_examples:thrift", invalid_action="penalise")

    def test_an_infeasible_action_costs_what_the_range_leaves_to_lose(self):
        env = ServerlessSchedulingEnv(
            3, reward="reward_examples:thrift", reward_range=[-0.7, 0.0], rejection_penalty=0.1, horizon=10
        )
        env.reset(seed=0)
        env.step(int(env.action_masks().argmax()))
        _, reward, terminated, _, _ = env.step(99)
        assert terminated
        assert reward == pytest.approx(-10.0 - 9 * 0.7)

    def test_a_reward_outside_its_range_is_an_error(self):
        env = ServerlessSchedulingEnv(3, reward="reward_examples:thrift", reward_range=[-0.001, 0.0])
        env.reset(seed=0)
        with pytest.raises(ConfigError, match=r"reward_range: -0.001 to 0"):
            env.step(int(env.action_masks().argmax()))

    def test_a_range_that_is_the_wrong_way_round_is_refused(self):
        with pytest.raises(ConfigError, match="reward_range"):
            ServerlessSchedulingEnv(3, reward_range=[1.0, 0.0])
