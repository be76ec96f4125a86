"""Random and adversarial steps: the kernels equal the plain definitions, and nothing is lost, doubled or leaked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from sched_env import heuristics, problems
from sched_env.pods import counting
from sched_env.pods.state import (
    ALL_CROWDED,
    ALL_OVER,
    ALL_POSITIONS,
    ALL_UNDER,
    ALL_UNMET,
    COST,
    CPU_MEAN,
    CPU_SHARES,
    HOT,
    MEM_DEPLOYED,
    MOVES_LEFT,
    NEXT,
    OFFERED,
    PODS,
    REQUESTS,
    ROW,
)
from sched_env.pods.tables import PodTrace, offsets
from sched_env.tables import NodeTable
from sched_env.vector import make_vec
from wire.errors import InfeasibleActionError

BATCH = 16
SOAK_STEPS = 62_500  # a million environment steps
STYLES = ("random", "stay", "first", "hottest", "away")


def nasty(seed, windows=60, nodes=5, pods=24):
    """Unequal nodes; pods that come, go, return, grow and are told of without a node; requests of any length."""
    rng = np.random.default_rng(seed)
    there = rng.random((windows, pods)) < 0.8
    there[:, 0] = True
    window, pod = np.nonzero(there)
    rows = pod.size
    counts = rng.integers(0, 6, rows)
    total = int(counts.sum())
    trace = PodTrace(
        window_s=np.arange(windows) * 300.0,
        window_rows=offsets(np.bincount(window, minlength=windows)),
        pod=pod,
        node=rng.integers(-1, nodes, rows),
        cpu_request=rng.choice([0.0, 0.5, 2.0], rows),
        mem_request=rng.choice([0.0, 1.0, 2.0, 5.0], rows),
        cpu_used=np.zeros(rows),
        mem_used=np.zeros(rows),
        row_requests=offsets(counts),
        # Few different times, so that arrivals coincide and ends meet arrivals.
        arrival_offset_s=rng.integers(0, 10, total) * 30.0,
        duration_s=rng.choice([0.0, 30.0, 45.0, 300.0, 900.0], total),
        cpu=rng.choice([0.0, 0.3, 1.0, 4.0], total),
        mem=rng.choice([0.0, 0.5, 1.0, 3.0], total),
        pod_names=tuple(f"p{k}" for k in range(pods)),
    )
    capacity = rng.choice([4.0, 6.0, 10.0], nodes)
    table = NodeTable(
        tuple(f"n{k}" for k in range(nodes)), capacity, rng.choice([8.0, 16.0, 24.0], nodes), np.ones(nodes),
        np.ones(nodes), rng.uniform(0.1, 2.0, nodes),
    )  # fmt: skip
    return trace, table


def make(seed, arrival="serial", batch=BATCH, **keys):
    keys = {"episode_windows": 20, "migration_budget": 0.3, "pod_limit": 9, "price_per_move_usd": 0.5, **keys}
    env = make_vec("pods/deploy", batch, seed, nasty(seed), arrival=arrival, **keys)
    env.reset(seed=seed)
    return env


def choose(env, style, rng):
    mask, hot = env.buffers.mask, env.state.cursor[:, HOT]
    if style == "stay":
        return hot.copy()
    if style == "first":
        return mask.argmax(axis=1)
    if style == "hottest":
        return np.where(mask, env.buffers.candidates[:, :, 9], -1.0).argmax(axis=1)
    drawn = rng.random(mask.shape)
    if style == "away":
        drawn[np.arange(len(hot)), hot] = 1e-9
    return np.where(mask, drawn, -1.0).argmax(axis=1)


def lists(env, b):
    """Read the pods of every node off the lists."""
    members = []
    for n in range(len(env.table)):
        row, rows = int(env.state.head[b, n]), []
        while row >= 0:
            rows.append(row)
            row = int(env.state.links[b, row, NEXT])
        members.append(rows)
    return members


def check(env, b):
    """Hold the invariants, worked out again from the trace and the pods' nodes."""
    window, place = env.placement(b)
    first = int(env.trace.window_rows[window])
    members = lists(env, b)
    assert sorted(row for rows in members for row in rows) == np.flatnonzero(place >= 0).tolist()  # each once
    for n, rows in enumerate(members):
        assert rows == sorted(rows, reverse=True)
        assert (place[rows] == n).all()
        cpu, mem = env.trace.cpu_request[first:][rows], env.trace.mem_request[first:][rows]
        assert env.state.nodes[b, n, MEM_DEPLOYED] == pytest.approx(mem.sum())
        assert env.state.nodes[b, n, CPU_SHARES] == pytest.approx(cpu.sum())
        assert env.state.nodes[b, n, PODS] == len(rows) <= env.rules.pod_limit
        assert mem.sum() <= env.table.mem[n] + 1e-9
        given_out = counting.share(env.table.cpu[n], env.table.mem[n], cpu, mem)
        assert given_out.assigned_cpu.sum() + given_out.remain_cpu == pytest.approx(env.table.cpu[n])
        assert given_out.assigned_mem.sum() + given_out.remain_mem == pytest.approx(env.table.mem[n])
    assert (env.trace.mem_request[first:][np.flatnonzero(place < 0)] > 0.0).all()  # only memory keeps a pod out here
    offered = int(env.state.cursor[b, ROW])
    assert env.state.links[b, offered, OFFERED] == 1
    assert place[offered] == env.state.cursor[b, HOT]
    assert env.buffers.mask[b, place[offered]]
    assert env.state.cursor[b, MOVES_LEFT] >= 0


