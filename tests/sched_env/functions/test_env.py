"""``ServerlessSchedulingEnv``: names, spaces and behaviour that users of the tutorial know, without its faults."""

from __future__ import annotations

import copy
import warnings
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

import sched_env  # noqa: F401 - registers the ids
from sched_env.functions.env import ServerlessSchedulingEnv
from sched_env.vector import make_vec
from wire.errors import ConfigError, InfeasibleActionError, TraceError

TASK = {"cpu_request": 1.0, "mem_request": 2.0, "io_network": 50.0, "io_disk": 500.0, "requests": 10}


def same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)


def feasible(env):
    return int(np.flatnonzero(env.action_masks())[0])


def test_the_observation_has_exactly_the_known_keys_shapes_and_dtypes():
    env = ServerlessSchedulingEnv()
    observation, _ = env.reset(seed=0)
    assert {name: (space.shape, space.dtype) for name, space in env.observation_space.items()} == {
        "node_utilization": ((10, 4), np.float32),
        "node_capacity": ((10, 2), np.float32),
        "node_price": ((10,), np.float32),
        "node_deployed": ((10, 2), np.float32),
        "node_active": ((10,), np.int8),
        "current_function_request": ((2,), np.float32),
        "current_function_io": ((2,), np.float32),
        "current_function_requests": ((1,), np.int32),
        "current_function_rart": ((1,), np.float32),
        "cluster_function_requests": ((5,), np.int32),
    }
    assert isinstance(env.observation_space["node_active"], gymnasium.spaces.MultiBinary)
    assert env.observation_space.contains(observation)
    assert env.action_space == gymnasium.spaces.Discrete(10)


@pytest.mark.parametrize("scenario", ["functions/serverless", "functions/tutorial"])
@pytest.mark.parametrize("invalid_action", ["terminate", "penalise"])
def test_the_gymnasium_checker_has_nothing_to_say(scenario, invalid_action):
    env = ServerlessSchedulingEnv(scenario=scenario, invalid_action=invalid_action, render_mode="rgb_array")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env, skip_render_check=True)


def test_the_registered_id_makes_a_working_environment():
    env = gymnasium.make("sched_env.envs:sched_env/Serverless-v0", render_mode="ansi")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
    assert env.unwrapped.scenario.name == "functions/serverless"


@pytest.mark.parametrize("scenario", ["functions/serverless", "functions/tutorial"])
def test_the_stable_baselines_checker_accepts_it(scenario):
    checker = pytest.importorskip("stable_baselines3.common.env_checker", reason="stable-baselines3 is not installed")
    with warnings.catch_warnings():
        # It would like one-dimensional arrays; the known shapes are (n, 2) and (n, 4).
        warnings.filterwarnings("ignore", message=".*unconventional shape.*")
        warnings.simplefilter("error", append=True)
        checker.check_env(ServerlessSchedulingEnv(scenario=scenario))


def test_one_environment_and_the_batch_agree_step_by_step():
    env = ServerlessSchedulingEnv(10, 40, invalid_action="raise", horizon=60)
    batch = make_vec("functions/serverless", 2, 0, functions=40, horizon=60)
    env.reset(seed=11)
    batch.reset(seed=11)
    rng = np.random.default_rng(0)
    for _ in range(150):  # over two restarts
        actions = np.array([rng.choice(np.flatnonzero(mask)) for mask in batch.buffers.mask])
        observation, reward, terminated, truncated, info = env.step(actions[0])
        batch.step(actions)
        assert reward == batch.buffers.reward[0]
        assert (terminated, truncated) == (False, bool(batch.buffers.truncated[0]))
        if truncated:
            sheet = {name: info["episode_metrics"][name] for name in batch.METRICS}
            assert list(sheet.values()) == batch.buffers.metrics[0].tolist()
            assert info["episode_metrics"]["ended"] == "horizon"
            env.reset()
        else:
            np.testing.assert_array_equal(info["action_mask"], batch.buffers.mask[0])
            np.testing.assert_array_equal(observation["current_function_request"], batch.buffers.request[0, :2])


