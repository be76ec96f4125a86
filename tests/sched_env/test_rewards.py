"""Rewards of the user's own, in every problem; those of ``functions`` see more (tests/sched_env/functions)."""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import sched_env.envs  # noqa: F401 - registers the ids
from sched_env.jobs.env import CpnEnv
from sched_env.vector import make_vec
from wire.errors import ConfigError

sys.path.insert(0, str(Path(__file__).parent))  # where own_rewards is, as a user's module would be on the path

CASES = {
    "vm/fading": {"servers": 2},
    "vm/recovering": {"servers": 2, "ending": "wait"},
    "pods/deploy": {"n_node": 4, "load": 0.6, "trace_windows": 40, "episode_windows": 4},
    "workflow/dag": {"tasks": 8, "workflows": 20},
    "jobs/cpn": {"cards": 4, "episode_jobs": 10, "trace_rows": 400},
}
IDS = {
    "Fading-v0": {"servers": 2, "synthetic_vms": 3000},
    "Deploy-v0": {"n_node": 4, "load": 0.6, "trace_windows": 40, "episode_windows": 4},
    "Workflow-v0": {"tasks": 8, "workflows": 20},
    "WorkflowPlan-v0": {"tasks": 8, "workflows": 20},
    "Cpn-v0": {"cards": 4, "episode_jobs": 10, "trace_rows": 400},
}


@pytest.fixture(params=CASES)
def many(request):
    def make(reward, **keys):
        env = make_vec(request.param, 3, 5, copy=True, **CASES[request.param], reward=f"own_rewards:{reward}", **keys)
        env.reset()
        return env

    make.built_in = make_vec(request.param, 3, 5, copy=True, **CASES[request.param])
    return make


@pytest.fixture(params=IDS)
def one(request):
    return lambda **keys: gymnasium.make(f"sched_env/{request.param}", **IDS[request.param], **keys)


def last_feasible(mask):
    return mask.shape[1] - 1 - mask[:, ::-1].argmax(1)


def test_one_that_repeats_the_built_in_reward_changes_nothing(many):
    own, built_in = many("as_built_in"), many.built_in
    built_in.reset()
    ends = 0
    for _ in range(400):
        actions = last_feasible(own.buffers.mask)
        seen, *rest, infos = own.step(actions)
        expected, *others, told = built_in.step(actions)
        np.testing.assert_equal([seen, *rest, infos], [expected, *others, told])
        ends += bool(infos)
    assert ends


def test_it_replaces_the_built_in_reward_and_adds_up_to_the_return_over_restarts(many):
    env = many("first_candidates")
    sums, ends = np.zeros(3), 0
    for _ in range(400):
        actions = last_feasible(env.buffers.mask)
        _, reward, terminated, truncated, infos = env.step(actions)
        np.testing.assert_array_equal(reward, np.where(actions == 0, -0.25, -0.5))
        sums += reward
        over = terminated | truncated
        if over.any():
            np.testing.assert_allclose(infos["episode"]["return"][over], sums[over], atol=1e-9)
            sums[over] = 0.0
            ends += 1
    assert ends


def test_it_may_look_at_features_by_name_and_a_wrong_name_is_an_error_that_lists_them(many):
    env = many("features")
    seen = env.observe()
    actions = last_feasible(env.buffers.mask)
    _, reward, *_ = env.step(actions)
    expected = 1e-3 * (seen["candidates"][np.arange(3), actions, 0] + seen["request"][:, 0])
    np.testing.assert_allclose(reward, expected, rtol=1e-6)
    wrong = many("misspelled")
    with pytest.raises(ConfigError, match="cpu_fre"):
        wrong.step(last_feasible(wrong.buffers.mask))


def test_one_that_is_neither_known_nor_a_function_is_refused(many):
    scenario = many.built_in.scenario
    with pytest.raises(ConfigError, match="reward"):
        make_vec(scenario, 1, reward="tidiness")
    with pytest.raises(ConfigError, match="cannot be imported"):
        make_vec(scenario, 1, reward="own_rewards:absent")


def test_without_a_range_an_infeasible_action_might_pay_and_terminate_is_refused(one):
    with pytest.raises(ConfigError, match="reward_range"):
        one(reward="own_rewards:first_candidates")
    one(reward="own_rewards:first_candidates", invalid_action="penalise").close()


def test_an_infeasible_action_costs_at_least_what_the_longest_way_on_would(one):
    env = one(reward="own_rewards:first_candidates", reward_range=[-0.5, 0.0])
    env.reset(seed=3)
    plan = isinstance(env.action_space, gymnasium.spaces.MultiDiscrete)
    wrong = np.full(env.action_space.shape, 99) if plan else 10**6
    _, price, terminated, _, info = env.step(wrong)
    assert terminated
    assert info["episode_metrics"]["return"] == price
    env.reset(seed=3)
    total, over = 0.0, False
    while not over:
        masks = env.unwrapped.action_masks()
        action = masks.reshape(*env.action_space.shape, -1).argmax(-1) if plan else masks.argmax()
        _, reward, terminated, truncated, info = env.step(action)
        total, over = total + reward, terminated or truncated
    assert info["episode_metrics"]["return"] == pytest.approx(total)
    assert price <= total - 9.9


def test_one_outside_its_range_is_an_error(one):
    env = one(reward="own_rewards:first_candidates", reward_range=[-0.1, 0.0])
    env.reset(seed=3)
    masks = env.unwrapped.action_masks()
    plan = isinstance(env.action_space, gymnasium.spaces.MultiDiscrete)
    with pytest.raises(ConfigError, match=r"reward_range: -0.1 to 0"):
        env.step(masks.reshape(*env.action_space.shape, -1).argmax(-1) if plan else masks.argmax())


def test_withdrawing_a_job_is_no_decision_and_brings_no_reward_of_the_users():
    env = CpnEnv(reward="own_rewards:first_candidates", reward_range=[-0.5, 0.0], **IDS["Cpn-v0"])
    env.reset(seed=0)
    _, first, *_ = env.step(int(env.action_masks().argmax()))
    _, nothing, *_ = env.cancel(env.job_states().index("waiting"))
    assert (nothing, float(env.many.returns[0])) == (0.0, first)
