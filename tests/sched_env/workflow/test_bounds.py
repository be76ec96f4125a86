"""Bounds of workflows against brute force: every assignment, in every order that respects the edges."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sched_env import problems
from sched_env.rollout import run_episodes
from sched_env.tables import NodeTable
from sched_env.vector import make_vec
from sched_env.workflow import bounds
from sched_env.workflow.tables import Dag
from wire.errors import ConfigError


def dag(runtime_s, edges=(), mb=(), cpu=1.0, mem=1.0, input_mb=0.0):
    size = len(runtime_s)
    spread = {name: np.broadcast_to(v, size).astype(float) for name, v in (("cpu", cpu), ("mem", mem))}
    outside = np.broadcast_to(input_mb, size).astype(float)
    pairs = np.array(edges, np.int64).reshape(-1, 2)
    return Dag(
        name="w", runtime_s=np.array(runtime_s, float), edges=pairs, edge_mb=np.array(mb), input_mb=outside, **spread
    )


def nodes(cpu=(2.0, 1.0), mem=(4.0, 4.0), net=(1.0, 2.0), speed=(1.0, 2.0)):
    count = len(cpu)
    return NodeTable(
        names=tuple(f"n{n}" for n in range(count)), cpu=np.array(cpu), mem=np.array(mem), net=np.array(net),
        disk=np.ones(count), price_usd_per_hour=np.ones(count), speed=np.array(speed),
    )  # fmt: skip


def earliest(flow, table, order, where):
    """Return the makespan when tasks are put, in this order, as early as possible on their nodes."""
    placed = {}
    for task in order:
        n = where[task]
        run, ready = flow.runtime_s[task] / table.speed[n], flow.input_mb[task] / table.net[n]
        for (parent, child), mb in zip(flow.edges.tolist(), flow.edge_mb, strict=True):
            if child == task:
                m, _, end = placed[parent]
                ready = max(ready, end + (mb / min(table.net[n], table.net[m]) if n != m else 0.0))
        there = [(t, begin, end) for t, (m, begin, end) in placed.items() if m == n]
        for begin in sorted({ready, *(end for _, _, end in there if end > ready)}):
            moments = [begin, *(b for _, b, _ in there if begin < b < begin + run)]
            crowded = False
            for moment in moments:
                with_it = [task, *(t for t, b, e in there if b <= moment < e)]
                crowded |= flow.cpu[with_it].sum() > table.cpu[n] or flow.mem[with_it].sum() > table.mem[n]
            if not crowded:
                placed[task] = (n, begin, begin + run)
                break
    return max(end for _, _, end in placed.values())


def brute(flow, table):
    size, count = len(flow), len(table)
    edges = {tuple(edge) for edge in flow.edges.tolist()}
    orders = [
        order
        for order in itertools.permutations(range(size))
        if all(order.index(parent) < order.index(child) for parent, child in edges)
    ]
    fits = [
        [n for n in range(count) if flow.cpu[t] <= table.cpu[n] and flow.mem[t] <= table.mem[n]] for t in range(size)
    ]
    return min(earliest(flow, table, order, where) for where in itertools.product(*fits) for order in orders)


@st.composite
def small_problems(draw):
    size = draw(st.integers(1, 4))
    column = lambda values: draw(st.lists(st.sampled_from(values), min_size=size, max_size=size))  # noqa: E731
    pairs = [(i, j) for i in range(size) for j in range(i + 1, size)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=4)) if pairs else []
    mb = [draw(st.sampled_from([0.0, 1.0, 6.0])) for _ in edges]
    flow = dag(
        column([1.0, 2.0, 5.0, 8.0]), edges, mb, column([1.0, 2.0]), column([1.0, 2.0]), column([0.0, 3.0])
    )  # fmt: skip
    two = lambda values: draw(st.tuples(st.sampled_from(values), st.sampled_from(values)))  # noqa: E731
    table = nodes((2.0, draw(st.sampled_from([1.0, 3.0]))), (2.0, draw(st.sampled_from([1.0, 3.0]))),
                  two([1.0, 2.0]), two([0.5, 1.0, 2.0]))  # fmt: skip
    return flow, table


@settings(max_examples=60, deadline=None)
@given(small_problems())
def test_the_optimum_is_that_of_brute_force_and_the_bound_is_not_above_it(problem):
    flow, table = problem
    best = brute(flow, table)
    assert bounds.optimum(flow, table) == pytest.approx(best, abs=1e-5)
    assert bounds.lower(flow, table) <= best + 1e-9
    episode = run_episodes("workflow/dag", "heft", [0], trace=((flow,), table))[0]
    assert episode["makespan_s"] >= best - 1e-9


@pytest.mark.parametrize(
    ("flow", "least"),
    [
        (dag([10.0, 10.0], [(0, 1)], [100.0]), 10.0),  # both on the fast node: the critical path
        (dag([8.0] * 4), 8.0),  # 32 core seconds for 2 + 2 cores x speed
        (dag([8.0] * 4, mem=3.0), 8.0),  # 96 GiB seconds for 4 + 8: one after another on each node
        (dag([8.0] * 4, cpu=2.0), 32.0),  # fit the slow node alone, one at a time
        (dag([4.0, *[8.0] * 4, 4.0], [(0, i) for i in range(1, 5)] + [(i, 5) for i in range(1, 5)], [0.0] * 8), 12.0),
        (dag([1.0], input_mb=10.0), 5.5),  # over the faster link, at the higher speed
    ],
)
def test_the_bound_is_what_its_statement_says(flow, least):
    assert bounds.lower(flow, nodes()) == pytest.approx(least)


def test_thinned_levels_are_weaker_but_valid(monkeypatch):
    flows = make_vec("workflow/dag", 1, workflows=6)
    fine = [bounds.lower(flow, flows.table) for flow in flows.dags]
    monkeypatch.setattr(bounds, "MOST_LEVELS", 3)
    coarse = [bounds.lower(flow, flows.table) for flow in flows.dags]
    assert all(c <= f for c, f in zip(coarse, fine, strict=True))


@pytest.mark.parametrize("name", problems.get("workflow").heuristics)
def test_no_heuristic_is_below_the_bound(name):
    keys = {"workflows": 12, "tasks": 40}
    episodes = run_episodes("workflow/dag", name, range(12), **keys)
    limits = bounds.of_starts(make_vec("workflow/dag", 1, **keys), range(12))
    for episode, limit in zip(episodes, limits, strict=True):
        assert 0.0 < limit <= episode["makespan_s"] * (1 + 1e-9)


def test_a_cut_episode_has_no_bound():
    assert bounds.of_starts(make_vec("workflow/dag", 1, workflows=2, horizon=3), [0, 1]) == [None, None]


def test_an_optimum_of_something_large_is_refused():
    with pytest.raises(ConfigError, match="9 tasks on 2 nodes"):
        bounds.optimum(dag([1.0] * 9), nodes())
