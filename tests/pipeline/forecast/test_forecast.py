"""Pods are foreseen by what is nearer beyond doubt, or by their last window, with how far off that is."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from pipeline import paths
from pipeline.datasets import pod_use
from pipeline.errors import DataError
from pipeline.forecast import command, gate, methods, store
from pipeline.forecast.graph import to_onnx
from sched_env.pods.forecast import COLUMNS, DAY, EXPECTED, KNOWN, LATER, NAME, ROWS, expected
from sched_env.pods.foresight import AHEAD
from wire import graph
from wire.contracts.bundle import model_file

START = datetime(2026, 3, 2, tzinfo=UTC)
PARAMS = "problems: [pods]\nsplits: {train: 0.5, validation: 0.25, gap_windows: 0}\n"


def wandering(windows: int, pods: int = 8) -> np.ndarray:
    """Use of which nothing can be foreseen but that it goes on."""
    rng = np.random.default_rng(0)
    return np.exp(np.cumsum(rng.normal(0.0, 0.05, (windows, pods, 2)), axis=0))


def daily(windows: int, pods: int = 8) -> np.ndarray:
    """Use that jumps at hours of its own, every day the same."""
    rng = np.random.default_rng(1)
    course = rng.choice([0.5, 2.0], (DAY, pods, 2))
    return course[np.arange(windows) % DAY] * rng.lognormal(0.0, 0.05, (windows, pods, 2))


def judged(use: np.ndarray) -> tuple[dict[str, gate.Verdict], dict[str, np.ndarray]]:
    half = len(use) // 2
    return gate.judge(methods.weights(methods.asked(use[:half])), methods.asked(use, half))


def test_a_course_of_the_day_is_foreseen():
    verdicts, errors = judged(daily(6 * DAY))
    for verdict in verdicts.values():
        assert verdict.method in ("day_before", "linear")
        assert verdict.gain > 0.5
        assert 0.0 < verdict.lower <= verdict.gain <= verdict.upper
    assert (errors["day_before"] < 0.2 * errors["last"]).all()
    assert list(verdicts) == ["cpu_next", "cpu_later", "mem_next", "mem_later"]


def test_what_only_wanders_is_not():
    verdicts, _ = judged(wandering(6 * DAY))
    assert [verdict.method for verdict in verdicts.values()] == [methods.LAST] * 4


def test_blocks_of_evidence_are_not_shorter_than_what_is_looked_ahead():
    assert gate.BLOCK_WINDOWS >= LATER


def noisy(windows: int, pods: int = 40) -> np.ndarray:
    """Use around a mean of each pod's own, by a share of it: of what comes only this can be said."""
    rng = np.random.default_rng(2)
    return rng.lognormal(0.0, 1.0, (pods, 2)) * rng.normal(1.0, 0.2, (windows, pods, 2)).clip(0.0)


def test_how_far_off_a_forecast_is_holds_on_windows_that_it_was_not_fitted_to():
    use = noisy(4 * DAY)
    train, held = methods.asked(use[: 2 * DAY]), methods.asked(use, 2 * DAY)
    ways = methods.weights(train)
    fitted = gate.chosen(ways, gate.judge(ways, held)[0], train)
    assert methods.covered(fitted, held) == pytest.approx(0.8, abs=0.03)
    said = methods.predicted(fitted, held.known).reshape(-1, 2, 2, 2)
    off = np.nanmean((held.truth - said[:, :, 0]) ** 2, axis=0)
    np.testing.assert_allclose(said[:, :, 1].mean(axis=0), off, rtol=0.2)


def test_what_is_said_of_twice_the_load_is_twice_as_much_and_spreads_four_times():
    use = noisy(3 * DAY)
    some, twice = methods.asked(use), methods.asked(2.0 * use)
    one, other = (gate.Fitted(weight, methods.spreads(weight, each))
                  for each in (some, twice) for weight in [methods.weights(each)["linear"]])  # fmt: skip
    np.testing.assert_allclose(other.weight, one.weight, atol=1e-4)
    np.testing.assert_allclose(other.spread, one.spread, atol=1e-4)


def test_what_comes_in_an_hour_is_known_of_pods_that_are_still_there():
    use = wandering(40, pods=2)
    use[20:, 1] = np.nan
    found = methods.asked(use)
    first, second = (found.truth[found.window == 10][pod] for pod in (0, 1))
    np.testing.assert_array_equal(first[:, 1], use[10 + LATER, 0])
    np.testing.assert_array_equal(second[:, 0], use[11, 1])
    assert np.isnan(second[:, 1]).all()


def test_of_one_block_of_time_nothing_is_concluded():
    use = daily(3 * DAY)
    ways, held = methods.weights(methods.asked(use)), methods.asked(use[: -DAY + gate.BLOCK_WINDOWS], 2 * DAY)
    verdicts, _ = gate.judge(ways, held)
    assert {verdict.method for verdict in verdicts.values()} == {methods.LAST}
    assert verdicts["cpu_next"].best != methods.LAST


def test_rows_are_of_pods_that_are_there_in_the_next_window_and_from_the_first_on():
    use = wandering(20, pods=3)
    use[5, 1] = use[12:, 2] = np.nan
    found = methods.asked(use, 4)
    pairs = {(window, pod) for window in range(4, 19) for pod in range(3)}
    pairs -= {(4, 1), (5, 1)} | {(window, 2) for window in range(11, 19)}
    assert sorted(found.window.tolist()) == sorted(window for window, _ in pairs)
    assert found.truth[found.window == 18][:, :, 0].tolist() == use[19, :2].tolist()


def test_of_very_many_windows_some_are_taken(monkeypatch):
    monkeypatch.setattr(methods, "MOST_ROWS", 50)
    found = methods.asked(wandering(100, pods=2))
    assert len(found.truth) <= 50
    assert found.window.max() > 90


