"""Episodes begin with what ran at their start, hold fixed what is not ours, keep to nodes that are up and theirs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sched_env.functions.state import CHECKPOINT_ROWS, COST, CPU, DISK, FOUND, INSTANCES, ROW
from sched_env.vector import make_vec

SETTINGS = {"nodes": 4, "functions": 6, "trace_rows": 900}


def recorded(seed: int, load: float, rows: int):
    """A trace that tells the nodes which a random policy chose, and that policy's environment ``rows`` rows on."""
    env = make_vec("functions/serverless", 1, seed, horizon=rows, load=load, trace_seed=seed, **SETTINGS)
    env.reset(options={"starts": [0], "park": True})
    rng, node = np.random.default_rng(seed), np.full(len(env.trace), -1)
    while env.buffers.active[0]:
        row = int(env.state.cursor[0, ROW])
        node[row] = rng.choice(np.flatnonzero(env.buffers.mask[0]))
        if row >= rows - 20:
            before = env.state.nodes[0].copy()
            break
        env.step(np.array([node[row]]))
    node[row:] = -1
    return env, dataclasses.replace(env.trace, node=node), row, before


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 5), st.sampled_from([0.4, 0.9]), st.sampled_from([23, 200, CHECKPOINT_ROWS + 19, 600]))
def test_an_episode_starts_from_the_state_that_the_recorded_placements_left(seed, load, rows):
    env, trace, row, before = recorded(seed, load, rows)
    other = make_vec(env.scenario, 1, seed, (trace, env.table))
    other.reset(options={"starts": [row]})
    np.testing.assert_allclose(other.state.nodes[0, :, CPU : DISK + 1], before[:, CPU : DISK + 1], rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(other.state.nodes[0, :, INSTANCES], before[:, INSTANCES])
    np.testing.assert_array_equal(other.rebuild(0).candidates, other.buffers.candidates[0])
    np.testing.assert_array_equal(other.rebuild(0).mask, other.buffers.mask[0])


def placed(env, node: int) -> dict[str, float]:
    """Put every instance of the episode on one node and return the metrics."""
    env.reset(options={"starts": [env.first], "park": True})
    while env.buffers.active[0]:
        env.step(np.array([node]))
    return dict(zip(env.METRICS, env.buffers.metrics[0].tolist(), strict=True))


@pytest.fixture
def world(tasks, two_nodes):
    """Two nodes; an old instance runs on node 0 when another arrives at second 100."""

    def make(**columns):
        trace = tasks([0.0, 100.0], cpu=[1.0, 1.0], duration_s=[1000.0, 50.0], requests=[1000, 10], **columns)
        env = make_vec("functions/serverless", 1, 0, (trace, two_nodes), horizon=1, cold_start_s=0.0)
        env.first = 1
        return env

    return make


def test_what_was_there_counts_up_to_the_last_arrival_of_the_episode(world):
    lonely, beside = world(), world(node=[0, -1])
    beside.reset(options={"starts": [1]})
    assert beside.state.cursor[0, FOUND] == 1
    assert beside.raw_fields(0)[0]["cpu_deployed"].tolist() == [1.0, 0.0]
    # The last arrival is the only one, at second 100: no time has passed, so no call of the old instance is ours.
    assert placed(beside, 1)["requests"] == placed(lonely, 1)["requests"] == 10.0


def test_calls_and_bill_of_what_was_there_are_part_of_the_episode(tasks, two_nodes):
    columns = {"cpu": [1.0] * 3, "duration_s": [1000.0, 50.0, 50.0], "requests": [1000, 10, 10]}
    trace = tasks([0.0, 100.0, 400.0], node=[0, -1, -1], **columns)
    env = make_vec("functions/serverless", 1, 0, (trace, two_nodes), horizon=2, cold_start_s=0.0)
    env.first = 1
    metrics = placed(env, 1)
    # From second 100 to 400, the last arrival, the old instance answers 300 of its 1000 calls.
    assert metrics["requests"] == pytest.approx(300.0 + 20.0)
    price, cooldown = two_nodes.price_usd_per_hour, env.rules.cooldown_s
    own = price[1] * ((50.0 + cooldown) + (400.0 + 50.0 + cooldown) - (100.0 + 50.0 + cooldown)) / 3600.0
    assert metrics["cost_usd"] == pytest.approx(price[0] * 300.0 / 3600.0 + own, rel=1e-6)


def test_joining_a_node_that_runs_anyway_costs_nothing(world):
    env = world(node=[0, -1])
    env.reset(options={"starts": [1]})
    there = env.state.totals[0, COST]
    env.step(np.array([0]))
    assert env.state.last[0, 1] == 0.0
    assert there >= 0.0


def test_what_is_held_goes_to_its_node_by_itself_and_is_not_billed(tasks, two_nodes):
    columns = {"cpu": [1.0] * 3, "duration_s": [1000.0] * 3, "requests": [0, 0, 10]}
    trace = tasks([0.0, 50.0, 100.0], node=[0, 1, -1], held=[True, True, False], **columns)
    env = make_vec("functions/serverless", 1, 0, (trace, two_nodes), horizon=2)
    for start in (1, 2):
        env.reset(options={"starts": [start]})
        assert int(env.state.cursor[0, ROW]) == 2
        assert env.raw_fields(0)[0]["cpu_deployed"].tolist() == [1.0, 1.0]
        assert env.raw_fields(0)[0]["billed_left_s"].tolist() == [0.0, 0.0]


def test_nodes_that_are_down_and_nodes_of_other_clusters_are_no_candidates(tasks, two_nodes):
    columns = {"cpu": [1.0] * 3, "duration_s": [10.0] * 3, "requests": [1] * 3}
    up = np.array([[True, True], [False, True]])
    down = dataclasses.replace(tasks([0.0, 310.0, 320.0], **columns), up=up)
    env = make_vec("functions/serverless", 1, 0, (down, two_nodes), horizon=2)
    env.reset(options={"starts": [0]})
    assert env.buffers.mask[0].tolist() == [True, True]
    env.step(np.array([0]))
    assert env.buffers.mask[0].tolist() == [False, True]
    assert env.rebuild(0).mask.tolist() == [False, True]
    apart = dataclasses.replace(two_nodes, domain=np.array([0, 1]))
    env = make_vec("functions/serverless", 1, 0, (tasks([0.0, 1.0, 2.0], domain=[1, 0, 1], **columns), apart))
    env.reset(options={"starts": [0]})
    assert env.buffers.mask[0].tolist() == [False, True]
    env.step(np.array([1]))
    assert env.buffers.mask[0].tolist() == [True, False]


def test_denser_arrivals_than_recorded_find_room_elsewhere_or_are_left_out(tasks, two_nodes):
    columns = {"cpu": [4.0, 4.0, 8.0, 1.0], "duration_s": [1000.0] * 4, "requests": [1] * 4}
    trace = tasks([0.0, 1.0, 2.0, 3.0], node=[0, 0, 0, -1], **columns)
    env = make_vec("functions/serverless", 1, 0, (trace, two_nodes), horizon=0)
    env.reset(options={"starts": [3]})
    assert env.state.nodes[0, :, CPU].tolist() == [4.0, 4.0]


def test_a_bound_is_not_claimed_for_a_cluster_that_is_not_empty(world):
    env = world(node=[0, -1])
    assert env.problem.simulation().bounds(env, [1]) == [None]
    assert world().problem.simulation().bounds(world(), [1])[0] > 0.0
