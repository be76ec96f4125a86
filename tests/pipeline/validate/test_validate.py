"""Validation: sound windows pass, each kind of unsound ones is found with table, rule, count and examples."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline.validate.day as day_module
from pipeline.contracts.windows import SCHEMA_VERSION, TABLES, VERSION_KEY
from pipeline.errors import DataError
from pipeline.validate import cross, drift
from pipeline.validate.command import main, validate
from pipeline.validate.config import ValidateConfig
from pipeline.validate.verdict import Verdict
from wire.errors import ConfigError, ContractError

DAYS = (date(2026, 3, 2), date(2026, 3, 3))
NODES = {"n1": 8.0, "n2": 16.0}
Tables = dict[str, pd.DataFrame]


def make_day(day: date) -> Tables:
    """Two nodes with two pods each, one function, one card; every window of a day."""
    starts = pd.date_range(day.isoformat(), periods=288, freq="300s", tz="UTC").as_unit("us")
    quality = {"samples": 20, "completeness": 1.0, "filled": False, "repaired": 0}

    def rows(table: str, things: list[dict[str, Any]]) -> pd.DataFrame:
        frames = [pd.DataFrame({"window_start": starts, "cluster": "c", **quality, **thing}) for thing in things]
        return pd.concat(frames, ignore_index=True).reindex(columns=TABLES[table].names)

    used = {f"{r}_used_{s}_{u}": 1.0 for r, u in (("cpu", "cores"), ("mem", "gib")) for s in ("mean", "p95", "max")}
    node = {"mem_capacity_gib": 32.0, "price_usd_per_hour": 0.4, "active": True, **used}
    nodes = [{"node": name, "cpu_capacity_cores": cores, **node} for name, cores in NODES.items()]
    pods = [
        {"pod": f"{name}-{n}", "node": name, "function": "f", "cpu_assigned_cores": cores / 2, "mem_assigned_gib": 4.0,
         "cpu_request_cores": 1.0, "mem_request_gib": 4.0, "requests_handled": 5, "moved": False,
         "present_ratio": 1.0, **used}
        for name, cores in NODES.items()
        for n in range(2)
    ]  # fmt: skip
    functions = [
        {"function": name, "requests": 10, "response_mean_s": 1.0, "standard_response_s": 0.8} for name in "fg"
    ]
    demand = {
        "position": 0,
        "arrival_offset_s": 1.0,
        "duration_s": 2.0,
        "cpu_cores": 0.5,
        "mem_gib": 0.5,
        "estimated": False,
    }
    event = {
        "entity": [f"pod-{n}" for n in range(288)],
        "time": starts,
        "kind": "pod",
        "action": "create",
        "node": "n1",
        "function": "f",
    }
    tasks = [{"task": "a", "parents": None}, {"task": "b", "parents": "a"}, {"task": "c", "parents": "a b"}]
    card = {
        "node": "n1",
        "card": "0",
        "gpu_mem_capacity_gib": 24.0,
        "gpu_used_mean_ratio": 0.5,
        "gpu_used_max_ratio": 0.6,
    }
    return {
        "nodes": rows("nodes", nodes),
        "pods": rows("pods", pods),
        "functions": rows("functions", functions),
        "responses": rows("responses", [{"function": "f", "le_s": le, "calls": 9.0} for le in (1.0, math.inf)]),
        "demands": rows("demands", [{"pod": "n1-0", **demand}]),
        "events": rows("events", [event]),
        "cards": rows("cards", [card]),
        "tasks": rows("tasks", [{"workflow": "w", "time": starts, "runtime_s": 2.0, **task} for task in tasks]),
        "quarantine": pd.DataFrame(columns=TABLES["quarantine"].names),
    }


def write_day(windows: Path, day: date, tables: Tables) -> None:
    for name, frame in tables.items():
        table = pa.Table.from_pandas(frame, schema=TABLES[name], preserve_index=False)
        path = windows / name / f"date={day}" / "part-0.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table.replace_schema_metadata({VERSION_KEY: str(SCHEMA_VERSION).encode()}), path)


@pytest.fixture(autouse=True)
def _var(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))


@pytest.fixture
def windows(tmp_path: Path) -> Path:
    for day in DAYS:
        write_day(tmp_path / "windows", day, make_day(day))
    return tmp_path / "windows"


def soil(windows: Path, change: Callable[[Tables], None], day: date = DAYS[1]) -> None:
    tables = make_day(day)
    change(tables)
    write_day(windows, day, tables)


def run(windows: Path, **settings: Any) -> Verdict:
    until, work = settings.pop("until", None), windows.parent
    config = ValidateConfig(**settings)
    return validate(windows, work / "validation", config, accepted=work / drift.ACCEPTED, until=until)


def accepted_now(windows: Path) -> drift.Accepted:
    return drift.read_accepted(windows.parent / "validation" / drift.ACCEPTED_NOW)


def accept(windows: Path, content: bytes) -> None:
    """Say what was accepted before the run."""
    (windows.parent / drift.ACCEPTED).parent.mkdir(parents=True, exist_ok=True)
    (windows.parent / drift.ACCEPTED).write_bytes(content)


def test_a_night_looks_at_the_new_day_and_says_of_all_what_it_would_without_the_kept_ones(
    windows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(tables: Tables) -> None:
        tables["nodes"].loc[:9, "price_usd_per_hour"] = None

    soil(windows, spoil, DAYS[0])
    looked: list[str] = []
    real = day_module.check

    def noted(day: str, *rest: Any) -> None:
        looked.append(day)
        real(day, *rest)

    monkeypatch.setattr(day_module, "check", noted)
    run(windows)
    write_day(windows, date(2026, 3, 4), make_day(date(2026, 3, 4)))
    later = run(windows)
    assert looked == ["2026-03-02", "2026-03-03", "2026-03-04"]
    for day in looked:
        assert (tmp_path / "validation" / "docs" / day / "index.html").exists()
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "other"))
    assert run(windows) == later
    assert any(finding.day == "2026-03-02" and "price" in finding.about for finding in later.findings)
    run(windows, completeness_warn=0.8)
    assert len(looked) == 9, "other thresholds, every day anew"


def test_sound_windows_pass_with_docs_and_a_verdict(windows: Path) -> None:
    verdict = run(windows, until=DAYS[1])
    assert verdict.passed
    assert verdict.errors == verdict.warnings == []
    assert verdict.checks > 100
    written = json.loads((windows.parent / "validation" / "verdict.json").read_text())
    assert written["passed"] is True
    assert written["rows"]["nodes"] == 2 * 288 * 2
    assert written["request_mix"]["2026-03-02"] == {"c/f": 0.5, "c/g": 0.5}
    assert (windows.parent / "validation" / "docs" / "index.html").exists()


def test_findings_name_table_rule_count_and_rows(windows: Path) -> None:
    def unsound(tables: Tables) -> None:
        tables["nodes"].loc[:2, "cpu_used_mean_cores"] = -1.0
        tables["pods"] = pd.concat([tables["pods"], tables["pods"].head(4)])
        tables["demands"].loc[0, "arrival_offset_s"] = 300.0
        tables["events"].loc[0, "kind"] = "cow"
        tables["cards"].loc[:9, "gpu_used_max_ratio"] = 45.0
        tables["functions"].loc[0, "response_mean_s"] = -3.0
        tables["nodes"]["price_usd_per_hour"] = np.nan

    soil(windows, unsound)
    verdict = run(windows)
    assert not verdict.passed
    found = {(finding.table, finding.rule, finding.severity): finding for finding in verdict.findings}
    between = "column_values_to_be_between"
    assert found["nodes", between, "error"].count == 3
    assert found["nodes", between, "error"].examples[0]["node"] == "n1"
    assert found["nodes", between, "error"].day == str(DAYS[1])
    assert found["pods", "compound_columns_to_be_unique", "error"].count >= 4
    assert found["demands", between, "error"].count == 1
    assert found["events", "column_values_to_be_in_set", "error"].count == 1
    assert found["cards", between, "error"].count == 10
    assert found["functions", between, "error"].count == 1
    assert ("nodes", "column_values_to_not_be_null", "warning") in found
    assert any("price_usd_per_hour" in warning for warning in verdict.warnings)
    assert accepted_now(windows) == drift.NOTHING


def test_a_failed_run_stops_the_pipeline_with_a_message(
    windows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def unsound(tables: Tables) -> None:
        tables["nodes"].loc[:2, "completeness"] = 7.0

    soil(windows, unsound)
    params = tmp_path / "params.yaml"
    params.write_text("validate: {}\ndata: {from: null, to: null}\n")
    arguments = ["--windows", str(windows), "--out", str(tmp_path / "validation"), "--params", str(params)]
    with pytest.raises(DataError, match=r"nodes 2026-03-03: column_values_to_be_between.*\(3\), e\.g\..*node=n1"):
        main([*arguments, "--metrics", str(tmp_path / "validate.json")])
    assert json.loads((tmp_path / "validate.json").read_text())["errors"] == 1
    assert (tmp_path / "validation" / "docs" / "index.html").exists()


def findings(change: Callable[[Tables], None], **settings: Any) -> dict[tuple[str, str], Any]:
    tables = make_day(DAYS[0])
    change(tables)
    day, config = str(DAYS[0]), ValidateConfig(**settings)
    gathered = cross.Found({day: dict.fromkeys(TABLES, 1)}, {day: cross.windows_by_cluster(tables["nodes"])})
    found = [*cross.check_day(day, tables, config), *cross.check_range(gathered, (None, None), config)]
    return {(finding.table, finding.rule): finding for finding in found}


class TestBetweenTables:
    def test_sound_tables_have_no_findings(self) -> None:
        assert findings(lambda _: None) == {}

    def test_a_pod_on_a_node_that_is_not_there(self) -> None:
        found = findings(lambda tables: tables["pods"].__setitem__("node", "ghost"))
        assert found["pods", "node_exists"].severity == "error"
        assert found["pods", "node_exists"].count == 4 * 288
        assert found["pods", "node_exists"].examples[0]["node"] == "ghost"

    def test_a_few_such_pods_are_a_warning(self) -> None:
        def few(tables: Tables) -> None:
            tables["pods"].loc[:4, "node"] = "ghost"

        assert findings(few)["pods", "node_exists"].severity == "warning"

    def test_requests_dealt_to_a_pod_that_is_not_there(self) -> None:
        found = findings(lambda tables: tables["demands"].__setitem__("pod", "ghost"))
        assert found["demands", "pod_exists"].count == 288

    def test_a_thing_created_twice(self) -> None:
        found = findings(lambda tables: tables["events"].__setitem__("entity", "phoenix"))
        assert found["events", "take_turns"].severity == "warning"
        assert found["events", "take_turns"].count == 287

    def test_a_parent_that_is_not_in_its_workflow(self) -> None:
        def halved(tables: Tables) -> None:
            tables["tasks"] = tables["tasks"].query("task != 'a'")

        found = findings(halved)["tasks", "parents_exist"]
        assert (found.severity, found.count) == ("error", 2 * 288)
        assert found.examples[0]["parent"] == "a"

    @pytest.mark.parametrize("column", ["cpu_assigned_cores", "mem_assigned_gib"])
    def test_more_assigned_than_there_is(self, column: str) -> None:
        found = findings(lambda tables: tables["pods"].__setitem__(column, 100.0))
        assert found["pods", f"{column}_within_capacity"].severity == "error"
        assert found["pods", f"{column}_within_capacity"].count == 2 * 288

    def test_pods_that_follow_each_other_within_a_window_fit(self) -> None:
        def turnover(tables: Tables) -> None:
            tables["pods"]["mem_assigned_gib"] = 30.0
            tables["pods"]["present_ratio"] = 0.5

        assert ("pods", "mem_assigned_gib_within_capacity") not in findings(turnover)

    @pytest.mark.parametrize(("mean", "severity"), [(0.3, "error"), (0.8, "warning")])
    def test_completeness_below_the_threshold(self, mean: float, severity: str) -> None:
        found = findings(lambda tables: tables["nodes"].__setitem__("completeness", mean))
        assert found["nodes", "completeness"].severity == severity

    @pytest.mark.parametrize(("lost", "severity"), [(5, "warning"), (50, "error")])
    def test_windows_without_any_node(self, lost: int, severity: str) -> None:
        def gap(tables: Tables) -> None:
            starts = tables["nodes"]["window_start"].unique()[100 : 100 + lost]
            tables["nodes"] = tables["nodes"][~tables["nodes"]["window_start"].isin(starts)]
            tables["pods"] = tables["pods"][~tables["pods"]["window_start"].isin(starts)]
            tables["demands"] = tables["demands"].head(0)

        found = findings(gap)
        assert found["nodes", "contiguous"].severity == severity
        assert found["nodes", "contiguous"].count == lost

    @pytest.mark.parametrize("moved", [timedelta(seconds=7), timedelta(days=1)])
    def test_windows_off_the_grid_or_of_another_day(self, moved: timedelta) -> None:
        found = findings(
            lambda tables: tables["cards"].__setitem__("window_start", tables["cards"]["window_start"] + moved)
        )
        assert found["cards", "on_the_grid"].count == 288

    @pytest.mark.parametrize(("share", "severity"), [(0.05, "warning"), (0.5, "error")])
    def test_many_rows_in_quarantine(self, share: float, severity: str) -> None:
        def quarantined(tables: Tables) -> None:
            used = sum(tables[name]["samples"].sum() for name in ("nodes", "pods", "functions", "cards")) + 4 * 288
            rows = int(used * share / (1 - share))
            aside = {"window_start": pd.Timestamp(DAYS[0], tz="UTC"), "cluster": "c", "table": "samples"}
            tables["quarantine"] = pd.DataFrame([{**aside, "rule": "no_value", "raw": "{}"}] * rows)

        found = findings(quarantined)
        assert found["quarantine", "share"].severity == severity
        assert "samples no_value" in found["quarantine", "share"].message


def test_the_accepted_day_is_handed_on_from_run_to_run(windows: Path) -> None:
    assert not run(windows).drifted
    assert accepted_now(windows).day == str(DAYS[1])
    drift.hand_on([windows.parent / "validation", windows.parent / "nowhere"], windows.parent / drift.ACCEPTED)
    shutil.rmtree(windows)

    def other(tables: Tables) -> None:
        tables["functions"] = tables["functions"].assign(function="h")

    soil(windows, other, DAYS[1] + timedelta(days=1))
    verdict = run(windows)
    assert verdict.drifted
    assert not verdict.passed
    assert accepted_now(windows).day == str(DAYS[1])


def test_a_run_depends_on_its_declared_input_alone(windows: Path) -> None:
    accept(windows, drift.document(drift.Accepted("2026-03-01", {"c/z": 1.0})))
    first = run(windows)
    assert first.drifted
    assert run(windows) == first


def test_days_long_past_do_not_become_the_accepted_day(windows: Path) -> None:
    later = drift.Accepted("2026-04-01", {"c/f": 0.5, "c/g": 0.5})
    accept(windows, drift.document(later))
    assert run(windows).passed
    assert accepted_now(windows) == later


def test_an_accepted_day_that_cannot_be_read_says_what_to_do(windows: Path) -> None:
    accept(windows, b"{")
    with pytest.raises(DataError, match=r"request_mix\.json.*delete it"):
        run(windows)


def test_the_committed_accepted_day_is_none() -> None:
    committed = Path(__file__).parents[3] / drift.ACCEPTED
    assert committed.read_bytes() == drift.document(drift.NOTHING)


def test_a_file_that_is_no_parquet_and_a_folder_of_no_day_are_named(windows: Path) -> None:
    (windows / "nodes" / f"date={DAYS[0]}" / "part-0.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"part-0\.parquet cannot be read.*run clean again"):
        run(windows)
    (windows / "nodes" / "date=tomorrow").mkdir()
    with pytest.raises(DataError, match=r"folder of no day: .*tomorrow"):
        run(windows)


def test_windows_of_another_schema_are_refused(windows: Path) -> None:
    path = windows / "nodes" / f"date={DAYS[0]}" / "part-0.parquet"
    pq.write_table(pq.ParquetFile(path).read().replace_schema_metadata({VERSION_KEY: b"99"}), path)
    with pytest.raises(ContractError, match="not the schema of nodes"):
        run(windows)


def test_no_windows_at_all_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"run python -m pipeline\.clean"):
        run(tmp_path / "windows")


@pytest.mark.parametrize(
    "settings",
    [
        {"completeness_fail": 0.95},
        {"drift_warn": 2.0},
        {"quarantine_warn": 0.5},
        {"broken_links_fail": -1.0},
        {"examples": -1},
        {"stale_minutes": -5.0},
        {"max_age_hours": -1.0},
    ],
)
def test_thresholds_in_the_wrong_order_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"validate\."):
        ValidateConfig(**settings)


def test_the_command_does_not_import_great_expectations_before_it_must() -> None:
    code = "import pipeline.validate, pipeline.clean, sys; print({'great_expectations', 'ibis'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
