"""What a forecast is asked, by hand and bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from sched_env.pods import forecast

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
    known = row(GAP, 2.0)
    swing = [COLUMN["cpu_swing"], COLUMN["mem_swing"]]
    assert np.delete(known, swing).tolist() == [2.0] * (len(forecast.COLUMNS) - 2)
    assert known[swing].tolist() == pytest.approx([3 * 0.6**2 / 4] * 2), "three windows of a pod that swings as usual"


def test_how_much_a_pod_swings_is_what_its_windows_say_the_more_there_are():
    assert row(1.0, GAP, 3.0)[COLUMN["cpu_swing"]] == pytest.approx((2 * 1.0 + 3 * 0.6**2) / 5)
    steady = row(*np.full(forecast.DAY, 4.0))[COLUMN["mem_swing"]]
    assert steady == pytest.approx(3 * 1.2**2 / (forecast.DAY + 3))


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
    assert known[COLUMN["cpu_later_day_before"]] == use[-1 - forecast.DAY + forecast.LATER]
    assert known[COLUMN["cpu_so_far"]] == use[-forecast.DAY :].mean(), "of a day, whatever was before"


def test_where_half_of_the_day_before_is_missing_it_is_not_known():
    use = np.arange(1.0, 2 * forecast.DAY + 1)
    use[-forecast.DAY] = GAP
    known = row(*use)
    assert known[COLUMN["cpu_day_before"]] == known[COLUMN["cpu_last_day_before"]] == use[-1]
    assert known[COLUMN["cpu_later_day_before"]] == use[-1 - forecast.DAY + forecast.LATER], "that one is known"
    use[-1 - forecast.DAY + forecast.LATER] = GAP
    assert row(*use)[COLUMN["cpu_later_day_before"]] == use[-1]


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
