"""Reservations and back-filling: big jobs are not starved, promises are kept, small jobs still get through."""

from __future__ import annotations

import numpy as np
import pytest

from sched_env import heuristics
from sched_env.jobs.env import CpnEnv
from sched_env.jobs.state import HELD, HELD_CARD, NONE, NOW, OFFERED, PROMISE
from sched_env.vector import make_vec
from wire.errors import ConfigError


def starve(jobs, network, workload):
    """One card; small jobs come faster than they end, and one big job needs the whole card."""
    rows = [(0.0, "small", 400, 4.0), (1.0, "llm", 5, 15.0)]
    rows += [(2.0 + 15.0 * t, "small", 400, 4.0) for t in range(40)]
    return workload(jobs(*sorted(rows)), network([("fast", 16.0)]))


def start_of(env, rule, row):
    """Run to the end; return when the job of a row was placed, and the metrics."""
    env.reset(options={"starts": [0], "park": True})
    when = None
    while env.buffers.active[0]:
        if env.state.tally[0, OFFERED] == row:
            when = float(env.state.total[0, NOW])
        *_, infos = env.step(rule())
    return when, {name: float(values[0]) for name, values in infos["episode"].items()}


@pytest.mark.parametrize("reservation", ["easy", "big"])
def test_a_big_job_starves_without_a_reservation_and_starts_as_promised_with_one(reservation, jobs, network, workload):
    load = starve(jobs, network, workload)
    env = make_vec("jobs/cpn", 1, trace=load, episode_jobs=42, reservation="none")
    late, _ = start_of(env, lambda: np.zeros(1, np.int64), 1)
    assert late > 600.0  # behind every small job
    env = make_vec("jobs/cpn", 1, trace=load, episode_jobs=42, reservation=reservation)
    env.reset(options={"starts": [0], "park": True})
    env.step([0])
    node = env.state.hold[0, :, HELD_CARD]
    assert node.tolist() == [0]
    assert env.state.node[0, 0, PROMISE] == pytest.approx(40.0)  # when the first small one ends
    when, metrics = start_of(env, lambda: np.zeros(1, np.int64), 1)
    assert when == pytest.approx(40.0)
    assert metrics["failed"] == 0


def test_no_reservation_is_not_the_same_as_one_that_is_due_at_once(jobs, network, workload):
    env = make_vec("jobs/cpn", 1, trace=starve(jobs, network, workload), episode_jobs=42, reservation="easy")
    env.reset(options={"starts": [0], "park": True})
    assert env.state.hold[0, 0, HELD_CARD] == NONE
    assert env.state.tally[0, HELD] == 0


def test_a_job_that_ends_before_the_promise_is_filled_in_and_one_that_does_not_is_not(jobs, network, workload):
    # The first job holds 10 of 24 GiB; its data arrive after 100 s and it ends at 200 s. The big one needs 18. A job
    # that is gone before the first starts to compute delays nobody; one that is still there would.
    rows = [
        (0.0, "small", 1000, 10.0, 10.0),
        (1.0, "llm", 5, 18.0),
        (2.0, "small", 2000, 4.0),
        (3.0, "small", 10, 4.0),
    ]
    env = make_vec("jobs/cpn", 1, trace=workload(jobs(*rows), network([("fast", 24.0)])), reservation="easy")
    env.reset(options={"starts": [0], "park": True})
    order = []
    while env.buffers.active[0]:
        order.append((int(env.state.tally[0, OFFERED]), float(env.state.total[0, NOW])))
        env.step([0])
    assert [row for row, _ in order] == [0, 3, 1, 2]
    assert dict(order)[3] == pytest.approx(3.0)
    assert dict(order)[1] == pytest.approx(200.0)


@pytest.mark.parametrize("keys", [{}, {"dispatch_s": 40.0, "startup_s": 20.0, "cancel_rate": 0.3}])
def test_promises_are_kept_when_predictions_are_true(keys):
    # Withdrawals are no part of a prediction, but can only make room earlier.
    env = make_vec("jobs/cpn", 8, seed=4, topology="testbed", load=6.0, episode_jobs=60, trace_rows=2000, **keys)
    for name in ("easy_backfill", "min_completion_time_reserve"):
        rule = heuristics.batch(name, env)
        env.reset(seed=4, options={"park": True})
        promised: dict[tuple[int, int], float] = {}
        kept = 0
        while env.buffers.active.any():
            for b in np.flatnonzero(env.buffers.active):
                for node in np.flatnonzero(env.state.hold[b, :, HELD_CARD] != NONE):
                    promised.setdefault((b, int(env.state.hold[b, node, 1])), float(env.state.node[b, node, PROMISE]))
                j = int(env.state.tally[b, OFFERED] - env.state.tally[b, 0])
                if (b, j) in promised:
                    assert env.state.total[b, NOW] <= promised[b, j] + 1e-3
                    kept += 1
            env.step(rule())
        assert kept > 0


def test_reserved_jobs_show_in_the_upstream_lists(jobs, network, workload):
    env = CpnEnv(trace=starve(jobs, network, workload), reservation="easy", episode_jobs=42)
    env.reset(options={"start": 0})
    env.step(0)
    lists = env.queues()
    assert lists["Reserved"] == [1]
    assert lists["Finished"] == [0]  # the card is free for the reserved job, which is offered now
    states = env.job_states()
    assert states[1] == "reserved"
    assert states[-1] == "submitted later"


def test_a_discipline_cannot_change_in_the_middle_of_an_episode():
    env = make_vec("jobs/cpn", 2, episode_jobs=20, trace_rows=500)
    env.reset(seed=0)
    first = env.buffers.start.copy()
    heuristics.batch("easy_backfill", env)  # nothing has been placed yet: the episodes begin anew
    np.testing.assert_array_equal(env.buffers.start, first)
    env.step(env.buffers.mask.argmax(axis=1))
    heuristics.batch("easy_backfill", env)
    with pytest.raises(ConfigError, match="under way"):
        heuristics.batch("fifo_exclusive", env)
