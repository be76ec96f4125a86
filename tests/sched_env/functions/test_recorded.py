"""``as_recorded`` repeats what was recorded, and a replay's windows add up to the episode."""

import dataclasses

import numpy as np
import pytest

from pipeline.replay import replay
from sched_env.functions.state import ROW
from sched_env.recorded import AsRecorded, told
from sched_env.rollout import run_episodes
from sched_env.vector import make_vec

SETTINGS = {"nodes": 4, "functions": 6, "trace_rows": 500, "load": 0.4, "cold_start_s": 0.5}


@pytest.fixture(scope="module")
def world():
    """A whole trace placed by a rule from an empty cluster, with the nodes it chose."""
    env = make_vec("functions/serverless", 1, 0, horizon=0, **SETTINGS)
    env.reset(options={"starts": [0], "park": True})
    node = np.full(len(env.trace), -1)
    rng = np.random.default_rng(0)
    while env.buffers.active[0]:
        row = int(env.state.cursor[0, ROW])
        node[row] = rng.choice(np.flatnonzero(env.buffers.mask[0]))
        env.step(np.array([node[row]]))
    metrics = dict(zip(env.METRICS, env.buffers.metrics[0].tolist(), strict=True))
    return env, (dataclasses.replace(env.trace, node=node), env.table), metrics


def test_the_recorded_placements_give_the_recorded_episode(world):
    env, trace, metrics = world
    policy = AsRecorded()
    (episode,) = run_episodes(env.scenario, policy, [0], trace=trace)
    assert policy.followed == policy.decided == metrics["placed"]
    for name in ("return", "cost_usd", "sla_violation_rate", "response_ratio"):
        assert episode[name] == pytest.approx(metrics[name], rel=1e-12)
    assert told(trace)
    assert not told((env.trace, env.table))


def test_the_windows_of_a_replay_add_up(world):
    env, trace, metrics = world
    rows = replay(env.scenario, trace, AsRecorded(), 300.0)
    span = (rows.index[-1] - rows.index[0] + 1) * 300.0
    assert len(rows) == span / 300.0
    # What is answered before the first whole window and after the last arrival is not in the windows.
    assert 0.7 * metrics["requests"] < rows["calls"].sum() <= metrics["requests"]
    assert rows["ratio"].sum() / rows["calls"].sum() == pytest.approx(metrics["response_ratio"], rel=0.05)
    assert 0.5 * metrics["cost_usd"] < rows["cost_usd"].sum() <= metrics["cost_usd"]
    assert (rows["late"] >= 0.0).all()
    assert (rows["late"] <= rows["calls"] + 1e-9).all()


def test_another_length_of_windows_reads_the_same_accounts(world):
    env, trace, _ = world
    fine, coarse = (replay(env.scenario, trace, AsRecorded(), seconds) for seconds in (300.0, 600.0))
    both = fine.groupby(fine.index // 2).sum()
    shared = coarse.index.intersection(both.index[1:-1])
    # An instance that is found there has no cold start: the two replays begin at different moments.
    np.testing.assert_allclose(coarse.loc[shared, "calls"], both.loc[shared, "calls"], rtol=1e-3)
    np.testing.assert_allclose(coarse.loc[shared, "late"], both.loc[shared, "late"], rtol=0.05, atol=1.0)


def test_calls_that_differ_are_late_in_part_as_a_draw_of_them_is(world):
    from sched_env.functions.kernels import late_part

    rng = np.random.default_rng(3)
    for ratio, spread in ((1.0, 0.4), (1.5, 0.3), (2.2, 0.5)):
        drawn = ratio * rng.lognormal(-0.5 * spread**2, spread, 200_000)
        assert late_part(ratio, 2.0, spread) == pytest.approx(np.mean(drawn > 2.0), abs=0.005)
    assert late_part(2.0, 2.0, 0.0) == 0.0
    assert late_part(2.1, 2.0, 0.0) == 1.0