def test_a_seed_names_an_episode_and_none_draws_another():
    env = ServerlessSchedulingEnv()
    first, info = env.reset(seed=3)
    again, same_info = env.reset(seed=3)
    assert same(first, again)
    assert info["row"] == same_info["row"]
    rows = {env.reset()[1]["row"] for _ in range(5)}
    assert len(rows) > 1
    assert ServerlessSchedulingEnv().reset()[1]["row"] != ServerlessSchedulingEnv().reset()[1]["row"]


def test_an_episode_can_start_at_a_row_that_is_asked_for():
    env = ServerlessSchedulingEnv()
    assert env.reset(options={"start": 123})[1]["row"] == 123


def test_step_before_reset_and_after_the_end_says_that_reset_is_needed():
    env = ServerlessSchedulingEnv(horizon=1)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)
    env.reset(seed=0)
    env.step(feasible(env))
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)


class TestDatasets:
    def test_a_finite_dataset_is_replayed_in_every_episode(self):
        # The tutorial kept the same exhausted iterator as its "backup".
        env = ServerlessSchedulingEnv(scenario="functions/tutorial")
        env.set_dataset({**TASK, "cpu_request": cpu} for cpu in (1.0, 2.0, 3.0))
        for _ in range(2):
            observation, _ = env.reset()
            seen = []
            for _ in range(3):
                seen.append(float(observation["current_function_request"][0]))
                observation, _, _, truncated, info = env.step(feasible(env))
            assert seen == [1.0, 2.0, 3.0]
            assert truncated
            assert info["episode_metrics"]["ended"] == "end_of_trace"
            assert info["episode_metrics"]["placed"] == 3

    def test_the_tutorials_endless_generator_is_read_as_it_goes(self):
        read = 0

        def tasks():
            nonlocal read
            while True:
                read += 1
                yield {**TASK, "cpu_request": 0.001 * read}

        env = ServerlessSchedulingEnv(scenario="functions/tutorial", horizon=5)
        env.set_dataset(tasks())
        assert read == 0
        for episode in range(3):  # each goes on where the last one stopped
            observation, _ = env.reset()
            assert read == 5 * (episode + 1) + 1, "and the one that the end of the episode shows"
            seen, truncated = [], False
            while not truncated:
                seen.append(round(1000 * float(observation["current_function_request"][0])))
                observation, _, _, truncated, info = env.step(feasible(env))
            assert seen == list(range(5 * episode + 1, 5 * episode + 6))
            assert round(1000 * float(observation["current_function_request"][0])) == 5 * episode + 6
            assert info["episode_metrics"]["ended"] == "horizon"

    def test_an_iterator_that_ends_begins_again(self):
        env = ServerlessSchedulingEnv(scenario="functions/tutorial", horizon=2)
        env.set_dataset({**TASK, "cpu_request": 0.5 * k, "function": f"f{k % 2}"} for k in range(1, 6))
        lengths, first = [], []
        for _ in range(5):
            observation, _ = env.reset()
            first.append(float(observation["current_function_request"][0]))
            lengths.append(0)
            truncated = False
            while not truncated:
                *_, truncated, _ = env.step(feasible(env))
                lengths[-1] += 1
        assert lengths == [2, 2, 1, 2, 2]
        assert first == [0.5, 1.5, 2.5, 0.5, 1.5]

    def test_a_dataset_without_a_length_needs_a_horizon(self):
        with pytest.raises(ConfigError, match="no horizon"):
            ServerlessSchedulingEnv(horizon=0).set_dataset(TASK for _ in range(3))

    def test_objects_with_the_five_fields_are_tasks_too(self):
        env = ServerlessSchedulingEnv()
        env.set_dataset([SimpleNamespace(**TASK)])
        observation, _ = env.reset()
        np.testing.assert_array_equal(observation["current_function_io"], [50.0, 500.0])
        assert observation["current_function_requests"][0] == 10

    def test_optional_fields_and_their_defaults(self):
        env = ServerlessSchedulingEnv()
        env.set_dataset(
            [TASK, {**TASK, "function": "resize", "arrival_s": 50.0, "duration_s": 8.0, "slo_s": 3.0}, TASK]
        )
        env.reset()
        trace = env.many.trace
        assert trace.arrival_s.tolist() == [0.0, 50.0, 51.0]
        assert trace.duration_s.tolist() == [5.0, 8.0, 5.0]
        assert trace.response_s.tolist() == [0.5, 0.8, 0.5]
        assert trace.slo_s.tolist() == [1.0, 3.0, 1.0]
        assert trace.function.tolist() == [0, 0, 2]

    def test_a_dataset_longer_than_the_scenarios_horizon_is_one_episode(self):
        env = ServerlessSchedulingEnv(horizon=2)
        env.set_dataset([TASK] * 5)
        env.reset()
        endings = [env.step(feasible(env))[3] for _ in range(5)]
        assert endings == [False] * 4 + [True]

    @pytest.mark.parametrize(
        ("tasks", "message"),
        [
            ([], "no task"),
            ([{"cpu_request": 1.0}], "task 0 lacks mem_request, io_network, io_disk, requests"),
            ([{**TASK, "gpu": 1}], "unknown field gpu"),
            ([{**TASK, "function": 5}], "function 5 of 5"),
            ([{**TASK, "cpu_request": -1.0}], "cpu row 0: -1.0"),
            ([{**TASK, "requests": -1}], "requests row 0"),
            ([{**TASK, "arrival_s": 5.0}, {**TASK, "arrival_s": 1.0}], "falls at row 1"),
        ],
    )
    def test_a_bad_dataset_is_refused_at_once_with_the_task_and_the_reason(self, tasks, message):
        with pytest.raises(TraceError, match=message):
            ServerlessSchedulingEnv().set_dataset(tasks)

    def test_without_a_dataset_tasks_are_generated(self):
        # The tutorial's generator returned None.
        env = ServerlessSchedulingEnv(scenario="functions/tutorial")
        observation, _ = env.reset(seed=0)
        for _ in range(50):
            cpu, mem = observation["current_function_request"]
            net, disk = observation["current_function_io"]
            assert 0.1 <= cpu <= 4.0
            assert 0.1 <= mem <= 8.0
            assert 10.0 <= net <= 100.0
            assert 100.0 <= disk <= 1000.0
            assert 1 <= observation["current_function_requests"][0] <= 99
            observation, *_ = env.step(feasible(env))


