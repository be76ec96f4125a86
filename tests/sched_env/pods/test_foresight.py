"""What a move does to the violations that are expected: by hand, against the normal distribution, and bit for bit."""

from __future__ import annotations

import copy
import dataclasses
from statistics import NormalDist

import numpy as np
import pytest

from sched_env import planning, problems, scenarios
from sched_env.jit import part
from sched_env.pods import features, foresight, synthetic
from sched_env.pods.foresight import AHEAD, STAKES
from sched_env.vector import make_vec
from wire.errors import TraceError

PLAIN = len(features.BEFORE.candidate)


def column(name):
    return [feature.name for feature in features.SPEC.candidate].index(name)


@pytest.fixture(scope="module")
def foreseen():
    """A generated trace, and forecasts that are far off and never sure."""
    nodes = synthetic.nodes(6)
    trace = synthetic.generate(nodes, 40, load=0.6)
    said = trace.ahead() * np.random.default_rng(3).uniform(0.0, 2.0, (trace.pod.size, len(AHEAD)))
    used = {"cpu": trace.cpu_used, "mem": trace.mem_used}
    for number, name in enumerate(AHEAD):
        if name.endswith("spread"):
            said[:, number] = (0.3 * used[name[:3]]) ** 2
    return dataclasses.replace(trace, forecast=said), nodes


def test_roots_stand_for_the_normal_distribution_with_longer_tails():
    for z in np.linspace(-3.0, 3.0, 25):
        normal = NormalDist(0.8 + 0.1 * z, 0.1)
        assert foresight.above(normal.mean, normal.variance, 0.8) == pytest.approx(1.0 - normal.cdf(0.8), abs=0.07)
        over = NormalDist(1.0 + 0.1 * z, 0.1)
        points = np.array([over.inv_cdf((k + 0.5) / 2000) for k in range(2000)])
        beyond = np.maximum(points - 1.0, 0.0).mean()
        assert foresight.beyond(over.mean, over.variance) == pytest.approx(beyond, abs=0.1 * 0.1)


def test_what_is_certain_is_above_a_limit_or_not():
    assert foresight.above(0.5, 0.0, 0.8) == pytest.approx(0.0, abs=1e-9)
    assert foresight.above(0.9, 0.0, 0.8) == pytest.approx(1.0, abs=1e-9)
    assert foresight.beyond(1.25, 0.0) == 0.25
    assert foresight.beyond(0.75, 0.0) == 0.0


def test_kernels_and_columns_work_out_the_same_bits():
    rng = np.random.default_rng(0)
    given = [*rng.lognormal(0.0, 1.0, (8, 50)), *rng.uniform(0.01, 1.0, (2, 50)), np.full(50, 0.8)]
    compiled = part(foresight.stakes)
    whole = np.array(foresight.stakes(*given)).T
    each = [compiled(*(float(values[k]) for values in given)) for k in range(50)]
    assert np.array(each).tobytes() == np.ascontiguousarray(whole).tobytes()


def test_a_feature_is_what_the_pod_adds_to_a_node_by_hand():
    """One node of ten cores, half full for certain with the pod there; another, 0.7 full, would be too hot with it."""
    nodes = {"cpu_capacity": np.full(2, 10.0), "mem_capacity": np.full(2, 10.0), "here": np.array([1.0, 0.0])}
    nodes |= {"cpu_next": np.array([5.0, 7.0]), "cpu_later": np.array([9.0, 9.0])}
    seen = features.build(nodes, {"cpu_next": 2.0, "cpu_later": 4.0, "mem": 1.0}).candidates
    assert seen[:, column("over_next")].tolist() == pytest.approx([0.0, 1.0], abs=1e-6)
    assert seen[:, column("short_next")].tolist() == pytest.approx([0.0, 0.0], abs=1e-6)
    assert seen[:, column("over_later")].tolist() == pytest.approx([1.0, 0.0], abs=1e-6), "the other is above it anyway"
    assert seen[:, column("short_later")].tolist() == pytest.approx([0.0, 0.3], abs=1e-6)
    lower = features.build(nodes, {"cpu_next": 2.0, "mem": 1.0, "threshold": 0.45}).candidates
    assert lower[:, column("over_next")].tolist() == pytest.approx([1.0, 0.0], abs=1e-6)


@pytest.mark.parametrize("arrival", ["serial", "parallel"])
@pytest.mark.parametrize("foresight", [True, False])
def test_what_is_kept_equals_what_is_worked_out_from_nothing(foreseen, arrival, foresight):
    env = make_vec("pods/deploy", 2, seed=1, trace=foreseen, arrival=arrival, foresight=foresight)
    env.reset()
    rng = np.random.default_rng(4)
    for _ in range(150):
        mask = env.observe()["mask"]
        env.step([int(rng.choice(np.flatnonzero(one))) for one in mask])
        for b in range(2):
            whole = env.rebuild(b)
            np.testing.assert_array_equal(env.buffers.candidates[b], whole.candidates, strict=True)
            assert env.buffers.request[b].tobytes() == whole.request.tobytes()
    assert env.buffers.candidates.shape[2] == PLAIN + len(STAKES) * foresight
    if foresight:
        assert (env.buffers.candidates[..., PLAIN:] != 0.0).any(axis=(0, 1)).all()


