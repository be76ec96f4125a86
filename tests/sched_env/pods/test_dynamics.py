"""Windows, offers, budget and accounts, against hand-made numbers."""

from __future__ import annotations

import numpy as np
import pytest

from sched_env.pods.state import HOT, MEM_DEPLOYED, MOVES_LEFT, ROW
from sched_env.vector import make_vec
from wire.errors import ConfigError


def make(trace, nodes, **keys):
    env = make_vec("pods/deploy", 1, trace=(trace, nodes), **keys)
    env.reset(options={"starts": [0], "park": True})
    return env


def offered(env):
    window, place = env.placement(0)
    row = int(env.state.cursor[0, ROW])
    assert place[row] == env.state.cursor[0, HOT]
    return env.trace.pod_names[env.trace.pod[env.trace.window_rows[window] + row]]


def hosts(env):
    window, place = env.placement(0)
    pods = env.trace.pod[env.trace.window_rows[window] : env.trace.window_rows[window + 1]]
    return {env.trace.pod_names[pod]: int(n) for pod, n in zip(pods, place, strict=True)}


def sheet(env):
    return dict(zip(env.METRICS, env.buffers.metrics[0].tolist(), strict=True))


def pod(name, node, *cpu, mem=1.0, request_mem=1.0):
    return name, node, 1.0, request_mem, [(each, mem) for each in cpu]


def test_pods_of_the_hottest_node_are_offered_largest_first_and_each_once(trace_of, cluster):
    window = [pod("a", 0, 5.0), pod("b", 0, 4.0), pod("c", 1, 3.0), pod("d", 1, 7.0), pod("e", 2, 1.0)]
    env = make(trace_of(window, window), cluster((10, 10), (10, 10), (10, 10)), migration_budget=1.0)
    seen = []
    while env.buffers.active[0]:
        seen.append(offered(env))
        env.step([int(env.state.cursor[0, HOT])])
    assert seen == ["d", "c", "a", "b"]  # 10 of 10 cores on node 1, 9 on node 0; node 2 is not stressed


def test_with_offers_all_pods_of_calm_nodes_follow_the_coolest_node_first(trace_of, cluster):
    window = [pod("a", 0, 5.0), pod("b", 0, 4.0), pod("c", 1, 3.0), pod("d", 2, 1.0), pod("e", 2, 1.5)]
    env = make(trace_of(window, window), cluster((10, 10), (10, 10), (10, 10)), migration_budget=1.0, offers="all")
    seen = []
    while env.buffers.active[0]:
        seen.append(offered(env))
        env.step([int(env.state.cursor[0, HOT])])
    assert seen == ["a", "b", "e", "d", "c"]  # node 0 is stressed; then node 2 (2.5 of 10 cores), node 1 (3)


def test_with_offers_all_a_cluster_that_is_never_stressed_can_be_put_on_fewer_nodes(trace_of, cluster):
    window = [pod("a", 0, 2.0), pod("b", 1, 3.0)]
    calm = trace_of(window, window, window), cluster((10, 10), (10, 10))
    with pytest.raises(ConfigError, match="offers: all"):
        make(*calm)
    env = make(*calm, offers="all", migration_budget=1.0)
    assert offered(env) == "a"
    env.step([1])
    while env.buffers.active[0]:
        env.step([int(env.state.cursor[0, HOT])])
    assert hosts(env) == {"a": 1, "b": 1}
    assert sheet(env)["migrations"] == 1
    # Both windows that are counted are paid for one node instead of two, and the move.
    assert sheet(env)["cost_usd"] == pytest.approx(2 * 300 / 3600 + 0.01)


def test_a_node_that_is_no_longer_stressed_keeps_its_other_pods(trace_of, cluster):
    window = [pod("a", 0, 5.0), pod("b", 0, 4.0), pod("c", 1, 1.0)]
    env = make(trace_of(window, window, window), cluster((10, 10), (10, 10)), migration_budget=1.0)
    assert offered(env) == "a"
    env.step([1])
    assert sheet(env)["windows"] == 2  # nothing more to decide in any window
    assert hosts(env) == {"a": 1, "b": 0, "c": 1}
    assert sheet(env)["sla_violation_rate"] == 0.0


def test_a_node_that_a_move_makes_too_hot_is_offered_too_but_not_the_same_pod_again(trace_of, cluster):
    window = [pod("a", 0, 5.0), pod("b", 0, 4.0), pod("c", 1, 6.0)]
    env = make(trace_of(window, window), cluster((10, 10), (10, 10)), migration_budget=1.0)
    env.step([1])  # a: 5 + 6 on node 1
    assert offered(env) == "c"
    env.step([0])
    assert offered(env) == "b"  # 4 + 6 on node 0
    env.step([0])
    assert not env.buffers.active[0]


