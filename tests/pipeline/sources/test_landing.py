import os
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import kept
from pipeline.contracts.raw import SAMPLES, TABLES
from pipeline.errors import DataError, SourceError
from pipeline.sources import Chunk
from pipeline.sources.columns import SampleColumns
from pipeline.sources.landing import Landing, read_manifest
from wire.errors import ContractError

DAY_US = 86_400_000_000
NAMES = {"node": ["a", "b"], "pod": [], "function": [], "card": [], "detail": []}


def rows(times_us, value=1.0, cluster="c"):
    return SampleColumns.of("node_ready", np.array(times_us), value, node=0).table(cluster, NAMES)


def chunk(key, *tables):
    return Chunk(key, lambda tally: iter(("samples", table) for table in tables))


def read(folder):
    return pq.ParquetDataset(folder / "samples", partitioning=None).read()


def landed(folder, chunks, *days):
    """Land chunks and publish them."""
    landing = Landing(folder / "kept")
    for one in chunks:
        if not landing.done(one):
            landing.land(one)
    return landing.publish(folder / "raw", "test", {}, chunks, days)


def test_rows_land_in_their_day_and_cluster_with_the_contract_types(tmp_path):
    chunks = [chunk("one", rows([5, DAY_US + 5, 7]), rows([9], cluster="d"))]
    landing = Landing(tmp_path / "kept")
    counts: list[int] = []
    landing.land(chunks[0], counts.append)
    assert counts == [3, 1]
    manifest = landing.publish(tmp_path / "raw", "test", {}, chunks)
    assert {(p.date, p.cluster, p.rows) for p in manifest.partitions} == {
        ("1970-01-01", "c", 2), ("1970-01-02", "c", 1), ("1970-01-01", "d", 1)}  # fmt: skip
    [file] = (tmp_path / "raw/samples/date=1970-01-02/cluster=c").iterdir()
    assert pq.read_schema(file).equals(SAMPLES)
    assert read_manifest(tmp_path / "raw") == manifest
    assert manifest.metrics == {"node_ready": 4}
    assert sorted(path.name for path in (tmp_path / "raw").iterdir()) == ["manifest.json", "samples"]


def test_nan_rows_survive_a_filter(tmp_path):
    import duckdb

    landed(tmp_path, [chunk("one", rows([1, 2, 3], np.array([1.0, np.nan, 2.0])))])
    found = duckdb.sql(f"select count(*) from '{tmp_path}/raw/samples/*/*/*.parquet' where isnan(value)").fetchall()
    assert found == [(1,)]


def test_a_chunk_that_broke_half_way_leaves_nothing_behind(tmp_path):
    def broken(tally):
        yield "samples", rows([1, 2])
        yield "samples", rows([3])
        raise SourceError("gone")

    landing = Landing(tmp_path / "kept")
    with pytest.raises(SourceError):
        landing.land(Chunk("one", broken))
    chunks = [chunk("one", rows([1]))]
    assert not landing.done(chunks[0])
    landed(tmp_path, chunks)
    assert read(tmp_path / "raw").num_rows == 1


def test_a_run_killed_before_publishing_is_taken_up(tmp_path):
    chunks = [chunk("one", rows([1])), chunk("two", rows([2]))]
    Landing(tmp_path / "kept").land(chunks[0])
    (tmp_path / "kept" / ".half").mkdir()
    (tmp_path / "kept" / ".half" / "part.parquet").write_bytes(b"half")
    assert [Landing(tmp_path / "kept").done(one) for one in chunks] == [True, False]
    assert landed(tmp_path, chunks).rows["samples"] == read(tmp_path / "raw").num_rows == 2


def test_publishing_replaces_what_was_there(tmp_path):
    for key, times in (("old", [1, 2, 3]), ("new", [4])):
        landed(tmp_path, [chunk(key, rows(times))])
    assert read(tmp_path / "raw").num_rows == 1


def test_a_chunk_that_was_landed_by_other_code_or_settings_is_another(tmp_path):
    old, new = (Chunk("one", lambda tally: iter([("samples", rows([1]))]), made_by=name) for name in ("a", "b"))
    landing = Landing(tmp_path / "kept")
    landing.land(old)
    assert (landing.done(old), landing.done(new)) == (True, False)


