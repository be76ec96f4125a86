"""Workflows begin among what others run, and can be placed as they were recorded."""

from __future__ import annotations

import numpy as np
import pytest

from sched_env.recorded import AsRecorded
from sched_env.rollout import run_episodes
from sched_env.vector import make_vec
from sched_env.workflow.bounds import lower
from sched_env.workflow.tables import Surroundings
from wire.errors import ConfigError, TraceError


def around(room, there=()):
    return Surroundings(np.array(room, float), np.array(there, float).reshape(-1, 4))


def test_a_task_waits_for_what_others_run_there(dag, play):
    flow = dag([10.0], around=around([[2.0, 4.0], [1.0, 4.0]], [[0, 30.0, 2.0, 1.0], [1, 5.0, 1.0, 1.0]]))
    assert play(flow, [0])[:2] == ([30.0], [40.0])
    assert play(flow, [1])[:2] == ([5.0], [10.0])


def test_what_others_leave_free_can_be_taken(dag, play):
    flow = dag([10.0, 10.0], around=around([[2.0, 4.0], [1.0, 4.0]], [[0, 30.0, 1.0, 1.0]]))
    starts, _, sheet = play(flow, [0, 0])
    assert starts == [0.0, 10.0]
    assert sheet["cost_usd"] == 0.0, "the node is in use by others all the while"


def test_a_node_that_is_down_is_no_candidate(dag, nodes):
    flow = dag([10.0], around=around([[0.0, 0.0], [1.0, 4.0]]))
    env = make_vec("workflow/dag", 1, trace=((flow,), nodes()))
    env.reset()
    assert env.buffers.mask[0].tolist() == [False, True]
    assert env.rebuild(0).mask.tolist() == [False, True]


def test_the_bound_knows_what_is_free(dag, nodes):
    plain, less = dag([10.0]), dag([10.0], around=around([[2.0, 4.0], [0.0, 0.0]]))
    assert (lower(plain, nodes()), lower(less, nodes())) == (5.0, 10.0)


def test_a_start_takes_the_time_of_its_engine(chain, play):
    starts, finish, _ = play(chain, [0, 0], dispatch_s=4.0)
    assert (starts, finish) == ([4.0, 18.0], [14.0, 28.0])


@pytest.mark.parametrize("order", ["rank", "trace"])
def test_as_recorded_follows_the_record_in_any_order(dag, nodes, order):
    flow = dag([1.0, 9.0, 5.0, 2.0], {(0, 1): 1.0, (0, 2): 1.0, (2, 3): 1.0}, node=np.array([1, 0, 1, -1]))
    policy = AsRecorded("first_fit")
    env = make_vec("workflow/dag", 1, trace=((flow,), nodes()), order=order)
    [episode] = run_episodes(env.scenario, policy, [0], trace=((flow,), nodes()))
    assert (policy.followed, policy.decided) == (3, 4)
    assert episode["nodes_used"] == 2


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"node": np.array([0, 1])}, TraceError),
        ({"around": around([[1.0, 1.0]])}, ConfigError),
        ({"around": around([[2.0, 4.0], [1.0, 4.0]], [[2, 1.0, 1.0, 1.0]])}, ConfigError),
    ],
)
def test_a_record_of_other_tasks_or_nodes_is_refused(dag, nodes, wrong, error):
    with pytest.raises(error):
        make_vec("workflow/dag", 1, trace=((dag([1.0], **wrong),), nodes()))


def test_surroundings_below_zero_are_refused():
    with pytest.raises(TraceError, match="surroundings has -1"):
        around([[-1.0, 1.0]])