def test_the_budget_ends_the_offers_of_a_window(trace_of, cluster):
    window = [pod(name, 0, 5.0) for name in "abcdef"]
    env = make(trace_of(window, window, window), cluster(*[(10, 10)] * 6), migration_budget=0.4)
    assert env.state.cursor[0, MOVES_LEFT] == 2
    assert env.buffers.request[0, 10] == 2
    env.step([0])  # to stay costs nothing of it
    assert env.state.cursor[0, MOVES_LEFT] == 2
    env.step([1])
    assert env.placement(0)[0] == 0
    env.step([2])
    assert env.placement(0)[0] == 1
    assert env.state.cursor[0, MOVES_LEFT] == 2


def test_departures_free_what_they_held_and_arrivals_come_where_the_trace_has_them(trace_of, cluster):
    trace = trace_of(
        [pod("a", 0, 9.0, request_mem=6.0), pod("b", 1, 1.0, request_mem=6.0)],
        [pod("a", 0, 9.0, request_mem=6.0), pod("c", 1, 1.0, request_mem=3.0)],
        [pod("a", 0, 9.0, request_mem=6.0), pod("b", 1, 1.0, request_mem=6.0), pod("c", 1, 1.0, request_mem=3.0)],
        [pod("a", 0, 9.0, request_mem=6.0)],
    )
    env = make(trace, cluster((10, 10), (10, 10)))
    assert env.buffers.mask[0].tolist() == [True, False]
    env.step([0])
    assert hosts(env) == {"a": 0, "c": 1}
    assert env.buffers.mask[0].tolist() == [True, True]  # b has left
    env.step([1])
    # a was moved, c stays; b, back again, no longer fits where the trace has it.
    assert hosts(env) == {"a": 1, "b": 0, "c": 1}
    env.step([1])
    env.step([1])
    assert not env.buffers.active[0]
    assert (sheet(env)["displaced"], sheet(env)["unplaced"]) == (1, 0)


def test_a_pod_that_fits_nowhere_gets_nothing_and_is_tried_again(trace_of, cluster):
    big = pod("b", -1, 1.0, 1.0, request_mem=8.0)
    trace = trace_of([pod("a", 0, 9.0, request_mem=6.0)], [pod("a", 0, 9.0, request_mem=6.0), big], [big], [big])
    env = make(trace, cluster((10, 10)))
    env.step([0])
    assert hosts(env) == {"a": 0, "b": -1}
    env.step([0])
    assert hosts(env)["b"] == 0
    metrics = sheet(env)
    assert (metrics["unplaced"], metrics["performance_violations"]) == (1, 2)
    assert metrics["performance_violation_rate"] == pytest.approx(2 / 7)


def test_the_pod_limit_is_held(trace_of, cluster):
    window = [pod("a", 0, 9.0), pod("b", 1, 1.0), pod("c", 1, 1.0), pod("d", 2, 1.0)]
    env = make(trace_of(window, window), cluster(*[(10, 100)] * 3), pod_limit=2)
    assert env.buffers.mask[0].tolist() == [True, False, True]


def test_a_request_that_outgrows_its_node_is_moved_by_the_cluster(trace_of, cluster):
    small, big = pod("b", 0, 9.0, request_mem=2.0), pod("b", 0, 9.0, request_mem=7.0)
    a = pod("a", 0, 1.0, request_mem=5.0)
    env = make(trace_of([a, small], [a, big], [a, big]), cluster((10, 10), (10, 10)))
    env.step([0])
    env.step([0])
    assert hosts(env) == {"a": 0, "b": 1}
    assert env.state.nodes[0, :, MEM_DEPLOYED].tolist() == [5.0, 7.0]


