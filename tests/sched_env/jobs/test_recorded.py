"""Episodes begin with the jobs that were on cards and in line when their first row was submitted."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from sched_env import scenarios
from sched_env.jobs import synthetic
from sched_env.jobs.bounds import of_starts
from sched_env.jobs.state import ARRIVED, FIRST, JOBS, LEFT, NOW, ROW, STARTED, UNCOUNTED, WAITING
from sched_env.jobs.vector import CpnVectorEnv
from sched_env.jobs.workload import Workload
from sched_env.recorded import AsRecorded, told
from sched_env.vector import make_vec

KEYS = {"episode_jobs": 12, "max_jobs_per_card": 1, "gpu_mem_margin_gib": 0.0}


@pytest.fixture(scope="module")
def recorded() -> Workload:
    """A queue that was run first come, first served, one job a card, data at no cost; what it took is its record."""
    where = synthetic.mixed(6)
    table = synthetic.runtime(where.card_types)
    jobs = synthetic.queue(80, where, load=1.8, data_gb=0.0, cancel_rate=0.0, seed=3, table=table)
    alone = table.select(where.card_types, jobs.model_names).seconds[:, :, 0, 0]
    free, card = np.zeros(len(where)), np.full(len(jobs), -1)
    began, ended = np.zeros(len(jobs)), np.zeros(len(jobs))
    for row in range(len(jobs)):
        seconds = jobs.epochs[row] * alone[jobs.model[row], where.card_type]
        begin = np.where(
            (where.card_mem >= jobs.gpu_mem[row]) & np.isfinite(seconds), np.maximum(free, jobs.arrival_s[row]), np.inf
        )
        c = card[row] = int(np.argmin(begin))
        began[row], ended[row] = begin[c], begin[c] + seconds[c]
        free[c] = ended[row]
    return Workload(
        dataclasses.replace(jobs, card=card, began_s=began, ended_s=ended, data_gb=np.zeros(len(jobs))), where, table
    )


def test_the_record_of_cards_is_found_behind_the_queue(recorded: Workload) -> None:
    assert told(recorded)
    nowhere = dataclasses.replace(recorded.jobs, card=np.full(len(recorded.jobs), -1, np.int32))
    assert not told(recorded._replace(jobs=nowhere))


def test_running_jobs_are_on_their_cards_and_waiting_ones_in_line(recorded: Workload) -> None:
    jobs = recorded.jobs
    env = make_vec("jobs/cpn", 1, trace=recorded, **KEYS)
    assert isinstance(env, CpnVectorEnv)
    waiting = 0
    for start in (1, 10, 30, 55, 60, 65):
        env.reset(options={"starts": [start], "park": True})
        now, first = jobs.arrival_s[start], int(env.state.tally[0, FIRST])
        earlier = np.arange(start)
        running = earlier[(jobs.began_s[earlier] <= now) & (jobs.ended_s[earlier] > now)]
        queued = earlier[jobs.began_s[earlier] > now]
        assert first == min([start, *queued])
        assert env.state.tally[0, STARTED] == start
        if env.state.total[0, NOW] == now:  # nothing has happened since: somebody could be placed at once
            assert env.state.tally[0, WAITING] == queued.size + 1
            assert env.state.tally[0, ARRIVED] == start - first + 1
            there = {int(c): int(env.state.slot[0, c, 0, ROW]) for c in np.flatnonzero(env.state.kind[0, :, JOBS])}
            assert there == {int(jobs.card[row]): int(row) for row in running}
            for card, row in there.items():
                share = (jobs.ended_s[row] - now) / (jobs.ended_s[row] - jobs.began_s[row])
                assert env.state.slot[0, card, 0, LEFT] == pytest.approx(jobs.epochs[row] * share)
        assert env.state.tally[0, UNCOUNTED] == start - first - queued.size
        waiting += queued.size
    assert waiting > 3, "the queue is as it was"
    assert of_starts(env, [10]) == [None]


def test_what_was_recorded_takes_as_long_as_it_did(recorded: Workload) -> None:
    jobs, start = recorded.jobs, 20
    env = make_vec("jobs/cpn", 1, trace=recorded, **{**KEYS, "episode_jobs": len(jobs) - start})
    assert isinstance(env, CpnVectorEnv)
    policy = AsRecorded()
    choose = policy.bind(env)
    env.reset(options={"starts": [start], "park": True})
    while env.buffers.active[0]:
        env.step(choose(None))
    metrics = dict(zip(env.METRICS, env.buffers.metrics[0].tolist(), strict=True))
    now = jobs.arrival_s[start]
    mine = np.flatnonzero((np.arange(len(jobs)) >= start) | (jobs.began_s > now))
    assert metrics["requests"] == mine.size
    measured = (jobs.ended_s - np.maximum(jobs.arrival_s, now))[mine].mean()
    assert metrics["mean_completion_s"] == pytest.approx(measured, rel=0.1)
    held = np.maximum(jobs.ended_s - np.maximum(jobs.began_s, now), 0.0)[jobs.ended_s > now].sum() / 3600.0
    assert metrics["card_hours"] == pytest.approx(held, rel=0.05)


def test_a_node_that_is_down_has_no_cards_to_offer(recorded: Workload) -> None:
    where = recorded.topology
    up = np.ones((1, len(where.nodes)), bool)
    up[0, 0] = False
    env = make_vec("jobs/cpn", 1, trace=recorded._replace(topology=dataclasses.replace(where, node_up=up)), **KEYS)
    assert isinstance(env, CpnVectorEnv)
    env.reset(options={"starts": [5], "park": True})
    while env.buffers.active[0]:
        assert not env.buffers.mask[0, where.card_node == 0].any()
        env.step(np.array([int(env.buffers.mask[0].argmax())]))


def test_a_queue_without_a_record_begins_in_an_empty_network() -> None:
    scenario = scenarios.load("jobs/cpn", {"episode_jobs": 5})
    env = make_vec(scenario, 1)
    assert isinstance(env, CpnVectorEnv)
    env.reset(options={"starts": [50]})
    assert env.state.kind[0, :, JOBS].sum() == 0
    assert env.state.tally[0, FIRST] == 50
    assert env.recorded()[0] == -1
