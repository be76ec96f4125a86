"""DuckDB and Spark run one definition: the same rows, exact in keys, to 1e-9 in values."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.contracts.windows import KEYS, TABLES
from pipeline.ingest import IngestConfig, Range, ingest
from pipeline.sources.sample import SampleConfig
from tests.servers import free_port

ROOT = Path(__file__).parents[3]
TRACES = Path(os.environ.get("LOADMASTER_TRACES", Path(__file__).parents[4] / "shared" / "data"))

GENAI_DAY = date(2022, 9, 11)
"""Nearly all of that trace's metrics are of this day."""

spark = [
    pytest.mark.spark,
    pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="pyspark is not installed (extra `spark`)"),
    pytest.mark.skipif(shutil.which("java") is None, reason="there is no Java"),
]


def assert_same(one: Any, other: Any) -> None:
    assert one.metrics.rows == other.metrics.rows
    for name, schema in TABLES.items():
        keys = list(KEYS.get(name, ("table", "rule", "window_start", "cluster", "raw")))
        left, right = (result.table(name).sort_values(keys).reset_index(drop=True) for result in (one, other))
        assert len(left) == len(right), name
        for field in schema:
            a, b, column = left[field.name], right[field.name], f"{name}.{field.name}"
            if str(field.type) == "double":
                np.testing.assert_allclose(a.to_numpy(float), b.to_numpy(float), rtol=1e-9, err_msg=column)
            else:
                assert (a.isna() == b.isna()).all(), column
                assert (a.dropna() == b.dropna()).all(), column


def both(run_clean: Callable[..., Any], raw: Path) -> None:
    duckdb = run_clean(raw)
    assert duckdb.metrics.rows["samples"].rows_out > 0
    assert_same(duckdb, run_clean(raw, engine="spark", memory_mb=2000))


class TestSpark:
    pytestmark = spark

    def test_the_sample(self, run_clean: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))
        # Two clusters: a day of several files, as a live source lands it.
        sample = SampleConfig(days=1, clusters=2, nodes=2, functions=3, scrape_seconds=173.0)
        manifest = ingest(IngestConfig(sample=sample), Range(), tmp_path / "raw")
        assert all(manifest.rows.values()), "VMs, jobs and workflows are there too"
        both(run_clean, tmp_path / "raw")

    @pytest.mark.shared
    @pytest.mark.skipif(not TRACES.exists(), reason=f"no public traces in {TRACES}")
    def test_a_trace(self, run_clean: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from pipeline.sources.traces import TracesConfig

        monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))
        files = [str(TRACES / "alibaba-genai-pods" / f"*{part}*.csv.gz") for part in ("gpu", "memory", "qps")]
        config = IngestConfig(source="traces", traces=TracesConfig(format="alibaba_genai", paths=files))
        ingest(config, Range(GENAI_DAY, GENAI_DAY), tmp_path / "raw")
        both(run_clean, tmp_path / "raw")


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a standalone master with two workers of one core and 1 GB, each a process of its own."""
    import pyspark

    home, folder, address = Path(pyspark.__file__).parent, tmp_path_factory.mktemp("cluster"), "127.0.0.1"
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": address,
        "SPARK_PUBLIC_DNS": address,
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
    }
    port, log = free_port(), folder / "log"
    url = f"spark://{address}:{port}"
    deploy, where = "org.apache.spark.deploy", ["--host", address, "--webui-port"]
    commands = [[f"{deploy}.master.Master", *where, str(free_port()), "--port", str(port)]]
    for number in range(2):
        size = ["-c", "1", "-m", "1g", "-d", str(folder / str(number))]
        commands.append([f"{deploy}.worker.Worker", *where, str(free_port()), *size, url])
    started: list[subprocess.Popen[bytes]] = []
    try:
        with log.open("w") as said:
            for command in commands:
                class_ = [home / "bin" / "spark-class", *command]
                started.append(subprocess.Popen(class_, env=environment, stdout=said, stderr=said))
        until = time.monotonic() + 180
        while log.read_text().count("Registering worker") < 2:
            if time.monotonic() > until or any(process.poll() is not None for process in started):
                pytest.fail(f"the cluster did not start: {log.read_text()[-2000:]}")
            time.sleep(0.5)
        yield url
    finally:
        for process in reversed(started):  # workers first
            process.send_signal(signal.SIGTERM)
        for process in started:
            process.wait(60)


on_two_workers = [*spark, pytest.mark.soak, pytest.mark.timeout(1800)]


class TestSparkOnTwoWorkers:
    pytestmark = on_two_workers

    def test_they_give_the_same_rows_and_write_them(
        self, master: str, run_clean: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LOADMASTER_VAR", str(tmp_path / "var"))
        monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
        sample = SampleConfig(days=2, clusters=2, nodes=2, functions=3, scrape_seconds=173.0)
        ingest(IngestConfig(sample=sample), Range(), tmp_path / "raw")
        options = {
            "spark.cores.max": "2",
            "spark.executor.memory": "512m",
            "spark.executorEnv.PYTHONPATH": str(ROOT),
            "spark.sql.shuffle.partitions": "3",
            "spark.sql.adaptive.enabled": "false",  # it would put such small parts together
            "spark.driver.host": "127.0.0.1",
        }
        found = run_clean(tmp_path / "raw", engine="spark", spark_master=master, spark_options=options, memory_mb=700)
        assert_same(run_clean(tmp_path / "raw"), found)
        parts = [file.name for file in (found.out / "pods").glob("date=*/*.parquet")]
        assert len(parts) > 2, "several tasks wrote a part each"
        assert "part-0.parquet" not in parts, "the driver wrote none"


def test_spark_without_pyspark_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from pipeline.clean.config import CleanConfig
    from pipeline.clean.engine import Engine
    from wire.errors import ConfigError

    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(ConfigError, match=r"pyspark is not installed.*Java 17"):
        Engine(CleanConfig(engine="spark"), tmp_path)
