"""Raw rows and windows in an object store: ingest, clean, validate and datasets work as on a folder."""

from __future__ import annotations

import os
import socket
import subprocess
import time
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
from wire.errors import ConfigError

SMALL = SampleConfig(days=1, nodes=2, functions=2, scrape_seconds=120.0, vms_per_day=0, jobs_per_day=0)
DAY = date(2026, 1, 5)


def test_a_path_a_file_uri_and_nonsense(tmp_path: Path) -> None:
    assert storage.place(str(tmp_path)) == storage.place(f"file://{tmp_path}") == tmp_path
    assert not storage.is_remote(tmp_path)
    with pytest.raises(ConfigError, match=r"'ftp://x' is no place that we know.*s3://bucket/prefix"):
        storage.place("ftp://x")


def server_program() -> Path:
    folder = os.environ.get("KUBE_ASSETS")
    unpack = Path(__file__).resolve().parents[3] / "shared" / "kube" / "unpack"
    if folder is None and unpack.exists():
        folder = subprocess.run([unpack], check=True, capture_output=True, text=True).stdout.strip()
    program = Path(folder, "versitygw") if folder else None
    if program is None or not program.exists():
        pytest.skip("no S3 server: set KUBE_ASSETS to a folder with versitygw")
    return program


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An S3 server of our own with one bucket."""
    botocore = pytest.importorskip("botocore.session", reason="the s3 extra is not installed")
    pytest.importorskip("s3fs", reason="the s3 extra is not installed")
    pytest.importorskip("upath", reason="the s3 extra is not installed")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{one.getsockname()[1]}"
    (tmp_path / "s3").mkdir()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": "not-a-secret",
        "AWS_ENDPOINT_URL": f"http://{address}",
        "AWS_DEFAULT_REGION": "us-east-1",
        "NO_PROXY": "127.0.0.1",
        "LOADMASTER_VAR": str(tmp_path / "var"),
    }.items():
        monkeypatch.setenv(name, value)
    keys = ["--access", "tester", "--secret", "not-a-secret"]
    command = [server_program(), *keys, "--port", address, "posix", tmp_path / "s3"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        client = botocore.get_session().create_client("s3")
        until = time.monotonic() + 60
        while True:
            try:
                client.create_bucket(Bucket="data")
                break
            except Exception:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
        yield "s3://data"
    finally:
        server.terminate()
        server.wait(30)


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
