"""Training is repeatable, resumable, a kill -9 costs a segment at most, and no segment cuts an episode."""

import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from stable_baselines3.common.callbacks import BaseCallback

from pipeline.policies import algorithms, training
from pipeline.policies.sb3 import Sb3VecEnv
from pipeline.policies.scorer import TorchPolicy
from sched_env.rollout import run_episodes
from sched_env.vector import make_vec


def make_env(workload):
    return lambda count: make_vec(workload.scenario, count, 0, workload.trace, copy=True)


def train(workload, config, scratch, seed=0, stop_after=None, algorithm="maskable_ppo", **further):
    def validate(scorer):
        given = scorer if isinstance(scorer, str) else TorchPolicy(scorer)
        rows = run_episodes(workload.scenario, given, workload.starts(4), trace=workload.trace)
        return {"return": float(np.mean([row["return"] for row in rows]))}

    def report(segment, row):
        if segment == stop_after:
            raise KeyboardInterrupt

    return training.train(
        make_env(workload),
        algorithm,
        config,
        seed=seed,
        scratch=scratch,
        validate=validate,
        objective=lambda row: row["return"],
        report=report,
        **further,
    )


TINY_OFF_POLICY = {
    "envs": 4, "rollout_steps": 2, "rollouts_per_segment": 8, "segments": 4, "hidden": 8, "batch": 16, "buffer": 120,
    "learning_starts": 16,
}  # fmt: skip
"""More decisions than the buffer holds: a resumed training must forget the same ones."""
TINY = {
    "ppo": {"envs": 4, "rollout_steps": 16, "segments": 4, "rollouts_per_segment": 1, "epochs": 1, "batch": 32,
            "hidden": 8},
    "expert": {"envs": 4, "segments": 4, "patience": 4, "decisions": 4, "states": 24, "epochs": 1, "batch": 16,
               "hidden": 8},
    "evolution": {"envs": 4, "segments": 4, "generations": 1, "population": 4, "hidden": 4,
                  "terms": [{"price": 1.0}, {"cpu_capacity": 1.0}], "start": [-1.0, 0.1]},
    "a2c": {"envs": 4, "segments": 4, "rollouts_per_segment": 2, "hidden": 8},
    "dqn": TINY_OFF_POLICY,
    "sac": TINY_OFF_POLICY,
    "qmix": TINY_OFF_POLICY,
}  # fmt: skip


def same(one, two):
    left, right = one.scorer.state_dict(), two.scorer.state_dict()
    return all(torch.equal(left[name], right[name]) for name in left)


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tiny_workload, tiny_ppo, tmp_path):
    first = train(tiny_workload, tiny_ppo, tmp_path / "a")
    again = train(tiny_workload, tiny_ppo, tmp_path / "b")
    other = train(tiny_workload, tiny_ppo, tmp_path / "c", seed=1)
    assert same(first, again)
    assert str(first.curve) == str(again.curve)
    assert not same(first, other)


@pytest.mark.parametrize("algorithm", algorithms.ALGORITHMS)
def test_a_resumed_training_ends_with_the_same_bits(tiny_workload, tiny_ppo, tmp_path, algorithm):
    tiny = algorithms.settings(algorithm, **TINY[algorithm]) if algorithm in TINY else tiny_ppo
    whole = train(tiny_workload, tiny, tmp_path / "whole", algorithm=algorithm)
    for stop in (1, 3):
        with pytest.raises(KeyboardInterrupt):
            train(tiny_workload, tiny, tmp_path / "parts", stop_after=stop, algorithm=algorithm)
    resumed = train(tiny_workload, tiny, tmp_path / "parts", algorithm=algorithm)
    assert same(resumed, whole)
    assert str(resumed.curve) == str(whole.curve)
    part = {"expert": "weights", "evolution": "mean"}.get(algorithm, "model")
    left = [torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)[part] for name in ("whole", "parts")]
    assert str(left[0]) == str(left[1]), "optimisers and targets too, not only the best weights"


def test_segments_do_not_cut_episodes(tiny_workload, tiny_ppo, tmp_path):
    """Episodes of 32 decisions end although a segment has 16."""
    curve = train(tiny_workload, tiny_ppo, tmp_path).curve
    assert tiny_ppo.rollout_steps * tiny_ppo.rollouts_per_segment < tiny_workload.scenario.horizon
    assert [np.isfinite(row["train_return"]) for row in curve[1:]] == [False, True, False, True]


