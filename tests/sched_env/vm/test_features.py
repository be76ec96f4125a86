from __future__ import annotations

import numpy as np
import pytest

from sched_env import problems
from sched_env.vector import make_vec
from wire.errors import ConfigError


def test_the_observation_of_one_decision():
    state = {
        "cpu_free": np.array([40.0, 10.0]),
        "mem_free": np.array([90.0, 90.0]),
        "other_cpu_free": np.array([10.0, 40.0]),
        "other_mem_free": np.array([90.0, 90.0]),
        "occupied_s": np.array([7.0, 7.0]),
        "ends_s": np.array([8.0, 8.0]),
    }
    seen = problems.get("vm").build(state, {"cpu": 12.0, "mem": 4.0, "waiting": 3.0, "life_s": 60.0})
    assert seen.candidates.tolist() == [[40, 90, 10, 90, 40, 90, 1, 7, 8], [10, 90, 40, 90, 40, 90, 1, 7, 8]]
    assert seen.request.tolist() == [12, 4, 0, 12, 4, 3, 60]
    assert seen.mask.tolist() == [True, False]
    assert problems.get("vm").build(state, {"cpu": 24.0, "mem": 4.0, "double": 1.0}).mask.tolist() == [False, False]
    assert problems.get("vm").build(state, {"cpu": 20.0, "mem": 4.0, "double": 1.0}).mask.tolist() == [True, True]
    assert (seen.candidates.dtype, seen.request.dtype, seen.mask.dtype) == (np.float32, np.float32, np.bool_)


@pytest.mark.parametrize("problem", ["vm", "functions"])
def test_the_spec_describes_every_column(problem):
    spec = problems.spec(problem)
    state = {name: np.full(3, default) for name, (_, default) in problems.get(problem).state_fields.items()}
    request = {name: default for name, (_, default) in problems.get(problem).request_fields.items()}
    seen = problems.get(problem).build(state, request)
    assert seen.candidates.shape == (3, len(spec.candidate))
    assert seen.request.shape == (len(spec.request),)
    assert spec.problem == problem
    assert all(feature.scale > 0 for feature in (*spec.candidate, *spec.request))


def test_fields_left_out_take_their_default():
    seen = problems.get("vm").build({"cpu_free": np.array([5.0])}, {"cpu": 1.0})
    assert seen.candidates[0].tolist() == [5, 0, 0, 0, 40, 90, 1, 0, 0]


def test_an_unknown_problem_is_named():
    with pytest.raises(ConfigError, match="'ships' is unknown"):
        problems.spec("ships")
    assert "ships" not in problems.names()


def test_a_server_grows_older_until_it_is_empty_again(vms):
    trace = vms((0, 60, 4, 8), (30, None, 4, 8), (50, None, 4, 8), (70, None, 4, 8), (75, None, 4, 8))
    env = make_vec("vm/recovering", 1, trace=trace, servers=2, start_min=0, double_threshold=1e9)
    env.reset(options={"starts": [0]})
    ages = env.buffers.candidates[0, :, 7].tolist  # a view: as it is when asked
    assert ages() == [0, 0, 0, 0]
    env.step([0])  # at 0
    assert ages() == [30, 30, 0, 0]
    env.step([2])  # at 30
    assert ages() == [50, 50, 20, 20]
    env.step([2])  # at 50; the first leaves at 60
    assert ages() == [0, 0, 40, 40]
    env.step([1])  # at 70
    assert ages() == [5, 5, 45, 45]


def test_the_queue_is_seen_with_those_that_came_while_one_waited(vms):
    trace = vms((0, 100, 40, 8), (10, 190, 40, 8), (20, 500, 40, 8), (30, 500, 40, 8))
    env = make_vec("vm/recovering", 1, trace=trace, servers=1, start_min=0, double_threshold=1e9, ending="wait")
    env.reset(options={"starts": [0]})
    assert env.buffers.request[0, 5] == 1
    env.step([0])
    assert env.buffers.request[0, 5] == 1  # at 10 there is room
    env.step([1])
    assert env.buffers.request[0, 5] == 2  # at 100, when the first has left: the third and the fourth
    assert env.buffers.time_s[0] == 100.0