class TestInvalidActions:
    @pytest.fixture
    def full(self):
        def make(**settings):
            env = ServerlessSchedulingEnv(2, **settings)
            env.set_dataset([{**TASK, "cpu_request": 8.0}, {**TASK, "cpu_request": 8.0}, TASK])
            env.reset()
            env.step(0)
            return env

        return make

    def test_terminate_ends_the_episode_and_applies_nothing(self, full):
        # The tutorial applied an invalid action all the same.
        env = full()
        before = copy.deepcopy(env._observe())
        observation, reward, terminated, truncated, info = env.step(0)
        assert (terminated, truncated, info["invalid"]) == (True, False, True)
        assert reward == pytest.approx(-10.0 - 2.0), "the penalty, and the worst that the two tasks left could cost"
        assert same(observation, before)
        assert info["episode_metrics"]["infeasible"] == 1
        assert info["episode_metrics"]["placed"] == 1

    def test_penalise_goes_on_with_the_same_instance(self, full):
        env = full(invalid_action="penalise", invalid_penalty=3.0)
        before = copy.deepcopy(env._observe())
        observation, reward, terminated, truncated, info = env.step(0)
        assert (reward, terminated, truncated, info["invalid"]) == (-3.0, False, False, True)
        assert same(observation, before)
        *_, info = env.step(1)
        assert not info["invalid"]

    def test_after_three_refusals_in_a_row_the_first_feasible_node_is_taken(self, full):
        # A deterministic policy would err for ever.
        env = full(invalid_action="penalise")
        before = env._observe()
        assert same(env.step(0)[0], before)
        assert same(env.step(0)[0], before)
        observation, reward, terminated, truncated, info = env.step(0)
        assert observation["node_deployed"][1, 0] == 8.0, "on node 1"
        assert (terminated, truncated, info["invalid"]) == (False, True, True), "the third task fits nowhere any more"
        assert -12.0 <= reward < -11.0, "the penalty, the placement and the rejection"
        sheet = info["episode_metrics"]
        assert (sheet["placed"], sheet["rejected"], sheet["infeasible"]) == (2, 1, 3)
        assert sheet["return"] == pytest.approx(reward - 20.0, abs=1.0)

    def test_a_policy_that_errs_for_ever_comes_to_an_end(self):
        env = ServerlessSchedulingEnv(2, invalid_action="penalise")
        env.set_dataset([{**TASK, "cpu_request": 8.0}, TASK])
        env.reset()
        env.step(0)
        assert [env.step(0)[3] for _ in range(3)] == [False, False, True]

    def test_raise_raises_and_the_episode_can_go_on(self, full):
        env = full(invalid_action="raise")
        with pytest.raises(InfeasibleActionError, match="node 0"):
            env.step(0)
        env.step(1)

    def test_an_action_outside_the_space_is_infeasible_too(self, full):
        assert full().step(99)[4]["invalid"]

    def test_an_unknown_mode_is_refused(self):
        with pytest.raises(ConfigError, match="terminate, penalise, raise"):
            ServerlessSchedulingEnv(invalid_action="ignore")


