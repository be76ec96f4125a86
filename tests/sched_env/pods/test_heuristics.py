from __future__ import annotations

import numpy as np
import pytest

from sched_env import heuristics, problems
from sched_env.pods.counting import score
from sched_env.rollout import run_episodes
from sched_env.vector import make_vec

NODES = {
    "cpu_capacity": np.full(4, 100.0),
    "mem_capacity": np.full(4, 100.0),
    "here": np.array([1.0, 0.0, 0.0, 0.0]),
    "cpu_mean": np.array([85.0, 20.0, 30.0, 60.0]),
    "cpu_max": np.array([95.0, 60.0, 35.0, 65.0]),
    "mem_mean": np.array([50.0, 20.0, 30.0, 40.0]),
    "mem_max": np.array([55.0, 25.0, 80.0, 45.0]),
    "mem_deployed": np.array([50.0, 70.0, 60.0, 40.0]),
    "pods": np.full(4, 10.0),
}
POD = {"cpu": 5.0, "mem": 5.0, "cpu_mean": 10.0, "cpu_max": 12.0, "mem_mean": 5.0, "mem_max": 6.0}
RULES = ("no_migration", "descheduler", "hottest_to_coolest", "best_single_move")


def best(name, nodes=NODES, pod=POD):
    mask = problems.get("pods").build(nodes, pod).mask
    return int(heuristics.score("pods", name, nodes, pod, mask).argmax())


def test_every_required_rule_is_there():
    assert set(problems.get("pods").heuristics) == {"random_feasible", *RULES}


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("no_migration", 0),
        ("descheduler", 1),  # 20 % of cpu and memory, more than 10 points below the means of 49 and 35
        ("hottest_to_coolest", 1),  # a peak of 72 %; node 2 would reach 86 % of its memory
        ("best_single_move", 1),  # without exact figures, as hottest_to_coolest
    ],
)
def test_a_rule_chooses_what_its_definition_says(name, node):
    assert best(name) == node


def test_the_descheduler_leaves_a_node_alone_that_is_not_far_above_the_mean():
    even = {
        **NODES,
        "cpu_mean": np.array([55.0, 20.0, 60.0, 60.0]),
        "mem_mean": np.array([40.0, 20.0, 40.0, 40.0]),
    }
    assert best("descheduler", even) == 0


def test_the_descheduler_needs_a_node_that_is_low_in_both_and_stays_low():
    assert best("descheduler", {**NODES, "mem_mean": np.array([50.0, 45.0, 45.0, 40.0])}) == 0
    assert best("descheduler", pod={**POD, "cpu_mean": 45.0}) == 0


def test_hottest_to_coolest_stays_when_it_is_cooler_at_home():
    assert best("hottest_to_coolest", pod={**POD, "cpu_max": 50.0, "mem_max": 50.0}) == 0


def test_best_single_move_goes_by_the_exact_penalty_when_it_is_known():
    nodes = {**NODES, "penalty": np.array([0.6, 0.3, 0.1, 0.2])}
    assert best("best_single_move", nodes) == 2
    ties = {**NODES, "penalty": np.full(4, 0.5)}
    assert best("best_single_move", ties) == 1  # counts are equal: the coolest


def test_infeasible_nodes_are_never_chosen():
    for name in problems.get("pods").heuristics:
        scores = heuristics.score("pods", name, NODES, POD, np.array([True, False, False, True]))
        assert np.isneginf(scores[[1, 2]]).all()


@pytest.mark.parametrize("arrival", ["serial", "parallel"])
def test_the_penalty_of_a_move_is_what_counting_says_of_the_window_after_it(arrival):
    env = make_vec("pods/deploy", 1, 2, n_node=4, pods_per_node=5, load=0.8, trace_windows=60, arrival=arrival)
    env.reset(seed=2)
    rng = np.random.default_rng(0)
    keys = {"arrival": arrival, "threshold": env.rules.threshold, "under_threshold": env.rules.under_threshold}
    for _ in range(10):
        window, place = env.placement(0)
        nodes, pod = env.raw_fields(0)
        row, here = int(env.state.cursor[0, 1]), int(nodes["here"].argmax())
        for n in range(4):
            moved = place.copy()
            moved[row] = n
            counted = score(env.trace, env.table, window, moved, **keys)
            weights = 0.6 * counted.over + 0.4 * counted.under + counted.unmet
            price = 0.0 if n == here else 0.01 * (pod["cpu"] + pod["mem"])
            assert nodes["penalty"][n] == pytest.approx((weights + price) / 4)
        env.step(rng.choice(np.flatnonzero(env.buffers.mask[0]), 1))


def test_rules_that_look_do_better_than_staying():
    starts = list(range(0, 400, 50))
    returns = {name: np.mean([e["return"] for e in run_episodes("pods/deploy", name, starts)]) for name in RULES}
    assert returns["best_single_move"] > returns["hottest_to_coolest"] > returns["no_migration"]
    assert returns["descheduler"] > returns["no_migration"]
