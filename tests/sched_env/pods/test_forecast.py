"""What a forecast is asked, by hand and bit for bit, and what expectations do to observations."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from sched_env import problems
from sched_env.pods import features, forecast, synthetic
from sched_env.vector import make_vec

COLUMN = {column.name: number for number, column in enumerate(forecast.COLUMNS)}
GAP = np.nan


def used(rng, windows, pods=3):
    """Use with gaps, and pods that come and go; not in whole grains."""
    use = rng.lognormal(0.0, 1.0, (windows, pods, 2))
    use[rng.random((windows, pods)) < 0.1] = GAP
    use[: windows // 2, 1] = GAP
    return use


def row(*cpu):
    use = np.array(cpu, float)[:, None, None].repeat(2, axis=2)
    return forecast.rows(use, len(cpu) - 1)[0, 0]


def test_a_new_pod_has_nothing_but_its_last_window():
    assert row(GAP, 2.0).tolist() == [2.0] * len(forecast.COLUMNS)


def test_what_is_known_is_smoothed_and_averaged_over_gaps():
    known = row(1.0, GAP, 3.0)
    assert known[COLUMN["cpu_last"]] == 3.0
    assert known[COLUMN["cpu_so_far"]] == 2.0
    assert known[COLUMN["mem_smoothed_0.5"]] == 2.0
    assert known[COLUMN["cpu_smoothed_0.3"]] == pytest.approx(1.6)


def test_the_day_before_is_the_window_that_comes_and_the_one_before_it():
    use = np.arange(1.0, 2 * forecast.DAY + 1)
    known = row(*use)
    assert known[COLUMN["cpu_last_day_before"]] == use[-1 - forecast.DAY]
    assert known[COLUMN["cpu_day_before"]] == use[-forecast.DAY]
    assert known[COLUMN["cpu_so_far"]] == use[-forecast.DAY :].mean(), "of a day, whatever was before"


def test_where_half_of_the_day_before_is_missing_it_is_not_known():
    use = np.arange(1.0, 2 * forecast.DAY + 1)
    use[-forecast.DAY] = GAP
    known = row(*use)
    assert known[COLUMN["cpu_day_before"]] == known[COLUMN["cpu_last_day_before"]] == use[-1]


def test_a_live_day_gives_the_bits_of_a_long_trace():
    use = used(np.random.default_rng(0), 3 * forecast.DAY)
    whole = forecast.rows(use)
    for window in (5, forecast.DAY, 2 * forecast.DAY + 7, len(use) - 1):
        day = use[max(window - forecast.LOOKED_BACK + 1, 0) : window + 1]
        there = ~np.isnan(use[window, :, 0])
        live = forecast.rows(day, len(day) - 1)[0]
        assert live[there].tobytes() == whole[window][there].tobytes()


def test_rows_are_found_for_any_windows_and_pods(monkeypatch):
    monkeypatch.setattr(forecast, "MOST_AT_ONCE", 2)
    use = used(np.random.default_rng(1), 60, pods=5)
    window, pod = np.nonzero(~np.isnan(use[20:, :, 0]))
    found = forecast.rows_of(use, window + 20, pod)
    np.testing.assert_array_equal(found, forecast.rows(use)[window + 20, pod], strict=True)


def test_nothing_of_later_windows_is_seen():
    use = used(np.random.default_rng(2), 50)
    before = forecast.rows(use[:30]).tobytes()
    use[30:] *= 7.0
    assert forecast.rows(use)[:30].tobytes() == before


@pytest.fixture(scope="module")
def foreseen():
    """A generated trace, and forecasts that are far off."""
    nodes = synthetic.nodes(6)
    trace = synthetic.generate(nodes, 40, load=0.6)
    rng = np.random.default_rng(3)
    said = {f"{name}_forecast": getattr(trace, f"{name}_used") * rng.uniform(0.0, 2.0, trace.pod.size)
            for name in ("cpu", "mem")}  # fmt: skip
    return dataclasses.replace(trace, **said), nodes


@pytest.mark.parametrize("arrival", ["serial", "parallel"])
def test_expectations_that_are_kept_equal_those_worked_out_from_nothing(foreseen, arrival):
    env = make_vec("pods/deploy", 2, seed=1, trace=foreseen, arrival=arrival)
    env.reset()
    rng = np.random.default_rng(4)
    for _ in range(150):
        mask = env.observe()["mask"]
        env.step([int(rng.choice(np.flatnonzero(one))) for one in mask])
        for b in range(2):
            whole = env.rebuild(b)
            assert env.buffers.candidates[b].tobytes() == whole.candidates.tobytes()
            assert env.buffers.request[b].tobytes() == whole.request.tobytes()
    names = [feature.name for feature in features.SPEC.candidate]
    seen = env.buffers.candidates
    assert not np.array_equal(seen[..., names.index("cpu_forecast_after")], seen[..., names.index("cpu_mean_after")])


def test_without_a_forecast_the_mean_of_the_window_is_expected(foreseen):
    trace, nodes = foreseen
    plain = dataclasses.replace(trace, cpu_forecast=trace.cpu_used, mem_forecast=trace.mem_used)
    env = make_vec("pods/deploy", 1, seed=1, trace=(plain, nodes))
    env.reset()
    candidates, request = env.raw_fields(0)
    defaults = (
        {name: value for name, value in side.items() if "forecast" not in name} for side in (candidates, request)
    )
    built, whole = features.build(*defaults), env.rebuild(0)
    assert built.candidates.tobytes() == whole.candidates.tobytes()
    assert built.request.tobytes() == whole.request.tobytes()


def test_a_trace_keeps_its_forecasts_when_it_is_cut(foreseen):
    trace, _ = foreseen
    rows = slice(int(trace.window_rows[5]), int(trace.window_rows[9]))
    assert trace.windows(5, 9).cpu_forecast.tolist() == trace.cpu_forecast[rows].tolist()


def test_policies_of_the_spec_before_see_what_they_saw(foreseen):
    problem = problems.get("pods")
    env = make_vec("pods/deploy", 1, seed=1, trace=foreseen)
    env.reset()
    now, before = (problem.builder(version)(*env.raw_fields(0)) for version in (2, 1))
    assert before.candidates.shape[1] == len(features.BEFORE.candidate) == 15
    assert before.candidates.tobytes() == np.ascontiguousarray(now.candidates[:, :15]).tobytes()
    assert before.request.tobytes() == now.request[:12].tobytes()
