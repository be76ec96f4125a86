"""Days: what spans midnight, what is cleaned again, what a kill leaves, what cannot be read."""

from __future__ import annotations

import math
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline.clean.day as day_module
from pipeline import kept
from pipeline.clean import command, engine
from pipeline.clean.command import clean, main
from pipeline.clean.config import CleanConfig
from pipeline.contracts.windows import SCHEMA_VERSION, TABLES, VERSION_KEY
from pipeline.errors import DataError
from pipeline.ingest import IngestConfig, Range, ingest
from pipeline.sources.parquet import ParquetConfig
from pipeline.sources.sample import SampleConfig
from wire.errors import ConfigError, ContractError

NEXT = timedelta(days=1)


@pytest.fixture(autouse=True)
def _var(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))


def shifted(rows: dict[str, list[dict[str, Any]]], by: timedelta) -> dict[str, list[dict[str, Any]]]:
    return {table: [{**row, "time": row["time"] + by} for row in entries] for table, entries in rows.items()}


def frame(out: Path, table: str, day: date) -> pd.DataFrame:
    return pq.ParquetFile(out / table / f"date={day}" / "part-0.parquet").read().to_pandas()


@pytest.fixture
def two_days(tmp_path: Path, healthy: Any) -> Path:
    """Samples from 23:00 to 01:00, every 57 s, in two partitions."""
    rows = shifted(healthy.rows(times=[57.0 * n for n in range(126)]), timedelta(hours=23))
    border = healthy.at(86_400)
    raw = tmp_path / "raw"
    for day, keep in ((healthy.day, lambda t: t < border), (healthy.day + NEXT, lambda t: t >= border)):
        part = {table: [row for row in entries if keep(row["time"])] for table, entries in rows.items()}
        healthy.write(raw, {"c": part}, day)
    return raw


def test_rates_are_right_on_both_sides_of_midnight(two_days: Path, tmp_path: Path, healthy: Any) -> None:
    clean(two_days, tmp_path / "out", CleanConfig())
    for day in (healthy.day, healthy.day + NEXT):
        nodes = frame(tmp_path / "out", "nodes", day)
        assert len(nodes) == 12
        assert nodes["cpu_used_mean_cores"].dropna().to_numpy() == pytest.approx(1.5)
        assert nodes["cpu_used_mean_cores"].notna().all()
        assert (pd.DatetimeIndex(nodes["window_start"]).date == day).all()


def test_a_gap_across_midnight_is_filled_from_the_day_before(tmp_path: Path, healthy: Any) -> None:
    rows = shifted(healthy.rows(times=[60.0 * n for n in range(120)]), timedelta(hours=23))
    border = healthy.at(86_400)
    rows["samples"] = [row for row in rows["samples"] if not border <= row["time"] < border + timedelta(seconds=600)]
    for day, keep in ((healthy.day, lambda t: t < border), (healthy.day + NEXT, lambda t: t >= border)):
        part = {table: [row for row in entries if keep(row["time"])] for table, entries in rows.items()}
        healthy.write(tmp_path / "raw", {"c": part}, day)
    clean(tmp_path / "raw", tmp_path / "out", CleanConfig())
    nodes = frame(tmp_path / "out", "nodes", healthy.day + NEXT).sort_values("window_start")
    assert list(nodes["filled"].iloc[:3]) == [True, True, False]
    assert nodes["mem_used_mean_gib"].to_numpy() == pytest.approx(10.0)


def test_cleaning_a_day_again_gives_the_same_bytes_and_leaves_the_others(
    two_days: Path, tmp_path: Path, healthy: Any
) -> None:
    out = tmp_path / "out"
    clean(two_days, out, CleanConfig())
    before = {path.relative_to(out): path.read_bytes() for path in out.rglob("*.parquet")}
    kept = (out / "nodes" / f"date={healthy.day}" / "part-0.parquet").stat().st_ino
    clean(two_days, out, CleanConfig(), first=healthy.day + NEXT, last=healthy.day + NEXT)
    assert {path.relative_to(out): path.read_bytes() for path in out.rglob("*.parquet")} == before
    assert (out / "nodes" / f"date={healthy.day}" / "part-0.parquet").stat().st_ino == kept


