"""Calibration finds the numbers that a plain model was made with, and says what it could not find."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest

from pipeline.calibrate import functions as calibrate
from pipeline.datasets.responses import late_and_slow, spread_of

START = datetime(2026, 3, 2, tzinfo=UTC)
DEFAULTS = {"cold_start_s": 1.5, "keep_alive_s": 600.0}


def crowded(gain: float, seed: int = 0) -> pd.DataFrame:
    """What ``contention_of`` would return of 300 windows in which calls slow down by ``gain`` x the model."""
    rng = np.random.default_rng(seed)
    rows = []
    for window in range(300):
        for name, standard in (("f", 2.0), ("g", 10.0)):
            met = {"cpu_gain": rng.uniform(0.0, 0.6), "net_gain": 0.0, "disk_gain": 0.0}
            noise = rng.normal(1.0, 0.02)
            response = standard * (1.0 + gain * met["cpu_gain"]) * noise
            at = START + timedelta(seconds=300 * window)
            rows.append({"window_start": at, "name": name, "requests": 5000, "response_mean_s": response, **met})
    return pd.DataFrame(rows)


@pytest.mark.parametrize("gain", [0.3, 1.0, 2.5])
def test_gains_and_standards_of_a_known_model_are_found_with_their_error(gain):
    found, errors, standards = calibrate._gains(crowded(gain))
    assert found[0] == pytest.approx(gain, abs=4 * errors[0] + 0.02)
    assert 0.0 < errors[0] < 0.1
    assert standards == pytest.approx({"f": 2.0, "g": 10.0}, rel=0.02)
    # Nothing of network and disk was seen: the model's own curve stays.
    assert found[1:] == pytest.approx([1.0, 1.0])


def test_a_gain_beyond_belief_is_cut():
    assert calibrate._gains(crowded(40.0))[0][0] == calibrate.MOST_GAIN


def calls(extra: float, pods: int = 200) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    rows = []
    for _ in range(pods):
        times = rng.lognormal(0.0, 0.3, 10)
        times[0] += extra
        rows += [{"window_start": START, "name": "f", "duration_s": t, "first": n == 0} for n, t in enumerate(times)]
    return pd.DataFrame(rows)


def test_a_cold_start_is_what_first_calls_take_more_than_others():
    found = calibrate._cold_start(calls(0.8), 1.5)
    assert found.origin == "estimated"
    assert found.low < 0.8 < found.high
    assert found.high - found.low < 0.2


def test_without_a_log_the_cold_start_is_assumed_and_says_what_to_add():
    nothing = pd.DataFrame({"window_start": [], "name": [], "duration_s": [], "first": pd.Series([], dtype=bool)})
    found = calibrate._cold_start(nothing, 1.5)
    assert (found.value, found.low, found.origin) == (1.5, None, "assumed")
    assert "request log" in found.needs


def windows_with_a_log(folder, write, at, durations):
    rows = [{"window_start": START, "cluster": "c", "pod": "p", "position": n, "arrival_offset_s": float(n),
             "duration_s": d, "cpu_cores": 1.0, "mem_gib": 1.0, "estimated": False}
            for n, d in enumerate(durations)]  # fmt: skip
    write(folder, "demands", rows)
    write(folder, "pods", [{"window_start": START, "cluster": "c", "pod": "p", "function": "f", "node": "n1"}])
    mean, p95 = float(np.mean(durations)), float(np.quantile(durations, 0.95))
    told = {"function": "f", "requests": len(durations), "response_mean_s": mean, "response_p95_s": p95}
    write(folder, "functions", [{"window_start": START, "cluster": "c", **told}])
    write(folder, "events", [])


def test_late_calls_are_counted_in_the_log_not_read_off_a_curve(tmp_path, write, at):
    durations = [1.0] * 90 + [2.5] * 10
    windows_with_a_log(tmp_path / "w", write, at, durations)
    seen = late_and_slow(tmp_path / "w", START, at(300), {"f": 1.0}, 2.0)
    assert seen["late"].tolist() == [10.0]
    assert seen["ratio"].tolist() == [pytest.approx(115.0)]


def test_without_a_log_the_share_is_estimated_from_mean_and_p95(tmp_path, write, at):
    windows_with_a_log(tmp_path / "w", write, at, np.random.default_rng(0).lognormal(0.0, 0.4, 4000).tolist())
    truth = late_and_slow(tmp_path / "w", START, at(300), {"f": 1.0}, 2.0)["late"].iloc[0]
    write(tmp_path / "w", "demands", [])
    guess = late_and_slow(tmp_path / "w", START, at(300), {"f": 1.0}, 2.0)
    assert guess["counted"].iloc[0] == 0
    assert guess["late"].iloc[0] == pytest.approx(truth, rel=0.15)


def test_the_spread_of_calls_is_that_of_the_log(tmp_path, write, at):
    from pipeline.datasets.responses import logged_calls

    windows_with_a_log(tmp_path / "w", write, at, np.random.default_rng(0).lognormal(1.0, 0.4, 4000).tolist())
    found = spread_of(tmp_path / "w", START, at(300), logged_calls(tmp_path / "w", START, at(300)))
    assert found["f"][0] == pytest.approx(0.4, rel=0.05)
    assert found["f"][1] == 4000


def test_windows_that_tell_nothing_leave_every_default_as_an_assumption(tmp_path, write, at):
    for table in ("pods", "functions", "events", "demands", "nodes"):
        write(tmp_path / "w", table, [])
    found = calibrate.fit(tmp_path / "w", START, at(300), DEFAULTS)
    assert {value.origin for value in found.values} == {"assumed"}
    assert found.overrides == {"cpu_gain": 1.0, "net_gain": 1.0, "disk_gain": 1.0, **DEFAULTS}
    assert found.functions == {}


def test_with_few_calls_the_models_own_curve_has_a_say():
    few = crowded(0.3).assign(requests=5)
    assert 0.5 < calibrate._gains(few)[0][0] < 1.0
