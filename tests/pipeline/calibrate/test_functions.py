"""Calibration finds the numbers that a plain model was made with, and says what it could not find."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest

from pipeline.calibrate import functions as calibrate
from pipeline.datasets.responses import late_and_slow, quantile_of_ratios, spread_of, tails_of
from sched_env.tails import TAIL_AT

START = datetime(2026, 3, 2, tzinfo=UTC)
DEFAULTS = {"cold_start_s": 1.5, "keep_alive_s": 600.0}


def crowded(gain: float, seed: int = 0) -> pd.DataFrame:
    """What ``contention_of`` would return of 300 windows in which calls slow down by ``gain`` x the model."""
    rng = np.random.default_rng(seed)
    rows = []
    for window in range(300):
        for name, standard in (("f", 2.0), ("g", 10.0)):
            met = {"cpu_gain": rng.uniform(0.0, 0.6), "busy_gain": 0.0, "net_gain": 0.0, "disk_gain": 0.0}
            met |= {"work_s": 0.0, "starts": 0}
            noise = rng.normal(1.0, 0.02)
            response = standard * (1.0 + gain * met["cpu_gain"]) * noise
            at = START + timedelta(seconds=300 * window)
            rows.append({"window_start": at, "name": name, "requests": 5000, "response_mean_s": response, **met})
    return pd.DataFrame(rows)


@pytest.mark.parametrize("gain", [0.3, 1.0, 2.5])
def test_gains_and_standards_of_a_known_model_are_found_with_their_error(gain):
    found = calibrate._gains(crowded(gain))
    assert found.gains[0] == pytest.approx(gain, abs=4 * found.errors[0] + 0.02)
    assert 0.0 < found.errors[0] < 0.1
    assert found.standards == pytest.approx({"f": 2.0, "g": 10.0}, rel=0.02)
    # Nothing of network and disk was seen: the model's own curve stays.
    assert found.gains[1:] == pytest.approx([0.0, 1.0, 1.0])


def test_what_starts_add_to_their_windows_is_the_cold_start():
    table = crowded(1.0)
    rng = np.random.default_rng(5)
    starts = rng.integers(0, 4, len(table))
    slower = table["response_mean_s"] + 8.0 * starts / 200
    found = calibrate._gains(table.assign(requests=200, starts=starts, response_mean_s=slower), 1.5)
    seconds, error = found.cold_s
    assert 0.0 < error < 2.0
    assert seconds == pytest.approx(8.0, abs=3 * error)


def test_calls_that_mostly_wait_elsewhere_are_slowed_by_their_share_of_computing():
    table = crowded(1.0).assign(work_s=1.0)
    share = np.where(table["name"] == "f", 0.5, 0.1)
    standard = np.where(table["name"] == "f", 2.0, 10.0)
    found = calibrate._gains(table.assign(response_mean_s=standard * (1.0 + share * table["cpu_gain"])))
    assert found.gains[0] == pytest.approx(1.0, abs=0.02)


def test_a_gain_beyond_belief_is_cut():
    assert calibrate._gains(crowded(40.0)).gains[0] == calibrate.MOST_GAIN


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
    for table in ("events", "responses"):
        write(folder, table, [])


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


def buckets(durations, bounds=(0.5, 1.0, 2.5, 5.0, np.inf)):
    return [
        {"window_start": START, "cluster": "c", "function": "f", "le_s": le, "calls": float((durations <= le).sum())}
        for le in bounds
    ]


def without_a_log(folder, write, at, durations):
    windows_with_a_log(folder, write, at, durations.tolist())
    write(folder, "demands", [])
    write(folder, "responses", buckets(durations))


def test_late_calls_are_counted_in_the_histogram_where_there_is_no_log(tmp_path, write, at):
    """Exponential times, of which a log-normal with their mean and p95 would count a fifth less."""
    durations = np.random.default_rng(0).exponential(1.0, 20_000)
    without_a_log(tmp_path / "w", write, at, durations)
    at_bound = late_and_slow(tmp_path / "w", START, at(300), {"f": 1.25}, 2.0)
    assert at_bound["late"].iloc[0] == pytest.approx((durations > 2.5).sum(), abs=1e-6)
    within = late_and_slow(tmp_path / "w", START, at(300), {"f": 1.0}, 2.0)
    assert within["late"].iloc[0] == pytest.approx((durations > 2.0).sum(), rel=0.03)
    assert within["counted"].iloc[0] == 20_000


def test_an_slo_beyond_the_last_bound_is_not_counted(tmp_path, write, at):
    durations = np.random.default_rng(0).exponential(4.0, 1000)
    without_a_log(tmp_path / "w", write, at, durations)
    assert late_and_slow(tmp_path / "w", START, at(300), {"f": 3.0}, 2.0)["counted"].iloc[0] == 0


def test_the_tail_of_calls_is_that_of_the_histogram(tmp_path, write, at):
    durations = np.random.default_rng(0).exponential(1.0, 20_000)
    without_a_log(tmp_path / "w", write, at, durations)
    tail = tails_of(tmp_path / "w", START, at(300))["f"]
    np.testing.assert_allclose(tail, np.exp(-TAIL_AT), atol=0.01)
    p95 = quantile_of_ratios(tmp_path / "w", START, at(300), {"f": 1.0}, 0.95)
    assert p95 == pytest.approx(np.quantile(durations, 0.95), rel=0.03)


def test_what_pods_use_is_parted_into_idle_and_by_call(tmp_path, write, at):
    rng = np.random.default_rng(0)
    pods, functions, nodes = [], [], []
    for window in range(40):
        calls = int(rng.integers(0, 600))
        key = {"window_start": at(300 * window), "cluster": "c"}
        use = {"cpu_used_mean_cores": 0.2 + 0.5 * calls / 300, "mem_used_mean_gib": 1.5}
        pods.append({**key, "pod": "p", "function": "f", "node": "n1", **use})
        pods.append({**key, "pod": "d", "function": "db", "node": "n1", "cpu_used_mean_cores": 0.7})
        functions.append({**key, "function": "f", "requests": calls})
        nodes.append({**key, "node": "n1", "cpu_used_mean_cores": 1.0 + use["cpu_used_mean_cores"]})
    for table, rows in (("pods", pods), ("functions", functions), ("nodes", nodes)):
        write(tmp_path / "w", table, rows)
    found, system = calibrate.uses_of(tmp_path / "w", START, at(300 * 40))
    assert (found["f"].idle_cores, found["f"].work_s, found["f"].mem_gib) == pytest.approx((0.2, 0.5, 1.5))
    assert (found["db"].idle_cores, found["db"].work_s) == pytest.approx((0.7, 0.0))
    assert system.value == pytest.approx(0.3)


def test_the_spread_of_calls_is_that_of_the_log(tmp_path, write, at):
    from pipeline.datasets.responses import logged_calls

    windows_with_a_log(tmp_path / "w", write, at, np.random.default_rng(0).lognormal(1.0, 0.4, 4000).tolist())
    found = spread_of(tmp_path / "w", START, at(300), logged_calls(tmp_path / "w", START, at(300)))
    assert found["f"][0] == pytest.approx(0.4, rel=0.05)
    assert found["f"][1] == 4000


def test_windows_that_tell_nothing_leave_every_default_as_an_assumption(tmp_path, write, at):
    for table in ("pods", "functions", "events", "demands", "nodes", "responses"):
        write(tmp_path / "w", table, [])
    found = calibrate.fit(tmp_path / "w", START, at(300), DEFAULTS)
    assert {value.origin for value in found.values} == {"assumed"}
    assert found.overrides == {"cpu_gain": 1.0, "net_gain": 1.0, "disk_gain": 1.0, **DEFAULTS}
    assert found.functions == {}


def test_with_few_calls_the_models_own_curve_has_a_say():
    few = crowded(0.3).assign(requests=5)
    assert 0.5 < calibrate._gains(few).gains[0] < 1.0
