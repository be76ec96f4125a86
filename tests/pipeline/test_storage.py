"""Raw rows and windows in an object store: ingest, clean, validate and datasets work as on a folder."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline import storage, windows
from pipeline.clean.command import clean
from pipeline.clean.command import main as clean_main
from pipeline.clean.config import CleanConfig
from pipeline.datasets import functions
from pipeline.ingest import IngestConfig, Range, ingest
from pipeline.ingest import main as ingest_main
from pipeline.sources.sample import SampleConfig
from pipeline.validate.command import validate
from pipeline.validate.config import ValidateConfig
from pipeline.validate.drift import NOTHING, document
from tests.servers import s3_server
from wire.errors import ConfigError

SMALL = SampleConfig(days=1, nodes=2, functions=2, scrape_seconds=120.0, vms_per_day=0, jobs_per_day=0)
DAY = date(2026, 1, 5)


def test_a_path_a_file_uri_and_nonsense(tmp_path: Path) -> None:
    assert storage.place(str(tmp_path)) == storage.place(f"file://{tmp_path}") == tmp_path
    assert not storage.is_remote(tmp_path)
    with pytest.raises(ConfigError, match=r"'ftp://x' is no place that we know.*s3://bucket/prefix"):
        storage.place("ftp://x")


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An S3 server of our own with one bucket."""
    pytest.importorskip("s3fs", reason="the s3 extra is not installed")
    pytest.importorskip("upath", reason="the s3 extra is not installed")
    monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))
    with s3_server(tmp_path / "s3", "data", monkeypatch):
        yield "s3://data"


@pytest.mark.s3
def test_a_day_in_a_store_is_the_day_in_a_folder(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "accepted.json").write_bytes(document(NOTHING))
    monkeypatch.chdir(tmp_path)
    config, accepted = IngestConfig(sample=SMALL), tmp_path / "accepted.json"
    there = storage.place(f"{bucket}/lake")
    manifest = ingest(config, Range(), there / "raw")
    assert ingest(config, Range(), tmp_path / "raw") == manifest
    verdicts, splits = {}, {}
    for name, root in (("here", tmp_path), ("there", there)):
        monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / f"var-{name}"))  # nothing is kept from the other
        assert clean(root / "raw", root / "windows", CleanConfig()).rows["samples"].rows_out > 0
        verdicts[name] = validate(root / "windows", tmp_path / f"said-{name}", ValidateConfig(), accepted=accepted)
        span = windows.covered(root / "windows")
        splits[name] = functions.load(root / "windows", span.start, span.end)
    assert verdicts["here"] == verdicts["there"]
    for file in sorted((tmp_path / "windows").rglob("*.parquet")):
        with (there / "windows" / str(file.relative_to(tmp_path / "windows"))).open("rb") as content:
            assert content.read() == file.read_bytes(), file
    (ours, our_nodes), (theirs, their_nodes) = splits["here"], splits["there"]
    assert (ours.arrival_s == theirs.arrival_s).all()
    assert our_nodes.names == their_nodes.names


@pytest.mark.s3
def test_a_second_run_takes_what_is_kept_and_other_objects_open_the_day(bucket: str, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(
        "data: {}\ningest: {sample: {days: 1, nodes: 1, functions: 1, vms_per_day: 0, jobs_per_day: 0}}\nclean: {}\n"
    )
    raw, out = f"{bucket}/raw", f"{bucket}/windows"
    params = ["--params", str(tmp_path / "params.yaml")]
    assert ingest_main([*params, "--out", raw]) == 0
    arguments = [*params, "--raw", raw, "--out", out, "--metrics", str(tmp_path / "clean.json")]
    assert clean_main(arguments) == 0
    kept = {folder.name for folder in (tmp_path / "var" / "cache" / "clean").iterdir()}
    assert clean_main(arguments) == 0
    assert {folder.name for folder in (tmp_path / "var" / "cache" / "clean").iterdir()} == kept
    object_ = next((storage.place(raw) / "samples").glob("date=*/cluster=*/*.parquet"))
    with object_.open("rb") as content:
        rows = pq.ParquetFile(content).read()
    with object_.open("wb") as content:
        pq.write_table(rows.slice(0, rows.num_rows // 2), content)
    assert clean_main(arguments) == 0
    assert len(list((tmp_path / "var" / "cache" / "clean").iterdir())) == len(kept) + 1


@pytest.mark.s3
def test_what_is_joined_to_a_place_shares_its_connection(bucket: str) -> None:
    # One each took 0.2 s of CPU: a pod's hundred files were looked at for half a minute.
    there = storage.place(bucket)
    assert storage.filesystem(there / "a" / "b") is storage.filesystem(there / "c")
