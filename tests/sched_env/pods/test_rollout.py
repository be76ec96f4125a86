"""The problem through the parts that all problems share: rollout, replay, metric sheet, features."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sched_env import problems, rollout
from sched_env.replay import frames
from sched_env.vector import make_vec

KEYS = {"n_node": 4, "episode_windows": 6, "trace_windows": 40, "load": 0.7}


def test_the_command_line_gives_the_metric_sheet(capsys):
    arguments = ["--scenario", "pods/deploy", "--policy", "hottest_to_coolest", "--episodes", "3", "--json"]
    for key, value in KEYS.items():
        arguments += ["--set", f"{key}={value}"]
    assert rollout.main(arguments) == 0
    *episodes, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    sheet = last["summary"]
    assert len(episodes) == 3
    assert sheet["price_assumed"]
    assert sheet["infeasible"] == 0
    for episode in episodes:
        assert episode["sla_violation_rate"] == pytest.approx(episode["resource_violations"] / episode["positions"])
        rate = episode["performance_violations"] / episode["dealt_requests"]
        assert episode["performance_violation_rate"] == pytest.approx(rate)
        assert episode["performance_violations"] <= episode["crowded_requests"] <= episode["dealt_requests"]
        assert episode["cost_usd"] == pytest.approx(6 * 4 / 12 + 0.01 * episode["migrations"])
        assert (episode["windows"], episode["ended"]) == (6, "horizon")


def test_a_replay_gives_every_state_back(tmp_path):
    path = tmp_path / "run.parquet"
    rollout.run_episodes("pods/deploy", "hottest_to_coolest", [0, 9], record=path, **KEYS)
    env = make_vec("pods/deploy", 1, **KEYS)
    episode = -1
    for frame in frames(path):
        if frame.row["step"] == 0:
            episode += 1
            env.reset(options={"starts": [[0, 9][episode]], "park": True})
        np.testing.assert_array_equal(frame.candidates, env.buffers.candidates[0])
        env.step([frame.row["action"]])
        assert frame.row["reward"] == np.float32(env.buffers.reward[0])
    assert episode == 1


def test_results_do_not_depend_on_how_many_run_side_by_side():
    together = rollout.run_episodes("pods/deploy", "random_feasible", [0, 5, 9], seed=3, **KEYS)
    for start, found in zip([0, 5, 9], together, strict=True):
        alone = rollout.run_episodes("pods/deploy", "random_feasible", [start], seed=3, **KEYS)[0]
        assert {**alone, "decision_us": 0} == {**found, "decision_us": 0}


def test_window_changes_are_features_of_nodes_and_of_the_offered_pod():
    spec = problems.spec("pods")
    for resource in ("cpu", "mem"):
        for statistic in ("mean", "p95", "max", "change"):
            assert f"{resource}_{statistic}_after" in [feature.name for feature in spec.candidate]
            assert f"{resource}_{statistic}" in [feature.name for feature in spec.request]
    env = make_vec("pods/deploy", 1, **KEYS)
    env.reset(seed=0)
    nodes, pod = env.raw_fields(0)
    seen = dict(zip([f.name for f in env.feature_spec.candidate], env.buffers.candidates[0].T, strict=True))
    here = int(nodes["here"].argmax())
    change = nodes["cpu_last"] - nodes["cpu_first"]
    assert seen["cpu_change_after"][here] == pytest.approx(change[here] / 100.0, rel=1e-6)
    other = (here + 1) % 4
    expected = (change[other] + pod["cpu_last"] - pod["cpu_first"]) / 100.0
    assert seen["cpu_change_after"][other] == pytest.approx(expected, rel=1e-5)
    assert seen["pods_after"][other] == nodes["pods"][other] + 1


def test_what_is_left_out_takes_its_default_and_nothing_is_infinite():
    seen = problems.get("pods").build({"mem_deployed": np.array([0.0, 15.5, 16.0])}, {"mem": 0.5})
    assert seen.mask.tolist() == [True, True, False]
    assert np.isfinite(seen.candidates).all()
    full = problems.get("pods").build({"here": np.array([1.0, 0.0])}, {"moves_left": 0.0})
    assert full.mask.tolist() == [True, False]
