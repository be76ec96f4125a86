"""Shared cards, transfers, failures and the accounts, against hand-made numbers and a plain reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sched_env import heuristics
from sched_env.jobs.raw_state import raw_fields
from sched_env.jobs.state import ARRIVED, CANCELLED, FAILED, FINISHED, NOW, OFFERED, WAITING
from sched_env.vector import make_vec
from wire.errors import ConfigError, InfeasibleActionError


def play(env, actions):
    """Reset at row 0, place the offered jobs on these cards and return the last step's infos and all rewards."""
    env.reset(options={"starts": np.zeros(env.num_envs, np.int64), "park": True})
    rewards, infos = [], {}
    for action in actions:
        _, reward, _, _, infos = env.step(np.full(env.num_envs, action))
        rewards.append(float(reward[0]))
    return {name: float(values[0]) for name, values in infos["episode"].items()}, rewards


def test_a_job_alone_takes_its_transfer_and_then_its_epochs(jobs, network, workload):
    trace = jobs((0.0, "small", 1000, 4.0, 20.0))  # 20 GB at 102.4 MB/s: 200 s; 1000 epochs of 0.1 s
    env = make_vec("jobs/cpn", 1, trace=workload(trace, network([("fast", 16.0)])))
    metrics, rewards = play(env, [0])
    assert metrics["makespan_s"] == metrics["mean_completion_s"] == pytest.approx(300.0)
    assert metrics["wait_s"] == 0.0
    assert metrics["moved_gb"] == 20.0
    assert metrics["card_hours"] == pytest.approx(300.0 / 3600.0)
    assert metrics["cost_usd"] == pytest.approx(300.0 / 3600.0 * 2.0 + 20.0 * 0.5)
    assert metrics["sla_violation_rate"] == 0.0
    assert sum(rewards) == metrics["return"] == pytest.approx(-0.3)


def test_jobs_on_one_card_slow_each_other_down_and_speed_up_when_one_ends(jobs, network, workload):
    # small and medium together: shares 0.5 + 0.8, so both are 1.8 times slower.
    trace = jobs((0.0, "small", 1000, 4.0), (0.0, "medium", 1000, 4.0))
    env = make_vec("jobs/cpn", 1, trace=workload(trace, network([("fast", 16.0)])))
    metrics, _ = play(env, [0, 0])
    # small ends at 180 s; medium has done 500 of 1000 epochs by then and needs 100 s more, alone.
    assert metrics["makespan_s"] == pytest.approx(280.0)
    assert metrics["mean_completion_s"] == pytest.approx((180.0 + 280.0) / 2)
    assert metrics["card_hours"] == pytest.approx(280.0 / 3600.0)  # two jobs, one card: paid once


def test_time_spent_in_transfer_is_no_progress_and_slows_nobody(jobs, network, workload):
    trace = jobs((0.0, "medium", 1000, 4.0), (0.0, "small", 1000, 4.0, 20.0))
    env = make_vec("jobs/cpn", 1, trace=workload(trace, network([("fast", 16.0)])))
    metrics, _ = play(env, [0, 0])
    # medium runs alone for 200 s and is done before small's data are there; small then needs its full 100 s.
    assert metrics["mean_completion_s"] == pytest.approx((200.0 + 300.0) / 2)


@pytest.mark.parametrize(
    ("cancelled", "dispatch_s", "startup_s"), [(0.0, 0.0, 0.0), (0.0, 25.0, 12.5), (0.5, 9.0, 4.0)]
)
def test_ends_equal_those_of_a_plain_reference(
    cancelled, dispatch_s, startup_s, jobs, network, workload, reference, runtime
):
    rng = np.random.default_rng(7)
    withdrawn = 0
    names = ["small", "medium", "llm"]
    for _ in range(20):
        count = int(rng.integers(2, 14))
        rows = [
            (t, names[k], float(rng.integers(5, 50) if k == 2 else rng.integers(50, 900)), [2.0, 4.0, 10.0][k], gb)
            for t, k, gb in zip(
                np.sort(rng.uniform(0, 200, count)), rng.integers(0, 3, count), rng.uniform(0, 8, count), strict=True
            )
        ]
        trace, where = jobs(*rows), network([("fast", 24.0), ("slow", 16.0)], [("slow", 16.0)])
        if cancelled:
            leaves = np.where(rng.random(count) < cancelled, rng.uniform(0.0, 400.0, count), np.inf)
            trace = replace(trace, cancel_s=leaves)
        delays = {"dispatch_s": dispatch_s, "startup_s": startup_s}
        env = make_vec("jobs/cpn", 1, trace=workload(trace, where), episode_jobs=count, **delays)
        env.reset(options={"starts": [0], "park": True})
        placements = []
        while env.buffers.active[0]:
            row, now = int(env.state.tally[0, OFFERED]), float(env.state.total[0, NOW])
            card = int(rng.choice(np.flatnonzero(env.buffers.mask[0])))
            placements.append((row, card, now))
            *_, infos = env.step([card])
        ends = reference(where, trace, runtime, dispatch_s + startup_s).ends(placements)
        never_placed = set(range(count)) - set(ends)
        assert not (never_placed and cancelled == 0.0)
        ends.update({row: float(trace.cancelled_at()[row]) for row in never_placed})
        withdrawn += (gone := sum(ends[row] == trace.cancelled_at()[row] for row in range(count)))
        metrics = {name: float(values[0]) for name, values in infos["episode"].items()}
        completion = [ends[row] - trace.arrival_s[row] for row in range(count)]
        assert metrics["mean_completion_s"] == pytest.approx(np.mean(completion), rel=1e-9)
        assert metrics["makespan_s"] == pytest.approx(max(ends.values()) - trace.arrival_s[0], rel=1e-9)
        assert metrics["cancelled"] == gone
    assert (withdrawn > 20) == (cancelled > 0.0)