class TestFaultsOfTheTutorial:
    """Each fault of the tutorial's environment that is listed in the reference, as what must be true here."""

    def test_an_observation_that_was_kept_is_not_changed_by_later_steps(self):
        env = ServerlessSchedulingEnv()
        kept, _ = env.reset(seed=0)
        before = copy.deepcopy(kept)
        for _ in range(5):
            env.step(feasible(env))
        assert same(kept, before)

    def test_an_observation_can_be_scribbled_on_without_changing_the_state(self):
        env = ServerlessSchedulingEnv()
        observation, _ = env.reset(seed=0)
        truth = copy.deepcopy(observation)
        for array in observation.values():
            array[...] = 0
        assert same(env._observe(), truth)

    def test_a_step_advances_to_the_next_task_and_deploys_this_one(self):
        env = ServerlessSchedulingEnv(scenario="functions/tutorial")
        env.set_dataset([TASK, {**TASK, "cpu_request": 3.0}, TASK])
        env.reset()
        observation, *_ = env.step(4)
        assert observation["current_function_request"][0] == 3.0
        np.testing.assert_array_equal(observation["node_deployed"][4], [1.0, 2.0])
        assert observation["node_utilization"][4].min() > 0.0
        assert np.delete(observation["node_deployed"], 4, axis=0).sum() == 0.0

    def test_the_reward_is_that_of_the_state_after_the_action(self):
        env = ServerlessSchedulingEnv(scenario="functions/tutorial")
        env.set_dataset([{**TASK, "cpu_request": 8.0, "mem_request": 16.0}, TASK])
        observation, _ = env.reset()
        assert observation["current_function_rart"][0] == pytest.approx(0.5)
        _, _, _, _, info = env.step(0)  # fills the node: 0.1 + 4.9 x 1
        assert info["r1"] == pytest.approx(5.0)

    def test_only_the_placed_functions_requests_change_and_they_come_back_when_it_leaves(self):
        env = ServerlessSchedulingEnv()
        env.set_dataset([{**TASK, "function": 3, "requests": 7}, {**TASK, "function": 1}, {**TASK, "arrival_s": 500.0}])
        observation, _ = env.reset()
        assert observation["cluster_function_requests"].tolist() == [0, 0, 0, 0, 0]
        observation, *_ = env.step(0)
        assert observation["cluster_function_requests"].tolist() == [0, 0, 0, 7, 0]
        observation, *_ = env.step(0)  # the third arrives when both have left
        assert observation["cluster_function_requests"].tolist() == [0, 0, 0, 0, 0]

    @settings(max_examples=15, deadline=None)
    @given(
        disk=st.floats(0.0, 1e5), net=st.floats(0.0, 1e5), cpu=st.floats(0.01, 4.0), seed=st.integers(0, 100),
    )  # fmt: skip
    def test_no_observation_leaves_its_space_however_much_is_asked_for(self, disk, net, cpu, seed):
        env = ServerlessSchedulingEnv(4)
        env.set_dataset([{**TASK, "cpu_request": cpu, "io_disk": disk, "io_network": net}] * 60)
        observation, _ = env.reset(seed=seed)
        truncated = False
        while not truncated:
            assert env.observation_space.contains(observation)
            observation, reward, _, truncated, _ = env.step(int(np.flatnonzero(env.action_masks())[-1]))
            assert np.isfinite(reward)


