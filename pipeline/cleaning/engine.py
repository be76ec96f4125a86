"""The engines that run the definition: an Ibis connection and the things Ibis does not say portably."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import ibis
import ibis.expr.types as ir
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.cleaning.config import CleanConfig
from sched_env.errors import ConfigError


@ibis.udf.scalar.builtin(name="epoch_us", signature=(("timestamp('UTC', 6)",), "int64"))
def _duckdb_epoch_us(time):  # type: ignore[no-untyped-def]
    """Microseconds since 1970 (DuckDB's own function)."""


@ibis.udf.scalar.builtin(name="unix_micros", signature=(("timestamp('UTC', 6)",), "int64"))
def _spark_epoch_us(time):  # type: ignore[no-untyped-def]
    """Microseconds since 1970 (Spark's own function)."""


class Engine:
    """A connection for one run; close it to give back its memory."""

    def __init__(self, config: CleanConfig, scratch: Path) -> None:
        self.kind = config.engine
        # Engines join nested selects themselves; Ibis takes longer to do it than they take to run most of them.
        ibis.options.sql.fuse_selects = False
        # Of this process alone: two runs may work side by side.
        self._scratch = scratch / f"engine-{os.getpid()}"
        self._scratch.mkdir(parents=True, exist_ok=True)
        self.con = _duckdb(config, self._scratch) if config.engine == "duckdb" else _spark(config, self._scratch)
        self._kept: list[str] = []
        self._names = itertools.count()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        self.con.disconnect()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def parquet(self, files: Sequence[Path]) -> ir.Table:
        """Read files, without the columns their folders spell."""
        names = [str(file) for file in files]
        if self.kind == "spark":
            # Ibis takes a list of files for the name of one.
            view = self._keep()
            self.con._session.read.parquet(*names).createOrReplaceTempView(view)
            return self.con.table(view)
        rows = self.con.read_parquet(names, hive_partitioning=False)
        # A file's minimum and maximum leave NaN out, and DuckDB folds filters by them (duckdb/duckdb#25521): a NaN
        # would pass for a number. What went through a condition has no minimum and maximum.
        floats = [rows[name] for name, kind in rows.schema().items() if kind.is_floating()]
        hidden = {value.get_name(): ibis.ifelse(value.isnull(), ibis.null("float64"), value) for value in floats}
        return rows.mutate(**hidden)

    def epoch_us(self, time: ir.Value) -> ir.Value:
        """Microseconds since 1970, exact; Ibis' own epoch has whole seconds."""
        return _duckdb_epoch_us(time) if self.kind == "duckdb" else _spark_epoch_us(time)

    def cache(self, table: ir.Table) -> ir.Table:
        """Compute a table once and keep it until :meth:`release`."""
        if self.kind == "duckdb":
            return self.con.create_table(self._keep(), table, temp=True)
        # Spark would plan everything again for every use of a view; files end the plan, and hold what memory cannot.
        return self.con.read_parquet(str(self._files(table)))

    def _keep(self) -> str:
        self._kept.append(f"kept_{next(self._names)}")
        return self._kept[-1]

    def _files(self, table: ir.Table) -> Path:
        folder = self._scratch / self._keep()
        self.con.to_parquet(table, str(folder), mode="overwrite")
        return folder

    def release(self) -> None:
        """Drop what was cached."""
        if self.kind == "spark":
            # Parts of a query whose result needed no more of them may still be reading.
            self.con._session.sparkContext.cancelAllJobs()
        while self._kept:
            name = self._kept.pop()
            if self.kind == "duckdb":
                self.con.drop_table(name)
            else:
                self.con._session.catalog.dropTempView(name)
                shutil.rmtree(self._scratch / name, ignore_errors=True)

    def arrow(self, table: ir.Table) -> pa.Table:
        """Run a query and fetch its rows."""
        if self.kind == "duckdb":
            return self.con.to_pyarrow(table)
        # Ibis fetches from Spark by way of pandas, which takes NaN for null and loses the zone of times.
        return pq.read_table(self._files(table), partitioning=None)


def _duckdb(config: CleanConfig, scratch: Path) -> Any:
    con = ibis.duckdb.connect(
        threads=config.threads, memory_limit=f"{config.memory_mb}MB", temp_directory=str(scratch / "spill")
    )
    # Rows are sorted when they are written; keeping the order of files costs memory in between.
    con.raw_sql("SET preserve_insertion_order = false")
    con.raw_sql("SET TimeZone = 'UTC'")
    return con


def _spark(config: CleanConfig, scratch: Path) -> Any:
    try:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError(
            "clean.engine is spark, but pyspark is not installed", fix="pip install 'loadmaster[spark]' (needs Java 17)"
        ) from error
    # Spark opens a socket to itself under the machine's name, which need not resolve.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName("loadmaster-clean").master(config.spark_master)
    options = {
        "spark.driver.memory": f"{config.memory_mb}m",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.ansi.enabled": "false",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),  # else a folder where the command was run
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if config.spark_master.startswith("local"):
        options |= {"spark.local.dir": str(scratch / "spill"), "spark.sql.shuffle.partitions": str(config.threads)}
    for name, value in options.items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise ConfigError(f"Spark does not start: {error}", "Java 17", "install it and set JAVA_HOME") from error
    session.sparkContext.setLogLevel("ERROR")
    return ibis.pyspark.connect(session)