def test_what_ifs_leave_the_state_untouched(jobs, network, workload):
    trace = jobs(*[(0.0, "small", 500, 2.0, 1.0)] * 6, (0.0, "llm", 10, 10.0))
    env = make_vec("jobs/cpn", 1, trace=workload(trace, network([("fast", 24.0), ("slow", 16.0)])), reservation="easy")
    rule = heuristics.batch("easy_backfill", env)
    env.reset(options={"starts": [0], "park": True})
    for _ in range(4):
        before = {
            name: getattr(env.state, name).tobytes() for name in env.state._fields if name not in {"draft", "ends"}
        }
        raw_fields(env)
        action = rule(np.empty((1, 2)))
        assert {name: getattr(env.state, name).tobytes() for name in before} == before
        env.step(action)


def test_an_infeasible_action_changes_nothing(jobs, network, workload):
    trace = jobs(*[(0.0, "medium", 500, 7.0)] * 5)
    env = make_vec("jobs/cpn", 2, trace=workload(trace, network([("fast", 16.0)], [("slow", 16.0)])))
    env.reset(options={"starts": [0, 0]})
    env.step([0, 0])
    env.step([0, 1])
    before = [array.tobytes() for array in (*env.state, *env.buffers)]
    for actions in ([1, 2], [1, -1], [0, 0]):
        with pytest.raises(InfeasibleActionError):
            env.step(actions)
        assert [array.tobytes() for array in (*env.state, *env.buffers)] == before


def test_free_memory_with_its_margin_is_what_counts(jobs, network, workload):
    trace = jobs(*[(0.0, "small", 100, 5.0)] * 4)
    env = make_vec("jobs/cpn", 1, trace=workload(trace, network([("fast", 16.0)])))
    env.reset(options={"starts": [0], "park": True})
    env.step([0])
    env.step([0])  # 10 of 16 GiB: 6 free are exactly 5 and the margin
    assert env.buffers.mask[0, 0]
    *_, infos = env.step([0])
    assert env.state.total[0, NOW] > 0.0  # the fourth had to wait for an end: there are only three places
    assert not infos


def test_a_busy_node_takes_no_job_until_it_is_below_the_threshold_again(jobs, network, workload):
    rows = [(0.0, "small", 1000, 2.0, 0.0, 0.0, 12.0), (0.0, "small", 1000, 2.0, 0.0, 0.0, 1.0)]
    where = network([("fast", 16.0)], [("slow", 16.0)], cpu_cores=16.0)
    env = make_vec("jobs/cpn", 1, trace=workload(jobs(*rows), where))
    env.reset(options={"starts": [0], "park": True})
    env.step([0])  # 12 of 16 cores: 0.75
    assert env.buffers.mask[0].tolist() == [False, True]
    env = make_vec("jobs/cpn", 1, trace=workload(jobs(*rows), where), cpu_threshold=0.8)
    env.reset(options={"starts": [0], "park": True})
    env.step([0])
    assert env.buffers.mask[0].tolist() == [True, True]


def test_waiting_jobs_are_offered_as_soon_as_something_fits(jobs, network, workload):
    # Upstream looked at its queue only after a completion: an idle cluster with waiting jobs never went on.
    trace = jobs((0.0, "llm", 10, 10.0), (5.0, "small", 10, 2.0), (5.0, "small", 10, 2.0))
    env = make_vec("jobs/cpn", 1, trace=workload(trace, network([("fast", 16.0)])))
    metrics, _ = play(env, [0, 0, 0])
    assert metrics["wait_s"] == 0.0


def test_looking_at_total_memory_runs_out_of_it_and_looking_at_free_memory_never_does(jobs, network, workload):
    trace = jobs(*[(0.0, "llm", 20, 10.0)] * 6)
    load, where = workload, network([("fast", 16.0)], [("slow", 16.0)])
    ooms = {}
    for check in ("free", "total"):
        env = make_vec("jobs/cpn", 1, trace=load(trace, where), memory_check=check, max_attempts=5)
        rule = heuristics.batch("fifo", env)
        env.reset(options={"starts": [0], "park": True})
        while env.buffers.active[0]:
            *_, infos = env.step(rule())
        episode = infos["episode"]
        ooms[check] = float(episode["oom"][0])
        assert episode["retries"][0] + episode["failed"][0] == ooms[check]
    assert ooms["free"] == 0
    assert ooms["total"] > 0


