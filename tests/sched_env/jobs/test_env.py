"""CpnEnv as Gymnasium knows environments, and its views."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

import sched_env  # noqa: F401 - registers the id
from sched_env import features, heuristics, scenarios
from sched_env.errors import ConfigError, InfeasibleActionError
from sched_env.jobs.env import JOB_STATES, CpnEnv
from sched_env.rollout import run_episodes

SMALL = {"episode_jobs": 12, "trace_rows": 300, "cards": 6}


@pytest.mark.filterwarnings("ignore:.*A Box observation space.*")
def test_gymnasium_finds_nothing_wrong():
    env = gymnasium.make("sched_env/Cpn-v0", invalid_action="penalise", **SMALL)
    check_env(env.unwrapped, skip_render_check=True)


def test_an_episode_ends_with_every_job_finished():
    env = CpnEnv(**SMALL)
    obs, _ = env.reset(seed=3)
    over, total = False, 0.0
    while not over:
        assert obs["mask"].any()
        np.testing.assert_array_equal(obs["mask"].astype(bool), env.action_masks())
        obs, reward, terminated, truncated, info = env.step(int(obs["mask"].argmax()))
        total += reward
        over = terminated or truncated
    assert terminated
    assert info["ended"] == "end_of_trace"
    assert info["episode_metrics"]["return"] == pytest.approx(total)
    assert set(env.job_states()) == {"finished"}
    assert not obs["mask"].any()
    with pytest.raises(ResetNeeded):
        env.step(0)


def test_job_states_are_known_ones_and_lists_partition_the_jobs():
    env = CpnEnv(**SMALL, load=6.0)
    obs, _ = env.reset(seed=1)
    for _ in range(8):
        states = env.job_states()
        assert set(states) <= set(JOB_STATES)
        lists = env.queues()
        listed = sorted(j for jobs in lists.values() for j in jobs)
        assert listed == [j for j, state in enumerate(states) if state not in {"submitted later", "failed"}]
        obs, *_ = env.step(int(obs["mask"].argmax()))


def test_invalid_actions_do_what_they_are_told_to():
    for kind in ("terminate", "penalise", "raise"):
        env = CpnEnv(**SMALL, invalid_action=kind)
        obs, _ = env.reset(seed=0)
        if kind == "raise":
            with pytest.raises(InfeasibleActionError):
                env.step(99)
            continue
        after, reward, terminated, _, info = env.step(99)
        assert info == {"invalid": True}
        assert terminated == (kind == "terminate")
        assert reward == (0.0 if terminated else -10.0)
        np.testing.assert_array_equal(obs["candidates"], after["candidates"])
    with pytest.raises(ConfigError, match="terminate, penalise, raise"):
        CpnEnv(**SMALL, invalid_action="shrug")


def test_the_service_sees_what_the_policy_was_trained_on():
    env = CpnEnv(**SMALL, load=6.0)
    obs, _ = env.reset(seed=2)
    for _ in range(10):
        seen = features.build("jobs", *env.raw())
        np.testing.assert_array_equal(seen.candidates, obs["candidates"])
        np.testing.assert_array_equal(seen.request, obs["request"])
        obs, *_ = env.step(int(obs["mask"].argmax()))


def test_raw_fields_left_out_take_their_defaults():
    seen = features.build("jobs", {"gpu_mem_free": np.array([16.0, 1.0])}, {"gpu_mem": 4.0})
    assert seen.mask.tolist() == [False, False]  # a node whose free memory is unknown takes nothing
    seen = features.build(
        "jobs", {"gpu_mem_free": np.array([16.0, 4.0]), "node_mem_free": np.array([8.0, 8.0])}, {"gpu_mem": 4.0}
    )
    assert seen.mask.tolist() == [True, False]
    assert np.isfinite(seen.candidates).all()
    assert len(features.spec("jobs").candidate) == seen.candidates.shape[1]


@pytest.mark.parametrize("name", heuristics.names("jobs"))
def test_every_heuristic_runs_through_rollout(name):
    episodes = run_episodes("jobs/cpn", name, [0, 50], episode_jobs=30, trace_rows=300, load=6.0)
    for episode in episodes:
        assert episode["ended"] == "end_of_trace"
        assert episode["oom"] == episode["failed"] == episode["infeasible"] == 0
        assert episode["requests"] == episode["placed"] == 30


def test_scheduling_pays():
    figures = {
        name: np.mean([e["mean_completion_s"] for e in run_episodes("jobs/cpn", name, [0, 200, 400], trace_rows=600)])
        for name in ("random_feasible", "fifo_exclusive", "min_completion_time")
    }
    assert figures["min_completion_time"] < 0.8 * min(figures["random_feasible"], figures["fifo_exclusive"])


def test_settings_that_make_no_sense_are_refused():
    for key, value in {"max_jobs_per_card": 4, "reservation": "maybe", "cpu_threshold": 1.5, "colour": 1}.items():
        with pytest.raises(ConfigError, match=key):
            scenarios.load("jobs/cpn", {key: value})
