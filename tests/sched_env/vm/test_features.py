from __future__ import annotations

import numpy as np
import pytest

from sched_env import problems
from wire.errors import ConfigError


def test_the_observation_of_one_decision():
    state = {
        "cpu_free": np.array([40.0, 10.0]),
        "mem_free": np.array([90.0, 90.0]),
        "other_cpu_free": np.array([10.0, 40.0]),
        "other_mem_free": np.array([90.0, 90.0]),
    }
    seen = problems.get("vm").build(state, {"cpu": 12.0, "mem": 4.0})
    assert seen.candidates.tolist() == [[40, 90, 10, 90, 40, 90, 1], [10, 90, 40, 90, 40, 90, 1]]
    assert seen.request.tolist() == [12, 4, 0, 12, 4]
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
    assert seen.candidates[0].tolist() == [5, 0, 0, 0, 40, 90, 1]


def test_an_unknown_problem_is_named():
    with pytest.raises(ConfigError, match="'ships' is unknown"):
        problems.spec("ships")
    assert "ships" not in problems.names()
