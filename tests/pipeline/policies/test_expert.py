"""The counterfactual learner gains on its base rule, from true futures only, and refuses what cannot be."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pipeline.policies import algorithms, expert, rules, training
from pipeline.policies.counterfactual import Trials, Visited
from pipeline.policies.scorer import Scorer, TorchPolicy
from sched_env.rollout import run_episodes
from sched_env.vector import make_vec
from wire.errors import ConfigError

TINY = {"envs": 16, "segments": 2, "patience": 2, "decisions": 12, "states": 384, "epochs": 12, "batch": 64,
        "hidden": 16, "missing_rate": 0.0, "learning_rate": 0.005}  # fmt: skip


def mean_return(workload, policy):
    given = TorchPolicy(policy) if isinstance(policy, Scorer) else policy
    rows = run_episodes(workload.scenario, given, workload.starts(24), trace=workload.trace)
    return {"return": float(np.mean([row["return"] for row in rows]))}


def learn(workload, scratch, seed=0, report=lambda *_: None, **changes):
    return training.train(
        lambda count: make_vec(workload.scenario, count, seed, workload.trace, copy=True),
        "expert",
        algorithms.settings("expert", **{**TINY, **changes}),
        seed=seed,
        scratch=scratch,
        validate=lambda policy: mean_return(workload, policy),
        objective=lambda row: row["return"],
        report=report,
    )


def test_in_seconds_it_gains_on_a_rule_and_far_more_than_a_student_of_shuffled_futures(tiny_workload, tmp_path):
    rule = mean_return(tiny_workload, "least_allocated")["return"]
    honest = learn(tiny_workload, tmp_path / "honest", base="least_allocated")
    control = learn(tiny_workload, tmp_path / "control", base="least_allocated", shuffled=True)
    assert honest.curve[0]["base"] == rule
    assert max(row["return"] for row in honest.curve) > rule + 0.05 * abs(rule)
    # Where chance is nearly as good as the rule, a student of nothing can be a little better by luck.
    assert max(row["return"] for row in control.curve) < max(row["return"] for row in honest.curve) - 0.1 * abs(rule)
    assert mean_return(tiny_workload, honest.scorer)["return"] == max(row["return"] for row in honest.curve)


def test_the_base_is_the_best_rule_on_validation_and_none_that_remembers(tiny_workload):
    worth = {"random_feasible": 9.0, "first_fit": 1.0, "warm_first": 3.0, "best_fit": 3.0}
    assert rules.best(worth, lambda rule: {"return": worth[rule]}, lambda row: row["return"]) == (
        "random_feasible", 9.0)  # fmt: skip
    assert rules.best(worth, lambda rule: {"return": worth[rule]}, lambda row: row["return"], base=True) == (
        "warm_first", 3.0)  # fmt: skip


def test_states_come_from_whole_episodes_and_as_many_as_asked_for(tiny_workload, monkeypatch):
    env = make_vec(tiny_workload.scenario, 16, 0, tiny_workload.trace, copy=True)
    at, made, tried, step = [], [], expert.Trials.of, type(env).step

    def noting(self, rows):
        at.extend([len(made)] * len(rows))
        return tried(self, rows)

    def counted(self, actions):
        made.extend([1] * (self is env))  # forks have steps of their own
        return step(self, actions)

    monkeypatch.setattr(type(env), "step", counted)
    monkeypatch.setattr(expert.Trials, "of", noting)
    settings = algorithms.settings("expert", **TINY)
    found, _ = expert._visit(env, "warm_first", settings, None, 12, 3)
    assert len(found.mask) == 384
    assert {array.dtype for array in (found.candidates, found.request, found.advantages)} == {np.dtype(np.float32)}
    horizon = tiny_workload.scenario.horizon
    assert min(at) <= horizon + 2
    assert max(at) >= 2 * horizon - 2


def test_of_several_lengths_of_trials_a_training_takes_the_one_of_its_seed(tiny_workload, tmp_path):
    few = {"segments": 1, "epochs": 1, "states": 32, "base": "warm_first"}
    either = {
        (seed, str(length)): learn(tiny_workload, tmp_path / f"{seed}-{length}", seed, decisions=length, **few).curve
        for seed in (0, 1)
        for length in (2, 6, (2, 6))
    }
    assert either[0, "(2, 6)"] == either[0, "2"] != either[0, "6"]
    assert either[1, "(2, 6)"] == either[1, "6"] != either[1, "2"]
    with pytest.raises(ConfigError, match="decisions"):
        algorithms.settings("expert", decisions=())


def test_polish_goes_on_where_it_was_stopped_and_only_validation_takes_what_it_finds(
    tiny_workload, tmp_path, monkeypatch
):
    monkeypatch.setattr(expert, "PART", 2)
    few = {"segments": 1, "epochs": 4, "states": 128, "base": "warm_first", "polish": 5}
    plain = learn(tiny_workload, tmp_path / "plain", **few | {"polish": 0})
    whole = learn(tiny_workload, tmp_path / "whole", **few)
    assert whole.curve[: len(plain.curve)] == plain.curve
    assert [row["segment"] for row in whole.curve] == [0.0, 1.0, 2.0, 3.0, 4.0], "a part of two, of two, of one"
    assert algorithms.settings("expert", **TINY | few).looks == 4
    assert whole.curve[-1]["steps"] > whole.curve[1]["steps"]
    best = max(row["return"] for row in whole.curve)
    assert mean_return(tiny_workload, whole.scorer)["return"] == best

    class Stopped(Exception):
        pass

    def stop(segment, _row):
        if segment == 3:
            raise Stopped

    with pytest.raises(Stopped):
        learn(tiny_workload, tmp_path / "stopped", report=stop, **few)
    again = learn(tiny_workload, tmp_path / "stopped", **few)
    assert again.curve == whole.curve
    for name, tensor in whole.scorer.state_dict().items():
        assert torch.equal(tensor, again.scorer.state_dict()[name]), name


def test_it_stops_when_nothing_is_gained(tiny_workload, tmp_path):
    found = [0.0, 2.0, 1.0, 1.5, 3.0, 4.0]
    at = iter(found)
    trained = training.train(
        lambda count: make_vec(tiny_workload.scenario, count, 0, tiny_workload.trace, copy=True),
        "expert",
        algorithms.settings("expert", **{**TINY, "segments": 5, "epochs": 1, "states": 32, "base": "warm_first"}),
        seed=0,
        scratch=tmp_path,
        validate=lambda policy: {"return": -9.0 if isinstance(policy, str) else next(at)},
        objective=lambda row: row["return"],
        report=lambda *_: None,
    )
    assert [row["return"] for row in trained.curve] == found[:4]
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"], "an ended training keeps no data"


def test_a_lost_file_of_states_means_starting_over(tiny_workload, tmp_path):
    changes = {"segments": 3, "patience": 3, "epochs": 1, "states": 32, "base": "warm_first"}
    whole = learn(tiny_workload, tmp_path / "whole", **changes)

    def stop(segment, _row):
        if segment == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn(tiny_workload, tmp_path / "torn", report=stop, **changes)
    (tmp_path / "torn" / "states-001.pt").unlink()
    again = learn(tiny_workload, tmp_path / "torn", **changes)
    assert str(again.curve) == str(whole.curve)


def test_shuffling_keeps_the_values_and_the_masks():
    rng = np.random.default_rng(0)
    mask = rng.random((50, 6)) < 0.7
    mask[:, 0] = True
    worth = np.where(mask, rng.normal(size=mask.shape), 0.0).astype(np.float32)
    found = expert._shuffled(Visited(mask[..., None].astype(np.float32), mask.astype(np.float32), mask, worth), rng)
    assert not found.advantages[~mask].any()
    np.testing.assert_allclose(found.advantages.sum(axis=1), 0.0, atol=1e-5)
    assert abs(np.corrcoef(found.advantages[mask], worth[mask])[0, 1]) < 0.3


def test_the_regression_finds_a_linear_advantage(tiny_workload):
    env = make_vec(tiny_workload.scenario, 16, 0, tiny_workload.trace, copy=True)
    seen = env.reset(seed=0)[0]
    torch.manual_seed(0)
    rows = np.arange(16).repeat(8)
    mask = seen["mask"][rows]
    worth = np.where(mask, -seen["candidates"][rows][..., 0], 0.0).astype(np.float32)
    worth -= np.where(mask, worth.sum(axis=1, keepdims=True) / mask.sum(axis=1, keepdims=True), 0.0).astype(np.float32)
    scorer = Scorer(env.feature_spec, 16)
    settings = algorithms.settings("expert", **{**TINY, "epochs": 200})
    visited = Visited(seen["candidates"][rows], seen["request"][rows], mask, worth)
    assert expert.fit(scorer, [visited], settings) < 0.1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"base": "nobody"}, "nobody"),
        ({"decisions": 0}, "decisions"),
        ({"clip": 0.0}, "clip"),
        ({"student_share": 1.5}, "student_share"),
        ({"segments": 4000, "most_mib": 1}, "MiB"),
        ({"futures": 2}, "futures"),
    ],
)
def test_bad_settings_are_refused_by_name(tiny_workload, tmp_path, changes, said):
    with pytest.raises(ConfigError, match=said):
        learn(tiny_workload, tmp_path, **changes)
    assert not list(tmp_path.iterdir())


def test_trials_that_go_on_by_a_student_are_those_that_go_on_by_the_rule_it_is(tiny_workload):
    env = make_vec(tiny_workload.scenario, 16, 0, tiny_workload.trace, copy=True)
    env.reset(seed=0, options={"park": True})
    names = [feature.name for feature in env.feature_spec.candidate]
    after = [names.index(name) for name in ("cpu_after", "mem_after")]

    def least_allocated(candidates, _request, _mask):
        return -candidates[..., after].astype(np.float64).sum(axis=-1)

    by_rule, by_score = (Trials(env, policy, 12).of(np.arange(16)) for policy in ("least_allocated", least_allocated))
    np.testing.assert_allclose(by_score.advantages, by_rule.advantages, atol=1e-6)


def test_a_student_that_goes_on_improves_its_own_and_old_data_are_left(tiny_workload, tmp_path, monkeypatch):
    seen = []
    fit = expert.fit
    monkeypatch.setattr(
        expert, "fit", lambda scorer, data, settings: (seen.append(len(data)), fit(scorer, data, settings))[1]
    )
    changes = {"segments": 3, "patience": 3, "base": "least_allocated", "student_from": 2, "kept": 2}
    iterated = learn(tiny_workload, tmp_path / "iterated", **changes)
    assert seen == [1, 2, 2]
    assert max(row["return"] for row in iterated.curve) > iterated.curve[0]["base"]
    assert str(learn(tiny_workload, tmp_path / "iterated", **changes).curve) == str(iterated.curve)
