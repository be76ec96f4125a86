"""SchedEnv: the constructor, the reading and the loop that VMAgent's users know, in Gymnasium's form."""

from __future__ import annotations

import time
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from sched_env import problems
from sched_env.replay import frames
from sched_env.vector import make_vec
from sched_env.vm.env import SchedEnv
from wire.errors import ConfigError, InfeasibleActionError

VM_IDS = [f"sched_env.envs:sched_env/{name}" for name in problems.get("vm").environments]


@pytest.mark.parametrize("name", VM_IDS)
@pytest.mark.parametrize("render_mode", ["ansi", "rgb_array"])
def test_gymnasiums_checker_has_nothing_to_say(name, render_mode):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(name, render_mode=render_mode).unwrapped)


@pytest.mark.parametrize("name", VM_IDS)
def test_stable_baselines_checker_has_nothing_to_say(name):
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # SB3 takes any observation of three axes for an image; (N, 2, 2) is what VMAgent's users know.
        warnings.filterwarnings("ignore", message=".*image.*")
        checker.check_env(gymnasium.make(name).unwrapped)


def test_stock_stable_baselines_learns_on_it():
    sb3 = pytest.importorskip("stable_baselines3")
    env = SchedEnv(2, 40, 90, double_thr=32, horizon=20)
    model = sb3.PPO("MultiInputPolicy", env, n_steps=32, batch_size=16, n_epochs=1, device="cpu", seed=0)
    model.learn(64)
    action, _ = model.predict(env.reset(seed=0)[0], deterministic=True)
    assert env.action_space.contains(int(action))


def test_the_loop_of_vmagents_docs_works(tmp_path):
    path = tmp_path / "run.parquet"
    env = SchedEnv(5, 40, 90, "synthetic", render_path=path, allow_release=False, double_thr=32)
    env.reset(options={"start": 1000})
    placed, done = 0, env.termination()
    while not done:
        avail = env.get_attr("avail")
        assert env.get_attr("obs").shape == (5, 2, 2)
        assert env.get_attr("req").shape == (2, 2, 2)
        row = env.get_attr("req_step")
        _, reward, terminated, truncated, info = env.step(int(avail.argmax()))
        assert env.get_attr("req_step") > row
        placed += reward
        done = env.termination()
        assert done == (terminated or truncated)
    assert info["episode_metrics"]["placed"] == placed > 50
    assert info["episode_metrics"]["ended"] == "full"
    env.close()
    rows = list(frames(path))
    assert len(rows) == placed
    assert rows[-1].candidates[:, 0].min() >= 0.0


def test_single_and_batched_environments_agree_step_by_step():
    single = gymnasium.make("sched_env.envs:sched_env/Recovering-v0", seed=4).unwrapped
    many = make_vec("vm/recovering", 3, seed=4)
    seen, _ = single.reset(seed=4)
    many.reset(seed=4)
    for _ in range(1500):
        np.testing.assert_array_equal(seen["avail"], many.buffers.mask[0])
        np.testing.assert_array_equal(seen["obs"].reshape(-1, 2), many.buffers.candidates[0, :, :2])
        action = int(np.flatnonzero(seen["avail"])[-1])
        seen, reward, terminated, truncated, _ = single.step(action)
        _, rewards, ends, cuts, infos = many.step([action, *(int(mask.argmax()) for mask in many.buffers.mask[1:])])
        assert (reward, terminated, truncated) == (rewards[0], ends[0], cuts[0])
        if terminated or truncated:
            np.testing.assert_array_equal(seen["obs"].reshape(-1, 2), infos["final_obs"]["candidates"][0, :, :2])
            seen, _ = single.reset()


def test_what_each_choice_would_take(vms):
    env = SchedEnv(1, 40, 90, vms((0, None, 4, 8), (1, None, 16, 64)), double_thr=32)
    seen, _ = env.reset(options={"start": 0})
    assert seen["req"].tolist() == [[[4, 8], [0, 0]], [[0, 0], [4, 8]]]
    seen, *_ = env.step(0)
    assert seen["req"].tolist() == [[[8, 32], [8, 32]], [[8, 32], [8, 32]]]


def test_an_invalid_action_never_changes_the_state(vms):
    trace = vms(*[(k, None, 30, 60) for k in range(4)])

    def at_an_invalid_action(mode):
        env = SchedEnv(1, 40, 90, trace, invalid_action=mode)
        env.reset(options={"start": 0})
        before, *_ = env.step(0)
        return env, before

    env, before = at_an_invalid_action("terminate")
    seen, reward, terminated, truncated, info = env.step(0)
    assert (reward, terminated, truncated, info["invalid"]) == (-10.0, True, False, True)
    np.testing.assert_array_equal(seen["obs"], before["obs"])
    with pytest.raises(ResetNeeded):
        env.step(1)
    env, before = at_an_invalid_action("penalise")
    seen, reward, terminated, _, info = env.step(0)
    assert (reward, terminated, info["invalid"]) == (-10.0, False, True)
    np.testing.assert_array_equal(seen["obs"], before["obs"])
    assert env.step(1)[1] == 1.0
    env, before = at_an_invalid_action("raise")
    with pytest.raises(InfeasibleActionError):
        env.step(0)
    np.testing.assert_array_equal(env.get_attr("obs"), before["obs"])


