"""003, VMAgent's page "GYM": state, action, reward, transition, and its interaction example, unchanged."""

from __future__ import annotations

import numpy as np
import pytest

from sched_env.compat import VMAgentEnv as SchedEnv
from sched_env.replay import frames
from wire.errors import InfeasibleActionError


@pytest.fixture
def data_path(tmp_path):
    path = tmp_path / "Huawei-East-1.csv"
    rows = [f"{k},{(1, 2, 4, 8)[k % 4]},{(2, 4, 16, 64)[k % 4]},{k},0" for k in range(400)]
    path.write_text("vmid,cpu,memory,time,type\n" + "\n".join(rows) + "\n")
    return str(path)


def test_interaction_example(data_path, tmp_path):
    DATA_PATH = data_path
    env = SchedEnv(5, 40, 90, DATA_PATH, render_path=tmp_path / "test.p", allow_release=False, double_thr=32)
    MAX_STEP = 1e2  # the page has 1e4, of a longer file
    np.random.seed(0)
    env.reset(np.random.randint(0, MAX_STEP))
    done = env.termination()
    placed = 0
    while not done:
        feat = env.get_attr("req")
        obs = env.get_attr("obs")
        # sample by first fit
        avail = env.get_attr("avail")
        action = np.random.choice(np.where(avail == 1)[0])
        action, next_obs, reward, done = env.step(action)
        assert (feat.shape, obs.shape, next_obs.shape) == ((2, 2, 2), (5, 2, 2), (5, 2, 2))
        placed += reward
    assert placed > 20
    env.close()
    assert len(list(frames(tmp_path / "test.p"))) == placed, "the replay, which is Parquet whatever its name"


def test_state_is_cluster_and_request_flat(data_path):
    env = SchedEnv(3, 40, 90, data_path, flat=True, double_thr=32)
    state = env.reset(0)
    assert state.shape == (3 * 2 * 2 + 2,)
    assert state.tolist() == [40, 90] * 6 + [1, 2]


def test_action_that_the_server_cannot_handle_is_invalid(data_path):
    env = SchedEnv(1, 2, 5, data_path, allow_release=False)
    env.reset(0)
    env.step(0)
    state = env.get_attr("obs")
    with pytest.raises(InfeasibleActionError):
        env.step(0)
    np.testing.assert_array_equal(env.get_attr("obs"), state)


@pytest.mark.parametrize(("kind", "expected"), [("+1", 1.0), ("cpu", 8.0)])
def test_reward_is_one_or_the_cpu(data_path, kind, expected):
    env = SchedEnv(5, 40, 90, data_path, double_thr=32, reward=kind)
    env.reset(3)
    assert env.step(0)[2] == expected


def test_transition_function(data_path):
    """A large request takes half from each half; a small one all from the chosen one."""
    env = SchedEnv(1, 40, 90, data_path, double_thr=32)
    env.reset(3)
    _, state, _, _ = env.step(0)  # 8 cores, 64 GiB
    assert state.tolist() == [[[36, 58], [36, 58]]]
    _, state, _, _ = env.step(1)  # 1 core, 2 GiB
    assert state.tolist() == [[[36, 58], [35, 56]]]
