from __future__ import annotations

import numpy as np
import pytest

from sched_env import heuristics, problems
from sched_env.functions.state import ROW
from sched_env.stepping import HOLD
from sched_env.vector import make_vec
from wire.errors import ConfigError

NAMES = problems.get("functions").heuristics
RULES = [name for name in NAMES if name != "random_feasible"]

NODES = {
    "cpu_capacity": np.array([8.0, 8.0, 4.0, 16.0]),
    "mem_capacity": np.array([16.0, 32.0, 32.0, 32.0]),
    "cpu_deployed": np.array([6.0, 0.0, 1.0, 4.0]),
    "mem_deployed": np.array([12.0, 0.0, 20.0, 24.0]),
    "price": np.array([0.34, 0.384, 0.252, 0.68]),
    "billed_left_s": np.array([600.0, 0.0, 100.0, 1000.0]),
    "warm": np.array([0.0, 0.0, 0.0, 1.0]),
}
REQUEST = {"cpu": 1.0, "mem": 2.0, "duration_s": 60.0, "requests": 60.0, "response_s": 0.5, "cooldown_s": 300.0}


def best(name, **more):
    mask = problems.get("functions").build(NODES, REQUEST).mask
    return int(heuristics.score("functions", name, NODES, {**REQUEST, **more}, mask).argmax())


def test_every_required_rule_is_there():
    assert set(NAMES) >= {
        "random_feasible", "first_fit", "round_robin", "best_fit", "worst_fit", "least_allocated", "most_allocated",
        "balanced_allocation", "dot_product", "fragmentation", "cheapest_fit", "warm_first", "oracle_greedy",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("first_fit", 0),
        ("best_fit", 0),  # leaves one of eight cores
        ("worst_fit", 1),
        ("least_allocated", 1),
        ("most_allocated", 0),
        ("balanced_allocation", 0),  # 7/8 of both
        ("dot_product", 2),  # the request is a quarter of its cores, of which three are free
        ("cheapest_fit", 0),  # as node 3: billed for longer than the instance lives, at the same price for a core
        ("warm_first", 3),
    ],
)
def test_a_rule_chooses_what_its_definition_says(name, node):
    assert best(name) == node


def test_dot_product_tight_is_the_other_sign():
    mask = np.ones(4, bool)
    loose = heuristics.score("functions", "dot_product", NODES, REQUEST, mask)
    np.testing.assert_array_equal(heuristics.score("functions", "dot_product_tight", NODES, REQUEST, mask), -loose)


def test_round_robin_takes_the_next_node_and_skips_full_ones():
    full = {**NODES, "cpu_deployed": np.array([6.0, 0.0, 4.0, 4.0])}
    mask = problems.get("functions").build(full, REQUEST).mask
    assert mask.tolist() == [True, True, False, True]
    chosen = [
        int(heuristics.score("functions", "round_robin", full, {**REQUEST, "sequence": n}, mask).argmax())
        for n in range(6)
    ]
    assert chosen == [0, 1, 3, 3, 0, 1]


def test_fragmentation_avoids_leaving_an_unusable_rest():
    nodes = {
        "cpu_capacity": np.array([4.0, 4.0]),
        "mem_capacity": np.array([8.0, 8.0]),
        "cpu_deployed": np.array([0.0, 2.9]),
    }
    # One core: the empty node keeps three usable ones, the other one a tenth of a core that nobody wants.
    scores = heuristics.score("functions", "fragmentation", nodes, {"cpu": 1.0, "mem": 1.0}, np.ones(2, bool))
    assert scores[0] > scores[1]


def test_infeasible_nodes_are_never_chosen():
    for name in NAMES:
        scores = heuristics.score("functions", name, NODES, REQUEST, np.array([False, True, False, False]))
        assert scores.argmax() == 1
        assert np.isneginf(scores[[0, 2, 3]]).all()


@pytest.mark.parametrize("name", RULES)
def test_single_and_batch_choose_the_same(name):
    # oracle_greedy's single form knows no scenario: give the batch the bounds it assumes.
    env = make_vec("functions/serverless", 4, 2, load=0.8, r1_range=[1.0, 3.0], r2_range=None)
    env.reset()
    rule = heuristics.batch(name, env)
    scores = np.empty((4, len(env.table)))
    for step in range(120):
        actions = rule(scores).copy()
        if step % 7 == 0:
            for b in range(4):
                single = heuristics.score("functions", name, *env.raw_fields(b), env.buffers.mask[b])
                np.testing.assert_allclose(single, scores[b], rtol=1e-12, atol=1e-15)
                assert scores[b].argmax() == actions[b]
        env.step(actions)


@pytest.mark.parametrize("reward", ["latency_cost", "slo_cost"])
def test_oracle_greedy_takes_the_highest_reward_there_is(reward):
    settings = {"reward": reward, "load": 0.8, "rejection_penalty": 0.0, "horizon": 0}
    env = make_vec("functions/serverless", 1, 0, **settings)
    rule = heuristics.batch("oracle_greedy", env)
    twin = make_vec("functions/serverless", 1, 0, **settings)
    env.reset(options={"starts": [0]})
    twin.reset(options={"starts": [0]})
    for step in range(60):
        chosen = int(rule()[0])
        if step % 6 == 0:
            rewards = {}
            for node in np.flatnonzero(env.buffers.mask[0]):
                for mine, other in zip((*twin.state, *twin.buffers), (*env.state, *env.buffers), strict=True):
                    mine[...] = other
                twin.advance(np.array([node]), HOLD)
                rewards[int(node)] = twin.buffers.reward[0]
            assert rewards[chosen] == max(rewards.values())
            assert chosen == min(node for node, value in rewards.items() if value == max(rewards.values()))
        env.step(np.array([chosen]))


def test_oracle_greedy_refuses_a_reward_it_cannot_look_ahead_with():
    env = make_vec("functions/serverless", 1, 0, reward="math:fsum")
    with pytest.raises(ConfigError, match="oracle_greedy"):
        heuristics.batch("oracle_greedy", env)


def test_round_robin_goes_round_in_a_batch():
    env = make_vec("functions/serverless", 1, 0, nodes=5, load=0.1)
    env.reset()
    rule, chosen = heuristics.batch("round_robin", env), []
    for _ in range(10):
        chosen.append(int(rule()[0]))
        env.step(np.array(chosen[-1:]))
    assert chosen == [0, 1, 2, 3, 4] * 2


def test_an_unknown_rule_is_refused_with_the_known_ones():
    env = make_vec("functions/serverless", 1, 0)
    with pytest.raises(ConfigError, match="warm_first"):
        heuristics.batch("vmagent_spread", env)
    assert env.state.cursor[0, ROW] == 0
