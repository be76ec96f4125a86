"""Where a job and a card are chosen together, or to wait: same rules, same results, nothing lost, bounds hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sched_env import heuristics, problems, scenarios
from sched_env.jobs import features, pairs
from sched_env.jobs import heuristics as job_rules
from sched_env.jobs.state import ARRIVED, FINISHED, LEAST_ATTAINED, NONE, ORDER, SIZE, WAITING, Discipline
from sched_env.rollout import run_episodes
from sched_env.vector import make_vec
from wire import bundle, sample_bundle
from wire.errors import InfeasibleActionError
from wire.policy import GraphPolicy

from .test_properties import check, compare

KEYS = {"cards": 6, "episode_jobs": 30, "load": 3.0, "trace_rows": 400}
SETTINGS = {
    "plain": {},
    "one job shown": {"shown_jobs": 1},
    "reserving": {"reservation": "easy"},
    "big jobs reserve": {"reservation": "big", "queue_order": "shortest"},
    "failing and withdrawn": {"failure_rate": 0.2, "cancel_rate": 0.3, "queue_order": "least_attained"},
    "by makespan": {"reward": "makespan", "max_jobs_per_card": 1},
}


def made(name, size=3, **more):
    return make_vec("jobs/cpn", size, choice="pair", **{**KEYS, "shown_jobs": 4, **SETTINGS[name], **more})


def drawn(env, rng, waiting=0.3):
    """Random pairs; to wait, where one may, in so many cases."""
    actions = np.zeros(env.num_envs, np.int64)
    for b, mask in enumerate(env.buffers.mask):
        if mask[-1] and rng.random() < waiting:
            actions[b] = mask.size - 1
        elif mask.any():
            actions[b] = rng.choice(np.flatnonzero(mask[:-1]))
    return actions


@pytest.mark.parametrize("name", [rule for rule in job_rules.NAMES if rule not in ("random_feasible", "min_min")])
def test_a_rule_that_takes_the_queues_word_does_the_same_in_both_views(name):
    for keys in ({}, {"failure_rate": 0.2, "cancel_rate": 0.2}):
        one, pair = (
            run_episodes("jobs/cpn", name, [0, 40, 80], **KEYS, **keys, choice=choice) for choice in ("card", "pair")
        )
        for ours, theirs in zip(one, pair, strict=True):
            ours.pop("decision_us"), theirs.pop("decision_us")
            assert ours == theirs


@pytest.mark.parametrize("name", SETTINGS)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_random_pairs_and_waits_lose_nothing_and_are_seen_as_they_are(name, seed):
    env = made(name)
    env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    waits = 0
    for _ in range(60):
        before = env.buffers.time_s.copy(), env.state.tally[:, WAITING].copy(), env.buffers.episode.copy()
        actions = drawn(env, rng)
        env.step(actions)
        for b in np.flatnonzero((actions == env.buffers.mask.shape[1] - 1) & (env.buffers.episode == before[2])):
            waits += 1
            assert env.buffers.time_s[b] > before[0][b] or env.state.tally[b, WAITING] != before[1][b]
        # Whoever waits although something fits may do so on purpose: the order of the queue says nothing here.
        check(env, in_order=False)
        for b in range(env.num_envs):
            whole = env.rebuild(b)
            assert env.buffers.candidates[b].tobytes() == whole.candidates.tobytes()
            assert env.buffers.request[b].tobytes() == whole.request.tobytes()
            assert env.buffers.mask[b].tobytes() == whole.mask.tobytes()
            assert env.buffers.feasible[b] == whole.mask.sum()
    assert waits > 0


@pytest.mark.parametrize("name", ["plain", "reserving", "failing and withdrawn"])
def test_the_jobs_shown_are_the_first_that_fit_somewhere_in_the_queues_order(name):
    env = made(name, cards=4, load=6.0)
    env.reset(seed=1)
    rng, several = np.random.default_rng(1), 0
    for _ in range(80):
        for b in range(env.num_envs):
            rows = env.state.shown[b][env.state.shown[b] != NONE]
            assert len(set(rows.tolist())) == rows.size >= 1
            mask = env.buffers.mask[b, :-1].reshape(4, -1)
            assert mask[: rows.size].any(axis=1).all()
            assert not mask[rows.size :].any()
            if env.state.way[b, ORDER] != LEAST_ATTAINED:
                assert (np.diff(rows[1:]) > 0).all()
            several += rows.size > 1
        env.step(drawn(env, rng))
    assert several > 40


@pytest.mark.parametrize("name", ["plain", "by makespan"])
def test_no_policy_beats_the_bound_by_choosing_the_order_or_by_waiting(name):
    env = made(name, 4)
    env.reset(seed=2, options={"starts": [0, 50, 100, 150], "park": True})
    rng, total = np.random.default_rng(2), np.zeros(4)
    while env.buffers.active.any():
        total += env.step(drawn(env, rng, 0.1))[1]
    metric = env.problem.bound_metric(env.scenario)
    bounds = env.problem.simulation().bounds(env, [0, 50, 100, 150])
    found = env.buffers.metrics[:, env.METRICS.index(metric)]
    assert (found >= np.array(bounds) - 1e-6).all()
    np.testing.assert_allclose(-total * env.scenario.reward_scale_s, found)
    np.testing.assert_array_equal(env.state.tally[:, FINISHED], env.state.tally[:, SIZE])


def test_one_cannot_wait_when_nothing_will_happen():
    env = made("plain", 1, episode_jobs=3, load=0.0)
    env.reset(seed=0)
    assert env.state.tally[0, ARRIVED] == 3
    last = env.buffers.mask.shape[1] - 1
    assert not env.buffers.mask[0, last]  # everything has been submitted and nothing runs
    with pytest.raises(InfeasibleActionError):
        env.step([last])
    env.step([int(env.buffers.mask[0].argmax())])
    assert env.buffers.mask[0, last]  # something runs, and will end


@pytest.mark.parametrize("name", job_rules.NAMES[1:])
def test_the_batch_form_scores_as_the_single_one(name):
    env = made("plain", 2, cards=5)
    env.reset(seed=4)
    rule = heuristics.batch(name, env)
    for _ in range(25):
        scores = np.zeros(env.buffers.mask.shape)
        actions = rule(scores)
        if name != "gavel_lp":  # whose shares are the batch form's own
            for b in range(2):
                mask = env.buffers.mask[b]
                one = np.where(mask, env.problem.score(name, *env.raw_fields(b), mask), -np.inf)
                np.testing.assert_array_equal(one, scores[b])
                assert one.argmax() == actions[b]
        env.step(actions)


@pytest.mark.parametrize("name", ["plain", "big jobs reserve"])
def test_a_question_about_one_job_and_its_cards_is_the_first_part_of_one_about_pairs(name):
    """What ``/v1/place`` asks, a policy of pairs answers too; one of cards takes its part of a question about pairs."""
    env = made(name, 1)
    env.reset(seed=5)
    value, cards, rng = problems.get("jobs"), len(env.topology), np.random.default_rng(5)
    for _ in range(40):
        columns, request = env.raw_fields(0)
        whole = value.build(columns, request)
        asked = (*value.state_fields, "delay_s", "next_end_s")
        alone = value.build({field: columns[field][:cards] for field in asked if field in columns}, request)
        assert alone.candidates.tobytes() == whole.candidates[:cards].tobytes()
        assert alone.mask.tobytes() == whole.mask[:cards].tobytes()
        before = value.builder(features.SPEC.version)(columns, request)
        offered = features.build({field: columns[field][:cards] for field in features.STATE_FIELDS}, request)
        assert before.candidates[:cards].tobytes() == offered.candidates.tobytes()
        assert before.request.tobytes() == offered.request.tobytes()
        assert before.mask[:cards].tobytes() == offered.mask.tobytes()
        assert not before.mask[cards:].any()
        assert np.isfinite(before.candidates).all()
        env.step(drawn(env, rng))


def test_a_bundle_of_cards_is_played_as_the_controller_runs_it_where_pairs_are_chosen():
    checked = bundle.check(sample_bundle.build(features.SPEC, seed=1, hidden=8), problems.spoken)
    policy = GraphPolicy(checked.policy, "of cards", checked)
    found = [
        run_episodes("jobs/cpn", policy, [0, 40], **KEYS, **keys)
        for keys in ({"choice": "pair", "queue_order": "shortest"}, {"reservation": "big"})
    ]
    for ours, theirs in zip(*found, strict=True):
        ours.pop("decision_us"), theirs.pop("decision_us")
        assert ours == theirs


def test_choosing_the_pair_that_ends_first_beats_the_order_of_submission():
    keys = {**KEYS, "episode_jobs": 60, "load": 0.0, "choice": "pair", "shown_jobs": 16}
    best, fifo = (
        np.mean([each["mean_completion_s"] for each in run_episodes("jobs/cpn", rule, list(range(0, 300, 30)), **keys)])
        for rule in ("min_min", "min_completion_time")
    )
    assert best < 0.9 * fifo


def test_times_of_hours_and_of_days_are_told_apart_and_stay_within_what_a_scorer_sees():
    times = np.array([0.0, 10.0, 3_000.0, 3_010.0, 7_200.0, 86_400.0, 864_000.0, np.inf])
    told = pairs.told_s(times).astype(np.float32)
    np.testing.assert_array_equal(told[:3], times[:3].astype(np.float32))
    assert (np.diff(told) > 0.0).all()
    assert told[-1] == 10.0 * pairs.TIME_SCALE


def test_the_service_tells_jobs_of_days_as_the_kernel_does_bit_for_bit():
    scenario = scenarios.load("jobs/cpn", {**KEYS, "choice": "pair", "shown_jobs": 12})
    load = make_vec(scenario, 1, 0).workload
    env = make_vec(scenario, 2, 0, load._replace(jobs=replace(load.jobs, epochs=load.jobs.epochs * 100.0)))
    env.reset(options={"starts": [0, 40]})
    column = [feature.name for feature in env.feature_spec.candidate].index("completion_s")
    longest, rng = 0.0, np.random.default_rng(0)
    for _ in range(25):
        compare(env, 0)
        compare(env, 1)
        longest = max(longest, float(env.buffers.candidates[:, :, column].max()))
        env.step(drawn(env, rng))
    assert pairs.LONG_S < longest < 2.0 * pairs.LONG_S


def test_every_row_has_a_discipline_of_its_own_and_changes_it_midway():
    ways = [Discipline("fifo", "none", 3), Discipline("shortest", "none", 3), Discipline("fifo", "easy", 2)]
    names = ["min_completion_time", "shortest_predicted_first", "easy_backfill"]
    mixed = make_vec("jobs/cpn", 3, **KEYS)
    for row, way in enumerate(ways):
        mixed.switch(way, [row])
    assert mixed.discipline is None
    mixed.reset(options={"starts": [7, 7, 7], "park": True})
    rule = heuristics.batch("min_completion_time", mixed)  # of which only the choice of a card is taken
    while mixed.buffers.active.any():
        mixed.step(rule())
    for row, (way, name) in enumerate(zip(ways, names, strict=True)):
        (alone,) = run_episodes("jobs/cpn", name, [7], **{**KEYS, "max_jobs_per_card": way.max_jobs_per_card})
        assert mixed.buffers.metrics[row].tolist() == [alone[metric] for metric in mixed.METRICS]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31), midway=st.integers(1, 40))
def test_a_change_of_discipline_midway_keeps_every_job_and_its_wait(seed, midway):
    env = make_vec("jobs/cpn", 3, **KEYS, reservation="easy")
    env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    for step in range(2 * midway):
        if step == midway:
            queued, waiting = env.state.queued_s.copy(), env.state.tally[:, WAITING].copy()
            env.switch(Discipline("shortest", "none", 3), [0, 2])
            np.testing.assert_array_equal(env.state.queued_s, queued)
            np.testing.assert_array_equal(env.state.tally[:, WAITING], waiting)
            env.switch(Discipline("least_attained", "big", 1), [1])
            assert [Discipline.of(way).order for way in env.state.way] == ["shortest", "least_attained", "shortest"]
        env.step([rng.choice(np.flatnonzero(mask)) for mask in env.buffers.mask])
        check(env, in_order=step < midway, capped=step < midway)
