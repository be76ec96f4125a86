"""Bounds of pods: no sequence of moves of a small cluster leaves fewer violations, and plans do what they promise."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sched_env import problems, rollout
from sched_env.pods import bounds as pods
from sched_env.pods.counting import Loads, above, score
from sched_env.pods.tables import PodTrace, offsets
from sched_env.tables import NodeTable
from sched_env.vector import make_vec
from wire.errors import ConfigError

NODES = NodeTable(("a", "b", "c"), np.array([10.0, 10.0, 6.0]), np.full(3, 12.0), np.ones(3), np.ones(3), np.ones(3))
PODS, WINDOWS = 5, 4
# For each pod: memory it asks for, its node, and the windows it is there; for each pod and window: two requests.
POD = st.tuples(st.integers(2, 5), st.integers(0, 2), st.sampled_from([(0, 4), (0, 4), (0, 4), (1, 4), (0, 2), (2, 4)]))
CASES = st.tuples(
    st.lists(POD, min_size=PODS, max_size=PODS),
    st.lists(st.integers(0, 6), min_size=2 * PODS * WINDOWS, max_size=2 * PODS * WINDOWS),
    st.booleans(),
)


def trace_of(case, spacing_s=0.0) -> PodTrace:
    shapes, sizes, grows = case
    rows = [
        (window, p) for window in range(WINDOWS) for p, (_, _, (first, stop)) in enumerate(shapes)
        if first <= window < stop
    ]  # fmt: skip
    demand = np.array(sizes, float).reshape(PODS, WINDOWS, 2)
    requests = len(rows) * 2
    return PodTrace(
        window_s=np.arange(WINDOWS) * 300.0,
        window_rows=offsets([sum(w == window for w, _ in rows) for window in range(WINDOWS)]),
        pod=[p for _, p in rows],
        node=[shapes[p][1] for _, p in rows],
        cpu_request=np.ones(len(rows)),
        # A pod whose memory grows may push others off its node.
        mem_request=[float(shapes[p][0] + (grows and p == 0 and w >= 2) * 4) for w, p in rows],
        cpu_used=np.zeros(len(rows)),
        mem_used=np.zeros(len(rows)),
        row_requests=offsets([2] * len(rows)),
        arrival_offset_s=np.concatenate([np.array([0.0, 150.0]) + spacing_s * (p % 3) for _, p in rows]),
        duration_s=np.full(requests, 150.0),
        cpu=np.concatenate([demand[p, w] for w, p in rows]),
        mem=np.full(requests, 0.5),
        pod_names=tuple("pqrst"),
    )


def environment(case, spacing_s=0.0, **keys):
    assume(all(any(first <= w < stop for _, _, (first, stop) in case[0]) for w in range(WINDOWS)))
    try:
        env = make_vec("pods/deploy", 1, trace=(trace_of(case, spacing_s), NODES), episode_windows=WINDOWS, **keys)
        env.reset()
    except ConfigError:  # no node is ever stressed: nothing to decide
        assume(False)
    return env


def fewest_by_trying(env) -> float:
    """Play every sequence of actions; return the fewest violations."""
    best = np.inf
    pending = [[]]
    while pending:
        prefix = pending.pop()
        env.reset(options={"starts": [0], "park": True})
        infos = {}
        for action in prefix:
            *_, infos = env.step([action])
        if env.buffers.active[0]:
            pending += [[*prefix, int(action)] for action in np.flatnonzero(env.buffers.mask[0].copy())]
        else:
            best = min(best, float(infos["episode"]["resource_violations"][0]))
    return best


@settings(deadline=None, max_examples=40)
@given(CASES, st.sampled_from([0.2, 0.4]))
def test_no_sequence_of_moves_leaves_fewer_violations(case, budget):
    env = environment(case, migration_budget=budget)
    (bound,) = pods.of_starts(env, [0])
    assert problems.get("pods").bound_metric(env.scenario) == "resource_violations"
    assert bound <= fewest_by_trying(env)


@settings(deadline=None, max_examples=40)
@given(CASES, st.sampled_from([0.0, 20.0, 60.0]))
def test_no_sequence_of_moves_leaves_fewer_violations_where_requests_meet_as_they_come(case, spacing_s):
    env = environment(case, spacing_s, arrival="parallel")
    assert pods.of_starts(env, [0])[0] <= fewest_by_trying(env)


@settings(deadline=None, max_examples=25)
@given(CASES, st.sampled_from([0.0, 20.0, 60.0]), st.integers(1, 3))
def test_a_plan_where_requests_meet_as_they_come_is_the_best_of_all_placements(case, spacing_s, moves):
    env = environment(case, spacing_s, arrival="parallel")
    env.reset(options={"starts": [0]})
    first, _ = env.placement(0)
    for number, each in enumerate(pods.windows(env, 0), first + 1):
        window = each._replace(moves=moves)
        left = [
            score(env.trace, NODES, number, place, arrival="parallel").over for place in allowed_places(window, moves)
        ]
        found = pods.plan(env, window, 30.0)
        assert found.violations == found.bound == min(left)


@settings(deadline=None, max_examples=40)
@given(CASES, st.sampled_from(["serial", "parallel"]), st.sampled_from([0.2, 0.4]))
def test_what_is_seen_without_a_program_is_what_the_program_says(case, arrival, budget):
    env = environment(case, 20.0, arrival=arrival, migration_budget=budget)
    windows = pods.windows(env, 0)
    least = [pods.plan(env, window).bound for window in windows]
    assert not any(bound for bound, window in zip(least, windows, strict=True) if pods.avoidable(env, window))
    assert pods.of_starts(env, [0, 0]) == [sum(least)] * 2


def test_instants_that_are_left_out_leave_the_bound_valid(monkeypatch):
    keys = {"nodes": 3, "pods_per_node": 4, "load": 0.8, "episode_windows": 3, "trace_windows": 20}
    env = make_vec("pods/deploy", 1, arrival="parallel", **keys)
    (bound,) = pods.of_starts(env, [0])
    assert bound > 0  # and it says something
    monkeypatch.setattr(pods, "MOST_INSTANTS", 5)
    assert pods.of_starts(env, [0])[0] <= bound
    for name in problems.get("pods").heuristics:
        (episode,) = rollout.run_episodes("pods/deploy", name, [0], arrival="parallel", **keys)
        assert episode["resource_violations"] >= bound


def test_where_all_requests_come_at_once_both_ways_to_count_have_one_bound():
    trace = trace_of(([(3, 0, (0, 4))] * PODS, [5] * (2 * PODS * WINDOWS), False))
    both = [
        pods.of_starts(make_vec("pods/deploy", 1, trace=(trace, NODES), episode_windows=WINDOWS, arrival=way), [0])
        for way in ("serial", "parallel")
    ]
    assert both[0] == both[1]
    assert both[0][0] > 0


def allowed_places(window, moves):
    """Yield all placements within the moves and the memory."""
    begun = window.begun_on >= 0
    for place in itertools.product(*[range(3) if here else range(-1, 3) for here in begun]):
        chosen = np.array(place)
        held = np.bincount(chosen[chosen >= 0], window.mem_request[chosen >= 0], 3)
        if (chosen[begun] != window.begun_on[begun]).sum() <= moves and (held <= NODES.mem).all():
            yield chosen


@settings(deadline=None, max_examples=40)
@given(CASES, st.integers(1, 3))
def test_a_plan_is_the_best_of_all_placements_within_the_moves(case, moves):
    env = environment(case)
    for each in pods.windows(env, 0):
        window = each._replace(moves=moves)
        found = pods.plan(env, window, 30.0)
        begun = window.begun_on >= 0
        best = min(violations(window, place) for place in allowed_places(window, moves))
        assert found.violations == found.bound == best
        assert violations(window, found.place) == best
        assert (found.place[begun] != window.begun_on[begun]).sum() <= moves


def violations(window, place) -> int:
    return sum(
        above(Loads(window.cpu[place == n].sum(axis=0), window.mem[place == n].sum(axis=0)), NODES.cpu[n], 12.0, 0.8)
        for n in range(3)
    )


def test_no_rule_beats_the_bound_on_a_generated_trace():
    keys = {"nodes": 4, "pods_per_node": 6, "load": 0.75, "episode_windows": 6, "trace_windows": 60}
    env = make_vec("pods/deploy", 1, **keys)
    limits = pods.of_starts(env, [0, 20])
    assert max(limits) > 0  # and it says something
    for name in problems.get("pods").heuristics:
        for episode, limit in zip(rollout.run_episodes("pods/deploy", name, [0, 20], **keys), limits, strict=True):
            assert episode["resource_violations"] >= limit


def test_a_program_that_stops_after_its_branches_is_still_valid(monkeypatch):
    env = make_vec("pods/deploy", 1, nodes=4, pods_per_node=6, load=0.75, episode_windows=6, trace_windows=60)
    windows = pods.windows(env, 0)
    proved = [pods.plan(env, window, 60.0) for window in windows]
    monkeypatch.setattr(pods, "BRANCHES", 1)
    stopped = [pods.plan(env, window, 60.0) for window in windows]
    assert any(short.bound < short.violations for short in stopped)  # some were not finished
    for short, full in zip(stopped, proved, strict=True):
        assert short.bound <= full.violations <= short.violations


def test_a_program_without_time_is_still_valid():
    env = make_vec("pods/deploy", 1, trace_windows=30, load=0.75)
    window = pods.windows(env, 0)[0]
    stopped = pods.plan(env, window, 0.0)
    assert 0 <= stopped.bound <= pods.plan(env, window, 60.0).bound


def test_where_no_bound_is_known_none_is_claimed():
    assert pods.of_starts(make_vec("pods/deploy", 1, trace_windows=30, load=0.7, horizon=5), [0]) == [None]
    large = make_vec("pods/deploy", 1, nodes=31, pods_per_node=2, trace_windows=10, load=0.8)
    assert pods.of_starts(large, [0]) == [0.0]
    with pytest.raises(ConfigError, match="one of pods"):
        pods.of_starts(make_vec("vm/fading", 1), [0])
