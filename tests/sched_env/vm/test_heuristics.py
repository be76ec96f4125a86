"""Heuristics of vm: single and batched agree, and each does what its name says."""

from __future__ import annotations

import numpy as np
import pytest

from sched_env import heuristics, problems
from sched_env.vector import make_vec
from wire.errors import ConfigError

DETERMINISTIC = [name for name in problems.get("vm").heuristics if name != "random_feasible"]


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_single_and_batch_agree_bit_for_bit(name):
    env = make_vec("vm/recovering", 4, seed=2, servers=4)
    env.reset()
    rule, mixed = heuristics.batch(name, env), heuristics.batch("random_feasible", env)
    scores = np.empty((4, env.width))
    for step in range(150):
        actions = rule(scores).copy()
        for b in range(4):
            candidates, request = env.raw_fields(b)
            single = heuristics.score("vm", name, candidates, request, env.buffers.mask[b])
            np.testing.assert_array_equal(single, scores[b])
            assert single.argmax() == actions[b]
        assert rule().tolist() == actions.tolist()
        env.step(actions if step % 3 else mixed())


def decide(name, free, cpu, mem, double=0.0):
    """Choose among halves given as (cpu, mem) pairs, two a server."""
    free = np.array(free, float)
    sibling = np.arange(len(free)) ^ 1
    candidates = {
        "cpu_free": free[:, 0],
        "mem_free": free[:, 1],
        "other_cpu_free": free[sibling, 0],
        "other_mem_free": free[sibling, 1],
    }
    request = {"cpu": cpu, "mem": mem, "double": double}
    mask = problems.get("vm").build(candidates, request).mask
    return int(heuristics.score("vm", name, candidates, request, mask).argmax())


CLUSTER = [(40, 90), (40, 90), (10, 30), (40, 90), (20, 20), (8, 60)]


@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("first_fit", 0),
        ("best_fit", 5),  # 8 cores left of 8: nothing of the scarcer resource is left
        ("worst_fit", 0),
        ("vmagent_spread", 0),
        ("most_allocated", 4),
        ("least_allocated", 0),
        ("numa_best_fit", 5),  # the fuller half of the fullest server
        ("numa_balance", 3),  # evens out the server whose halves differ most
        ("numa_first_fit", 0),
        ("dot_product", 0),
        ("dot_product_tight", 2),
    ],
)
def test_each_rule_does_what_its_name_says(name, action):
    # 8 cores, 10 GiB: half 5 becomes full, half 2 nearly.
    assert decide(name, CLUSTER, 8.0, 10.0) == action


def test_balanced_allocation_evens_out_cpu_and_memory():
    assert decide("balanced_allocation", [(40, 45), (40, 45), (20, 90), (20, 90)], 20.0, 1.0) == 0
    assert decide("balanced_allocation", [(40, 45), (40, 45), (20, 90), (20, 90)], 1.0, 45.0) == 2


def test_a_split_request_is_judged_on_both_halves_except_by_upstreams_rule():
    free = [(40, 90), (12, 30), (30, 60), (30, 60)]
    assert decide("best_fit", free, 20.0, 40.0, double=1.0) == 0
    assert decide("worst_fit", free, 20.0, 40.0, double=1.0) == 2
    assert decide("vmagent_spread", free, 20.0, 40.0, double=1.0) == 0  # looks at half 0 only


def test_fragmentation_keeps_room_for_typical_requests():
    # Half 1 has room for exactly one small VM; taking that one leaves nothing unusable.
    assert decide("fragmentation", [(40, 90), (1, 2), (40, 90), (40, 90)], 1.0, 2.0) == 1


def test_random_feasible_is_numpys_own_stream_of_seed_and_start():
    env = make_vec("vm/recovering", 3, seed=0, servers=2)
    env.reset(options={"starts": [1000, 2000, 3000], "park": True})
    rule = heuristics.batch("random_feasible", env, seed=77)
    streams = [np.random.default_rng([77, start]) for start in (1000, 2000, 3000)]
    for _ in range(60):
        scores = np.empty((3, env.width))
        actions = rule(scores)
        for b in np.flatnonzero(env.buffers.active):
            valid = np.flatnonzero(env.buffers.mask[b])
            assert actions[b] == valid[streams[b].integers(len(valid))]
            assert scores[b].argmax() == actions[b]
        env.step(actions)


def test_random_scores_come_from_the_generator_given():
    mask = np.array([True, False, True])
    state = {"cpu_free": np.ones(3)}
    scores = heuristics.score("vm", "random_feasible", state, {}, mask, np.random.default_rng(3))
    assert scores[1] == -np.inf
    np.testing.assert_array_equal(scores[[0, 2]], np.random.default_rng(3).random(3)[[0, 2]])


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(ConfigError, match="first_fit, best_fit"):
        problems.get("vm").rule("fist_fit")
    with pytest.raises(ConfigError, match="vm, pods, functions, workflow, jobs"):
        problems.get("ships")
