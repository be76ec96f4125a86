"""What all single environments have in common: actions, options of a reset, pictures."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from sched_env import envs, problems
from sched_env.functions.env import ServerlessSchedulingEnv
from sched_env.jobs.env import CpnEnv
from sched_env.vector import make_vec
from sched_env.vm.env import SchedEnv
from wire.errors import ConfigError, TraceError

IDS = [f"{envs.NAMESPACE}/{short}" for name in problems.names() for short in problems.get(name).environments]


@pytest.mark.parametrize("action", [3, np.int64(3), np.uint8(3), np.array(3), np.array([3]), True + 2])
def test_an_action_is_a_whole_number_however_it_is_held(action):
    env = SchedEnv(5, 40, 90)
    env.reset(seed=0)
    assert env.step(action)[1] == 1.0
    assert env.many.state.vms[0, 3] == 1


@pytest.mark.parametrize("action", [1.5, np.array([1.0]), np.array([1, 2]), "1", None])
def test_anything_else_is_refused(action):
    env = SchedEnv(5, 40, 90)
    env.reset(seed=0)
    with pytest.raises(ConfigError, match="a whole number"):
        env.step(action)


@pytest.mark.parametrize("env", [SchedEnv(5, 40, 90), ServerlessSchedulingEnv(3)], ids=["vm", "functions"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strat": 5}, "'strat' is unknown; expected one of start"),
        ({"start": -1}, "start is -1; expected a trace row: a whole number, 0 or more"),
        ({"start": 2.5}, "start is 2.5"),
        ({"start": "7"}, "start is '7'"),
        ({"start": True}, "start is True"),
        ({"start": 10**9}, "10{9}|1000000000"),
    ],
)
def test_options_of_a_reset_are_looked_at(env, options, message):
    with pytest.raises(ConfigError, match=message):
        env.reset(options=options)
    assert env.reset(options={"start": np.int64(1200)})[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": [1, 2]}, "'start' is unknown; expected one of starts, park"),
        ({"starts": [1.0, 2.0]}, "whole numbers"),
        ({"starts": [1, -2]}, "-1: drawn"),
        ({"starts": [1]}, "one trace row each"),
    ],
)
def test_options_of_many_environments_are_looked_at(options, message):
    with pytest.raises(ConfigError, match=message):
        make_vec("vm/fading", 2).reset(options=options)


@pytest.mark.parametrize("name", IDS)
def test_every_environment_can_be_drawn_as_text_and_as_a_picture(name):
    for mode in ("ansi", "rgb_array"):
        env = gymnasium.make(f"sched_env.envs:{name}", render_mode=mode).unwrapped
        env.reset(seed=0)
        picture = env.render()
        if mode == "ansi":
            assert "%" in picture
            assert len(picture.splitlines()) > 1
        else:
            assert picture.dtype == np.uint8
            assert picture.ndim == 3


@pytest.mark.parametrize(
    ("trace", "message"),
    [("any", "expected the path of a queue"), ("missing.json", "does not exist"), (7, "expected a Workload")],
)
def test_a_queue_of_jobs_that_is_none_is_named(trace, message):
    with pytest.raises((ConfigError, TraceError), match=message):
        CpnEnv(trace=trace)
