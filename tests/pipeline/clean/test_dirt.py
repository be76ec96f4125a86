"""Dirt that is not of one row: days that are none, names without end, what is said of rows that look alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from pipeline import ingest as ingest_module
from pipeline.clean.command import clean
from pipeline.clean.config import CleanConfig
from pipeline.settings import load
from sched_env.traces import alibaba_genai
from wire.errors import ConfigError


def test_five_rows_of_1999_among_todays_do_not_make_a_night_of_27_years(
    tmp_path: Path, healthy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))
    raw = healthy.write(tmp_path / "raw", {"c": healthy.rows(hours=12.0)})
    old = datetime(1999, 12, 31, 12, tzinfo=UTC)
    rows = [{"time": old + timedelta(minutes=n), "metric": "node_ready", "node": "n1", "value": 1.0} for n in range(5)]
    healthy.write(raw, {"c": {"samples": rows}}, day=date(1999, 12, 31))
    metrics = clean(raw, tmp_path / "windows", CleanConfig())
    assert list(metrics.days) == [healthy.day.isoformat()]
    assert metrics.rows["samples"].quarantined == {"time_outside_day": 5}
    assert "a few rows of 1999-12-31" in capsys.readouterr().err
    # Asked for, the day is a day.
    asked = clean(raw, tmp_path / "asked", CleanConfig(), first=date(1999, 12, 31), last=date(1999, 12, 31))
    assert asked.rows["samples"].rows_in == 5


def test_a_week_of_holidays_is_no_stray_day(
    tmp_path: Path, healthy: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))
    raw = healthy.write(tmp_path / "raw", {"c": healthy.rows()})
    later = healthy.day + timedelta(days=30)
    moved = [{**row, "time": row["time"] + timedelta(days=30)} for row in healthy.rows(hours=0.5)["samples"]]
    healthy.write(raw, {"c": {"samples": moved}}, day=later)
    assert list(clean(raw, tmp_path / "windows", CleanConfig()).days) == [healthy.day.isoformat(), later.isoformat()]


def test_rows_that_are_alike_and_kept_are_said(run_clean: Callable[..., Any], healthy: SimpleNamespace) -> None:
    rows = healthy.rows()
    second = {**rows["requests"][0], "time": healthy.at(60.0)}
    rows["requests"] = [dict(second) for _ in range(12_000)]
    cleaned = run_clean({"c": rows})
    account = cleaned.metrics.rows["requests"]
    assert (account.rows_in, account.rows_out, account.merged, account.alike) == (12_000, 12_000, 0, 11_999)
    assert "11,999 alike but not provably copies: kept" in str(account)
    assert cleaned.table("functions", "c")["requests"].sum() == 12_000


def test_a_label_without_end_is_cleaned_all_the_same(run_clean: Callable[..., Any], healthy: SimpleNamespace) -> None:
    rows = healthy.rows(hours=0.25)
    rows["samples"] += [
        healthy.sample("function_requests", t, t, function=f"GET /user/{user}")
        for user in range(4_000)
        for t in (10.0, 310.0)
    ]
    rows["requests"] = []
    cleaned = run_clean({"c": rows})
    assert cleaned.table("functions", "c")["function"].nunique() == 4_000


@pytest.mark.parametrize("written", ["2026-01-05", "'2026-01-05'", '"2026-01-05"'])
def test_a_date_in_params_needs_no_quotes(tmp_path: Path, written: str) -> None:
    params = tmp_path / "params.yaml"
    params.write_text(f"data: {{from: {written}, to: {written}}}\ningest: {{source: sample, sample: {{days: 1}}}}\n")
    assert load("data", ingest_module.Range, params).days() == [date(2026, 1, 5)]
    assert load("data", dict[str, date | None], params) == {"from": date(2026, 1, 5), "to": date(2026, 1, 5)}


@pytest.mark.parametrize("written", ["2026-01-05 10:00:00", "2026-13-05", "20260105", "yesterday"])
def test_what_is_no_date_is_named(tmp_path: Path, written: str) -> None:
    params = tmp_path / "params.yaml"
    params.write_text(f"data: {{from: {written}, to: {written}}}\n")
    with pytest.raises(ConfigError, match=r"section 'data'|is not YAML"):
        load("data", ingest_module.Range, params)


def test_unquoted_dates_are_read_wherever_a_source_takes_a_day(tmp_path: Path) -> None:
    params = tmp_path / "params.yaml"
    sample = ingest_module.SampleConfig()
    text = {"ingest": {"source": "sample", "sample": {"start": date(2026, 1, 5)}}}
    params.write_text(yaml.safe_dump(text))
    assert "start: 2026-01-05" in params.read_text(), "without quotes"
    assert type(load("ingest", ingest_module.IngestConfig, params).sample.start) is type(sample.start)


def test_a_request_that_is_still_processing_has_no_duration(tmp_path: Path) -> None:
    path = tmp_path / "lora_request_trace.csv"
    path.write_text(
        "gmt_create,predict_status,checkpoint_model_version_id,exec_time_seconds\n"
        "2026-01-05 10:00:00,SUCCEED,m,1.5\n2026-01-05 10:00:01,PROCESSING,m,\n"
    )
    read = alibaba_genai.read_requests(path)
    assert read.status.tolist() == ["SUCCEED", "PROCESSING"]
    assert read.duration_s[0] == 1.5
    assert read.duration_s[1] != read.duration_s[1]


def test_what_is_said_goes_into_the_metrics(run_clean: Callable[..., Any], healthy: SimpleNamespace) -> None:
    cleaned = run_clean({"c": healthy.rows()})
    import msgspec

    assert json.loads(msgspec.json.encode(cleaned.metrics))["rows"]["requests"]["alike"] == 0