def test_failed_attempts_are_tried_again_and_then_reported(jobs, network, workload):
    trace = jobs(*[(float(t), "small", 100, 2.0, 1.0) for t in range(50)])
    load = workload(trace, network([("fast", 16.0)], [("slow", 16.0)]))
    results = []
    for rule_name in ("fifo", "min_completion_time"):
        env = make_vec("jobs/cpn", 1, trace=load, failure_rate=0.5, max_attempts=3, episode_jobs=50)
        rule = heuristics.batch(rule_name, env)
        env.reset(options={"starts": [0], "park": True})
        while env.buffers.active[0]:
            *_, infos = env.step(rule())
        e = {name: float(values[0]) for name, values in infos["episode"].items()}
        assert e["placed"] == 50 + e["retries"]
        assert 0 < e["failed"] < 25
        assert env.state.tally[0, FINISHED] + env.state.tally[0, FAILED] == 50
        assert e["sla_violation_rate"] >= e["failed"] / 50
        assert e["moved_gb"] == e["placed"]  # the data go over the link at every attempt
        results.append((e["failed"], e["retries"]))
    assert results[0] == results[1]  # whether an attempt fails does not depend on the policy


def test_a_job_that_no_empty_card_can_hold_fails_at_once(jobs, network, workload):
    trace = jobs((0.0, "small", 100, 2.0), (1.0, "llm", 10, 15.5), (2.0, "small", 100, 2.0))
    env = make_vec("jobs/cpn", 1, trace=workload(trace, network([("fast", 16.0)])))
    metrics, _ = play(env, [0, 0])
    assert metrics["failed"] == 1.0
    assert metrics["sla_violation_rate"] == pytest.approx(1 / 3)
    with pytest.raises(ConfigError, match="fits an empty card"):
        make_vec("jobs/cpn", 1, trace=workload(trace.rows(1, 2), network([("fast", 16.0)])))


def test_completion_and_makespan_rewards_add_up_to_what_they_are_named_after(jobs, network, workload):
    trace = jobs((0.0, "small", 300, 2.0), (10.0, "medium", 300, 2.0), (400.0, "small", 50, 2.0))
    load = workload(trace, network([("fast", 16.0)]))
    metrics, rewards = play(make_vec("jobs/cpn", 1, trace=load), [0, 0, 0])
    assert sum(rewards) * -1000.0 == pytest.approx(metrics["mean_completion_s"])
    metrics, rewards = play(make_vec("jobs/cpn", 1, trace=load, reward="makespan"), [0, 0, 0])
    assert sum(rewards) * -1000.0 == pytest.approx(metrics["makespan_s"])


def test_the_horizon_truncates(jobs, network, workload):
    trace = jobs(*[(float(t), "small", 100, 2.0) for t in range(9)])
    env = make_vec("jobs/cpn", 1, trace=workload(trace, network([("fast", 16.0)])), horizon=4, copy=True)
    env.reset(options={"starts": [0], "park": True})
    for step in range(4):
        _, _, terminated, truncated, infos = env.step([0])
        assert not terminated[0]
        assert truncated[0] == (step == 3)
    assert infos["final_obs"]["mask"][0, 0]
    assert infos["episode"]["sla_violation_rate"][0] > 0.0  # what has not ended has not ended in time


def test_results_depend_on_neither_batch_size_nor_order():
    def run(num_envs, starts):
        env = make_vec("jobs/cpn", num_envs, seed=3, episode_jobs=30, load=3.0, failure_rate=0.1)
        rule = heuristics.batch("random_feasible", env, 5)
        env.reset(seed=3, options={"starts": starts, "park": True})
        result = {}
        while env.buffers.active.any():
            *_, infos = env.step(rule())
            for b in np.flatnonzero(infos.get("_episode", [])):
                result[starts[b]] = {name: float(values[b]) for name, values in infos["episode"].items()}
        return result

    starts = [100, 700, 20, 4000]
    together = run(4, starts)
    apart = {start: episode for start in starts for episode in run(1, [start]).values()}
    assert together == apart


def test_counts_of_jobs_add_up_at_every_step(jobs, network, workload):
    env = make_vec("jobs/cpn", 8, seed=1, episode_jobs=60, load=4.0, failure_rate=0.2, cancel_rate=0.3)
    rule = heuristics.batch("random_feasible", env, 1)
    env.reset(seed=1)
    for _ in range(200):
        env.step(rule())
        tally, on_cards = env.state.tally, env.state.kind[:, :, 3].sum(axis=1)
        settled = tally[:, FINISHED] + tally[:, FAILED] + tally[:, CANCELLED] + tally[:, WAITING] + on_cards
        np.testing.assert_array_equal(tally[:, ARRIVED], settled)
