"""Bounds of vm: no way to place VMs beats them, on small episodes tried in full and on longer ones by every rule."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sched_env import problems, rollout
from sched_env.vector import make_vec
from sched_env.vm import bounds as vm
from sched_env.vm.huawei import events_of
from sched_env.vm.optimum import optimum
from wire.errors import ConfigError

HALF = (4.0, 6.0)
SMALL = {"half_cpu_cores": HALF[0], "half_mem_gib": HALF[1], "double_threshold": 4, "servers": 2, "start_min": 0}
VM = st.tuples(st.integers(0, 2), st.integers(1, 12), st.integers(1, 6), st.integers(1, 9))
VMS = st.lists(VM, min_size=3, max_size=7)


def trace_of(vms):
    gap, life, cpu, mem = (np.array(column, float) for column in zip(*vms, strict=True))
    arrival = np.cumsum(gap)
    return events_of(np.arange(len(vms)), cpu, mem, arrival, arrival + life)


def needs(trace, row):
    double = trace.mem[row] > SMALL["double_threshold"]
    return float(trace.cpu[row]) / (1 + double), float(trace.mem[row]) / (1 + double), bool(double)


def choices(free, need):
    """Yield the halves that hold the request; of empty servers, which alone are alike, only the first.

    Servers with the same room may not have it for the same time.
    """
    cpu, mem, double = need
    empty_seen = False
    for half in range(len(free)):
        fits = [free[h][0] >= cpu and free[h][1] >= mem for h in (half, half ^ 1)]
        empty = free[half] == free[half ^ 1] == HALF
        if (all(fits) if double else fits[0]) and not (empty and empty_seen):
            empty_seen |= empty
            yield half


def taken(free, half, need, sign):
    cpu, mem, double = need
    changed = list(free)
    for h in (half, half ^ 1) if double else (half,):
        changed[h] = (free[h][0] - sign * cpu, free[h][1] - sign * mem)
    return changed


def most_placed_by_trying(trace, servers, *, releases=True, grow=None):
    """Try everything; ``grow`` is (servers added, threshold, most servers)."""

    def go(row, free, where, placed):
        while row < len(trace) and trace.kind[row] == 1:
            half = where.get(int(trace.vmid[row])) if releases else None
            if half is not None:
                free = taken(free, half[0], half[1], -1)
            row += 1
        if row == len(trace):
            return placed
        need = needs(trace, row)
        best = placed
        for half in choices(free, need):
            after = taken(free, half, need, 1)
            if grow:
                added, threshold, most = grow
                while (
                    len(after) < 2 * most
                    and max(1.0 - sum(f[k] for f in after) / (HALF[k] * len(after)) for k in (0, 1)) > threshold
                ):
                    after = after + [HALF] * min(2 * added, 2 * most - len(after))
            best = max(best, go(row + 1, after, {**where, int(trace.vmid[row]): (half, need)}, placed + 1))
        return best

    return go(0, [HALF] * (2 * servers), {}, 0)


def least_waiting_by_trying(trace, servers, queue):
    """Place the queue first come first served, in every way."""
    rows = np.flatnonzero(trace.kind == 0)[:queue]
    ends = {int(v): t for v, t, k in zip(trace.vmid, trace.time, trace.kind, strict=True) if k == 1}

    def go(at, now, free, leaving):
        if at == len(rows):
            return 0.0
        row, need = rows[at], needs(trace, rows[at])
        now = max(now, float(trace.time[row]))
        leaving = list(leaving)
        while leaving and (leaving[0][0] <= now or not list(choices(free, need))):
            now = max(now, leaving[0][0])
            _, half, held = heapq.heappop(leaving)
            free = taken(free, half, held, -1)
            while leaving and leaving[0][0] <= now:
                _, half, held = heapq.heappop(leaving)
                free = taken(free, half, held, -1)
        life = ends[int(trace.vmid[row])] - float(trace.time[row])
        best = np.inf
        for half in choices(free, need):
            after = [*leaving, (now + life, half, need)]
            heapq.heapify(after)
            best = min(best, go(at + 1, now, taken(free, half, need, 1), after))
        return best + now - float(trace.time[row])

    return go(0, -np.inf, [HALF] * (2 * servers), [])


def fitting(vms):
    """Leave out VMs that no empty server holds."""
    trace = trace_of(vms)
    return [vm for vm, row in zip(vms, np.flatnonzero(trace.kind == 0), strict=True) if _fits(needs(trace, row))]


def _fits(need):
    return need[0] <= HALF[0] and need[1] <= HALF[1]


@settings(deadline=None, max_examples=60)
@given(VMS, st.booleans())
@example([(0, 5, 3, 2), (2, 4, 3, 2), (2, 2, 3, 1), (1, 1, 3, 5)], True)
def test_nobody_places_more_than_the_bound_and_the_program_finds_the_optimum(vms, releases):
    trace = trace_of(vms)
    if not _fits(needs(trace, 0)):
        return
    log = vm.log_of(make_vec("vm/recovering", 1, trace=trace, releases=releases, **SMALL))
    best = most_placed_by_trying(trace, 2, releases=releases)
    assert best <= vm.most_placed(log, 0) <= vm.prefix(log, 0)
    assert optimum(log, 0) == best


@settings(deadline=None, max_examples=40)
@given(VMS, st.sampled_from([0.3, 0.5, 0.8]))
def test_nobody_places_more_than_the_bound_on_a_cluster_that_grows(vms, threshold):
    trace = trace_of(vms)
    if not _fits(needs(trace, 0)):
        return
    keys = {**SMALL, "servers": 1, "growing_servers": 1, "max_servers": 3, "expand_threshold": threshold}
    best = most_placed_by_trying(trace, 1, grow=(1, threshold, 3))
    assert best <= vm.most_placed(vm.log_of(make_vec("vm/expanding", 1, trace=trace, **keys)), 0)


@settings(deadline=None, max_examples=60)
@given(VMS)
def test_nobody_waits_less_than_the_bound(vms):
    vms = fitting(vms)
    if not vms:
        return
    env = make_vec("vm/recovering", 1, trace=trace_of(vms), ending="wait", queue_extra=10, **{**SMALL, "servers": 1})
    (bound,) = vm.of_starts(env, [0])
    least = least_waiting_by_trying(env.trace, 1, len(vms))
    assert bound <= least + 1e-9
    # The trial's rules are those of the environment: first_fit is one of its ways.
    assert least <= rollout.run_episodes(env.scenario, "first_fit", [0], trace=env.trace)[0]["wait_s"] + 1e-9


def test_bounds_are_reached_where_nothing_is_lost():
    # Two servers, filled to the last core by VMs of a whole half; the fifth does not fit.
    trace = trace_of([(1, 100, 4, 2)] * 5)
    log = vm.log_of(make_vec("vm/recovering", 1, trace=trace, **SMALL))
    assert vm.most_placed(log, 0) == 4
    env = make_vec("vm/recovering", 1, trace=trace, ending="wait", **SMALL)
    assert vm.of_starts(env, [0]) == [96.0]  # the fifth comes at 5 and waits for the first, which leaves at 101


def test_halves_count_not_only_totals():
    # Three quarters of a half each: the totals hold five, the halves four.
    trace = trace_of([(1, 100, 3, 2)] * 6)
    log = vm.log_of(make_vec("vm/recovering", 1, trace=trace, **SMALL))
    assert (vm.prefix(log, 0), vm.most_placed(log, 0)) == (5, 4)


@pytest.mark.parametrize(
    ("scenario", "keys"),
    [
        ("vm/fading", {"servers": 3}),
        ("vm/recovering", {"servers": 3}),
        ("vm/expanding", {"servers": 2, "max_servers": 5}),
        ("vm/recovering", {"servers": 3, "horizon": 30}),
        ("vm/recovering", {"servers": 3, "ending": "wait"}),
        ("vm/recovering", {"servers": 3, "half_cpu_cores": 33.3, "half_mem_gib": 77.7}),
    ],
)
def test_no_rule_beats_the_bounds_on_a_generated_trace(scenario, keys):
    starts = [1000, 1500, 2500, 4000]
    env = make_vec(scenario, 1, **keys)
    metric = env.problem.bound_metric(env.scenario)
    sign = env.problem.better(metric)
    limits = vm.of_starts(env, starts)
    for name in problems.get("vm").heuristics:
        for episode, limit in zip(rollout.run_episodes(scenario, name, starts, **keys), limits, strict=True):
            assert sign * episode[metric] <= sign * limit + 1e-6, (name, episode)


def test_the_cost_of_placing_everything_is_not_beaten():
    keys = {"servers": 200, "synthetic_vms": 1500}
    log = vm.log_of(make_vec("vm/recovering", 1, **keys))
    least = vm.least_cost(log, 0)
    costs = [
        rollout.run_episodes("vm/recovering", name, [0], **keys)[0]["cost_usd"] for name in ("first_fit", "best_fit")
    ]
    assert 0.3 * min(costs) < least <= min(costs)


@pytest.mark.parametrize("horizon", [0, 200])
def test_a_scenario_judged_by_its_bill_has_the_bill_as_its_bound(horizon):
    keys = {"servers": 200, "synthetic_vms": 1500, "horizon": horizon}
    env = make_vec("vm/consolidating", 1, **keys)
    value = env.problem
    assert (value.primary(env.scenario), value.bound_metric(env.scenario)) == ("cost_usd", "cost_usd")
    assert value.guardrails(env.scenario) == ("placed",)
    (least,) = vm.of_starts(env, [0])
    for name in ("first_fit", "numa_first_fit", "least_allocated"):
        (episode,) = rollout.run_episodes("vm/consolidating", name, [0], **keys)
        assert episode["placed"] == (horizon or 1500)
        assert 0 < least <= episode["cost_usd"]


def test_a_metric_that_the_ending_does_not_have_is_refused():
    for judged_by, ending in (("placed", "wait"), ("wait_s", "terminate"), ("cost_usd", "wait")):
        with pytest.raises(ConfigError, match=f"judged_by is {judged_by} with ending {ending}"):
            make_vec("vm/recovering", 1, judged_by=judged_by, ending=ending)


def test_no_bound_on_waiting_is_claimed_where_an_episode_may_end_early():
    stays = events_of(np.arange(2), np.ones(2), np.ones(2), np.arange(2.0), np.array([5.0, np.inf]))
    never = trace_of([(1, 5, 1, 1), (1, 5, 9, 1)])
    for trace in (stays, never):
        env = make_vec("vm/recovering", 1, trace=trace, ending="wait", **SMALL)
        assert vm.of_starts(env, [0]) == [None]
    grows = {**SMALL, "growing_servers": 1, "max_servers": 3}
    env = make_vec("vm/recovering", 1, trace=trace_of([(1, 5, 1, 1)] * 3), ending="wait", **grows)
    assert vm.of_starts(env, [0]) == [None]


def test_large_episodes_are_refused_by_the_program():
    log = vm.log_of(make_vec("vm/recovering", 1))
    with pytest.raises(ConfigError, match="at most 60 on 6"):
        optimum(log, 1000)