def test_foresight_changes_what_is_seen_and_nothing_else(foreseen):
    clear, short = (make_vec("pods/deploy", 2, seed=1, trace=foreseen, foresight=each) for each in (True, False))
    for env in (clear, short):
        env.reset()
    rng = np.random.default_rng(5)
    for _ in range(100):
        assert clear.buffers.candidates[..., :PLAIN].tobytes() == short.buffers.candidates.tobytes()
        assert clear.buffers.request.tobytes() == short.buffers.request.tobytes()
        assert clear.buffers.reward.tobytes() == short.buffers.reward.tobytes()
        actions = [int(rng.choice(np.flatnonzero(one))) for one in clear.observe()["mask"]]
        clear.step(actions)
        short.step(actions)


def test_copies_and_forks_go_on_as_the_original(foreseen):
    env = make_vec("pods/deploy", 2, seed=1, trace=foreseen, foresight=True)
    env.reset()
    rng = np.random.default_rng(6)
    for _ in range(20):
        env.step([int(rng.choice(np.flatnonzero(one))) for one in env.observe()["mask"]])
    kept, other = planning.get_state(env), copy.deepcopy(env)
    courses = []
    for each in (env, other):
        rng = np.random.default_rng(7)
        if each is env:
            each.step(each.state.cursor[:, 2].copy())  # away from what was kept
            planning.set_state(each, kept)
        for _ in range(30):
            each.step([int(rng.choice(np.flatnonzero(one))) for one in each.observe()["mask"]])
        courses.append(each.buffers.candidates.tobytes())
    assert courses[0] == courses[1]


def test_without_a_forecast_the_mean_of_the_window_goes_on_for_certain(foreseen):
    """A pod alone on its node: the simulator and a caller that sends no forecast see the same."""
    trace, nodes = foreseen
    plain = dataclasses.replace(trace, forecast=np.empty((0, len(AHEAD))))
    env = make_vec("pods/deploy", 1, seed=1, trace=(plain, nodes), foresight=True)
    env.reset()
    candidates, request = env.raw_fields(0)
    for horizon in ("next", "later"):
        np.testing.assert_allclose(candidates[f"cpu_{horizon}"], candidates["cpu_mean"], atol=1e-4)
        assert not candidates[f"mem_{horizon}_spread"].any()
    left_out = [{name: value for name, value in side.items() if name not in AHEAD} for side in (candidates, request)]
    np.testing.assert_allclose(features.build(*left_out).candidates, env.rebuild(0).candidates, atol=1e-4)


def test_a_trace_keeps_its_forecast_when_it_is_cut(foreseen):
    trace, _ = foreseen
    rows = slice(int(trace.window_rows[5]), int(trace.window_rows[9]))
    assert trace.windows(5, 9).forecast.tobytes() == trace.forecast[rows].tobytes()
    assert trace.windows(5, 9).ahead().tobytes() == trace.ahead(rows).tobytes()


def test_a_trace_with_a_forecast_of_the_wrong_shape_or_below_0_is_refused(foreseen):
    trace, _ = foreseen
    with pytest.raises(TraceError, match="forecast has shape"):
        dataclasses.replace(trace, forecast=trace.forecast[:, :2])
    with pytest.raises(TraceError, match="forecast row 3: -1"):
        dataclasses.replace(trace, forecast=np.where(np.arange(trace.pod.size)[:, None] == 3, -1.0, trace.forecast))


def test_a_policy_without_foresight_is_played_as_it_was_trained(foreseen):
    problem = problems.get("pods")
    scenario = scenarios.load("pods/deploy", {"foresight": True})
    played = problem.played(scenario)
    assert {version: each.foresight for version, (_, each) in played.items()} == {1: False, 2: True}
    assert problem.seen(played[1][1]).spec == played[1][0] == features.BEFORE
    assert problem.played(played[1][1]).keys() == {1}
    env = make_vec("pods/deploy", 1, seed=1, trace=foreseen, foresight=True)
    env.reset()
    now, before = (problem.builder(version)(*env.raw_fields(0)) for version in (2, 1))
    assert before.candidates.shape[1] == PLAIN == 15
    assert before.candidates.tobytes() == np.ascontiguousarray(now.candidates[:, :PLAIN]).tobytes()
    assert before.request.tobytes() == now.request.tobytes()
