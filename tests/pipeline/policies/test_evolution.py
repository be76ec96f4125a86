"""A search over few weights begins at a rule, gains by whole episodes, and goes on where it was stopped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.parity import draw
from pipeline.policies import algorithms, training
from pipeline.policies.evolution import of_features, of_terms
from pipeline.policies.scorer import Scorer, TorchPolicy
from sched_env import problems, scenarios
from sched_env.rollout import run_episodes
from sched_env.vector import make_vec
from wire.errors import ConfigError

SCENARIO = {"nodes": 4, "tasks": 20, "workflows": 24, "beta": 0.5}
HEFT = {"terms": [{"late": 1.0}, {"cost": 1.0}], "start": [-1.0, 0.0]}
TINY = {"envs": 16, "segments": 2, "generations": 3, "population": 8, "hidden": 4}


def mean_return(policy):
    given = TorchPolicy(policy) if isinstance(policy, Scorer) else policy
    rows = run_episodes("workflow/dag", given, np.arange(24), **SCENARIO)
    return {name: float(np.mean([row[name] for row in rows])) for name in ("return", "cost_usd")}


def search(scratch, report=lambda *_: None, **changes):
    return training.train(
        lambda count: make_vec("workflow/dag", count, 0, copy=True, **SCENARIO),
        "evolution",
        algorithms.settings("evolution", **{**HEFT, **TINY, **changes}),
        seed=0,
        scratch=scratch,
        validate=mean_return,
        objective=lambda row: row["return"],
        report=report,
    )


def test_it_begins_at_the_rule_and_gains_on_it_by_what_the_rule_does_not_look_at(tmp_path):
    found = search(tmp_path / "honest")
    rule = mean_return("heft")["return"]
    assert found.curve[0]["return"] == pytest.approx(rule, rel=1e-4)
    assert max(row["return"] for row in found.curve) > rule + 0.01 * abs(rule)
    assert mean_return(found.scorer)["return"] == max(row["return"] for row in found.curve)
    control = search(tmp_path / "control", shuffled=True)
    assert max(row["return"] for row in control.curve) < max(row["return"] for row in found.curve)


@pytest.mark.parametrize("times", [1.0, 100.0])
def test_the_weights_of_min_min_are_min_min_for_jobs_of_minutes_and_of_days(times):
    keys = {"cards": 4, "episode_jobs": 40, "choice": "pair", "shown_jobs": 40, "queue_order": "shortest"}
    scenario = scenarios.load("jobs/cpn", keys)
    load = make_vec(scenario, 1, 0).workload
    load = load._replace(jobs=replace(load.jobs, epochs=load.jobs.epochs * times))
    scorer = of_terms(problems.get("jobs").spec, [{"completion_s": 1.0}, {"wait": 1e5}], np.array([-1.0, -1.0]), 4)
    ours, theirs = (
        [row["mean_completion_s"] for row in run_episodes(scenario, policy, [0, 40, 80], trace=load)]
        for policy in (TorchPolicy(scorer), "min_min")
    )
    assert ours == theirs


def test_a_further_metric_is_weighed_against_the_return(tmp_path):
    def bill(**changes):
        return search(tmp_path / str(changes), segments=1, **changes).curve[-1]["cost_usd"]

    assert bill(beside={"cost_usd": 50.0}) < bill(beside={"makespan_s": 50.0})


def test_a_search_that_was_stopped_ends_with_the_same_weights(tmp_path):
    whole = search(tmp_path / "whole")

    def stop(segment, _row):
        if segment == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(tmp_path / "cut", report=stop)
    resumed = search(tmp_path / "cut")
    assert resumed.curve == whole.curve
    for name, tensor in whole.scorer.state_dict().items():
        assert (resumed.scorer.state_dict()[name] == tensor).all()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"start": [1.0]}, "1 start weights for 2 terms"),
        ({"terms": [{"latte": 1.0}, {"cost": 1.0}]}, "latte"),
        ({"hidden": 1}, "2 terms in a scorer of width 1"),
        ({"terms": [], "start": []}, "terms"),
    ],
)
def test_terms_that_cannot_be_are_refused(tmp_path, changes, said):
    with pytest.raises(ConfigError, match=said):
        search(tmp_path, **changes)


def test_a_term_is_the_positive_part_of_a_form_in_the_features_own_units():
    spec = problems.spec("workflow")
    names = [feature.name for feature in spec.candidate], [feature.name for feature in spec.request]
    candidates, request = np.zeros((1, 2, len(names[0])), np.float32), np.zeros((1, len(names[1])), np.float32)
    candidates[0, :, names[0].index("late")] = 0.5, 3.0
    request[0, names[1].index("slack")], request[0, names[1].index("parents")] = 1.0, 2.0
    scorer = of_terms(spec, [{"late": 2.0, "slack": -1.0, "1": -0.5}, {"parents": 1.0}], np.array([-1.0, 0.25]), 4)
    scores = TorchPolicy(scorer)(candidates, request, np.ones((1, 2), bool))
    np.testing.assert_allclose(scores, [[0.5, -4.0]], rtol=1e-6)


def test_draws_are_scored_as_the_network_that_is_exported_scores():
    spec = problems.spec("jobs")
    terms = [{"completion_s": 1 / 600, "waiting": -1 / 64}, {"wait": 2, "next_end_s": 1 / 600, "1": -0.5}, {"slot": 3}]
    weights = np.array([-1.0, 0.7, 0.2])
    candidates, request, mask = draw(spec, rows=8, size=30, seed=1)
    network = TorchPolicy(of_terms(spec, terms, weights, 5))(candidates, request, mask)
    plain = of_features(spec, terms, weights)(candidates, request, mask)
    np.testing.assert_allclose(plain[mask], network[mask], rtol=1e-5, atol=1e-6)
    assert (plain[~mask] == -np.inf).all()


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_metric_that_the_rule_has_none_of_does_not_blind_the_search(tmp_path):
    assert mean_return_of("heft", "sla_violation_rate") == 0.0
    found = search(tmp_path / "none", beside={"sla_violation_rate": 1.0})
    assert max(row["return"] for row in found.curve) > found.curve[0]["return"]


def mean_return_of(rule, metric):
    return float(np.mean([row[metric] for row in run_episodes("workflow/dag", rule, np.arange(24), **SCENARIO)]))