def test_tensorboard_and_callbacks_are_sb3s(tiny_workload, tiny_ppo, tmp_path):
    seen = []

    class Count(BaseCallback):
        def _on_step(self):
            seen.append(self.num_timesteps)
            return True

    train(tiny_workload, tiny_ppo, tmp_path / "scratch", callbacks=[Count()], tensorboard=tmp_path / "board")
    assert seen[-1] == tiny_ppo.total_steps
    assert list((tmp_path / "board").glob("maskable_ppo_*/events.out.tfevents.*"))


def test_it_keeps_the_weights_that_did_best_on_validation(tiny_workload, tiny_ppo, tmp_path):
    trained = train(tiny_workload, tiny_ppo, tmp_path)
    rows = run_episodes(
        tiny_workload.scenario, TorchPolicy(trained.scorer), tiny_workload.starts(4), trace=tiny_workload.trace,
    )  # fmt: skip
    best = max(row["return"] for row in trained.curve)
    assert np.mean([row["return"] for row in rows]) == pytest.approx(best, abs=1e-9)


KILLED = """
import pickle, sys, time
from pathlib import Path
workload, config, scratch = pickle.loads(Path(sys.argv[1]).read_bytes())
sys.path.insert(0, sys.argv[2])
from pipeline.policies import training
from sched_env.vector import make_vec
def report(segment, row):
    print(segment, flush=True)
    time.sleep(0.3)
training.train(lambda count: make_vec(workload.scenario, count, 0, workload.trace, copy=True), "maskable_ppo", config,
          seed=0, scratch=Path(scratch), validate=lambda scorer: {"return": 0.0},
          objective=lambda row: row["return"], report=report)
"""


def test_kill_minus_nine_in_the_middle_loses_a_segment_at_most(tiny_workload, tiny_ppo, tmp_path):
    scratch = tmp_path / "scratch"
    arguments = tmp_path / "arguments"
    arguments.write_bytes(pickle.dumps((tiny_workload, tiny_ppo, str(scratch))))
    command = [sys.executable, "-c", KILLED, str(arguments), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.strip() == "2":
                process.send_signal(signal.SIGKILL)
                break
    assert process.wait() == -signal.SIGKILL
    began = time.monotonic()
    resumed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert resumed in (["3", "4"], ["2", "3", "4"]), f"resumed at {resumed} after {time.monotonic() - began:.1f} s"
    assert [path.name for path in scratch.iterdir()] == ["checkpoint.pt"]


def test_a_torn_checkpoint_means_starting_over_and_says_so(tiny_workload, tiny_ppo, tmp_path, caplog):
    with pytest.raises(KeyboardInterrupt):
        train(tiny_workload, tiny_ppo, tmp_path, stop_after=1)
    checkpoint = tmp_path / "checkpoint.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-200])
    trained = train(tiny_workload, tiny_ppo, tmp_path)
    assert len(trained.curve) == tiny_ppo.segments + 1
    assert "starts over" in caplog.text


def test_the_adapter_hides_features_as_often_as_told_and_only_droppable_ones(tiny_workload):
    env = Sb3VecEnv(make_env(tiny_workload)(4), missing_rate=1.0)
    observation = env.reset()
    spec = env.env.feature_spec
    for name, columns in (("candidates", spec.candidate), ("request", spec.request)):
        for column, feature in enumerate(columns):
            if feature.droppable:
                assert (observation[name][..., column] == np.float32(feature.default)).all(), feature.name
    clear = Sb3VecEnv(make_env(tiny_workload)(4)).reset()
    kept = [column for column, feature in enumerate(spec.candidate) if not feature.droppable]
    np.testing.assert_array_equal(observation["candidates"][..., kept], clear["candidates"][..., kept])


def test_the_adapter_keeps_one_shape_while_a_cluster_grows():
    env = Sb3VecEnv(make_vec("vm/expanding", 4, 0, copy=True, servers=2, max_servers=6))
    observation = env.reset()
    assert env.env.width < env.action_space.n
    for _ in range(40):
        env.step_async(observation["mask"].argmax(axis=1))
        observation, *_ = env.step_wait()
        assert env.observation_space["candidates"].shape == observation["candidates"].shape[1:]
        assert observation["mask"].shape == (4, env.action_space.n)


def test_the_adapter_wants_copies(tiny_workload):
    env = make_vec(tiny_workload.scenario, 2, 0, tiny_workload.trace)
    with pytest.raises(ValueError, match="copy=True"):
        Sb3VecEnv(env)


def test_on_the_scorer_ppo_and_maskable_ppo_are_the_same_algorithm(tiny_workload, tmp_path):
    tiny = {name: algorithms.settings(name, **TINY["ppo"], teacher="") for name in ("ppo", "maskable_ppo")}
    one, two = (train(tiny_workload, tiny[name], tmp_path / name, algorithm=name) for name in tiny)
    assert same(one, two)