class TestTutorialScenario:
    def test_the_constants(self):
        scenario = ServerlessSchedulingEnv(scenario="functions/tutorial").scenario
        assert (scenario.nodes, scenario.functions, scenario.beta) == (10, 5, 0.7)
        assert scenario.r1_range == [0.1, 5.0]
        assert (scenario.net_mb_s, scenario.disk_iops) == (1000.0, 5000.0)
        assert scenario.initial_rart == 0.5

    def test_rewards_are_between_minus_one_and_zero(self):
        env = ServerlessSchedulingEnv(scenario="functions/tutorial", horizon=400)
        env.reset(seed=1)
        rng, truncated, rewards = np.random.default_rng(1), False, []
        while not truncated:
            _, reward, _, truncated, _ = env.step(rng.choice(np.flatnonzero(env.action_masks())))
            rewards.append(reward)
        assert -1.0 <= min(rewards) < max(rewards) <= 0.0

    def test_r2_ranges_over_the_node_prices(self):
        env = ServerlessSchedulingEnv(scenario="functions/tutorial", beta=0.0)
        prices = env.many.table.price_usd_per_hour
        env.set_dataset([TASK] * 2)
        for node in (int(prices.argmin()), int(prices.argmax())):
            env.reset()
            assert env.step(node)[1] == pytest.approx(0.0 if prices[node] == prices.min() else -1.0)

    def test_equal_prices_make_the_cost_part_zero(self):
        env = ServerlessSchedulingEnv(1, scenario="functions/tutorial", beta=0.0)
        env.set_dataset([TASK])
        env.reset()
        assert env.step(0)[1] == 0.0


def test_an_available_node_is_active_whether_it_is_used_or_not():
    env = ServerlessSchedulingEnv()
    env.set_dataset([TASK, {**TASK, "arrival_s": 10.0}, {**TASK, "arrival_s": 5000.0}])
    observation, _ = env.reset()
    assert observation["node_active"].all()
    for _ in range(2):  # the third arrives long after both have left and the node has cooled down
        observation, *_ = env.step(3)
        assert observation["node_active"].all()


def test_pictures_show_the_nodes():
    env = ServerlessSchedulingEnv(3, render_mode="rgb_array")
    env.reset(seed=0)
    empty = env.render()
    env.step(feasible(env))
    assert empty.dtype == np.uint8
    assert empty.shape == env.render().shape
    assert (empty != env.render()).any()
    assert ServerlessSchedulingEnv().render() is None
    env = ServerlessSchedulingEnv(3, render_mode="ansi")
    env.reset(seed=0)
    assert [line.split()[:2] for line in env.render().splitlines()[1:]] == [
        [resource, "0.0%"] for resource in ("cpu", "mem", "net", "disk")
    ]
    with pytest.raises(ConfigError, match="ansi, rgb_array"):
        ServerlessSchedulingEnv(render_mode="human")


def test_unknown_settings_are_named():
    with pytest.raises(ConfigError, match="colour"):
        ServerlessSchedulingEnv(colour="red")
    with pytest.raises(ConfigError, match="not of kind serverless"):
        ServerlessSchedulingEnv(scenario="vm/fading")
