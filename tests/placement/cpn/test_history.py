"""From finished jobs to what a night trains on: raw files, ingest, windows, the dataset of ``jobs``."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.clean.command import clean
from pipeline.clean.config import CleanConfig
from pipeline.contracts.raw import EVENTS, SAMPLES
from pipeline.ingest import IngestConfig, Range, ingest
from pipeline.sources.parquet import ParquetConfig
from placement.cpn.history import History, samples
from placement.cpn.records import Job
from tests.placement.cpn.played import Rehearsal

START = datetime(2026, 3, 2, 8, tzinfo=UTC)


@pytest.fixture
def history(
    rehearse: Callable[..., Rehearsal], submit: Callable[..., Job], tmp_path: Path
) -> tuple[Rehearsal, History]:
    """Eight jobs on two cards, watched every minute."""
    rehearsal = rehearse({"P100": 2}, strategy="fifo")
    rehearsal.world.now = START.timestamp()
    controller = rehearsal.controller

    def seen() -> list[dict[str, object]]:
        return samples(controller.network, controller.books, {}, rehearsal.world.now, controller.up())

    history = History(rehearsal.store, tmp_path / "history", seen)
    for number in range(8):
        submit(rehearsal, f"job-{number}", epochs=6000, gb=1.0)
    rehearsal.tick()
    while controller.books.jobs:
        history.sample()
        rehearsal.run(until_s=rehearsal.world.now + 60.0)
    assert history.write() == 8
    assert history.write() == 0
    return rehearsal, history


def test_finished_jobs_become_windows_of_events_and_cards(
    history: tuple[Rehearsal, History], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sorted((tmp_path / "history").iterdir())
    assert [file.name.split("-")[0] for file in files] == ["events", "samples"]
    for file, contract in zip(files, (EVENTS, SAMPLES), strict=True):
        assert set(pq.ParquetFile(file).schema_arrow.names) <= set(contract.names)
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))
    paths = {table: [str(tmp_path / "history" / f"{table}-*.parquet")] for table in ("events", "samples")}
    ingest(IngestConfig("parquet", parquet=ParquetConfig(paths)), Range(START.date(), START.date()), tmp_path / "raw")
    clean(tmp_path / "raw", tmp_path / "windows", CleanConfig())

    def table(name: str) -> list[dict[str, object]]:
        read = [pq.ParquetFile(file).read() for file in (tmp_path / "windows" / name).glob("date=*/*.parquet")]
        return [row for one in read for row in one.to_pylist()]

    ends = [row for row in table("events") if row["action"] == "delete"]
    ran = {f"default/{one.job}": one for one in history[0].store.everything()[1]}
    assert len(ends) == len(ran) == 8
    assert {row["function"] for row in ends} == {"cnn-small"}
    found = sorted(float(row["runtime_s"]) for row in ends)  # type: ignore[arg-type]
    assert found == pytest.approx(sorted((one.ended_at or 0.0) - (one.started_at or 0.0) for one in ran.values()))
    cards = table("cards")
    assert {row["model"] for row in cards} == {"P100"}
    assert {row["card"] for row in cards} == {"node-0000/gpu0", "node-0000/gpu1"}
    assert max(float(row["gpu_mem_used_max_gib"]) for row in cards) == pytest.approx(3.0)  # type: ignore[arg-type]
    assert {row["node"] for row in table("nodes")} == {"node-0000"}


def test_rows_that_are_written_again_are_the_same_file(history: tuple[Rehearsal, History], tmp_path: Path) -> None:
    """As when the controller dies between writing and noting it."""
    rehearsal, _ = history
    before = sorted((tmp_path / "history").glob("events-*"))
    for attempt in rehearsal.store.everything()[1]:
        with rehearsal.store.step("test") as step:
            step.change_attempt(attempt, exported=0)
    again = History(rehearsal.store, tmp_path / "history")
    assert again.write() == 8
    assert sorted((tmp_path / "history").glob("events-*")) == before
