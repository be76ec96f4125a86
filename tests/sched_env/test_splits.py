"""Train, validation and test: parts of a trace, in that order, in which episodes lie from start to end."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from sched_env.scenarios import SPLITS
from sched_env.vector import make_vec
from sched_env.vm.events import STOP
from sched_env.vm.tables import VmTrace
from wire.errors import ConfigError

CASES = {
    "vm/fading": {"synthetic_vms": 4000, "servers": 3},
    "vm/recovering": {"synthetic_vms": 4000, "servers": 3, "ending": "wait"},
    "functions/serverless": {"trace_rows": 2000, "horizon": 50},
    "pods/deploy": {"n_node": 4, "offers": "all", "trace_windows": 80, "episode_windows": 4},
    "workflow/dag": {"tasks": 6, "workflows": 60},
    "jobs/cpn": {"cards": 6, "episode_jobs": 20, "trace_rows": 600},
}
LENGTH = {"workflow": lambda env: len(env.dags), "vm": lambda env: int(env.events.parts[-1, STOP])}


def rows_of(env):
    return LENGTH.get(env.problem.name, lambda env: len(env.trace))(env)


@pytest.mark.parametrize("scenario", CASES)
def test_episodes_begin_in_their_part_and_see_nothing_behind_it(scenario):
    whole = rows_of(make_vec(scenario, 1, **CASES[scenario]))
    for split, shares in SPLITS.items():
        begin, end = (int(share * whole) for share in shares)
        env = make_vec(scenario, 64, 3, split=split, **CASES[scenario])
        env.reset()
        assert rows_of(env) == end
        starts = env.buffers.start
        assert begin <= starts.min() <= starts.max() < end
        assert len(set(starts.tolist())) > 3
        for _ in range(60):
            env.step(env.buffers.mask.argmax(1))
        assert begin <= env.buffers.start.min()


def test_the_parts_cover_the_trace_once_and_are_those_of_the_pipeline():
    from pipeline.windows import SplitConfig

    config = SplitConfig()
    borders = [0.0, config.train, config.train + config.validation, 1.0]
    assert list(SPLITS.values()) == list(pairwise(borders))


def test_all_is_the_default_and_leaves_the_trace_as_it_is():
    assert len(make_vec("jobs/cpn", 1, trace_rows=300).trace) == 300


@pytest.mark.parametrize(
    ("scenario", "keys"),
    [
        ("jobs/cpn", {"trace_rows": 300, "episode_jobs": 100}),
        ("pods/deploy", {"trace_windows": 30, "episode_windows": 5}),
    ],
)
def test_a_part_that_is_shorter_than_an_episode_is_refused(scenario, keys):
    with pytest.raises(ConfigError, match="part validation"):
        make_vec(scenario, 1, split="validation", **keys)


def test_a_trace_of_several_clusters_is_not_split_by_row():
    two = VmTrace(
        vmid=np.arange(20), cpu=np.ones(20), mem=np.ones(20), time=np.arange(20.0), kind=np.zeros(20), stop=[10, 20],
        servers=[2, 2],
    )  # fmt: skip
    with pytest.raises(ConfigError, match="2 clusters"):
        make_vec("vm/fading", 1, trace=two, split="train")


def test_vms_whose_deletion_lies_behind_the_part_leave_all_the_same():
    keys = {"ending": "wait", **CASES["vm/recovering"]}
    whole, part = make_vec("vm/recovering", 1, **keys), make_vec("vm/recovering", 1, split="train", **keys)
    np.testing.assert_array_equal(whole.events.life_s, part.events.life_s)
    with pytest.raises(ConfigError, match="start 7000"):
        part.reset(options={"starts": [7000]})


def test_a_split_that_does_not_exist_is_named():
    with pytest.raises(ConfigError, match="'split' is 'dev'"):
        make_vec("vm/fading", 1, split="dev")