def test_a_killed_run_goes_on_with_the_day_it_was_at(
    two_days: Path, tmp_path: Path, healthy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[date] = []
    real = day_module.clean_day

    def once(engine: Any, day: Any, *rest: Any) -> Any:
        if done:
            raise KeyboardInterrupt
        done.append(day.day)
        return real(engine, day, *rest)

    monkeypatch.setattr(day_module, "clean_day", once)
    with pytest.raises(KeyboardInterrupt):
        clean(two_days, tmp_path / "out", CleanConfig())
    assert not (tmp_path / "out").exists()
    done.clear()
    metrics = clean(two_days, tmp_path / "out", CleanConfig())
    assert done == [healthy.day + NEXT]
    assert sorted(metrics.days) == [str(healthy.day), str(healthy.day + NEXT)]


class TestKeptDays:
    """A night of many days cleans the new one; what it gives is what a night without anything kept gives."""

    @pytest.fixture
    def nights(self, tmp_path: Path, healthy: Any) -> Any:
        """Four days as Parquet files that a source lands; returns ingest and clean of a range of them, as a night."""
        rows = healthy.rows(times=[57.0 * n for n in range(round(4 * 86_400 / 57))])
        for number in range(4):
            low, high = (healthy.at((number + step) * 86_400) for step in (0, 1))
            part = {table: [row for row in entries if low <= row["time"] < high] for table, entries in rows.items()}
            healthy.write(tmp_path / "files", {"c": part}, healthy.day + number * NEXT)

        def night(first: int, last: int, name: str = "out") -> list[date]:
            paths = {
                table: [f"{tmp_path}/files/{table}/*/*/*.parquet"]
                for table in ("samples", "requests", "events", "tasks")
            }
            config = IngestConfig("parquet", parquet=ParquetConfig(paths))
            ingest(config, Range(healthy.day + first * NEXT, healthy.day + last * NEXT), tmp_path / "raw")
            cleaned: list[date] = []
            real = day_module.clean_day

            def noted(engine: Any, day: Any, *rest: Any) -> Any:
                cleaned.append(day.day)
                return real(engine, day, *rest)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(day_module, "clean_day", noted)
                clean(tmp_path / "raw", tmp_path / name, CleanConfig())
            return cleaned

        return night

    def test_only_the_new_day_is_cleaned_and_nothing_differs(
        self, nights: Any, tmp_path: Path, healthy: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Though yesterday's last day now has a neighbour after it, and its second one none before it."""
        assert nights(0, 2) == [healthy.day, healthy.day + NEXT, healthy.day + 2 * NEXT]
        assert nights(1, 3, "later") == [healthy.day + 3 * NEXT]
        monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "other"))
        assert len(nights(1, 3, "anew")) == 3
        later, anew = (
            {str(path.relative_to(tmp_path / name)): path.read_bytes() for path in (tmp_path / name).rglob("*.parquet")}
            for name in ("later", "anew")
        )
        assert later == anew
        nodes = frame(tmp_path / "later", "nodes", healthy.day + 3 * NEXT)
        assert nodes["cpu_used_mean_cores"].to_numpy() == pytest.approx(1.5)

    def test_late_rows_open_their_day_again_and_a_neighbour_that_sees_them(
        self, nights: Any, tmp_path: Path, healthy: Any
    ) -> None:
        nights(0, 2)
        file = tmp_path / "files" / "samples" / f"date={healthy.day + NEXT}" / "cluster=c" / "part-1.parquet"
        late = pq.ParquetFile(file.with_name("part-0.parquet")).read()
        noon = late.filter(pa.compute.greater(late["time"], pa.scalar(healthy.at(1.5 * 86_400)))).slice(0, 12)
        pq.write_table(noon, file)
        assert nights(0, 2) == [healthy.day + NEXT], "rows of noon concern nobody else"
        pq.write_table(late.slice(0, 12), file)
        assert nights(0, 2) == [healthy.day, healthy.day + NEXT], "rows at midnight are in the margin of the day before"

    def test_other_settings_prices_or_code_clean_every_day_again(
        self, nights: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        nights(0, 1)
        assert nights(0, 1) == []
        places = []
        for settings, prices in ((CleanConfig(), {}), (CleanConfig(fill_windows=1), {}), (CleanConfig(), {"m5": 1.0})):
            [*days], _ = command._wanted_days(tmp_path / "raw", None, None)
            places.append(command._place(command._raw_day(tmp_path / "raw", days[0]), settings, prices))
        monkeypatch.setattr(kept.closure, "fingerprint", lambda *modules: "other code")
        places.append(command._place(command._raw_day(tmp_path / "raw", days[0]), CleanConfig(), {}))
        assert [kept.there(place) for place in places] == [True, False, False, False]
        assert len(set(places)) == 4


def test_the_bytes_do_not_depend_on_the_order_in_which_threads_take_rows(tmp_path: Path) -> None:
    """A day large enough for DuckDB to share it out: sums of floats would differ in their last bits."""
    ingest(IngestConfig(sample=SampleConfig(days=1, functions=4)), Range(), tmp_path / "raw")
    digests = []
    for threads in (1, 2, 3):
        out = tmp_path / f"out-{threads}"
        clean(tmp_path / "raw", out, CleanConfig(threads=threads))
        digests.append({file.parts[-3]: file.read_bytes() for file in out.rglob("*.parquet")})
    assert digests[0] == digests[1] == digests[2]


def test_a_day_that_is_summed_up_in_parts_gives_the_same_bytes(
    two_days: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean(two_days, tmp_path / "whole", CleanConfig())
    monkeypatch.setattr(engine, "PART_ROWS", 50)
    clean(two_days, tmp_path / "parts", CleanConfig())
    files = sorted(file.relative_to(tmp_path / "whole") for file in (tmp_path / "whole").rglob("*.parquet"))
    assert files
    assert all((tmp_path / "whole" / file).read_bytes() == (tmp_path / "parts" / file).read_bytes() for file in files)


def test_nan_is_found_where_the_files_statistics_hide_it(tmp_path: Path, healthy: Any) -> None:
    rows = healthy.rows(hours=0.25)
    rows["samples"][3]["value"] = math.nan
    rows["requests"][2]["duration_s"] = math.nan
    rows["requests"][3]["cpu_cores"] = math.nan
    rows["events"][0]["gpus"] = math.nan
    raw = healthy.write(tmp_path / "raw", {"c": rows})
    file = next(raw.glob("samples/*/*/*.parquet"))
    assert pq.read_metadata(file).row_group(0).column(9).statistics.max < math.inf
    found = clean(raw, tmp_path / "out", CleanConfig()).rows
    assert found["samples"].quarantined == {"no_value": 1}
    assert found["requests"].quarantined == {"bad_size": 1, "no_duration": 1}
    assert found["events"].quarantined == {"bad_size": 1}


def test_files_carry_the_schema_and_its_version(two_days: Path, tmp_path: Path, healthy: Any) -> None:
    clean(two_days, tmp_path / "out", CleanConfig())
    for name, schema in TABLES.items():
        found = pq.read_schema(tmp_path / "out" / name / f"date={healthy.day}" / "part-0.parquet")
        assert found.equals(schema)
        assert found.metadata[VERSION_KEY] == str(SCHEMA_VERSION).encode()


def test_a_day_of_events_alone(tmp_path: Path, healthy: Any) -> None:
    rows = {"events": healthy.rows()["events"]}
    rows["events"][0]["kind"] = "cow"
    metrics = clean(healthy.write(tmp_path / "raw", {"c": rows}), tmp_path / "out", CleanConfig())
    assert {name: count for name, count in metrics.windows.items() if count} == {"events": 1, "quarantine": 1}
    assert metrics.rows["events"].quarantined == {"unknown_kind": 1}


def test_prices_are_joined_by_instance_type(two_days: Path, tmp_path: Path, healthy: Any) -> None:
    (two_days / "prices.csv").write_text("instance_type,usd_per_hour\nm5.2xlarge,0.384\n")
    clean(two_days, tmp_path / "out", CleanConfig())
    assert (frame(tmp_path / "out", "nodes", healthy.day)["price_usd_per_hour"] == 0.384).all()


def test_the_command_line_writes_windows_and_metrics(
    two_days: Path, tmp_path: Path, healthy: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    params = tmp_path / "params.yaml"
    params.write_text("clean: {fill_windows: 1}\n")
    arguments = ["--raw", str(two_days), "--out", str(tmp_path / "out"), "--params", str(params)]
    arguments += ["--metrics", str(tmp_path / "clean.json"), "--from", str(healthy.day), "--to", str(healthy.day)]
    assert main(arguments) == 0
    assert f"{healthy.day} to {healthy.day}" in capsys.readouterr().out
    assert (tmp_path / "clean.json").exists()
    assert [path.name for path in (tmp_path / "out" / "nodes").iterdir()] == [f"date={healthy.day}"]


class TestWhatCannotBeRead:
    """Each is an error that names the file and says what to do; none is a traceback of a library."""

    def broken(self, tmp_path: Path, healthy: Any, content: bytes | pa.Table) -> Path:
        path = tmp_path / "raw" / "samples" / f"date={healthy.day}" / "cluster=c" / "part-0.parquet"
        path.parent.mkdir(parents=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            pq.write_table(content, path)
        return tmp_path / "raw"

    def good(self, healthy: Any) -> pa.Table:
        rows = [{**row, "cluster": "c"} for row in healthy.rows()["samples"]]
        from pipeline.contracts.raw import SAMPLES

        return pa.table({f.name: pa.array([row.get(f.name) for row in rows], f.type) for f in SAMPLES})

    @pytest.mark.parametrize("content", [b"", b"PAR1 but not really", b"PAR1" + b"\0" * 100 + b"PAR1"])
    def test_a_file_that_is_no_parquet(self, tmp_path: Path, healthy: Any, content: bytes) -> None:
        raw = self.broken(tmp_path, healthy, content)
        with pytest.raises(DataError, match=r"part-0\.parquet cannot be read"):
            clean(raw, tmp_path / "out", CleanConfig())

    def test_a_truncated_file(self, tmp_path: Path, healthy: Any) -> None:
        raw = self.broken(tmp_path, healthy, self.good(healthy))
        path = next(raw.rglob("*.parquet"))
        path.write_bytes(path.read_bytes()[:-200])
        with pytest.raises(DataError, match="cannot be read"):
            clean(raw, tmp_path / "out", CleanConfig())

    def test_a_missing_column(self, tmp_path: Path, healthy: Any) -> None:
        raw = self.broken(tmp_path, healthy, self.good(healthy).drop_columns(["pod"]))
        with pytest.raises(ContractError, match="no column pod"):
            clean(raw, tmp_path / "out", CleanConfig())

    def test_values_that_are_text(self, tmp_path: Path, healthy: Any) -> None:
        table = self.good(healthy)
        index = table.schema.get_field_index("value")
        raw = self.broken(tmp_path, healthy, table.set_column(index, "value", table["value"].cast(pa.string())))
        with pytest.raises(ContractError, match="column value is string"):
            clean(raw, tmp_path / "out", CleanConfig())

    def test_times_without_a_zone(self, tmp_path: Path, healthy: Any) -> None:
        table = self.good(healthy)
        raw = self.broken(tmp_path, healthy, table.set_column(0, "time", table["time"].cast(pa.timestamp("us"))))
        with pytest.raises(ContractError, match="column time is timestamp"):
            clean(raw, tmp_path / "out", CleanConfig())

    def test_a_folder_that_is_no_day(self, tmp_path: Path) -> None:
        (tmp_path / "raw" / "samples" / "date=yesterday").mkdir(parents=True)
        with pytest.raises(ContractError, match="not a day"):
            clean(tmp_path / "raw", tmp_path / "out", CleanConfig())

    def test_no_days_at_all(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="has no day"):
            clean(tmp_path / "raw", tmp_path / "out", CleanConfig())

    def test_no_day_in_the_range(self, two_days: Path, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="has no day between 2030-01-01"):
            clean(two_days, tmp_path / "out", CleanConfig(), first=date(2030, 1, 1))

    def test_a_range_that_ends_before_it_begins(self, two_days: Path, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="begins on 2026-03-03 and ends on 2026-03-02"):
            clean(two_days, tmp_path / "out", CleanConfig(), first=date(2026, 3, 3), last=date(2026, 3, 2))

    def test_a_place_that_cannot_be_written(self, two_days: Path, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(DataError, match=r"cannot write: .*file"):
            main(["--raw", str(two_days), "--out", str(tmp_path / "file"), "--metrics", str(tmp_path / "m.json")])

    def test_days_of_the_range_that_are_not_there_are_named(
        self, two_days: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        clean(two_days, tmp_path / "out", CleanConfig(), first=date(2026, 3, 1), last=date(2026, 3, 2))
        assert "nothing of 1 day(s), which are left out: 2026-03-01" in capsys.readouterr().err

    def test_prices_that_are_no_prices(self, two_days: Path, tmp_path: Path) -> None:
        (two_days / "prices.csv").write_text("instance_type,usd_per_hour\nm5,free\n")
        with pytest.raises(DataError, match="usd_per_hour"):
            clean(two_days, tmp_path / "out", CleanConfig())

    def test_a_table_without_rows_is_no_error(self, tmp_path: Path, healthy: Any) -> None:
        raw = self.broken(tmp_path, healthy, self.good(healthy).slice(0, 0))
        metrics = clean(raw, tmp_path / "out", CleanConfig())
        assert metrics.rows["samples"].rows_in == 0
        assert set(metrics.windows.values()) == {0}

    @pytest.mark.parametrize(
        "settings",
        [
            {"memory_mb": 1},
            {"fill_windows": -1},
            {"missing_windows": 1},
            {"over_capacity_ratio": 0.5},
            {"scrape_seconds": 0},
        ],
    )
    def test_settings_that_make_no_sense(self, settings: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match=r"clean\."):
            CleanConfig(**settings)
