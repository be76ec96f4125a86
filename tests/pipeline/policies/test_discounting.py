"""Each step has a discount of its own: none between the offers of one window, SB3's everywhere else."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, DictRolloutBuffer

from pipeline.policies import algorithms
from pipeline.policies.discounting import ReplayBuffer, RolloutBuffer
from pipeline.policies.sb3 import Sb3VecEnv
from pipeline.policies.training import train
from pipeline.train import on_scenario
from sched_env import scenarios
from sched_env.vector import make_vec

SEEN = spaces.Dict({"x": spaces.Box(-1.0, 1.0, (2,))})
CHOICES = spaces.Discrete(3)
ENVS, STEPS = 3, 12


class Source:
    """Stands where the environments are: says how the last step is discounted."""

    def __init__(self, discounts):
        self.discounts = discounts


def steps(seed=0):
    """Draw steps: (seen, seen next, reward, ended)."""
    draw = np.random.default_rng(seed)
    for _ in range(STEPS):
        seen, after = ({"x": draw.uniform(-1, 1, (ENVS, 2)).astype(np.float32)} for _ in range(2))
        yield seen, after, draw.normal(size=ENVS), draw.random(ENVS) < 0.2


def rolled(kind, source=None):
    buffer = kind(STEPS, SEEN, CHOICES, gae_lambda=0.9, gamma=0.8, n_envs=ENVS)
    if source is not None:
        buffer.source = source
    values = np.random.default_rng(1).normal(size=(STEPS + 1, ENVS))
    for index, (seen, _, reward, ended) in enumerate(steps()):
        value = torch.tensor(values[index], dtype=torch.float32)
        buffer.add(seen, np.zeros((ENVS, 1)), reward, ended, value, torch.zeros(ENVS))
    buffer.compute_returns_and_advantage(torch.tensor(values[-1], dtype=torch.float32), np.zeros(ENVS, np.bool_))
    return buffer


def test_with_one_discount_for_all_advantages_are_sb3s():
    ours, theirs = rolled(RolloutBuffer), rolled(DictRolloutBuffer)
    np.testing.assert_allclose(ours.advantages, theirs.advantages, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours.returns, theirs.returns, rtol=1e-5, atol=1e-6)


def test_a_rollout_is_discounted_step_by_step():
    """A discount of 0 cuts a step off from what follows, as the end of an episode does."""
    cut = rolled(RolloutBuffer, Source(np.zeros(ENVS)))
    np.testing.assert_allclose(cut.returns, cut.rewards, rtol=1e-5, atol=1e-6)


def kept(kind, **named):
    """Fill a buffer that holds fewer steps than there are: it has gone round."""
    buffer = kind(8 * ENVS, SEEN, CHOICES, n_envs=ENVS, handle_timeout_termination=True, **named)
    for seen, after, reward, ended in steps():
        infos = [{"TimeLimit.truncated": bool(flag and row == 0)} for row, flag in enumerate(ended)]
        buffer.add(seen, after, np.zeros(ENVS), reward, ended, infos)
    return buffer


def test_of_one_step_samples_are_sb3s():
    batches = []
    for buffer in (kept(ReplayBuffer, gamma=0.8), kept(DictReplayBuffer)):
        np.random.seed(0)  # noqa: NPY002 - what SB3 draws from
        batches.append(buffer.sample(64))
    ours, theirs = batches
    for name in ("actions", "dones", "rewards"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    assert torch.equal(ours.observations["x"], theirs.observations["x"])
    assert torch.equal(ours.next_observations["x"], theirs.next_observations["x"])
    assert ours.discounts.unique().tolist() == pytest.approx([0.8])


def test_returns_of_several_steps_stop_at_an_episodes_end_and_at_the_newest_step():
    buffer = kept(ReplayBuffer, n_steps=3, gamma=0.5)
    size, newest = buffer.buffer_size, (buffer.pos - 1) % buffer.buffer_size
    np.random.seed(0)  # noqa: NPY002 - what SB3 draws from
    batch = buffer.sample(200)
    lengths = set()
    for row in range(200):
        at = np.argwhere((buffer.observations["x"] == batch.observations["x"][row].numpy()).all(axis=-1))[0]
        last, env, reward, discount, length = at[0], at[1], 0.0, 1.0, 0
        while True:
            reward, discount, length = reward + discount * buffer.rewards[last, env], discount * 0.5, length + 1
            if length == 3 or buffer.dones[last, env] or last == newest:
                break
            last = (last + 1) % size
        lengths.add(length)
        ended = buffer.dones[last, env] and not buffer.timeouts[last, env]
        assert batch.rewards[row].item() == pytest.approx(reward, abs=1e-6)
        assert batch.discounts[row].item() == pytest.approx(discount)
        assert batch.dones[row].item() == float(ended)
        np.testing.assert_array_equal(batch.next_observations["x"][row], buffer.next_observations["x"][last, env])
    assert lengths == {1, 2, 3}


def played(**discount):
    """Decline every offer of two nodes' pods: (reward, discount, truncated) of every step of the first row."""
    env = Sb3VecEnv(make_vec("pods/deploy", 2, 0, copy=True, nodes=2, episode_windows=3, trace_windows=60), **discount)
    seen, rows = env.reset(), []
    for _ in range(200):
        env.step_async(seen["candidates"][:, :, 3].argmax(axis=1))  # where the pod is
        seen, reward, _, infos = env.step_wait()
        rows.append((reward[0], env.discounts[0], infos[0].get("TimeLimit.truncated")))
    return rows


def test_offers_of_one_window_are_not_discounted_and_windows_are():
    rows = played(gamma=0.9, gamma_every_s=300.0)
    assert {round(float(discount), 9) for _, discount, _ in rows} >= {1.0, 0.9}
    assert all(reward == 0.0 for reward, discount, _ in rows if discount == 1.0), "no bill before the window ends"
    assert any(reward < 0.0 for reward, _, _ in rows)
    assert {flag for *_, flag in rows} == {None, True}


def test_without_a_discount_nothing_lies_beyond_the_horizon():
    """Costs without an end have no sum: a value beyond the horizon would be learned as the cost a decision."""
    assert {flag for *_, flag in played(gamma=1.0)} == {None, False}


def test_it_does_not_learn_to_put_off_the_bill(tmp_path):
    """Pods: with a discount by decisions every algorithm learned to decline all offers, worse than chance."""
    task = on_scenario(scenarios.load("pods/deploy", {"nodes": 5, "episode_windows": 12, "trace_windows": 200}), 16)
    changes = {"hidden": 16, "missing_rate": 0.0, "gamma": 0.8, "gamma_every_s": 300.0, "reward_scale": 1.0}
    settings = algorithms.settings("a2c", **changes, rollouts_per_segment=32, segments=2)
    trained = train(
        lambda count: make_vec(task.scenario, count, 0, copy=True),
        "a2c",
        settings,
        seed=0,
        scratch=tmp_path,
        validate=task.judge,
        objective=lambda row: row["steps"],
        report=lambda _segment, _row: None,
    )
    chance, stay = (task.judge(rule)["return"] for rule in ("random_feasible", "no_migration"))
    assert stay < chance
    assert trained.curve[-1]["return"] > chance
