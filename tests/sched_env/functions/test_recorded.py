"""``as_recorded`` repeats what was recorded, and a replay's windows add up to the episode."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from pipeline.replay import replay
from sched_env import scenarios
from sched_env.functions.kernels import late_part
from sched_env.functions.state import ROW, cluster_of
from sched_env.recorded import AsRecorded, told
from sched_env.rollout import run_episodes
from sched_env.tails import TAIL_AT
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
    _, (functions, nodes), _ = world
    rng = np.random.default_rng(3)
    for ratio, spread in ((1.0, 0.4), (1.5, 0.3), (2.2, 0.5)):
        drawn = rng.lognormal(-0.5 * spread**2, spread, 200_000)
        tail = (np.sort(drawn)[None, :] > TAIL_AT[:, None]).mean(axis=1)
        told = dataclasses.replace(functions, tails=np.tile(tail, (len(functions.function_names), 1)))
        cluster = cluster_of(told, nodes, 0.0)
        assert late_part(cluster, 0, ratio) == pytest.approx(np.mean(ratio * drawn > 2.0), abs=0.005)
    alike = cluster_of(functions, nodes, 0.0)
    assert late_part(alike, 0, 1.0) == 0.0
    assert late_part(alike, 0, 1e3) == 1.0


def paced(functions, pace):
    return dataclasses.replace(functions, pace=pace)


def test_calls_come_at_the_pace_of_their_function_and_none_is_lost(world):
    env, (functions, nodes), _ = world
    count, names = int(functions.arrival_s[-1] // functions.up_s) + 1, len(functions.function_names)
    uneven = np.where(np.arange(count)[:, None] % 2 == 0, 1.8, 0.2) * np.ones((1, names))
    plain = replay(env.scenario, (functions, nodes), AsRecorded(), functions.up_s)
    swinging = replay(env.scenario, (paced(functions, uneven), nodes), AsRecorded(), functions.up_s)
    same = replay(env.scenario, (paced(functions, 3.0 * np.ones((count, names))), nodes), AsRecorded(), functions.up_s)
    pd.testing.assert_frame_equal(plain, same, rtol=1e-9)
    inner = swinging.iloc[2:-2]
    even, odd = (inner["calls"][inner.index % 2 == k].mean() for k in (0, 1))
    assert even > 1.5 * odd, "short lives lie within one window"
    answered = []
    for trace in (functions, paced(functions, uneven)):
        whole = make_vec(env.scenario, 1, 0, (trace, nodes))
        whole.reset(options={"starts": [0], "park": True})
        choose = AsRecorded().bind(whole)
        while whole.buffers.active[0]:
            whole.step(choose())
        answered.append(whole.state.histogram.sum())
    assert answered[0] == pytest.approx(answered[1], rel=1e-9)


def test_where_use_is_measured_it_slows_calls_and_adds_up_in_the_windows(world):
    env, (functions, nodes), _ = world
    rate = functions.requests / functions.duration_s
    light, heavy = (
        dataclasses.replace(functions, idle_use=np.full(len(functions), 0.05), work_s=share * functions.cpu / rate)
        for share in (0.1, 0.9)
    )
    scenario = scenarios.load(env.scenario, {"contention": "used", "system_cores": 0.25})
    small, large = (replay(scenario, (trace, nodes), AsRecorded(), 300.0) for trace in (light, heavy))
    requested = replay(env.scenario, (functions, nodes), AsRecorded(), 300.0)["used_cores"]
    assert (small["ratio"] / small["calls"]).mean() < (large["ratio"] / large["calls"]).mean()
    idle = large["used_cores"] - 0.9 * requested
    assert idle.between(0.25 * len(nodes), 0.25 * len(nodes) + 0.06 * len(functions)).mean() > 0.9
