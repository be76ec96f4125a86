"""When tasks start and end, what moves and what is billed: worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from sched_env.vector import make_vec
from sched_env.workflow.env import WorkflowEnv
from wire.errors import ConfigError


def test_nothing_moves_between_tasks_on_one_node(play, chain):
    starts, ends, sheet = play(chain, [0, 0])
    assert (starts, ends) == ([0.0, 10.0], [10.0, 20.0])
    assert sheet["moved_mb"] == 0.0
    assert sheet["nodes_used"] == 1


def test_data_moves_over_the_slower_link_after_the_parent_ends(play, chain):
    starts, ends, sheet = play(chain, [0, 1])  # 100 MB at 50 MB/s; then 10 s at twice the speed
    assert (starts, ends) == ([0.0, 12.0], [10.0, 17.0])
    assert sheet["moved_mb"] == 100.0
    starts, ends, _ = play(chain, [1, 0])  # the other way it is the same link
    assert (starts, ends) == ([0.0, 7.0], [5.0, 17.0])


def test_data_from_outside_comes_over_the_nodes_own_link_from_the_start(play, dag):
    flow = dag([10.0, 10.0], {(0, 1): 0.0}, input_mb=np.array([50.0, 1500.0]))
    starts, _, sheet = play(flow, [0, 0])
    assert starts == [0.5, 15.0]  # 1500 MB at 100 MB/s take longer than the parent
    assert sheet["moved_mb"] == 1550.0


def test_the_last_of_the_parents_counts(play, dag):
    flow = dag([10.0, 4.0, 1.0], {(0, 2): 0.0, (1, 2): 1000.0})
    assert play(flow, [0, 0, 0])[0] == [0.0, 0.0, 10.0]
    assert play(flow, [0, 1, 0])[0] == [0.0, 0.0, 22.0]  # the second ends at 2, its data takes 20 s


def test_tasks_wait_for_cores(play, dag):
    starts, ends, sheet = play(dag([10.0, 6.0, 5.0]), [0, 0, 0])
    assert starts == [0.0, 0.0, 6.0]
    assert ends[2] == 11.0
    assert sheet["wait_s"] == 6.0
    assert sheet["makespan_s"] == 11.0


def test_tasks_wait_for_memory(play, dag):
    starts, _, _ = play(dag([10.0, 6.0], mem=3.0), [0, 0])
    assert starts == [0.0, 10.0]


def test_a_node_that_is_filled_exactly_is_not_overbooked(play, dag):
    starts, _, _ = play(dag([10.0] * 3, cpu=[0.1, 0.2, 0.7], mem=0.1), [1, 1, 1])
    assert starts == [0.0, 0.0, 0.0]


def test_a_task_fills_a_gap_only_if_it_fits_before_what_was_promised(play, dag):
    # On node 1 the child can start at 12 (2 s for its data); before that the node is free.
    edges = {(0, 1): 100.0}
    starts, _, _ = play(dag([10.0, 10.0, 24.0], edges), [0, 1, 1])
    assert starts == [0.0, 12.0, 0.0]  # 24 s at speed 2 end just in time
    starts, _, _ = play(dag([10.0, 10.0, 24.2], edges), [0, 1, 1])
    assert starts == [0.0, 12.0, 17.0]


def test_a_gap_in_one_resource_is_not_a_gap_in_the_other(play, dag):
    flow = dag([10.0, 20.0, 5.0], cpu=[1.0, 1.0, 1.0], mem=[2.0, 1.5, 1.0])
    starts, _, _ = play(flow, [0, 0, 0])  # two cores busy until 10; memory free 0.5 until 10, then 2.5
    assert starts == [0.0, 0.0, 10.0]


def test_a_node_is_billed_once_for_what_runs_together_and_not_between(play, dag):
    _, _, sheet = play(dag([10.0, 6.0]), [0, 0])
    assert sheet["cost_usd"] == pytest.approx(10 * 0.0001)
    flow = dag([10.0, 10.0, 4.0], {(0, 1): 100.0})
    starts, _, sheet = play(flow, [0, 1, 1])
    assert starts == [0.0, 12.0, 0.0]
    assert sheet["cost_usd"] == pytest.approx(10 * 0.0001 + (5 + 2) * 0.0002)


def test_tasks_that_take_no_time_need_room_but_take_none(play, dag):
    starts, ends, sheet = play(dag([10.0, 0.0, 10.0], {(0, 1): 0.0}), [1, 1, 1])
    assert starts == [0.0, 5.0, 5.0]
    assert ends == [5.0, 5.0, 10.0]
    assert sheet["cost_usd"] == pytest.approx(10 * 0.0002)


def test_a_late_workflow_violates_its_deadline(play, chain, dag):
    # The fastest nodes take 10 s: the deadline is at 15.
    assert play(chain, [1, 1], deadline_slack=1.5)[2]["sla_violation_rate"] == 0.0
    assert play(chain, [0, 0], deadline_slack=1.5)[2]["sla_violation_rate"] == 1.0
    own = dag([10.0, 10.0], {(0, 1): 100.0}, deadline_s=25.0)
    assert play(own, [0, 0], deadline_slack=1.5)[2]["sla_violation_rate"] == 0.0


def test_the_response_ratio_is_against_the_critical_path_on_the_fastest_nodes(play, chain, dag):
    assert play(chain, [1, 1])[2]["response_ratio"] == 1.0
    assert play(chain, [0, 0])[2]["response_ratio"] == 2.0
    # The second task fits the slow node alone.
    wide = dag([10.0, 10.0], {(0, 1): 0.0}, cpu=[1.0, 2.0])
    assert play(wide, [1, 0])[2]["response_ratio"] == 1.0


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_the_return_weighs_time_against_cost(play, beta, chain):
    # Least cost: half of node 0 for 20 s (0.001) beats all of node 1 for 10 s (0.002).
    _, _, sheet = play(chain, [0, 1], beta=beta)
    time, cost = 17.0 / 10.0, (10 * 0.0001 + 5 * 0.0002) / 0.001
    assert sheet["return"] == pytest.approx(-(beta * time + (1 - beta) * cost))


def test_free_nodes_cost_nothing(play, chain, nodes):
    sheet = play(chain, [0, 1], nodes(price_usd_per_hour=[0.0, 0.0]), beta=0.5)[2]
    assert sheet["cost_usd"] == 0.0
    assert sheet["return"] == pytest.approx(-0.5 * 1.7)


def test_a_cut_episode_has_broken_its_promise(play, chain):
    _, _, sheet = play(chain, [0], horizon=1)
    assert sheet["placed"] == 1
    assert sheet["requests"] == 2
    assert sheet["sla_violation_rate"] == 1.0


def test_tasks_are_offered_by_falling_rank_parents_first(dag, nodes):
    # Ranks at the mean speed (3/4 of a second for each): the third task begins the longest way.
    flow = dag([1.0, 8.0, 4.0, 8.0], {(0, 1): 0.0, (2, 3): 0.0})
    env = make_vec("workflow/dag", 1, 0, ((flow,), nodes()))
    np.testing.assert_array_equal(env.plan.tasks[:, 2], [4.0, 1.0, 8.0, 8.0])
    env = make_vec("workflow/dag", 1, 0, ((flow,), nodes()), order="trace")
    np.testing.assert_array_equal(env.plan.tasks[:, 2], [1.0, 8.0, 4.0, 8.0])


def test_the_rank_counts_the_way_of_the_data(dag, nodes):
    flow = dag([1.0, 1.0, 1.0], {(0, 2): 1.0, (1, 2): 1000.0})
    env = make_vec("workflow/dag", 1, 0, ((flow,), nodes()))
    assert env.plan.parent.tolist() == [0, 1]
    assert env.plan.edge_mb.tolist() == [1000.0, 1.0]


def test_a_node_too_small_for_a_task_is_masked_and_one_that_is_full_is_not(dag, nodes):
    env = WorkflowEnv(trace=((dag([10.0, 10.0, 10.0], cpu=[2.0, 1.0, 1.0]),), nodes()), order="trace")
    seen, _ = env.reset()
    assert seen["mask"].tolist() == [1, 0]
    seen, *_ = env.step(0)
    assert seen["mask"].tolist() == [1, 1]


def test_a_task_that_fits_no_node_is_named(dag, nodes):
    with pytest.raises(ConfigError, match=r"workflow 'small': task 1 needs 3 cores.*larger node"):
        make_vec("workflow/dag", 1, 0, ((dag([1.0, 1.0], cpu=[1.0, 3.0]),), nodes()))


def test_starts_beyond_the_trace_are_refused(chain, nodes):
    env = make_vec("workflow/dag", 1, 0, ((chain,), nodes()))
    with pytest.raises(ConfigError, match="start 1 is beyond"):
        env.reset(options={"starts": [1]})
    with pytest.raises(ConfigError, match="start_min"):
        make_vec("workflow/dag", 1, 0, ((chain,), nodes()), start_min=1)