def test_reward_and_metrics_of_a_window_by_hand(trace_of, cluster):
    first = [pod("a", 0, 9.0), pod("b", 1, 1.0)]
    second = [pod("a", 0, 9.0, 8.5, 3.0, mem=3.0), pod("b", 1, 1.0, 6.0, mem=3.0)]
    keys = {
        "weight_over": 2.0,
        "weight_under": 3.0,
        "weight_unmet": 5.0,
        "weight_moved": 7.0,
        "price_per_move_usd": 0.25,
    }
    env = make(trace_of(first, second), cluster((10, 10), (10, 20)), **keys)
    _, reward, _, truncated, _ = env.step([1])
    # On node 1: 10, 14.5 and 3 cores, 6, 6 and 3 GiB of 20: two over, one under (memory: 3 < 4).
    # 27.5 cores are asked of 10 for the whole window: 1 and 3 are served, then 6; 8.5 and 9 are not.
    assert truncated[0]
    assert reward[0] == pytest.approx(-(7.0 * 2.0 + 2.0 * 2 + 3.0 * 1 + 5.0 * 2) / 2)
    assert sheet(env) == {
        "return": reward[0], "steps": 1, "placed": 1, "requests": 1, "sla_violation_rate": 2 / 3,
        "cost_usd": pytest.approx(1 / 12 + 0.25), "wait_s": 0.0, "performance_violation_rate": 2 / 5, "migrations": 1,
        "resource_violations": 2, "positions": 3, "performance_violations": 2, "crowded_requests": 5,
        "dealt_requests": 5, "under_rate": 1 / 3, "windows": 1, "displaced": 0, "unplaced": 0,
    }  # fmt: skip


def test_parallel_counts_what_overlaps(trace_of, cluster):
    a = ("a", 0, 1.0, 1.0, [(4.0, 1.0, 0.0, 100.0), (5.0, 1.0, 100.0, 100.0), (2.0, 1.0, 200.0, 100.0)])
    b = ("b", 0, 1.0, 1.0, [(3.0, 1.0, 50.0, 200.0), (4.0, 1.0, 150.0, 200.0)])
    for arrival, expected in (("serial", (1, 3)), ("parallel", (2, 5))):
        env = make(trace_of([a, b], [a, b]), cluster((10, 10)), arrival=arrival, migration_budget=0.5)
        env.step([0])
        env.step([0])
        metrics = sheet(env)
        assert (metrics["resource_violations"], metrics["positions"]) == expected


def test_an_episode_begins_where_there_is_something_to_decide(trace_of, cluster):
    quiet, hot = [pod("a", 0, 1.0)], [pod("a", 0, 9.0)]
    env = make(trace_of(quiet, quiet, hot, quiet, hot, quiet), cluster((10, 10), (10, 10)))
    assert (env.placement(0)[0], env.buffers.start[0]) == (2, 0)
    env.step([0])
    assert env.placement(0)[0] == 4  # window 3 is counted, and passed
    with pytest.raises(ConfigError, match="from window 5 on"):
        env.reset(options={"starts": [5]})
    with pytest.raises(ConfigError, match="beyond the trace"):
        env.reset(options={"starts": [6]})


def test_a_trace_without_stress_or_with_unknown_nodes_is_refused(trace_of, cluster):
    with pytest.raises(ConfigError, match="ever above the threshold"):
        make(trace_of([pod("a", 0, 1.0)], [pod("a", 0, 1.0)]), cluster((10, 10)))
    with pytest.raises(ConfigError, match="on node 3"):
        make(trace_of([pod("a", 3, 9.0)], [pod("a", 3, 9.0)]), cluster((10, 10)))


@pytest.mark.parametrize(("key", "windows", "steps"), [("episode_windows", 3, None), ("horizon", None, 3)])
def test_an_episode_is_cut_by_windows_or_by_decisions(trace_of, cluster, key, windows, steps):
    env = make(trace_of(*[[pod("a", 0, 9.0)]] * 9), cluster((10, 10)), **{key: 3})
    while env.buffers.active[0]:
        env.step([0])
    assert env.buffers.ended[0] == 2
    assert sheet(env)["windows"] == (windows or 3)
    assert sheet(env)["steps"] == (steps or 3)
    assert np.isfinite(env.buffers.final_candidates).all()


def test_a_cluster_whose_pods_all_fit_nowhere_ends_as_any_other(trace_of, cluster):
    hot, giant = [pod("a", 0, 9.0), pod("b", 1, 1.0)], [pod("a", 0, 9.0, request_mem=99.0)]
    env = make(trace_of(hot, giant), cluster((10, 10), (10, 10)))
    env.step([0])
    assert not env.buffers.active[0]
    assert (sheet(env)["unplaced"], sheet(env)["performance_violation_rate"], sheet(env)["cost_usd"]) == (1, 1.0, 0.0)
    assert not env.buffers.final_mask.any()
    assert np.isfinite(env.buffers.final_candidates).all()


def test_a_decision_is_taken_at_the_end_of_its_window(trace_of, cluster):
    env = make(trace_of([pod("a", 0, 9.0)], [pod("a", 0, 9.0)], [pod("a", 0, 9.0)]), cluster((10, 10)))
    assert env.buffers.time_s[0] == 300.0
    env.step([0])
    assert env.buffers.time_s[0] == 600.0
