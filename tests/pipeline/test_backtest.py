"""The back-test: measured figures from windows, predictions beside them, and when there is nothing to compare."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import backtest
from pipeline.backtest import Config, back_test, compare
from pipeline.champions import Standing
from pipeline.contracts.evaluation import Backtest
from pipeline.contracts.windows import SCHEMA_VERSION, TABLES, VERSION_KEY
from pipeline.datasets.functions import measured, share_above
from pipeline.errors import DataError, GateError
from sched_env import scenarios
from sched_env.scenarios import Scenario

DAY = datetime(2026, 11, 15, tzinfo=UTC)
END = DAY + timedelta(days=1)
EMPTY = {"string": "", "bool": False}


def scenario(cooldown_s: float) -> Scenario:
    return scenarios.load("functions/serverless", {"cooldown_s": cooldown_s})


def at(minutes: float) -> datetime:
    return DAY + timedelta(minutes=minutes)


def write(folder: Path, table: str, rows: list[dict[str, object]]) -> None:
    """Write rows of a window table; columns that may not be null and are not given get something harmless."""
    schema = TABLES[table]
    columns = {}
    for field in schema:
        default = None if field.nullable else EMPTY.get(str(field.type), 0)
        columns[field.name] = pa.array([row.get(field.name, default) for row in rows], field.type)
    whole = pa.table(columns, schema=schema).replace_schema_metadata({VERSION_KEY: str(SCHEMA_VERSION).encode()})
    path = folder / table / "date=2026-11-15"
    path.mkdir(parents=True, exist_ok=True)
    pq.write_table(whole, path / "part-0.parquet")


@pytest.fixture(autouse=True)
def _params(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("backtest: {}\nworkload: {functions: {scenario: functions/serverless}}\n")


@pytest.fixture
def folder(tmp_path) -> Path:
    """Two nodes: a at 2 USD with pods from 10:00 to 70:00 minutes, b without a price from 0 to 5 minutes."""
    seen = [("p1", "a", range(10, 40, 5)), ("p2", "a", range(30, 70, 5)), ("p3", "b", range(0, 5, 5))]
    pods = [
        {"window_start": at(minute), "cluster": "c", "pod": pod, "node": node, "function": "f"}
        for pod, node, minutes in seen
        for minute in minutes
    ]
    events = [
        {"window_start": at(10), "cluster": "c", "entity": "p1", "time": at(12), "kind": "pod", "action": "create"},
        {"window_start": at(65), "cluster": "c", "entity": "p2", "time": at(66), "kind": "pod", "action": "delete"},
        {"window_start": at(0), "cluster": "c", "entity": "v", "time": at(1), "kind": "vm", "action": "create"},
    ]
    nodes = [
        {"window_start": at(0), "cluster": "c", "node": "a", "price_usd_per_hour": 2.0},
        {"window_start": at(0), "cluster": "c", "node": "b"},
    ]
    functions = [
        {"window_start": at(0), "cluster": "c", "function": "f", "requests": 300}
        | {"response_mean_s": 1.0, "response_p95_s": 1.0, "standard_response_s": 1.0},
        {"window_start": at(5), "cluster": "c", "function": "f", "requests": 100}
        | {"response_mean_s": 3.0, "response_p95_s": 3.0, "standard_response_s": 1.0},
        {"window_start": at(10), "cluster": "c", "function": "g", "requests": 999},
    ]
    for table, rows in {"pods": pods, "events": events, "nodes": nodes, "functions": functions}.items():
        write(tmp_path / "windows", table, rows)
    return tmp_path / "windows"


@pytest.fixture
def champion(tmp_path):
    """A champion trained on data up to a moment."""

    def make(windows_end: datetime) -> Path:
        path = tmp_path / "champions" / "functions"
        (path / "bundle").mkdir(parents=True, exist_ok=True)
        document = {"digest": "sha256:live", "lineage": {"windows_end": windows_end.isoformat()}}
        (path / "bundle" / "manifest.json").write_text(json.dumps(document))
        return path

    return make


def test_cost_bills_a_node_once_however_many_pods_it_holds(folder):
    # a: 12 to 66 minutes + 5 of cool-down = 59 minutes at 2 USD; b: 0 to 5 + 5 = 10 minutes at the default of 1 USD.
    found = measured(folder, DAY, END, scenario(300.0))
    assert found["cost_usd"] == pytest.approx(2.0 * 59 / 60 + 1.0 * 10 / 60)


def test_cost_of_a_node_that_was_empty_in_between_leaves_the_gap_out(folder):
    rows = [{"window_start": at(minute), "cluster": "c", "pod": f"p{minute}", "node": "a", "function": "f"}
            for minute in (0, 60)]  # fmt: skip
    write(folder, "pods", rows)
    write(folder, "events", [])
    assert measured(folder, DAY, END, scenario(0.0))["cost_usd"] == pytest.approx(2.0 * 10 / 60)


def test_cost_ends_where_the_stretch_ends(folder):
    found = measured(folder, DAY, at(20), scenario(300.0))
    assert found["cost_usd"] == pytest.approx(2.0 * 8 / 60 + 1.0 * 10 / 60)


def test_sla_is_weighted_by_requests_and_leaves_out_what_is_not_known(folder):
    # All of the 300 calls took 1 s (SLO 2 s), all of the 100 took 3 s; function g has no response times.
    assert measured(folder, DAY, END, scenario(300.0))["sla_violation_rate"] == pytest.approx(0.25)


def test_without_response_times_there_is_no_sla_figure(folder):
    write(folder, "functions", [{"window_start": at(0), "cluster": "c", "function": "f", "requests": 3}])
    assert set(measured(folder, DAY, END, scenario(300.0))) == {"cost_usd"}


def test_without_nodes_of_pods_there_is_an_error(folder):
    write(folder, "pods", [{"window_start": at(0), "cluster": "c", "pod": "p"}])
    with pytest.raises(DataError, match="no pod on a node"):
        measured(folder, DAY, END, scenario(300.0))


@pytest.mark.parametrize("spread", [0.2, 0.6, 1.2])
def test_the_share_above_a_limit_is_that_of_the_log_normal_distribution(spread):
    times = np.random.default_rng(0).lognormal(0.3, spread, size=400_000)
    for limit in (1.0, 2.0, 4.0):
        found = share_above(*(np.array([x]) for x in (times.mean(), np.quantile(times, 0.95), limit)))
        assert found[0] == pytest.approx(np.mean(times > limit), abs=0.01)


def test_a_p95_beyond_any_log_normal_still_gives_a_share():
    found = share_above(np.array([1.0, 1.0]), np.array([50.0, 0.5]), np.array([2.0, 2.0]))
    assert (found >= 0.0).all()
    assert (found <= 1.0).all()


def test_errors_are_relative_to_what_was_measured():
    seen = {"sla_violation_rate": 0.02, "cost_usd": 100.0}
    found = compare("live", DAY, END, {"sla_violation_rate": 0.03, "cost_usd": 90.0, "return": 1.0}, seen)
    assert [figure.relative_error for figure in found.figures] == pytest.approx([0.5, 0.1])
    assert (found.windows_start, found.windows_end) == (DAY.isoformat(), END.isoformat())


def test_nothing_measured_is_no_error_only_when_nothing_was_predicted():
    for predicted, error in ((0.0, 0.0), (0.1, None)):
        found = compare("live", DAY, END, {"cost_usd": predicted}, {"cost_usd": 0.0})
        assert found.figures[0].relative_error == error


def test_a_figure_that_is_no_number_is_an_error():
    with pytest.raises(DataError, match="cost_usd is nan predicted"):
        compare("live", DAY, END, {"cost_usd": float("nan")}, {"cost_usd": 1.0})


def test_the_replay_is_set_beside_the_measurement(folder, champion):
    asked = []

    def rollout(start: datetime, end: datetime) -> dict[str, float]:
        asked.append((start, end))
        return {"sla_violation_rate": 0.25, "cost_usd": 3.0}

    found = back_test("functions", champion(DAY - timedelta(days=3)), folder, Config(), rollout)
    assert asked == [(DAY, END)]
    assert found.live == "sha256:live"
    assert [figure.relative_error for figure in found.figures] == pytest.approx([0.0, 3.0 / (128 / 60) - 1.0])


def test_only_windows_after_the_champions_own_data_count(folder, champion):
    asked = []
    rollout = lambda start, end: asked.append(start) or {"cost_usd": 1.0}  # noqa: E731
    back_test("functions", champion(at(15)), folder, Config(), rollout)
    assert asked == [at(15)]


def test_only_windows_wholly_after_the_registry_says_it_went_live_count(folder, champion):
    asked = []
    rollout = lambda start, end: asked.append(start) or {"cost_usd": 1.0}  # noqa: E731
    live = champion(DAY - timedelta(days=3))
    standing = live / "standing.json"
    standing.write_bytes(msgspec.json.encode(Standing("sha256:live", (at(16)).isoformat())))
    back_test("functions", live, folder, Config(), rollout)
    assert asked == [at(20)]
    standing.write_bytes(msgspec.json.encode(Standing("sha256:live", END.isoformat())))
    assert "has not been live" in back_test("functions", live, folder, Config(), rollout).skipped
    standing.write_bytes(msgspec.json.encode(Standing("sha256:other", END.isoformat())))
    with pytest.raises(GateError, match="is about sha256:other"):
        back_test("functions", live, folder, Config(), rollout)


def test_reasons_for_no_back_test(folder, champion, tmp_path):
    assert back_test("functions", tmp_path / "none", folder, Config()) is None
    live = champion(DAY)
    assert "switched off" in back_test("functions", live, folder, Config(enabled=False)).skipped
    assert "do not measure the figures of pods" in back_test("pods", live, folder, Config()).skipped
    assert "has not been live" in back_test("functions", champion(END), folder, Config()).skipped


def test_the_command_line_writes_what_the_gate_reads(folder, champion, tmp_path, monkeypatch, capsys):
    champion(DAY)
    monkeypatch.setattr(backtest, "_champion_rollout", lambda *_: lambda *_: {"cost_usd": 2.0})
    assert backtest.main(["--problem", "functions", "--windows", "windows"]) == 0
    written = Path("data/evaluation/functions/backtest.json")
    assert msgspec.json.decode(written.read_bytes(), type=Backtest).figures[0].predicted == 2.0
    assert "cost_usd predicted 2, measured 2.13333 (6.2 % off)" in capsys.readouterr().out
    (tmp_path / "champions" / "functions" / "bundle" / "manifest.json").unlink()
    assert backtest.main(["--problem", "functions", "--windows", "windows"]) == 0
    assert not written.exists()
    assert "nothing was live" in capsys.readouterr().out
