"""``loadmaster train`` and ``tune`` as people type them, on a scenario that needs no windows."""

import csv
import json
import subprocess
import sys

import pytest

from pipeline import train, tune
from pipeline.gate.config import Config as GateConfig
from sched_env import scenarios
from sched_env.rollout import run_episodes
from wire.errors import ConfigError

SMALL = [
    word
    for pair in ("envs=4", "rollouts_per_segment=4", "segments=2", "hidden=8", "learning_starts=8", "batch=16")
    for word in ("--set", pair)
]


@pytest.fixture
def scenario(tmp_path, monkeypatch):
    """A scenario file of the user's, short."""
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))
    file = tmp_path / "mine.yaml"
    file.write_text(
        "problem: functions\nnodes: 4\nfunctions: 5\nhorizon: 16\nr1_range: [1.0, 2.15]\nr2_range: [0, 0.12]\n"
    )
    return file


def test_an_environment_and_an_algorithm_by_name_give_a_policy_that_rollout_takes(scenario, tmp_path, capsys):
    out = tmp_path / "out"
    assert train.main(["--env", str(scenario), "--alg", "dqn", *SMALL, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "random_feasible" in shown
    assert str(out) in shown
    assert json.loads((out / "policy.json").read_text())["algorithm"] == "dqn"
    rows = list(csv.DictReader((out / "curve.csv").open()))
    assert [row["segment"] for row in rows] == ["0.0", "1.0", "2.0"]
    assert len(list((tmp_path / "var" / "tensorboard").glob("functions-dqn-*/**/events.out.tfevents.*"))) >= 1
    episodes = run_episodes(str(scenario), str(out / "policy.onnx"), episodes=2)
    assert all(episode["steps"] for episode in episodes)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--env", "fading", "--alg", "dqnn"], "maskable_ppo"),
        (["--env", "fadin", "--alg", "dqn"], "fading"),
        (["--env", "fading", "--alg", "dqn", "--set", "bach=3"], "bach"),
        (["--env", "fading", "--alg", "dqn", "--set", "batch"], "key=value"),
        (["--env", "fading", "--alg", "nowhere/dqn.yaml"], "nowhere/dqn.yaml"),
    ],
)
def test_a_mistake_is_said_before_anything_is_trained(words, said, tmp_path, monkeypatch):
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path))
    for verb in (train, tune):
        with pytest.raises(ConfigError, match=said):
            verb.main(words)
    assert not list(tmp_path.iterdir())


def test_what_is_learned_must_be_said_once():
    command = [sys.executable, "-m", "pipeline.train", "--env", "fading", "--problem", "vm", "--alg", "dqn"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "not allowed with" in done.stderr


def test_a_study_is_kept_goes_on_and_its_best_settings_train(scenario, tmp_path, capsys):
    words = ["--env", str(scenario), "--alg", "dqn", *SMALL]
    assert tune.main([*words, "--trials", "1"]) == 0
    assert tune.main([*words, "--trials", "2"]) == 0
    assert "3 trials finished, 0 stopped early" in capsys.readouterr().out
    best = tmp_path / "var" / "tune" / "mine" / "dqn.yaml"
    found = best.read_text()
    assert "learning_rate" in found
    assert "hidden" not in found, "what --set fixes is not searched"
    assert train.main(["--env", str(scenario), "--alg", str(best), *SMALL, "--out", str(tmp_path / "out")]) == 0
    assert sorted(path.name for path in best.parent.iterdir()) == ["dqn.db", "dqn.yaml"]


def test_a_trial_that_learns_badly_is_stopped_early(scenario, capsys, monkeypatch):
    """The first trials may always finish; then one that starts below the median goes no further."""
    monkeypatch.setattr(tune, "STARTUP_TRIALS", 1)
    worse = iter(range(100))
    segments = []

    def learn(task, algorithm, settings, seed, scratch, *, report, **further):
        number = next(worse)
        for segment in range(6):
            segments.append((number, segment))
            report(segment, {task.shown[0]: -float(number)})
        return None, train.Description("functions", algorithm, seed, 8, -float(number), {})

    monkeypatch.setattr(tune, "learn", learn)
    assert tune.main(["--env", str(scenario), "--alg", "dqn", "--trials", "3"]) == 0
    assert "1 trials finished, 2 stopped early" in capsys.readouterr().out
    assert max(segment for number, segment in segments if number == 1) < 5


def guarded(**limits):
    task = train.on_scenario(scenarios.load("functions/serverless"))
    return task._replace(limits=limits, usual=200.0)


def test_weights_beyond_a_guardrail_lose_to_any_within_and_the_nearer_to_the_farther():
    task = guarded(cost_usd=(1.005, 0.01), sla_violation_rate=(0.03, 0.001))
    within = {"return": -199.0, "cost_usd": 1.005, "sla_violation_rate": 0.03}
    cheaper = within | {"return": -150.0, "cost_usd": 1.013}
    dearer = within | {"return": -100.0, "cost_usd": 1.03}
    ranked = sorted((dearer, within, cheaper), key=task.objective, reverse=True)
    assert ranked == [within, cheaper, dearer]
    assert task.objective(within) == -199.0
    assert {"cost_usd", "sla_violation_rate"} <= set(task.shown), "the curve shows what is guarded"


def test_half_of_the_gates_margin_over_the_fallback_may_be_used_and_what_must_be_0_stays_so():
    rules = GateConfig(switched_off={"p99_wait_s": "nobody waits here"})
    usual = {"return": -200.0, "cost_usd": 1.0, "makespan_s": 100.0, "p99_wait_s": 1.0, "oom": 0.0}
    limits = train._limits(rules, ("makespan_s",), "return", usual)
    assert limits["cost_usd"] == pytest.approx((1.005, 0.01))
    assert limits["makespan_s"] == pytest.approx((101.0, 2.0))
    assert limits["oom"][0] == 0.0
    assert set(limits) == {"cost_usd", "makespan_s", "oom"}
    assert "cost_usd" not in train._limits(rules, (), "cost_usd", usual), "what must get better is no guardrail"
