"""The bound on the bill against every sequence of decisions there is, rejections included."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sched_env import problems
from sched_env.functions import bounds
from sched_env.functions import optimum as functions_optimum
from sched_env.functions.optimum import NOWHERE, least_bill
from sched_env.functions.tables import FunctionTrace
from sched_env.rollout import run_episodes
from sched_env.tables import NodeTable
from sched_env.vector import make_vec
from wire.errors import ConfigError


def trace(arrivals, duration_s=100.0, cpu=1.0, mem=1.0):
    rows = len(arrivals)
    values = {"function": 0, "cpu": cpu, "mem": mem, "net": 0.0, "disk": 0.0, "requests": 10, "duration_s": duration_s}
    columns = {name: np.broadcast_to(value, rows).copy() for name, value in values.items()}
    return FunctionTrace(arrival_s=np.array(arrivals, float), **columns)


def nodes(cpu=(2.0, 4.0), mem=(4.0, 8.0), price=(0.36, 0.9)):
    count = len(cpu)
    return NodeTable(
        names=tuple(f"n{n}" for n in range(count)), cpu=np.array(cpu), mem=np.array(mem), net=np.full(count, 1000.0),
        disk=np.full(count, 1000.0), price_usd_per_hour=np.array(price),
    )  # fmt: skip


def environment(instances, table, cooldown_s):
    return make_vec("functions/serverless", 1, 0, (instances, table), horizon=0, cooldown_s=cooldown_s)


@st.composite
def small_problems(draw):
    size, count = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    column = lambda n, values: draw(st.lists(st.sampled_from(values), min_size=n, max_size=n))  # noqa: E731
    arrivals = np.cumsum(column(size, [0.0, 1.0, 5.0, 20.0, 60.0, 200.0]))
    lives = column(size, [10.0, 60.0, 400.0, 1000.0])
    instances = trace(arrivals, lives, column(size, [0.5, 1.0, 2.0]), column(size, [1.0, 2.0, 3.0]))
    table = nodes(column(count, [2.0, 3.0]), column(count, [3.0, 6.0]), column(count, [0.1, 0.5, 1.0]))
    return instances, table, draw(st.sampled_from([0.0, 3.0, 30.0, 300.0]))


@settings(max_examples=100, deadline=None)
@given(small_problems())
def test_no_sequence_of_decisions_is_billed_less_than_the_bound(problem):
    instances, table, cooldown_s = problem
    env = environment(instances, table, cooldown_s)
    limit = bounds.of_starts(env, [0])[0]
    assert limit <= bounds.optimum(env, 0) + 1e-9


@settings(max_examples=100, deadline=None)
@given(small_problems())
def test_the_program_finds_the_bill_of_trying_every_sequence(problem):
    env = environment(*problem)
    found, best = least_bill(env, 0), bounds.optimum(env, 0)
    assert found.proved
    assert found.usd == pytest.approx(best, abs=1e-9)
    assert found.bound == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_the_program_finds_the_bill_where_no_two_amounts_are_alike(seed):
    rng = np.random.default_rng(seed)
    size, count = (7, 3) if seed % 2 else (12, 2)
    arrivals = np.cumsum(rng.exponential(30.0, size))
    instances = trace(arrivals, rng.uniform(5.0, 500.0, size), rng.uniform(0.3, 2.0, size), rng.uniform(0.3, 3.0, size))
    table = nodes(rng.uniform(2.0, 3.0, count), rng.uniform(3.0, 5.0, count), rng.uniform(0.1, 1.0, count))
    env = environment(instances, table, 60.0)
    found = least_bill(env, 0)
    assert found.proved
    assert found.usd == pytest.approx(bounds.optimum(env, 0), abs=1e-9)


def test_the_program_rejects_only_what_fits_nowhere():
    # One node. Who fills it keeps the third out; nobody can keep out what still fits to the last core.
    one = nodes((2.0,), (4.0,), (0.36,))
    assert least_bill(environment(trace([0.0, 1.0, 2.0], cpu=1.0), one, 10.0), 0).place.tolist() == [0, 0, NOWHERE]
    assert least_bill(environment(trace([0.0, 1.0, 2.0], cpu=0.5), one, 10.0), 0).place.tolist() == [0, 0, 0]


def test_sums_that_are_too_many_to_list_leave_the_bound_valid(monkeypatch):
    instances = trace([0.0, 1.0, 2.0], [50.0, 50.0, 5000.0], [2.0, 3.0, 2.0], 1.0)
    env = environment(instances, nodes(), 10.0)
    best = least_bill(env, 0)
    monkeypatch.setattr(functions_optimum, "MOST_SUMS", 1)
    coarse = least_bill(env, 0)
    assert coarse.bound <= best.usd * (1 + 1e-9)
    assert coarse.usd >= best.usd * (1 - 1e-9)


def test_a_program_without_time_still_gives_a_valid_bound():
    env = make_vec("functions/serverless", 1, num_nodes=4, horizon=20, trace_rows=3000)
    stopped, proved = least_bill(env, 1500, 0.0), least_bill(env, 1500)
    assert proved.proved
    assert bounds.of_starts(env, [1500])[0] <= stopped.bound <= proved.usd <= stopped.usd
    assert not stopped.proved


def test_no_heuristic_is_billed_less_than_the_program_says():
    keys = {"num_nodes": 4, "horizon": 20, "trace_rows": 3000}
    best = least_bill(make_vec("functions/serverless", 1, **keys), 1500)
    for name in problems.get("functions").heuristics:
        assert run_episodes("functions/serverless", name, [1500], **keys)[0]["cost_usd"] >= best.usd * (1 - 1e-9)


@settings(max_examples=20, deadline=None)
@given(small_problems())
def test_the_relaxation_is_below_the_exact_cover(problem):
    _, table, _ = problem
    load = np.array(list(itertools.product([0.0, 1.0, 2.5, 4.0, 7.0, 50.0], repeat=2)))
    exact = bounds.cover(table, load[:, 0], load[:, 1])
    most, bounds.MOST_SETS = bounds.MOST_SETS, 0
    try:
        relaxed = bounds.cover(table, load[:, 0], load[:, 1])
    finally:
        bounds.MOST_SETS = most
    assert (relaxed <= exact + 1e-9).all()
    for (cpu, mem), value in zip(load, exact, strict=True):
        sets = itertools.chain.from_iterable(
            itertools.combinations(range(len(table)), k) for k in range(len(table) + 1)
        )
        prices = [
            table.price_usd_per_hour[list(chosen)].sum()
            for chosen in sets
            if table.cpu[list(chosen)].sum() >= cpu and table.mem[list(chosen)].sum() >= mem
        ]
        assert value == pytest.approx(min(prices, default=table.price_usd_per_hour.sum()))


def test_the_relaxation_is_the_linear_program():
    from scipy.optimize import linprog

    table = nodes((2.0, 4.0, 8.0), (16.0, 8.0, 8.0), (0.4, 0.5, 0.8))
    kinds = np.stack([table.cpu, table.mem, table.price_usd_per_hour], axis=1)
    for cpu, mem in itertools.product([0.5, 3.0, 9.0], [1.0, 12.0, 30.0]):
        best = linprog(kinds[:, 2], A_ub=-kinds[:, :2].T, b_ub=[-cpu, -mem], bounds=(0, 1)).fun
        dual = max(
            core * cpu + gib * mem - np.maximum(kinds @ [core, gib, -1.0], 0.0).sum()
            for core, gib in bounds._prices(kinds)
        )
        assert dual == pytest.approx(best)


@pytest.mark.parametrize(
    ("instances", "usd"),
    [
        (trace([0.0]), 0.36 * 400 / 3600),  # the cheaper node for its life and the cool-down
        (trace([0.0, 50.0]), 0.36 * 450 / 3600),
        (trace([0.0, 1000.0]), 2 * 0.36 * 400 / 3600),
        (trace([0.0], cpu=3.0), 0.9 * 400 / 3600),
        (trace([0.0, 0.0], cpu=2.0, mem=4.0), 0.9 * 400 / 3600),  # both on the larger one
    ],
)
def test_the_bound_is_what_its_statement_says(instances, usd):
    env = environment(instances, nodes(), 300.0)
    assert bounds.of_starts(env, [0])[0] == pytest.approx(usd)
    assert bounds.optimum(env, 0) == pytest.approx(usd)


def test_what_may_be_rejected_is_not_billed_for_all_its_life():
    # Two large instances fill both nodes; whether the third finds room is in the policy's hands.
    instances = trace([0.0, 1.0, 2.0], [50.0, 50.0, 5000.0], [2.0, 3.0, 2.0], 1.0)
    env = environment(instances, nodes(), 10.0)
    rejecting = bounds.optimum(env, 0)
    assert bounds.of_starts(env, [0])[0] <= rejecting < 0.36 * 5000 / 3600


def test_rejection_is_known_to_be_impossible_where_there_is_room():
    instances = trace(np.arange(40) * 30.0, cpu=0.5, mem=0.5)  # about two cores of six at a time
    holds = np.ones((40, 2), bool)
    assert bounds.never_rejected(instances, nodes(), holds).all()
    crowded = trace(np.arange(40) * 1.0, cpu=0.5, mem=0.5)
    assert not bounds.never_rejected(crowded, nodes(), holds).all()


@pytest.mark.parametrize(
    "keys", [{}, {"load": 1.2}, {"episode_s": 900.0}, {"num_nodes": 60, "cooldown_s": 60.0}], ids=str
)
def test_no_heuristic_is_below_the_bound(keys):
    settings_ = {"horizon": 300, "trace_rows": 3000, **keys}
    starts = [0, 700, 1500]
    limits = bounds.of_starts(make_vec("functions/serverless", 1, **settings_), starts)
    for name in ("cheapest_fit", "first_fit", "random_feasible", "oracle_greedy"):
        assert name in problems.get("functions").heuristics
        for episode, limit in zip(run_episodes("functions/serverless", name, starts, **settings_), limits, strict=True):
            assert 0.0 < limit <= episode["cost_usd"] * (1 + 1e-9)


def test_an_optimum_of_something_large_is_refused():
    with pytest.raises(ConfigError, match="20 instances on 2 nodes"):
        bounds.optimum(environment(trace(np.arange(20.0)), nodes(), 10.0), 0)
    with pytest.raises(ConfigError, match="201 instances on 2 nodes"):
        least_bill(environment(trace(np.arange(201.0)), nodes(), 10.0), 0)
