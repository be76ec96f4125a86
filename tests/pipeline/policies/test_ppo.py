"""Training is repeatable, resumable, and a kill -9 costs a segment at most."""

import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from pipeline.policies import ppo
from pipeline.policies.sb3 import Sb3VecEnv
from pipeline.policies.scorer import TorchPolicy
from sched_env.rollout import run_episodes
from sched_env.vector import make_vec


def make_env(workload):
    return lambda count: make_vec(workload.scenario, count, 0, workload.trace, copy=True)


def train(workload, config, scratch, seed=0, stop_after=None):
    def validate(scorer):
        rows = run_episodes(workload.scenario, TorchPolicy(scorer), workload.starts(4), trace=workload.trace)
        return {"return": float(np.mean([row["return"] for row in rows]))}

    def report(segment, row):
        if segment == stop_after:
            raise KeyboardInterrupt

    return ppo.train(
        make_env(workload),
        config,
        seed=seed,
        scratch=scratch,
        validate=validate,
        objective=lambda row: row["return"],
        report=report,
    )


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


def test_a_resumed_training_ends_with_the_same_bits(tiny_workload, tiny_ppo, tmp_path):
    whole = train(tiny_workload, tiny_ppo, tmp_path / "whole")
    for stop in (1, 3):
        with pytest.raises(KeyboardInterrupt):
            train(tiny_workload, tiny_ppo, tmp_path / "parts", stop_after=stop)
    assert same(train(tiny_workload, tiny_ppo, tmp_path / "parts"), whole)


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
from pipeline.policies import ppo
from sched_env.vector import make_vec
def report(segment, row):
    print(segment, flush=True)
    time.sleep(0.3)
ppo.train(lambda count: make_vec(workload.scenario, count, 0, workload.trace, copy=True), config,
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


def test_the_adapter_wants_copies(tiny_workload):
    env = make_vec(tiny_workload.scenario, 2, 0, tiny_workload.trace)
    with pytest.raises(ValueError, match="copy=True"):
        Sb3VecEnv(env)