def compare(env, b):
    whole = env.rebuild(b)
    np.testing.assert_array_equal(env.buffers.candidates[b], whole.candidates)
    np.testing.assert_array_equal(env.buffers.request[b], whole.request)
    np.testing.assert_array_equal(env.buffers.mask[b], whole.mask)


def run(env, style, rng, steps, every):
    for step in range(steps):
        actions = choose(env, style, rng)
        if step % every == 0:
            wrong = actions.copy()
            off = np.flatnonzero(~env.buffers.mask[1])
            wrong[1] = off[0] if off.size else -1
            before = [array.copy() for array in (*env.state, *env.buffers)]
            with pytest.raises(InfeasibleActionError):
                env.step(wrong)
            for was, now in zip(before, (*env.state, *env.buffers), strict=True):
                np.testing.assert_array_equal(was, now)
        env.step(actions)
        assert (env.buffers.feasible > 0).all()
        assert (env.buffers.reward <= 0.0).all()
        if step % every == 0:
            for b in (0, step % env.num_envs):
                check(env, b)
            compare(env, step % env.num_envs)
    assert np.isfinite(env.buffers.metrics).all()
    assert np.isfinite(env.buffers.candidates).all()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**31), arrival=st.sampled_from(["serial", "parallel"]), style=st.sampled_from(STYLES))
def test_nothing_is_lost_doubled_or_overbooked(seed, arrival, style):
    run(make(seed, arrival), style, np.random.default_rng(seed), steps=60, every=12)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**31), arrival=st.sampled_from(["serial", "parallel"]), style=st.sampled_from(STYLES))
def test_every_window_is_counted_as_the_definitions_say(seed, arrival, style):
    env, rng = make(seed, arrival, batch=1), np.random.default_rng(seed)
    env.reset(options={"starts": [0], "park": True})
    counted = 0
    while env.buffers.active[0]:
        window, totals = env.placement(0)[0], env.state.totals[0].copy()
        actions = choose(env, style, rng)
        moved = actions[0] != env.state.cursor[0, HOT]
        env.step(actions)
        if env.placement(0)[0] != window + 1:
            continue  # the same window still, or quiet ones were passed
        counted += 1
        _, place = env.placement(0)
        keys = {"arrival": arrival, "threshold": env.rules.threshold, "under_threshold": env.rules.under_threshold}
        score = counting.score(env.trace, env.table, window + 1, place, **keys)
        added = env.state.totals[0] - totals
        columns = [ALL_OVER, ALL_UNDER, ALL_POSITIONS, ALL_UNMET, ALL_CROWDED, REQUESTS]
        assert added[columns].tolist() == list(score[:6])
        hours = env.table.price_usd_per_hour[score.occupied].sum() / 12.0
        assert added[COST] == pytest.approx(hours + 0.5 * moved)
    assume(counted > 0)


@pytest.mark.soak
@pytest.mark.parametrize("arrival", ["serial", "parallel"])
def test_a_million_steps(arrival):
    for seed, style in enumerate(STYLES):
        env = make(seed, arrival)
        run(env, style, np.random.default_rng(seed), steps=SOAK_STEPS // (2 * len(STYLES)), every=100)


def test_no_capacity_leaks_over_ten_thousand_windows():
    keys = {
        "pods_per_node": 4,
        "requests_per_pod": 2,
        "trace_windows": 10_100,
        "episode_windows": 10_000,
        "churn": 0.05,
    }
    env = make_vec("pods/deploy", 1, 0, nodes=3, load=0.6, migration_budget=0.3, **keys)
    env.reset(options={"starts": [0], "park": True})
    rng, used, windows = np.random.default_rng(0), [], 0
    while env.buffers.active[0]:
        mask = env.buffers.mask
        env.step(np.where(mask, rng.random(mask.shape), -1.0).argmax(axis=1))
        window, place = env.placement(0)
        if window == windows:
            continue
        windows = window
        node = env.state.nodes[0]
        assert (place >= 0).all()
        assert node[:, PODS].sum() == 12
        assert node[:, MEM_DEPLOYED].sum() == pytest.approx(12 * 12.5)
        used.append(node[:, CPU_MEAN].sum())
        asked = env.trace.cpu_used[env.trace.window_rows[window] : env.trace.window_rows[window + 1]]
        assert used[-1] == pytest.approx(asked.sum())  # this window's requests, and none of those before
    assert env.buffers.metrics[0, env.METRICS.index("windows")] == 10_000
    assert (np.diff(used) < 0).mean() == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("arrival", ["serial", "parallel"])
@pytest.mark.parametrize("name", [name for name in problems.get("pods").heuristics if name != "random_feasible"])
def test_a_heuristic_chooses_alike_for_one_decision_and_for_a_batch(name, arrival):
    env = make(3, arrival, batch=4)
    rule, scores = heuristics.batch(name, env), np.empty((4, env.width))
    for step in range(40):
        actions = rule(scores).copy()
        b = step % 4
        alone = heuristics.score("pods", name, *env.raw_fields(b), env.buffers.mask[b])
        np.testing.assert_array_equal(alone, scores[b])
        assert alone.argmax() == actions[b]
        env.step(actions)
