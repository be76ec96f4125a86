"""Schedulers of ``pods`` expect what the forecast says by what was before, the day before the split included."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from pipeline import model_folder
from pipeline.contracts.calibration import Value
from pipeline.datasets import pod_use, pods
from pipeline.forecast import methods, store
from pipeline.windows import Span
from sched_env.pods.forecast import COLUMNS, DAY, KNOWN, expected, rows_of
from sched_env.pods.foresight import AHEAD

CPU_NEXT = AHEAD.index("cpu_next")
START = datetime(2026, 3, 2, tzinfo=UTC)
SPAN = Span(START + timedelta(days=1, hours=1), START + timedelta(days=1, hours=2))


@pytest.fixture
def models(tmp_path):
    """A shipped forecast: half of the last window and half of the one a day before the next."""
    some = methods.asked(np.random.default_rng(0).lognormal(0.0, 1.0, (2 * DAY, 3, 2)))
    weight = np.zeros(len(KNOWN))
    weight[[KNOWN.index("last"), KNOWN.index("day_before")]] = 0.5
    said = methods.Fitted(np.tile(weight, (2, 2, 1)), np.full((2, 2, 2), 0.5))
    store.write(tmp_path / "models" / "forecast", said, some, {})
    return tmp_path / "models"


@pytest.fixture
def recorded(tmp_path, write):
    """Two days of three pods, one of which comes later than the others; and what they used."""
    folder = tmp_path / "windows"
    node = {"cluster": "c", "node": "n", "cpu_capacity_cores": 8.0, "mem_capacity_gib": 32.0}

    def make(use):
        for day in range(2):
            rows = [
                {"window_start": START + timedelta(days=day, seconds=300 * k), "cluster": "c", "pod": f"p{pod}",
                 "node": "n", "cpu_request_cores": 0.5, "mem_request_gib": 1.0, "present_ratio": 0.5,
                 "cpu_used_mean_cores": 2.0 * cpu, "mem_used_mean_gib": 2.0 * mem}
                for k, window in enumerate(use[day * DAY : (day + 1) * DAY])
                for pod, (cpu, mem) in enumerate(window) if not np.isnan(cpu)
            ]  # fmt: skip
            write(folder, "pods", rows, START + timedelta(days=day))
            at = [START + timedelta(days=day, hours=hour) for hour in range(24)]
            write(folder, "nodes", [{"window_start": one, **node} for one in at], START + timedelta(days=day))
        write(folder, "demands", [], START)
        return folder

    return make


def use_of_two_days():
    use = np.random.default_rng(1).lognormal(0.0, 1.0, (2 * DAY, 3, 2))
    use[: DAY + 3, 2] = np.nan
    return use


def believed(folder, models, span=SPAN):
    return pods.believed(pods.load(folder, span.start, span.end), models, folder, span)[0]


def test_each_pod_is_expected_to_use_what_the_model_says_by_its_day_before(recorded, models):
    use = use_of_two_days()
    found = believed(recorded(use), models)
    window = np.repeat(DAY + 12 + np.arange(len(found)), np.diff(found.window_rows))
    pod = np.array([int(found.pod_names[number].removeprefix("p")) for number in found.pod])
    model = pod_use.opened(models / "forecast")
    wanted = expected(model, rows_of(use, window, pod))
    np.testing.assert_array_equal(found.forecast, wanted)
    old = pod == 0
    by_hand = 0.5 * (use[window[old], 0, 0] + use[window[old] + 1 - DAY, 0, 0])
    np.testing.assert_allclose(found.forecast[old, CPU_NEXT], by_hand, rtol=1e-5)
    new = (pod == 2) & (window == DAY + 12)
    assert found.forecast[new, CPU_NEXT] == pytest.approx(use[DAY + 12, 2, 0]), "it has no day before"


def test_nothing_of_the_future_is_used(recorded, models):
    use = use_of_two_days()
    before = believed(recorded(use), models)
    use[DAY + 18 :] *= 9.0  # the second half of the span, and what follows it
    after = believed(recorded(use), models)
    known = before.window_rows[6]
    assert after.forecast[:known].tobytes() == before.forecast[:known].tobytes()
    assert after.forecast[known:].tobytes() != before.forecast[known:].tobytes()
    shorter = Span(SPAN.start, SPAN.start + timedelta(minutes=30))
    assert believed(recorded(use), models, shorter).forecast.tobytes() == before.forecast[:known].tobytes()


def test_where_none_shipped_the_last_window_is_the_forecast(recorded, tmp_path):
    model_folder.write_none(tmp_path / "forecast", {"why": "nothing was nearer"})
    folder = recorded(use_of_two_days())
    found = believed(folder, tmp_path)
    assert found.forecast.size == 0
    ahead = dict(zip(AHEAD, found.ahead().T, strict=True))
    for horizon in ("next", "later"):
        assert ahead[f"cpu_{horizon}"].tobytes() == found.cpu_used.tobytes()
        assert ahead[f"mem_{horizon}"].tobytes() == found.mem_used.tobytes()
        assert not ahead[f"cpu_{horizon}_spread"].any()


def test_what_calibration_finds_of_use_holds_for_what_is_expected_too(recorded, models):
    folder = recorded(use_of_two_days())
    gain = Value("used_share_of_demanded_cores", "", 1.5, None, None, 9, "estimated")
    trace = pods.scaled_demands(pods.load(folder, SPAN.start, SPAN.end), [gain])
    found, _ = pods.believed(trace, models, folder, SPAN)
    plain = believed(folder, models)
    np.testing.assert_allclose(found.forecast[:, :2], 1.5 * plain.forecast[:, :2])
    np.testing.assert_allclose(found.forecast[:, 2:4], 1.5**2 * plain.forecast[:, 2:4])
    np.testing.assert_allclose(found.cpu_used, 1.5 * plain.cpu_used)
    np.testing.assert_array_equal(found.forecast[:, 4:], plain.forecast[:, 4:])


def test_twice_the_load_is_twice_what_is_expected(recorded, models):
    folder = recorded(use_of_two_days())
    trace = pods.believed(pods.load(folder, SPAN.start, SPAN.end), models, folder, SPAN)
    twice, _ = pods.scaled(trace, 2.0)
    assert [name.endswith("spread") for name in AHEAD] == [False, False, True, True] * 2
    np.testing.assert_array_equal(twice.forecast, trace[0].forecast * np.array([2.0, 2.0, 4.0, 4.0] * 2))
    larger, _ = pods.resized(trace, None, 2.0)[0]
    assert larger.forecast.sum() == pytest.approx(2.0 * trace[0].forecast.sum())
    assert len(COLUMNS) == 2 * len(KNOWN)
