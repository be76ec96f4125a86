"""Jobs that their users withdraw: in every state, by the queue and live, at the same instant as other events."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from sched_env.jobs import synthetic as synthetic_jobs
from sched_env.jobs.env import CpnEnv
from sched_env.jobs.state import CORES, FIRST, GPU_FREE, HELD, JOBS, MEM, NOW, OFFERED, WAITING
from sched_env.vector import make_vec
from wire.errors import ConfigError, TraceError

NEVER = np.inf


def assert_empty(env):
    """After the last job has left, nothing is held."""
    assert env.state.kind[0, :, JOBS].sum() == env.state.tally[0, HELD] == env.state.tally[0, WAITING] == 0
    np.testing.assert_array_equal(env.state.card[0, :, GPU_FREE], env.cards.mem)
    np.testing.assert_array_equal(env.state.node[0, :, MEM], env.cards.node_mem)
    assert (env.state.node[0, :, CORES] == 0.0).all()


@pytest.fixture
def play(jobs, network, workload):
    """Run a queue, with the seconds after which each job is withdrawn, always on the first card that can take a job.

    Returns the environment and the metrics.
    """

    def run(rows, cancel_s, nodes=([("fast", 16.0)],), **settings):
        trace = replace(jobs(*rows), cancel_s=np.array(cancel_s, float))
        env = CpnEnv(trace=workload(trace, network(*nodes)), episode_jobs=len(rows), **settings)
        obs, _ = env.reset(options={"start": 0})
        over = False
        while not over:
            obs, _, over, _, info = env.step(int(obs["mask"].argmax()))
        assert_empty(env.many)
        return env, info["episode_metrics"]

    return run


def test_a_running_job_that_is_withdrawn_leaves_its_card_to_the_other(play):
    # Together both are 1.8 times slower: small ends at 100 s by its user, medium has done 100 / 0.36 epochs by then.
    env, metrics = play([(0.0, "small", 1000, 4.0), (0.0, "medium", 1000, 4.0)], [100.0, NEVER])
    assert env.job_states() == ["cancelled", "finished"]
    end = 100.0 + (1000 - 100.0 / 0.36) * 0.2
    assert metrics["makespan_s"] == pytest.approx(end)
    assert metrics["mean_completion_s"] == pytest.approx((100.0 + end) / 2)
    assert metrics["card_hours"] == pytest.approx(end / 3600.0)
    assert (metrics["cancelled"], metrics["failed"], metrics["retries"]) == (1, 0, 0)


def test_a_waiting_job_that_is_withdrawn_is_never_placed_and_has_waited(play):
    env, metrics = play(
        [(0.0, "llm", 20, 14.0), (10.0, "llm", 20, 14.0), (20.0, "llm", 20, 14.0)], [NEVER, 40.0, NEVER]
    )
    assert env.job_states() == ["finished", "cancelled", "finished"]
    assert metrics["placed"] == 2
    assert metrics["makespan_s"] == pytest.approx(200.0)  # the third follows the first at once
    assert metrics["wait_s"] == pytest.approx(40.0 + 80.0)
    assert metrics["max_wait_s"] == pytest.approx(80.0)


@pytest.mark.parametrize(("at", "moved"), [(5.0, 0.0), (60.0, 5.0), (110.0, 10.0), (125.0, 10.0)])
def test_what_has_not_come_over_the_link_is_not_paid(at, moved, play):
    # Dispatch until 10 s, transfer of 10 GB until 110 s, start-up until 120 s.
    _, metrics = play([(0.0, "small", 1000, 4.0, 10.0)], [at], dispatch_s=10.0, startup_s=10.0)
    assert metrics["cancelled"] == 1
    assert metrics["moved_gb"] == pytest.approx(moved)
    assert metrics["cost_usd"] == pytest.approx(at / 3600.0 * 2.0 + moved * 0.5)


def test_a_reserved_job_that_is_withdrawn_gives_its_card_back(play):
    # The llm reserves the card at 1 s for when the first ends, at 40 s; the last would delay it, so it has to wait.
    rows = [(0.0, "small", 400, 4.0), (1.0, "llm", 5, 15.0), (2.0, "small", 4000, 4.0)]
    _, kept = play(rows, [NEVER, NEVER, NEVER], reservation="easy")
    assert kept["wait_s"] == pytest.approx(39.0 + 63.0)
    env, metrics = play(rows, [NEVER, 20.0, NEVER], reservation="easy")
    assert env.job_states() == ["finished", "cancelled", "finished"]
    assert metrics["wait_s"] == pytest.approx(20.0 + 19.0)  # both until the withdrawal at 21 s


def test_at_one_instant_what_has_ended_is_not_withdrawn(play):
    # The first ends at 50 s and is withdrawn at 50 s; so is the one whose data arrive then; the last at its submission.
    rows = [(0.0, "llm", 10, 10.0), (0.0, "small", 100, 2.0, 5.0), (30.0, "small", 100, 2.0)]
    env, metrics = play(rows, [50.0, 50.0, 0.0])
    assert env.job_states() == ["finished", "cancelled", "cancelled"]
    assert metrics["makespan_s"] == pytest.approx(50.0)
    assert metrics["mean_completion_s"] == pytest.approx(100.0 / 3)
    assert metrics["moved_gb"] == pytest.approx(5.0)


def test_a_job_withdrawn_as_others_are_submitted_frees_its_place_for_them(play):
    _, metrics = play([(0.0, "llm", 100, 14.0), (30.0, "llm", 10, 14.0)], [30.0, NEVER])
    assert metrics["wait_s"] == 0.0
    assert metrics["makespan_s"] == pytest.approx(80.0)


def test_a_job_can_be_withdrawn_on_a_retry(play):
    # Every attempt fails. The first job is ahead of the second each time it comes back, until it is withdrawn.
    rows = [(0.0, "llm", 20, 14.0), (0.0, "llm", 40, 14.0)]
    env, metrics = play(rows, [150.0, NEVER], failure_rate=1.0, max_attempts=50)
    assert env.job_states() == ["cancelled", "failed"]
    assert metrics["retries"] > 49  # the second's, and some of the first's
    assert metrics["makespan_s"] > 150.0


def test_a_withdrawn_job_is_late_only_if_its_deadline_had_passed(play):
    rows = [(0.0, "small", 1000, 14.0), (0.0, "small", 1000, 14.0)]  # deadline: twice 100 s
    assert play(rows, [NEVER, 150.0])[1]["sla_violation_rate"] == 0.0
    assert play(rows, [NEVER, 199.0])[1]["sla_violation_rate"] == 0.0
    rows[0] = (0.0, "small", 2500, 14.0)
    assert play(rows, [NEVER, 210.0])[1]["sla_violation_rate"] == 0.5


@pytest.mark.parametrize("reward", ["completion", "makespan"])
def test_rewards_add_up_with_withdrawals_too(reward):
    env = make_vec("jobs/cpn", 4, seed=2, episode_jobs=40, trace_rows=500, load=5.0, cancel_rate=0.4, reward=reward)
    env.reset(seed=2, options={"park": True})
    gone = 0.0
    while env.buffers.active.any():
        *_, infos = env.step(env.buffers.mask.argmax(axis=1))
        for b in np.flatnonzero(infos.get("_episode", [])):
            metrics = {name: float(values[b]) for name, values in infos["episode"].items()}
            name = {"completion": "mean_completion_s", "makespan": "makespan_s"}[reward]
            assert metrics["return"] * -1000.0 == pytest.approx(metrics[name])
            gone += metrics["cancelled"]
    assert gone > 10


def test_a_queue_nobody_withdraws_from_is_the_same_with_and_without_the_column(jobs, network, workload):
    rows = [(float(t), "small", 100, 2.0) for t in range(9)]
    found = []
    for trace in (jobs(*rows), replace(jobs(*rows), cancel_s=np.full(9, np.inf))):
        env = make_vec("jobs/cpn", 1, trace=workload(trace, network([("fast", 16.0)])), episode_jobs=9)
        env.reset(options={"starts": [0], "park": True})
        while env.buffers.active[0]:
            env.step([0])
        found.append(env.buffers.metrics.tobytes())
    assert found[0] == found[1]


def test_times_of_withdrawal_that_make_no_sense_are_refused(jobs, network, workload):
    trace = jobs((0.0, "small", 100, 2.0), (0.0, "small", 100, 2.0))
    for wrong in ([1.0, -1.0], [1.0, np.nan], [1.0]):
        with pytest.raises(TraceError, match=r"JobTrace\.cancel_s"):
            replace(trace, cancel_s=np.array(wrong))
    with pytest.raises(ConfigError, match="outlives its submission"):
        make_vec("jobs/cpn", 1, trace=workload(replace(trace, cancel_s=np.zeros(2)), network([("fast", 16.0)])))


def test_generated_queues_are_the_same_but_for_the_withdrawals():
    where = synthetic_jobs.mixed(20)
    plain, whims = (
        synthetic_jobs.queue(4000, where, load=2.0, data_gb=10.0, seed=5, cancel_rate=rate) for rate in (0.0, 0.25)
    )
    assert plain.cancel_s.size == 0
    for name in ("arrival_s", "model", "epochs", "data_gb", "origin"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(whims, name))
    assert np.isfinite(whims.cancel_s).mean() == pytest.approx(0.25, abs=0.03)


@pytest.fixture
def live(jobs, network, workload):
    """Two llms that need the only card each, and a small job much later; the first decision is asked for."""
    rows = [(0.0, "llm", 20, 14.0), (0.0, "llm", 10, 14.0), (500.0, "small", 10, 2.0)]
    env = CpnEnv(trace=workload(jobs(*rows), network([("fast", 16.0)])), episode_jobs=3)
    env.reset(options={"start": 0})
    return env


def offered(env):
    return int(env.many.state.tally[0, OFFERED] - env.many.state.tally[0, FIRST])


def test_withdrawing_the_offered_job_offers_the_next(live):
    assert offered(live) == 0
    obs, reward, terminated, truncated, info = live.cancel(0)
    assert offered(live) == 1
    assert live.job_states() == ["cancelled", "waiting", "submitted later"]
    assert obs["mask"].tolist() == [1]
    assert obs["request"][4] == pytest.approx(50.0)  # the next one's time on the best card
    assert (reward, terminated, truncated, info) == (0.0, False, False, {"invalid": False})


def test_when_nothing_else_is_there_time_goes_on_and_costs_what_it_costs(live):
    live.step(0)
    assert float(live.many.state.total[0, NOW]) == 100.0  # the second is offered when the first has ended
    *_, reward, terminated, _, _ = live.cancel(1)
    assert not terminated
    assert float(live.many.state.total[0, NOW]) == 500.0
    assert reward == 0.0  # nobody was in the system meanwhile
    _, _, terminated, _, info = live.cancel(2)
    assert terminated
    assert info["episode_metrics"]["ended"] == "end_of_trace"
    metrics = info["episode_metrics"]
    assert (metrics["cancelled"], metrics["placed"], metrics["steps"]) == (2, 1, 1)
    assert metrics["mean_completion_s"] == pytest.approx(200.0 / 3)
    assert metrics["makespan_s"] == pytest.approx(500.0)
    with pytest.raises(ResetNeeded):
        live.cancel(2)


def test_a_job_on_a_card_withdrawn_live_makes_room_for_what_waits(jobs, network, workload):
    rows = [(0.0, "llm", 20, 14.0), (1.0, "llm", 10, 14.0), (2.0, "small", 10, 1.0)]
    env = CpnEnv(trace=workload(jobs(*rows), network([("fast", 16.0)])), episode_jobs=3)
    env.reset(options={"start": 0})
    env.step(0)
    assert (offered(env), env.job_states()) == (2, ["running", "waiting", "waiting"])
    env.cancel(0)
    assert (offered(env), env.job_states()) == (1, ["cancelled", "waiting", "waiting"])  # the older fits now
    for job in (1, 2):
        env.cancel(job)
    assert_empty(env.many)


def test_jobs_that_cannot_be_withdrawn_are_refused_and_nothing_changes(live):
    live.step(0)
    before = [array.tobytes() for array in (*live.many.state, *live.many.buffers)]
    for job, message in ((0, "has ended"), (2, "has not been submitted"), (3, "there is no job 3"), (-2, "no job -2")):
        with pytest.raises(ConfigError, match=message):
            live.cancel(job)
    with pytest.raises(ConfigError, match="shape"):
        live.many.cancel([0, 1])
    assert [array.tobytes() for array in (*live.many.state, *live.many.buffers)] == before


def test_withdrawing_in_one_environment_leaves_the_others_alone():
    env = make_vec("jobs/cpn", 3, seed=4, episode_jobs=20, trace_rows=300, copy=True)
    env.reset(seed=4)
    env.step(env.buffers.mask.argmax(axis=1))
    before = [array[[0, 2]].tobytes() for array in env.state if array.shape[0] == 3 and array is not env.state.ends]
    seen = env.observe()
    after, reward, *_ = env.cancel([-1, int(env.state.tally[1, OFFERED] - env.state.tally[1, FIRST]), -1])
    assert before == [
        array[[0, 2]].tobytes() for array in env.state if array.shape[0] == 3 and array is not env.state.ends
    ]
    np.testing.assert_array_equal(after["candidates"][[0, 2]], seen["candidates"][[0, 2]])
    assert reward[[0, 2]].tolist() == [0.0, 0.0]
    assert not np.array_equal(after["request"][1], seen["request"][1])
