"""What must hold over days: none missing, no cluster silent, recent to the end."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pandas as pd

from pipeline.contracts.windows import TABLES
from pipeline.validate import cross
from pipeline.validate.config import ValidateConfig

LAST = datetime(2026, 3, 2, 23, 55, tzinfo=UTC)


def check(days: list[str], asked: Any = (None, None), **settings: Any) -> dict[str, Any]:
    found = cross.Found({day: dict.fromkeys(TABLES, 1) for day in days}, last_window=LAST)
    return {finding.rule: finding for finding in cross.check_range(found, asked, ValidateConfig(**settings))}


def of_clusters(asked: Any = (None, None), **clusters: list[tuple[str, str]]) -> list[str]:
    """Findings where clusters were seen only between some times."""
    windows: dict[str, dict[str, pd.DatetimeIndex]] = {}
    for cluster, spans in clusters.items():
        for span in spans:
            times = pd.date_range(*span, freq="300s", tz="UTC", unit="us")
            for day, part in times.groupby(times.strftime("%Y-%m-%d")).items():
                windows.setdefault(day, {})[cluster] = part
    found = cross.Found({day: dict.fromkeys(TABLES, 1) for day in sorted(windows)}, windows, LAST)
    return [str(finding) for finding in cross.check_range(found, asked, ValidateConfig())]


def test_a_cluster_that_falls_silent_until_midnight() -> None:
    spans = [("2026-03-01 00:00", "2026-03-02 09:55"), ("2026-03-03 00:00", "2026-03-03 23:55")]
    [found] = of_clusters(a=spans)
    assert "nodes 2026-03-02: contiguous: a: 168 of 288 windows have no node at all" in found


def test_one_of_two_clusters_lacks_a_day() -> None:
    whole = [("2026-03-01 00:00", "2026-03-03 23:55")]
    [found] = of_clusters(
        a=whole, b=[("2026-03-01 00:00", "2026-03-01 23:55"), ("2026-03-03 00:00", "2026-03-03 23:55")]
    )
    assert "nodes 2026-03-02: contiguous: b: 288 of 288" in found


def test_one_of_two_clusters_ends_early() -> None:
    whole, half = [("2026-03-01 00:00", "2026-03-02 23:55")], [("2026-03-01 00:00", "2026-03-02 11:55")]
    [found] = of_clusters((date(2026, 3, 1), date(2026, 3, 2)), a=whole, b=half)
    assert "fresh: b end at 2026-03-02 12:00:00" in found


def test_clusters_may_come_and_go_when_nobody_asked_for_days() -> None:
    assert of_clusters(a=[("2026-03-01 00:00", "2026-03-02 23:55")], b=[("2026-03-01 12:00", "2026-03-02 03:00")]) == []


def test_the_first_days_that_were_asked_for_are_missing() -> None:
    found = check(["2026-03-02"], (date(2026, 2, 28), date(2026, 3, 2)))
    assert found["days_contiguous"].examples == [{"day": "2026-02-28"}, {"day": "2026-03-01"}]


def test_a_missing_day() -> None:
    found = check(["2026-03-01", "2026-03-02", "2026-03-04"])
    assert found["days_contiguous"].examples == [{"day": "2026-03-03"}]


def test_windows_that_end_before_the_asked_day() -> None:
    assert check(["2026-03-02"], (None, date(2026, 3, 2))) == {}
    assert check(["2026-03-02"], (None, date(2026, 3, 3)))["fresh"].severity == "error"


def test_windows_that_are_too_old() -> None:
    assert "fresh" in check(["2026-03-02"], max_age_hours=1.0)


def test_tables_without_any_row() -> None:
    nothing = cross.Found({"2026-03-02": dict.fromkeys(TABLES, 0)})
    found = cross.check_range(nothing, (None, None), ValidateConfig())
    assert [finding.rule for finding in found] == ["not_empty"]


def test_quiet_days_of_events_alone() -> None:
    rows = {**dict.fromkeys(TABLES, 0), "events": 5}
    quiet = cross.Found({"2026-03-02": rows, "2026-03-05": rows}, last_window=LAST)
    assert list(cross.check_range(quiet, (None, None), ValidateConfig())) == []
