"""DuckDB and Spark run one definition: the same rows, exact in keys, to 1e-9 in values."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.contracts.windows import KEYS, TABLES
from pipeline.ingest import IngestConfig, Range, ingest
from pipeline.sources.sample import SampleConfig

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


def test_spark_without_pyspark_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from pipeline.clean.config import CleanConfig
    from pipeline.clean.engine import Engine
    from wire.errors import ConfigError

    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(ConfigError, match=r"pyspark is not installed.*Java 17"):
        Engine(CleanConfig(engine="spark"), tmp_path)
