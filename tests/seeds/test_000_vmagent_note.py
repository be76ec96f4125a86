"""000, "VMagent更改思路": the note's blocks on what this project has, in its order."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from sched_env.compat import VMAgentVecEnv
from sched_env.pods.counting import share
from sched_env.pods.env import DeployEnv


def test_环境设置_env基本流程():
    """Adapted to Gymnasium: reset returns two values, step five."""
    env = gymnasium.make("sched_env.envs:sched_env/Fading-v0", render_mode="ansi")
    observation, _ = env.reset(seed=0)
    done = False
    for _i in range(100):
        assert env.render()
        action = int(observation["avail"].argmax())
        observation, reward, terminated, truncated, info = env.step(action)
        done = terminated or truncated
        if done:
            break
    assert isinstance(reward, float)
    assert isinstance(done, bool)
    assert isinstance(info, dict)
    assert env.action_space.contains(action)
    assert env.observation_space.contains(observation)
    env.close()


def test_环境设置_deployenv_nodes():
    """The dict of the note: names, totals, remains, pods; and its numbers."""
    env = DeployEnv(n_node=2, pods_per_node=2, trace_windows=40, load=0.7)
    env.reset(seed=0)
    assert (env.n_node, env.t >= 0, list(env.nodes)) == (2, True, ["node1", "node2"])
    node = env.nodes["node1"]
    assert list(node) == ["total_cpu", "total_mem", "remain_cpu", "remain_mem", "pods"]
    assert list(node["pods"][0]) == ["pod_name", "request_cpu", "request_mem", "assigned_cpu", "assigned_mem"]
    alone = share(total_cpu=100.0, total_mem=100.0, request_cpu=np.array([50.0]), request_mem=np.array([60.0]))
    assert (alone.remain_cpu, alone.remain_mem) == (0.0, 40.0)
    assert (alone.assigned_cpu.tolist(), alone.assigned_mem.tolist()) == ([100.0], [60.0])


def test_决策设置_vectormac_spaces():
    """``VectorMAC.__init__``: 2N actions, a cluster of (N, 2, 2); a request says what each half would give."""
    env = gymnasium.make("sched_env.envs:sched_env/Fading-v0", servers=5)
    server_num = 5
    assert env.action_space.n == server_num * 2
    assert env.observation_space["obs"].shape == (server_num, 2, 2)
    assert env.observation_space["req"].shape == (2, 2, 2)


def test_训练过程_1_linear_decay():
    off_policy = pytest.importorskip("pipeline.policies.off_policy")
    epochs = 1000
    expected = np.interp(range(epochs), [0, epochs * 0.25, epochs * 0.9, epochs], [0.9, 0.5, 0.2, 0.2])
    assert [off_policy.EPSILON(1.0 - x / epochs) for x in range(epochs)] == pytest.approx(expected)


def test_训练过程_2_and_3_envs_reset_get_attr_and_step(tmp_path):
    """The loop as it stands; the choice is by the mask and eps, as ``select_actions`` makes it."""
    data = tmp_path / "events.csv"
    data.write_text(  # row 0 is a deletion, which a reset to it skips
        "vmid,cpu,memory,time,type\n9,4,8,0,1\n"
        + "".join(f"{k},{4 + k % 3},{16 + 24 * (k % 2)},{k + 1},0\n" for k in range(40))
    )
    envs = VMAgentVecEnv.of(2, 2, 40, 90, data, allow_release=False, double_thr=32)
    my_steps = [0, 3]
    envs.reset(my_steps)
    assert envs.get_attr("req_step").tolist() == [1, 3]
    rng, eps, tot_reward, lengths = np.random.default_rng(0), 0.5, 0.0, []
    while envs.alive:
        avail = envs.get_attr("avail")
        feat = envs.get_attr("req")
        obs = envs.get_attr("obs")
        alive = len(envs.alive)
        assert (avail.shape, feat.shape, obs.shape) == ((alive, 4), (alive, 2, 2, 2), (alive, 2, 2, 2))
        state = {"obs": obs, "feat": feat, "avail": avail}
        explore = rng.random(alive) < eps
        action = np.where(explore, [rng.choice(np.flatnonzero(row)) for row in avail], state["avail"].argmax(axis=1))
        taken, next_obs, reward, done = envs.step(action)
        np.testing.assert_array_equal(taken, action)
        assert next_obs.shape == obs.shape
        tot_reward += reward.sum()
        lengths.append(int(done.sum()))
    assert sum(lengths) == 2
    assert tot_reward > 10


@pytest.fixture
def dqn():
    """``q_learner`` with epsilon-greedy action selection, on the scorer."""
    algorithms = pytest.importorskip("pipeline.policies.algorithms")
    from pipeline.policies.sb3 import Sb3VecEnv
    from sched_env.vector import make_vec

    env = Sb3VecEnv(make_vec("vm/fading", 4, 0, copy=True, servers=3))
    settings = algorithms.settings("dqn", hidden=8, train_n=3, batch_size=16, learn_interval=2, learning_starts=8)
    return algorithms.ALGORITHMS["dqn"].make(env, settings, 0, device="cpu"), settings


def test_训练过程_3_选择动作_select_actions(dqn):
    """``forward``, ``mask_invalid``, ``epsilon_greedy``: whatever eps is, only available servers are chosen."""
    model, _ = dqn
    state = model.get_env().reset()
    for eps, greedy in ((0.0, True), (1.0, False)):
        model.exploration_rate = eps
        chosen = [model.predict(state, deterministic=False)[0] for _ in range(20)]
        assert all(state["mask"][np.arange(4), action].all() for action in chosen)
        assert (len({tuple(action) for action in chosen}) == 1) == greedy


def test_训练过程_4_q_learner更新模型(dqn):
    """``train_n`` gradient steps on batches of ``BATCH_SIZE`` from the memory, after every ``learn_interval`` steps."""
    model, settings = dqn
    before = model.policy.q_net.scorer.score_head.weight.clone()
    model.learn(4 * 2 * 5)
    updates = model._n_updates
    assert updates >= settings.updates
    assert updates % settings.updates == 0
    assert not before.equal(model.policy.q_net.scorer.score_head.weight)


def test_训练过程_3_执行动作_request_info(tmp_path):
    """What would be taken from each half, of a single and of a double request."""
    data = tmp_path / "events.csv"
    data.write_text("vmid,cpu,memory,time,type\n0,4,8,0,0\n1,16,64,1,0\n2,1,1,2,0\n")
    envs = VMAgentVecEnv.of(1, 1, 40, 90, data, allow_release=False, double_thr=32)
    envs.reset([0])
    cpu, mem = 4, 8
    assert envs.get_attr("req")[0].tolist() == [[[cpu, mem], [0, 0]], [[0, 0], [cpu, mem]]]
    envs.step([0])
    assert envs.get_attr("req")[0].tolist() == [[[8, 32] for i in range(2)] for j in range(2)]
