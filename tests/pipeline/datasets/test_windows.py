"""Windows as datasets: splits that do not touch, and arrays that are right, stable and shared."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import windows
from pipeline.contracts.windows import VERSION_KEY
from pipeline.datasets import functions
from pipeline.errors import DataError
from pipeline.windows import SplitConfig, splits
from wire.contracts.window import WINDOW_SECONDS
from wire.errors import ConfigError, ContractError

START = datetime(2026, 3, 2, tzinfo=UTC)
STEP = timedelta(seconds=WINDOW_SECONDS)


@given(
    count=st.integers(3, 4000),
    gap=st.integers(0, 40),
    train=st.floats(0.1, 0.8),
    validation=st.floats(0.05, 0.15),
)
def test_no_window_is_in_two_splits(count: int, gap: int, train: float, validation: float) -> None:
    end = START + count * STEP
    try:
        found = splits(START, end, SplitConfig(train, validation, gap))
    except DataError:
        assert (count - 2 * min(gap, count // 16)) * min(train, validation, 1 - train - validation) < 2
        return
    parts = [found.train, found.validation, found.test]
    assert parts[0].start == START
    assert parts[-1].end == end
    for part in parts:
        assert part.end - part.start >= STEP
        assert (part.start - START) % STEP == timedelta(0)
    for before, after in itertools.pairwise(parts):
        assert after.start - before.end == min(gap, count // 16) * STEP


def test_too_few_windows_are_a_clear_error() -> None:
    with pytest.raises(DataError, match=r"has 5 windows \(0.417 h\).*some 7 of them.*ask for more days"):
        splits(START, START + 5 * STEP)


def test_eight_hours_of_a_day_are_split_into_three(tmp_path, write):
    """Whole days would put all of them into the first split."""
    for day, starts in ((START, range(192, 288)), (START + timedelta(days=1), range(0))):
        write(tmp_path, "nodes", [{"window_start": START + n * STEP, "cluster": "c", "node": "n"} for n in starts], day)
    for table in ("pods", "events"):
        write(tmp_path, table, [])
    there = windows.covered(tmp_path)
    assert there == windows.span(tmp_path), "the last day is empty: nothing says where it ends"
    rows = [{"window_start": START + n * STEP, "cluster": "c", "pod": "p"} for n in (288, 289)]
    write(tmp_path, "pods", rows, START + timedelta(days=1))
    there = windows.covered(tmp_path)
    assert there == windows.Span(START + 192 * STEP, START + 290 * STEP)
    parts = splits(there.start, there.end)
    assert [(part.end - part.start) // STEP for part in (parts.train, parts.validation, parts.test)] == [51, 12, 23]
    assert parts.validation.start - parts.train.end == 6 * STEP


def test_a_function_is_held_to_its_fastest_day_so_far(tmp_path, write):
    for number, seconds in enumerate((0.5, 0.2, 0.1)):
        day = START + timedelta(days=number)
        row = {"window_start": day, "cluster": "c", "function": "f", "requests": 1, "standard_response_s": seconds}
        write(tmp_path, "functions", [row], day)
    ends = [START + timedelta(days=days) for days in (1, 2, 3)]
    assert [windows.standards(tmp_path, end)["c", "f"] for end in ends] == [0.5, 0.2, 0.1]


@pytest.mark.parametrize("settings", [{"train": 0.9, "validation": 0.1}, {"train": 0.0}, {"gap_windows": -1}])
def test_shares_that_leave_nothing_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"splits\."):
        SplitConfig(**settings)


def test_only_windows_of_the_span_are_read(folder, at):
    rows = windows.read(folder, "pods", at(300), at(600), ["pod"])
    assert rows.column_names == ["window_start", "pod"]
    assert rows["pod"].to_pylist() == ["a", "b", "c"]


def test_the_span_of_a_folder_is_whole_days(folder):
    assert windows.span(folder) == windows.Span(START, START + timedelta(days=1))


def test_a_file_of_somebody_elses_and_a_failed_build_leave_nothing_behind(folder, at, tmp_path):
    pq.write_table(pa.table({"window_start": [START]}), folder / "pods" / f"date={START.date()}" / "part-0.parquet")
    with pytest.raises(ContractError, match="not of window schema"):
        functions.load(folder, START, at(600))
    assert not list((tmp_path / "var").rglob("*.npy"))


def test_windows_of_another_version_are_refused(folder, at):
    path = folder / "pods" / "date=2026-03-02" / "part-0.parquet"
    pq.write_table(pq.ParquetFile(path).read().replace_schema_metadata({VERSION_KEY: b"0"}), path)
    with pytest.raises(ContractError, match="not of window schema"):
        windows.read(folder, "pods", START, at(600))