def test_a_chunk_that_is_read_again_replaces_the_one_that_is_kept(tmp_path):
    landed(tmp_path, [chunk("one", rows([1]))])
    Landing(tmp_path / "kept").land(chunk("one", rows([1, 2])))
    assert landed(tmp_path, [chunk("one")]).rows["samples"] == read(tmp_path / "raw").num_rows == 2


def test_of_other_days_only_samples_next_to_midnight_are_there(tmp_path):
    """They lie beside the tables, whichever chunk they came with, and count as rows outside the days."""
    minute, day = 60_000_000, date(1970, 1, 3)
    low, high = 2 * DAY_US, 3 * DAY_US
    near, far = (low - 14 * minute, high + 14 * minute), (low - 16 * minute, high + 16 * minute)
    chunks = [chunk("one", rows([*far, *near, low, high - 1])), Chunk("two", lambda tally: iter([]), margin=True)]
    manifest = landed(tmp_path, chunks, day)
    assert manifest.rows["samples"] == 2
    assert manifest.metrics == {"node_ready": 2}
    assert manifest.skipped == {"rows outside the days asked for": 4}
    assert {part.date for part in manifest.partitions} == {str(day)}
    times = [pq.ParquetFile(file).read()["time"] for file in sorted((tmp_path / "raw/margin").glob("*/*/*"))]
    assert [int(time.value) for column in times for time in column] == [*near]


def test_a_chunk_of_the_margin_alone_adds_no_day_and_no_count(tmp_path):
    after = Chunk("after", lambda tally: iter([("samples", rows([DAY_US, DAY_US + 1]))]), margin=True)
    manifest = landed(tmp_path, [chunk("one", rows([5])), after], date(1970, 1, 1))
    assert (manifest.rows["samples"], manifest.skipped) == (1, {})
    [file] = (tmp_path / "raw/margin/date=1970-01-02/cluster=c").iterdir()
    assert pq.ParquetFile(file).read().num_rows == 2


def test_what_nobody_asks_for_any_more_is_forgotten(tmp_path, monkeypatch):
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path))
    landing = Landing(tmp_path / "cache" / "ingest")
    for key in ("old", "asked for", "new"):
        landing.land(chunk(key, rows([1])))
    for folder in (tmp_path / "cache" / "ingest").iterdir():
        if not folder.name.startswith("new"):
            os.utime(folder, (0, 0))
    assert landing.done(chunk("asked for"))
    kept.forget("ingest")
    assert [landing.done(chunk(key)) for key in ("old", "asked for", "new")] == [False, True, True]


def test_nothing_at_all_is_an_error_that_says_why(tmp_path):
    def nothing(tally):
        tally.skipped["rows of another day"] += 3
        return iter(())

    with pytest.raises(SourceError, match=r"no row \(rows of another day: 3\)"):
        landed(tmp_path, [Chunk("one", nothing)])


@pytest.mark.parametrize(
    ("table", "bad", "message"),
    [
        ("samples", rows([1]).drop_columns("le"), "columns"),
        ("samples", rows([1]).set_column(9, "value", pa.array(["x"])), "samples.value is string"),
        ("samples", rows([1]).set_column(0, "time", pa.array([None], SAMPLES.field("time").type)), "1 rows .* no time"),
        ("smaples", rows([1]), "not a raw table"),
    ],
)
def test_rows_that_break_the_contract_are_refused(tmp_path, table, bad, message):
    with pytest.raises(ContractError, match=message):
        Landing(tmp_path / "kept").land(Chunk("one", lambda tally: iter([(table, bad)])))


def test_a_missing_manifest_says_what_to_run(tmp_path):
    with pytest.raises(DataError, match=r"pipeline\.ingest"):
        read_manifest(tmp_path)


def test_manifest_counts_every_table(tmp_path):
    assert set(landed(tmp_path, [chunk("one", rows([1]))]).rows) == set(TABLES)