@pytest.mark.parametrize("method", [*KNOWN, "linear", "nothing"])
def test_the_graph_says_what_the_weights_say_the_same_bits_in_any_batch(method):
    some = methods.asked(daily(2 * DAY))
    alone = {name: np.tile(np.eye(len(KNOWN))[k], (2, 2, 1)) for k, name in enumerate(KNOWN)}
    ways = alone | methods.weights(some) | {"nothing": np.zeros((2, 2, len(KNOWN)))}
    fitted = methods.Fitted(ways[method], np.array([[[0.5, 0.0], [1.0, 0.25]], [[0.0, 1.0], [0.0, 0.0]]]))
    data = to_onnx(fitted)
    ports = {ROWS: ("float32", (None, len(COLUMNS)))}
    graph.check_model(data, ports, {EXPECTED: ("float32", (None, len(AHEAD)))}, graph.OPSET, model_file(NAME))
    session = graph.open_session(data)
    known = some.known.reshape(len(some.known), -1).astype(np.float32)
    found = session.run([EXPECTED], {ROWS: known})[0]
    np.testing.assert_allclose(found, methods.predicted(fitted, some.known), rtol=1e-4, atol=1e-5)
    alone = np.concatenate([session.run([EXPECTED], {ROWS: known[k : k + 1]})[0] for k in range(50)])
    assert alone.tobytes() == found[:50].tobytes()


def test_less_than_nothing_is_never_expected(tmp_path):
    some = methods.asked(daily(2 * DAY))
    less = methods.Fitted(np.full((2, 2, len(KNOWN)), -1.0), np.zeros((2, 2, 2)))
    store.write(tmp_path / "model", less, some, {})
    model = pod_use.opened(tmp_path / "model")
    assert model is not None
    assert expected(model, some.known[:5].reshape(5, -1).astype(np.float32)).tolist() == [[0.0] * 8] * 5


@pytest.fixture
def night(tmp_path, monkeypatch, write):
    """A run's clone with six days of windows of pods."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))

    def make(use: np.ndarray, problems: str = "pods") -> Path:
        Path("params.yaml").write_text(PARAMS.replace("pods", problems))
        for day in range(len(use) // DAY):
            rows = [
                {"window_start": START + timedelta(days=day, seconds=300 * k), "cluster": "c", "pod": f"p{pod}",
                 "cpu_used_mean_cores": cpu, "mem_used_mean_gib": mem, "present_ratio": 1.0}
                for k, pods in enumerate(use[day * DAY : (day + 1) * DAY]) for pod, (cpu, mem) in enumerate(pods)
            ]  # fmt: skip
            write(paths.WINDOWS, "pods", rows, START + timedelta(days=day))
        command.main(["night"])
        return command.OUT

    return make


def test_a_night_with_a_daily_course_ships_a_model_that_its_test_part_confirms(night):
    out = night(daily(6 * DAY))
    assert {path.name for path in out.iterdir()} == {
        "model-forecast.onnx", "model-forecast-golden.npz", "spec.json", "measured.json",
    }  # fmt: skip
    found = command.evaluate(out, paths.WINDOWS)
    assert found["cpu_next_forecast"] < 0.5 * found["cpu_next_last"]
    assert found["mem_later_forecast"] < 0.5 * found["mem_later_last"]
    assert 0.5 < found["cpu_later_within_80"] <= 1.0
    metrics = json.loads(paths.metrics_of("forecast").read_text())
    assert metrics["shipped"] == 1.0
    assert metrics["cpu_next_chosen"] < metrics["cpu_next_last"]
    assert metrics["mem_later_gain_lower"] > 0.0
    assert 0.5 < metrics["mem_next_within_80"] <= 1.0
    assert (command.main(["evaluate", "--model", str(out), "--json"]), command.main(["fit", "--out", "model"])) == (
        0,
        0,
    )
    assert Path("model/model-forecast.onnx").read_bytes() == (out / "model-forecast.onnx").read_bytes()


def test_a_night_in_which_nothing_is_foreseen_ships_the_last_window_and_how_far_off_it_is(night):
    out = night(wandering(4 * DAY))
    told = json.loads((out / "measured.json").read_text())
    assert {told[f"{name}_method"] for name in gate.FORESEEN} == {methods.LAST}
    assert {f"cpu_later_{way}" for way in methods.METHODS} <= told.keys()
    model = pod_use.opened(out)
    assert model is not None
    known = methods.asked(wandering(DAY)).known
    said = expected(model, known.reshape(len(known), -1).astype(np.float32)).reshape(-1, 2, 2, 2)
    last = known[:, :, :1].astype(np.float32)
    np.testing.assert_array_equal(said[:, :, 0], np.repeat(last, 2, axis=2))
    assert (said[:, :, 1, 1] > said[:, :, 1, 0]).mean() > 0.9, "less is known of the hour after"


def test_nothing_of_the_test_part_is_looked_at(night):
    use = daily(4 * DAY)
    first = night(use).joinpath("measured.json").read_bytes()
    use[3 * DAY :] = 100.0
    assert night(use).joinpath("measured.json").read_bytes() == first


def test_a_night_about_something_else_or_without_pods_costs_nothing(night):
    out = night(np.empty((0, 0, 2)), problems="functions")
    assert "not about pods" in json.loads((out / "none.json").read_text())["why"]
    few = night(daily(DAY, pods=1)[:, :0])
    assert "too few" in json.loads((few / "none.json").read_text())["why"]
    assert pod_use.opened(few) is None
    with pytest.raises(DataError, match="has no model"):
        command.evaluate(few, paths.WINDOWS)
