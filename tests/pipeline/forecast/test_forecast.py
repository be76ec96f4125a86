"""A forecast ships where the next window can be foreseen, not elsewhere, and the graph says what was fitted."""

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
from sched_env.pods.forecast import COLUMNS, DAY, EXPECTED, KNOWN, NAME, ROWS, expected
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


def test_what_only_wanders_is_not():
    verdicts, _ = judged(wandering(6 * DAY))
    assert [verdict.method for verdict in verdicts.values()] == [methods.LAST] * 2


def test_of_one_block_of_time_nothing_is_concluded():
    use = daily(3 * DAY)
    ways, held = methods.weights(methods.asked(use)), methods.asked(use[: -DAY + gate.BLOCK_WINDOWS], 2 * DAY)
    verdicts, _ = gate.judge(ways, held)
    assert {verdict.method for verdict in verdicts.values()} == {methods.LAST}
    assert verdicts["cpu"].best != methods.LAST


def test_rows_are_of_pods_that_are_there_in_the_next_window_and_from_the_first_on():
    use = wandering(20, pods=3)
    use[5, 1] = use[12:, 2] = np.nan
    found = methods.asked(use, 4)
    pairs = {(window, pod) for window in range(4, 19) for pod in range(3)}
    pairs -= {(4, 1), (5, 1)} | {(window, 2) for window in range(11, 19)}
    assert sorted(found.window.tolist()) == sorted(window for window, _ in pairs)
    assert found.truth[found.window == 18].tolist() == use[19, :2].tolist()


def test_of_very_many_windows_some_are_taken(monkeypatch):
    monkeypatch.setattr(methods, "MOST_ROWS", 50)
    found = methods.asked(wandering(100, pods=2))
    assert len(found.truth) <= 50
    assert found.window.max() > 90


@pytest.mark.parametrize("method", [*KNOWN, "linear", "nothing"])
def test_the_graph_says_what_the_weights_say_the_same_bits_in_any_batch(method):
    some = methods.asked(daily(2 * DAY))
    ways = methods.weights(some) | {"nothing": np.zeros((2, len(KNOWN)))}
    ways[KNOWN[-1]] = np.tile(np.eye(len(KNOWN))[-1], (2, 1))
    data = to_onnx(ways[method])
    ports = {ROWS: ("float32", (None, len(COLUMNS)))}
    graph.check_model(data, ports, {EXPECTED: ("float32", (None, 2))}, graph.OPSET, model_file(NAME))
    session = graph.open_session(data)
    known = some.known.reshape(len(some.known), -1).astype(np.float32)
    found = session.run([EXPECTED], {ROWS: known})[0]
    np.testing.assert_allclose(found, methods.predicted(ways[method], some.known), rtol=1e-4, atol=1e-5)
    alone = np.concatenate([session.run([EXPECTED], {ROWS: known[k : k + 1]})[0] for k in range(50)])
    assert alone.tobytes() == found[:50].tobytes()


def test_less_than_nothing_is_never_expected(tmp_path):
    some = methods.asked(daily(2 * DAY))
    store.write(tmp_path / "model", np.full((2, len(KNOWN)), -1.0), some, {})
    model = pod_use.opened(tmp_path / "model")
    assert model is not None
    assert expected(model, some.known[:5].reshape(5, -1).astype(np.float32)).tolist() == [[0.0, 0.0]] * 5


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
    assert found["cpu_forecast"] < 0.5 * found["cpu_last"]
    metrics = json.loads(paths.metrics_of("forecast").read_text())
    assert metrics["shipped"] == 1.0
    assert metrics["cpu_chosen"] < metrics["cpu_last"]
    assert metrics["mem_gain_lower"] > 0.0
    assert (command.main(["evaluate", "--model", str(out), "--json"]), command.main(["fit", "--out", "model"])) == (
        0,
        0,
    )
    assert Path("model/model-forecast.onnx").read_bytes() == (out / "model-forecast.onnx").read_bytes()


def test_a_night_in_which_nothing_is_foreseen_says_why_and_with_which_figures(night):
    out = night(wandering(4 * DAY))
    told = json.loads((out / "none.json").read_text())
    assert [path.name for path in out.iterdir()] == ["none.json"]
    assert "the last window is the forecast" in told["why"]
    assert {f"cpu_{way}" for way in methods.METHODS} <= told.keys()
    assert pod_use.opened(out) is None
    with pytest.raises(DataError, match="has no model"):
        command.evaluate(out, paths.WINDOWS)


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