def test_minus_one_and_minus_two_let_the_environment_decide(vms):
    trace = vms(*[(k, None, 10, 20) for k in range(4)])
    used = {}
    for action in (-1, -2):
        env = SchedEnv(2, 40, 90, trace)
        env.reset(options={"start": 0})
        env.step(action)
        seen, *_ = env.step(action)
        used[action] = np.count_nonzero(seen["obs"][:, :, 0] < 40)
    assert used == {-1: 1, -2: 2}  # first_fit fills a half, upstream's rule spreads


def test_expanding_is_padded_with_the_mask_off():
    env = gymnasium.make("sched_env.envs:sched_env/Expanding-v0", servers=2, max_servers=4, trace="synthetic").unwrapped
    seen, _ = env.reset(seed=0)
    assert seen["obs"].shape == (4, 2, 2)
    assert not seen["obs"][2:].any()
    assert not seen["avail"][4:].any()
    while env.servers == 2:
        seen, _, terminated, _, _ = env.step(int(seen["avail"].argmax()))
        assert not terminated
    assert seen["obs"][2:].any()


def departures(path):
    keys = ("event", "event_who", "event_from", "event_s")
    happened = [zip(*(frame.row[key] for key in keys), strict=True) for frame in frames(path)]
    return [[(who, half, at) for kind, who, half, at in events if kind == "end"] for events in happened]


def test_a_replay_holds_which_vms_left_from_where_and_when(tmp_path, vms):
    # VM 0 leaves at once, before the second request; VM 1 after the third; the row before the start is of nobody here.
    trace = vms((0, 100, 8, 8), (10, 1, 8, 8), (20, 25, 8, 8), (30, None, 8, 8), (50, None, 8, 8))
    path = tmp_path / "run.parquet"
    env = SchedEnv(1, 40, 90, trace, path)
    env.reset(options={"start": 1})
    for action in (1, 0, 1, 0):
        env.step(action)
    env.close()
    assert departures(path) == [[("vm 1", 1, 11.0)], [], [("vm 2", 0, 45.0)], []]


def test_a_replay_of_a_cluster_that_waits_holds_departures_at_the_time_they_had(tmp_path, vms):
    # Each fills a half. VM 2 has to wait until VM 1 leaves.
    trace = vms((0, 60, 40, 8), (10, 30, 40, 8), (20, None, 40, 8))
    path = tmp_path / "run.parquet"
    env = SchedEnv(1, 40, 90, trace, path, ending="wait")
    env.reset(options={"start": 0})
    over = False
    while not over:
        _, _, terminated, truncated, _ = env.step(int(env.action_masks().argmax()))
        over = terminated or truncated
    env.close()
    assert departures(path) == [[], [("vm 1", 1, 40.0)], []]


def test_rollouts_record_departures_too(tmp_path):
    from sched_env.rollout import run_episodes

    path = tmp_path / "run.parquet"
    run_episodes("vm/recovering", "first_fit", starts=[1000], record=path, servers=2)
    left = [each for row in departures(path) for each in row]
    assert len(left) > 10
    assert len({who for who, _, _ in left}) == len(left)  # nobody leaves twice


def test_a_refused_action_leaves_no_row_in_the_replay(tmp_path, vms):
    path = tmp_path / "run.parquet"
    env = SchedEnv(1, 40, 90, vms(*[(k, None, 30, 60) for k in range(3)]), path, invalid_action="penalise")
    env.reset(options={"start": 0})
    for action in (0, 0, 1):
        env.step(action)
    env.close()
    assert [frame.row["action"] for frame in frames(path)] == [0, 1]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"invalid_action": "ignore"}, "terminate, penalise, raise"),
        ({"render_mode": "human"}, "ansi, rgb_array"),
        ({"invalid_penalty": -10.0}, "a positive number"),
        ({"invalid_penalty": float("nan")}, "a positive number"),
        ({"invalid_penalty": float("inf")}, "a positive number"),
        ({"serverz": 5}, "'serverz' is unknown"),
        ({"scenario": "functions/serverless"}, "a vm scenario"),
    ],
)
def test_wrong_settings_are_named(keys, message):
    with pytest.raises(ConfigError, match=message):
        SchedEnv(**keys)


def test_a_step_takes_less_than_25_microseconds_of_cpu():
    env = SchedEnv(5, 40, 90, allow_release=True, double_thr=10)

    def run(steps=2000):
        seen, _ = env.reset(seed=0)
        began = time.process_time()
        for _ in range(steps):
            seen, _, terminated, truncated, _ = env.step(int(seen["avail"].argmax()))
            if terminated or truncated:
                seen, _ = env.reset()
        return (time.process_time() - began) / steps

    assert min(run() for _ in range(5)) < 25e-6
