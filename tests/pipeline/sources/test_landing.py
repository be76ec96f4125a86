import fcntl
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.contracts.raw import SAMPLES, TABLES
from pipeline.errors import DataError, SourceError
from pipeline.sources import Chunk
from pipeline.sources.columns import SampleColumns
from pipeline.sources.landing import Landing, forget_old, read_manifest
from wire.errors import ContractError

DAY_US = 86_400_000_000
NAMES = {"node": ["a", "b"], "pod": [], "function": [], "card": [], "detail": []}


def rows(times_us, value=1.0, cluster="c"):
    return SampleColumns.of("node_ready", np.array(times_us), value, node=0).table(cluster, NAMES)


def chunk(key, *tables):
    return Chunk(key, lambda tally: iter(("samples", table) for table in tables))


def read(folder):
    return pq.ParquetDataset(folder / "samples", partitioning=None).read()


def test_rows_land_in_their_day_and_cluster_with_the_contract_types(tmp_path):
    chunks = [chunk("one", rows([5, DAY_US + 5, 7]), rows([9], cluster="d"))]
    with Landing(tmp_path / "scratch") as landing:
        landed: list[int] = []
        landing.land(chunks[0], landed.append)
        assert landed == [3, 1]
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

    chunks = [chunk("one", rows([1, 2, 3], np.array([1.0, np.nan, 2.0])))]
    with Landing(tmp_path / "scratch") as landing:
        landing.land(chunks[0])
        landing.publish(tmp_path / "raw", "test", {}, chunks)
    found = duckdb.sql(f"select count(*) from '{tmp_path}/raw/samples/*/*/*.parquet' where isnan(value)").fetchall()
    assert found == [(1,)]


def test_a_chunk_that_broke_half_way_leaves_nothing_behind(tmp_path):
    def broken(tally):
        yield "samples", rows([1, 2])
        yield "samples", rows([3])
        raise SourceError("gone")

    with Landing(tmp_path / "scratch") as landing, pytest.raises(SourceError):
        landing.land(Chunk("one", broken))
    chunks = [chunk("one", rows([1]))]
    with Landing(tmp_path / "scratch") as landing:
        assert not landing.done(chunks[0])
        landing.land(chunks[0])
        landing.publish(tmp_path / "raw", "test", {}, chunks)
    assert read(tmp_path / "raw").num_rows == 1


def test_a_run_killed_before_publishing_is_taken_up(tmp_path):
    chunks = [chunk("one", rows([1])), chunk("two", rows([2]))]
    with Landing(tmp_path / "scratch") as landing:
        landing.land(chunks[0])
    (tmp_path / "scratch" / "samples" / ".part.tmp").write_bytes(b"half")
    with Landing(tmp_path / "scratch") as landing:
        assert [landing.done(one) for one in chunks] == [True, False]
        landing.land(chunks[1])
        manifest = landing.publish(tmp_path / "raw", "test", {}, chunks)
    assert manifest.rows["samples"] == read(tmp_path / "raw").num_rows == 2
    assert not (tmp_path / "scratch").exists()


def test_publishing_replaces_what_was_there(tmp_path):
    for key, times in (("old", [1, 2, 3]), ("new", [4])):
        chunks = [chunk(key, rows(times))]
        with Landing(tmp_path / key) as landing:
            landing.land(chunks[0])
            landing.publish(tmp_path / "raw", "test", {}, chunks)
    assert read(tmp_path / "raw").num_rows == 1


def test_two_ingests_of_the_same_data_do_not_meet(tmp_path):
    with Landing(tmp_path / "scratch"), pytest.raises(SourceError, match="another ingest"):
        Landing(tmp_path / "scratch")


def test_half_done_work_is_forgotten_after_a_while_unless_it_is_being_done(tmp_path):
    for name in ("old", "busy", "new"):
        with Landing(tmp_path / name) as landing:
            landing.land(chunk("one", rows([1])))
    for name in ("old", "busy"):
        os.utime(tmp_path / f"{name}.lock", (0, 0))
    with (tmp_path / "busy.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        forget_old(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["busy", "busy.lock", "new", "new.lock"]


def test_nothing_at_all_is_an_error_that_says_why(tmp_path):
    def nothing(tally):
        tally.skipped["rows of another day"] += 3
        return iter(())

    chunks = [Chunk("one", nothing)]
    with Landing(tmp_path / "scratch") as landing:
        landing.land(chunks[0])
        with pytest.raises(SourceError, match=r"no row \(rows of another day: 3\)"):
            landing.publish(tmp_path / "raw", "test", {}, chunks)


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
    with Landing(tmp_path / "scratch") as landing, pytest.raises(ContractError, match=message):
        landing.land(Chunk("one", lambda tally: iter([(table, bad)])))


def test_a_missing_manifest_says_what_to_run(tmp_path):
    with pytest.raises(DataError, match=r"pipeline\.ingest"):
        read_manifest(tmp_path)


def test_manifest_counts_every_table(tmp_path):
    chunks = [chunk("one", rows([1]))]
    with Landing(tmp_path / "scratch") as landing:
        landing.land(chunks[0])
        assert set(landing.publish(tmp_path / "raw", "test", {}, chunks).rows) == set(TABLES)
