"""Bounds of jobs are below everything that can be reached, and tight where they should be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sched_env import heuristics, scenarios
from sched_env.jobs import bounds
from sched_env.jobs import synthetic as synthetic_jobs
from sched_env.jobs.runtime import RuntimeModel
from sched_env.jobs.tables import JobTrace
from sched_env.jobs.workload import Workload
from sched_env.vector import make_vec
from wire.errors import ConfigError

MODELS = {"small": (0.1, 0.4, 2.0), "medium": (0.2, 0.8, 6.0), "llm": (5.0, 1.0, 15.0)}


def predict(card_type, models):
    speed = {"RTX4090": 1.0, "P100": 0.5, "A100": 1.1}[card_type]
    excess = max(sum(MODELS[m][1] for m in models) - 0.6, 0.0) if len(models) > 1 else 0.0
    return [MODELS[m][0] / speed * (1.0 + excess) for m in models]


def instance(seed, jobs, counts, spread_s=0.0):
    rng = np.random.default_rng(seed)
    where = synthetic_jobs.topology(counts)
    model = rng.integers(0, 3, jobs)
    if "RTX4090" not in counts and "A100" not in counts:
        model = rng.integers(0, 2, jobs)
    trace = JobTrace(
        arrival_s=np.sort(rng.uniform(0.0, spread_s, jobs)) if spread_s else np.zeros(jobs),
        model=model.astype(np.int32),
        epochs=np.where(model == 2, rng.integers(5, 40, jobs), rng.integers(100, 1500, jobs)).astype(float),
        gpu_mem=np.array([list(MODELS.values())[k][2] for k in model]),
        data_gb=rng.uniform(0.0, 5.0, jobs) * rng.integers(0, 2),
        origin=rng.integers(0, 3, jobs).astype(np.int32),
        model_names=tuple(MODELS),
    )
    return Workload(trace, where, RuntimeModel(predict).table(where.card_types, tuple(MODELS)))


@pytest.mark.parametrize("seed", range(6))
def test_no_schedule_of_a_small_instance_beats_the_bounds(seed, every_schedule):
    workload = instance(seed, 5, {"RTX4090": 1, "P100": 1, "A100": 1}, spread_s=[0.0, 60.0][seed % 2])
    scenario = scenarios.load("jobs/cpn", {"episode_jobs": 5})
    bound = bounds.lower(scenario, workload)
    makespan, completion = every_schedule(workload)
    assert bound.makespan_s <= makespan + 1e-6
    assert bound.mean_completion_s <= completion + 1e-6
    assert bound.makespan_s > 0.3 * makespan  # and it says something
    assert bound.mean_completion_s > 0.3 * completion


def predict_helpful_company(card_type, models):
    """As above, but the large model is twice as fast beside another: so measured profiles say."""
    alone = predict(card_type, models)
    return [t / 2 if len(models) > 1 and model == "llm" else t for t, model in zip(alone, models, strict=True)]


@pytest.mark.parametrize("seed", range(6))
def test_bounds_hold_where_company_makes_a_job_faster(seed, every_schedule):
    workload = instance(seed, 5, {"RTX4090": 1, "P100": 1})
    table = RuntimeModel(predict_helpful_company).table(workload.topology.card_types, tuple(MODELS))
    bound = bounds.lower(scenarios.load("jobs/cpn", {"episode_jobs": 5}), workload._replace(runtime=table))
    makespan, completion = every_schedule(workload._replace(runtime=table))
    assert bound.makespan_s <= makespan + 1e-6
    assert bound.mean_completion_s <= completion + 1e-6


@pytest.mark.parametrize("seed", range(12))
def test_bounds_hold_with_delays_and_where_users_withdraw_jobs(seed, every_schedule):
    rng = np.random.default_rng(seed)
    workload = instance(seed, 5, {"RTX4090": 1, "P100": 1}, spread_s=[0.0, 60.0][seed % 2])
    if seed % 3 == 0:  # who is withdrawn may have been the company that helps
        table = RuntimeModel(predict_helpful_company).table(workload.topology.card_types, tuple(MODELS))
        workload = workload._replace(runtime=table)
    leaves = np.where(rng.random(5) < 0.5, rng.uniform(0.0, 300.0, 5), np.inf)
    workload = workload._replace(jobs=replace(workload.jobs, cancel_s=leaves))
    delays = {"dispatch_s": float(rng.choice([0.0, 40.0])), "startup_s": float(rng.choice([0.0, 15.0]))}
    bound = bounds.lower(scenarios.load("jobs/cpn", {"episode_jobs": 5, **delays}), workload)
    makespan, completion = every_schedule(workload, **delays)
    assert 0.0 < bound.makespan_s <= makespan + 1e-6
    assert 0.0 < bound.mean_completion_s <= completion + 1e-6


def test_bounds_count_the_delays_of_a_lone_job_and_no_work_of_one_that_is_withdrawn():
    workload = instance(1, 1, {"RTX4090": 1, "P100": 2})
    delays = {"episode_jobs": 1, "dispatch_s": 40.0, "startup_s": 15.0}
    alone = bounds.lower(scenarios.load("jobs/cpn", {"episode_jobs": 1}), workload)
    delayed = bounds.lower(scenarios.load("jobs/cpn", delays), workload)
    assert delayed == pytest.approx((alone.makespan_s + 55.0, alone.mean_completion_s + 55.0))
    gone = workload._replace(jobs=replace(workload.jobs, cancel_s=np.array([30.0])))
    assert bounds.lower(scenarios.load("jobs/cpn", delays), gone) == pytest.approx((30.0, 30.0))


def test_company_that_is_used_up_helps_no_longer(every_schedule):
    where = synthetic_jobs.topology({"RTX4090": 1})
    table = RuntimeModel(predict_helpful_company).table(where.card_types, tuple(MODELS))
    llm, small = 2, 0
    trace = JobTrace(
        np.zeros(2), np.array([llm, small], np.int32), np.array([40.0, 100.0]), np.array([15.0, 2.0]),
        model_names=tuple(MODELS),
    )  # fmt: skip
    bound = bounds.lower(scenarios.load("jobs/cpn", {"episode_jobs": 2}), Workload(trace, where, table))
    makespan, _ = every_schedule(Workload(trace, where, table))
    # 200 s alone, 180 s were there always company; it lasts 18 s, in which 4 of 40 epochs run instead of 3.6.
    assert makespan == pytest.approx(198.0)
    assert bound.makespan_s == pytest.approx(198.0)


def test_bounds_are_tight_for_one_job_and_for_equal_jobs_on_equal_cards(every_schedule):
    workload = instance(1, 1, {"RTX4090": 1, "P100": 2})
    scenario = scenarios.load("jobs/cpn", {"episode_jobs": 1})
    makespan, completion = every_schedule(workload)
    assert bounds.lower(scenario, workload) == pytest.approx((makespan, completion))
    # Four equal jobs that gain nothing from sharing, on two equal cards, one job a card.
    where = synthetic_jobs.topology({"RTX4090": 2})
    trace = JobTrace(
        np.zeros(4), np.full(4, 1, np.int32), np.full(4, 500.0), np.full(4, 6.0), model_names=tuple(MODELS)
    )
    workload = Workload(trace, where, RuntimeModel(predict).table(where.card_types, tuple(MODELS)))
    scenario = scenarios.load("jobs/cpn", {"episode_jobs": 4, "max_jobs_per_card": 1})
    assert bounds.lower(scenario, workload).makespan_s == pytest.approx(200.0)


@pytest.mark.parametrize("name", ["fifo", "min_completion_time", "easy_backfill", "shortest_predicted_first"])
def test_no_heuristic_beats_the_bounds_on_generated_queues(name):
    scenario = scenarios.load("jobs/cpn", {"episode_jobs": 60, "load": 4.0, "trace_rows": 1000})
    env = make_vec(scenario, 4, seed=0)
    rule = heuristics.batch(name, env)
    starts = [0, 100, 500, 900]
    env.reset(options={"starts": starts, "park": True})
    seen = {}
    while env.buffers.active.any():
        *_, infos = env.step(rule())
        for b in np.flatnonzero(infos.get("_episode", [])):
            seen[b] = (infos["episode"]["makespan_s"][b], infos["episode"]["mean_completion_s"][b])
    for b, start in enumerate(starts):
        bound = bounds.lower(
            scenario, Workload(env.trace, env.topology, synthetic_jobs.runtime(env.topology.card_types)), start
        )
        assert bound.makespan_s <= seen[b][0] + 1e-6
        assert bound.mean_completion_s <= seen[b][1] + 1e-6
        assert bound.mean_completion_s > 0.3 * seen[b][1]


def test_shortest_remaining_first_equals_a_finely_stepped_machine():
    rng = np.random.default_rng(0)
    release, sizes = np.round(rng.uniform(0, 20, 12), 1), np.round(rng.uniform(0.1, 6, 12), 1)
    ends = bounds.shortest_remaining_first(release, sizes)
    left, now, expected = sizes.copy(), 0.0, np.zeros(12)
    while (left > 1e-9).any():
        ready = np.flatnonzero((release <= now + 1e-9) & (left > 1e-9))
        if ready.size:
            job = ready[np.argmin(left[ready])]
            left[job] -= 0.1
            expected[job] = now + 0.1
        now += 0.1
    np.testing.assert_allclose(np.sort(ends), np.sort(expected), atol=1e-6)


def test_bounds_of_starts_are_in_the_metric_of_the_reward():
    workload = instance(1, 6, {"RTX4090": 1, "P100": 2}, spread_s=60.0)
    for reward, name in (("completion", "mean_completion_s"), ("makespan", "makespan_s")):
        env = make_vec("jobs/cpn", 1, trace=workload, episode_jobs=4, reward=reward)
        assert env.problem.bound_metric(env.scenario) == name
        expected = [getattr(bounds.lower(env.scenario, workload, start), name) for start in (0, 2)]
        assert bounds.of_starts(env, [0, 2]) == expected
    lossy = make_vec("jobs/cpn", 1, trace=workload, failure_rate=0.1)
    assert bounds.of_starts(lossy, [0, 1]) == [None, None]


def test_bounds_refuse_scenarios_where_jobs_can_be_lost():
    workload = instance(0, 3, {"RTX4090": 1})
    with pytest.raises(ConfigError, match="can fail"):
        bounds.lower(scenarios.load("jobs/cpn", {"failure_rate": 0.1}), workload)
