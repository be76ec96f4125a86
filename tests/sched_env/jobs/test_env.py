"""CpnEnv as Gymnasium knows environments, and its views."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

import sched_env  # noqa: F401 - registers the id
from sched_env import problems, scenarios
from sched_env.jobs import features
from sched_env.jobs.env import JOB_STATES, OUTCOMES, CpnEnv
from sched_env.jobs.state import ATTEMPTS
from sched_env.rollout import run_episodes
from wire.errors import ConfigError, InfeasibleActionError

SMALL = {"episode_jobs": 12, "trace_rows": 300, "cards": 6}


@pytest.mark.filterwarnings("ignore:.*A Box observation space.*")
def test_gymnasium_finds_nothing_wrong():
    env = gymnasium.make("sched_env.envs:sched_env/Cpn-v0", invalid_action="penalise", **SMALL)
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
    assert info["episode_metrics"]["ended"] == "end_of_trace"
    assert info["episode_metrics"]["return"] == pytest.approx(total)
    assert set(env.job_states()) == {"finished"}
    assert not obs["mask"].any()
    with pytest.raises(ResetNeeded):
        env.step(0)


def test_job_states_are_known_ones_and_lists_partition_the_jobs():
    env = CpnEnv(**SMALL, load=6.0, cancel_rate=0.3, dispatch_s=20.0, startup_s=20.0)
    obs, _ = env.reset(seed=1)
    for _ in range(8):
        states = env.job_states()
        assert set(states) <= set(JOB_STATES)
        lists = env.queues()
        listed = sorted(j for jobs in lists.values() for j in jobs)
        unlisted = {"submitted later", "failed", "cancelled"}
        assert listed == [j for j, state in enumerate(states) if state not in unlisted]
        obs, *_ = env.step(int(obs["mask"].argmax()))


def test_each_phase_before_the_run_takes_its_time(jobs, network, workload):
    # Dispatch until 10 s, 20 GB at 102.4 MB/s until 210 s, start-up until 230 s, run until 330 s.
    expected = {0: "waiting", 5: "scheduled", 15: "transferring", 205: "transferring", 215: "submitted", 235: "running"}
    rows = [(float(at), "small", 1000, 2.0, 20.0 if at == 0 else 0.0) for at in (*expected, 331)]
    keys = {"episode_jobs": len(rows), "dispatch_s": 10.0, "startup_s": 20.0}
    env = CpnEnv(trace=workload(jobs(*rows), network([("fast", 16.0)], [("fast", 24.0)], [("fast", 24.0)])), **keys)
    obs, _ = env.reset(options={"start": 0})
    assert obs["request"][4] == pytest.approx(330.0)  # best_s
    assert obs["candidates"][0, 10] == pytest.approx(330.0)  # estimate_s
    lists = {"scheduled": "Scheduled", "transferring": "Scheduled", "submitted": "Assigned", "running": "Assigned"}
    for number, where in enumerate(expected.values()):
        assert env.job_states()[0] == where
        assert 0 in env.queues()[lists.get(where, "Origin")]
        env.step(0 if number == 0 else 1 + number // 4)
    assert env.job_states()[0] == "finished"


def test_what_has_begun_to_be_scheduled_slows_nobody_down_and_makes_no_progress(jobs, network, workload):
    trace = jobs((0.0, "medium", 1000, 4.0), (0.0, "small", 1000, 4.0))
    env = CpnEnv(trace=workload(trace, network([("fast", 16.0)])), dispatch_s=50.0, startup_s=150.0, episode_jobs=2)
    env.reset(options={"start": 0})
    env.step(0)
    completion = env.raw_fields()[0]["completion_s"][0]
    *_, info = env.step(0)
    # Both start at 200 s: small ends at 380 s, medium has done 500 of its epochs by then and needs 100 s more.
    assert completion == pytest.approx(380.0)
    assert info["episode_metrics"]["mean_completion_s"] == pytest.approx((380.0 + 480.0) / 2)
    assert info["episode_metrics"]["card_hours"] == pytest.approx(480.0 / 3600.0)


@pytest.mark.parametrize("failure_rate", [0.0, 0.4])
@pytest.mark.parametrize("reservation", ["none", "easy", "big"])
def test_every_job_goes_through_the_states_in_order(failure_rate, reservation):
    keys = {"failure_rate": failure_rate, "reservation": reservation, "cancel_rate": 0.3, "load": 6.0}
    env = CpnEnv(episode_jobs=60, trace_rows=2000, topology="testbed", dispatch_s=20.0, startup_s=30.0, **keys)
    obs, _ = env.reset(seed=4)
    rng = np.random.default_rng(4)
    last = [(0, 0)] * 60
    seen, over = set(), False
    while not over:
        obs, _, over, _, _ = env.step(int(rng.choice(np.flatnonzero(obs["mask"]))))
        states = env.job_states()
        now = [(int(env.many.state.job[0, j, ATTEMPTS]), JOB_STATES.index(state)) for j, state in enumerate(states)]
        for before, after in zip(last, now, strict=True):
            # Onwards, or a step back with another failed attempt; who has ended stays as it is.
            assert after == before if JOB_STATES[before[1]] in OUTCOMES.values() else after >= before
        last = now
        seen.update(states)
    assert set(states) <= set(OUTCOMES.values())
    missing = {"reserved"} if reservation == "none" else set()
    assert seen | {"failed"} == set(JOB_STATES) - missing


def test_invalid_actions_do_what_they_are_told_to():
    for kind in ("terminate", "penalise", "raise"):
        env = CpnEnv(**SMALL, invalid_action=kind)
        obs, _ = env.reset(seed=0)
        if kind == "raise":
            with pytest.raises(InfeasibleActionError):
                env.step(99)
            continue
        after, reward, terminated, _, info = env.step(99)
        assert info["invalid"]
        assert terminated == (kind == "terminate")
        assert reward < -10.0 if terminated else reward == -10.0
        np.testing.assert_array_equal(obs["candidates"], after["candidates"])
    with pytest.raises(ConfigError, match="terminate, penalise, raise"):
        CpnEnv(**SMALL, invalid_action="shrug")


def test_the_service_sees_what_the_policy_was_trained_on():
    env = CpnEnv(**SMALL, load=6.0)
    obs, _ = env.reset(seed=2)
    for _ in range(10):
        seen = problems.get("jobs").builder(features.SPEC.version)(*env.raw_fields())
        np.testing.assert_array_equal(seen.candidates, obs["candidates"])
        np.testing.assert_array_equal(seen.request, obs["request"])
        obs, *_ = env.step(int(obs["mask"].argmax()))


def test_raw_fields_left_out_take_their_defaults():
    seen = problems.get("jobs").build({"gpu_mem_free": np.array([16.0, 1.0])}, {"gpu_mem": 4.0})
    assert seen.mask.tolist() == [False, False]  # a node whose free memory is unknown takes nothing
    seen = problems.get("jobs").build(
        {"gpu_mem_free": np.array([16.0, 4.0]), "node_mem_free": np.array([8.0, 8.0])}, {"gpu_mem": 4.0}
    )
    assert seen.mask.tolist() == [True, False]
    assert np.isfinite(seen.candidates).all()
    assert len(problems.spec("jobs").candidate) == seen.candidates.shape[1]


@pytest.mark.parametrize("name", problems.get("jobs").heuristics)
def test_every_heuristic_runs_through_rollout(name):
    episodes = run_episodes("jobs/cpn", name, [0, 50], episode_jobs=30, trace_rows=300, load=6.0)
    for episode in episodes:
        assert episode["ended"] == "end_of_trace"
        assert episode["oom"] == episode["failed"] == episode["cancelled"] == episode["infeasible"] == 0
        assert episode["requests"] == episode["placed"] == 30


def test_scheduling_pays():
    figures = {
        name: np.mean([e["mean_completion_s"] for e in run_episodes("jobs/cpn", name, [0, 200, 400], trace_rows=600)])
        for name in ("random_feasible", "fifo_exclusive", "min_completion_time")
    }
    assert figures["min_completion_time"] < 0.8 * min(figures["random_feasible"], figures["fifo_exclusive"])


def test_settings_that_make_no_sense_are_refused():
    wrong = {"max_jobs_per_card": 4, "reservation": "maybe", "cpu_threshold": 1.5, "colour": 1}
    wrong |= {"dispatch_s": float("inf"), "startup_s": -1.0, "cancel_rate": 1.5}
    for key, value in wrong.items():
        with pytest.raises(ConfigError, match=key):
            scenarios.load("jobs/cpn", {key: value})
