"""The engines that run the definition: an Ibis connection and the things Ibis does not say portably."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import ibis
import ibis.expr.types as ir
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.clean.config import CleanConfig
from pipeline.clean.plan import Plan, Plans, promised
from wire.errors import ConfigError

Columns = dict[str, NDArray[Any]]

PART_ROWS = 10_000_000
"""What :meth:`Engine.by_series` holds in memory at once, some 70 bytes a row."""


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
        self._kept = ExitStack()
        self.plans = Plans(scratch / "plans", config, self.con.compile)
        self._names = (f"kept_{number}" for number in itertools.count())

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.plans.close()
        self.release()
        self.con.disconnect()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def parquet(self, files: Sequence[Path]) -> ir.Table:
        """Read files, without the columns their folders spell."""
        names = [str(file) for file in files]
        if self.kind == "spark":
            # Ibis takes a list of files for the name of one.
            view = next(self._names)
            self._view(view, self._session.read.parquet(*names))
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

    def cache(self, table: ir.Table, name: str | None = None) -> ir.Table:
        """Compute a table once and keep it until :meth:`release`, under a name if plans ask for it."""
        self.con._run_pre_execute_hooks(table)
        name = name or next(self._names)
        self._keep(name, self.con.compile(table))
        return promised(name, table.schema())

    def table(self, name: str) -> ir.Table:
        """Speak of what is kept under a name."""
        table = self.con.table(name)
        # DuckDB takes plain literals, and what is made of them, for decimals.
        return table.cast({column: "float64" for column, kind in table.schema().items() if kind.is_decimal()})

    def put(self, name: str, table: pa.Table) -> None:
        """Make rows of Python known under a name that plans ask for."""
        if self.kind == "spark":
            self._view(name, self._session.createDataFrame(table))
        else:
            self.con.con.register(name, table)
            self._kept.callback(self.con.con.unregister, name)

    def call(self, name: str, table: ir.Table) -> None:
        """Give a table a name that plans ask for."""
        self.con._run_pre_execute_hooks(table)
        if self.kind == "spark":
            self._view(name, self._session.sql(self.con.compile(table)))
        else:
            self._create("VIEW", name, self.con.compile(table))

    def by_series(self, rows: ir.Table, function: Callable[[Columns], pa.Table], schema: pa.Schema) -> ir.Table:
        """Run a function over whole series, as many at a time as memory holds, and keep what it returns.

        Args:
            rows: Has ``sid``; rows with the same one come together.
            function: Takes columns of some of the rows, NaN for null; must not be a closure (Spark sends it away).
            schema: Of what the function returns.
        """
        name = next(self._names)
        if self.kind == "spark":
            self._file(name, self._mapped(rows, function, schema))
            return promised(name, schema)
        parts = [rows.filter(rows.sid.between(low, high)) for low, high in self._parts(rows)]
        if len(parts) == 1:
            self.put(name, function(self._columns(parts[0])))
            return promised(name, schema)
        self.put("part", schema.empty_table())
        self._create("TABLE", name, "SELECT * FROM part")
        for part in parts:
            self.con.con.register("part", function(self._columns(part)))
            self.con.raw_sql(f'INSERT INTO "{name}" SELECT * FROM part')  # noqa: S608 - our own name
        return promised(name, schema)

    def _parts(self, rows: ir.Table) -> Iterator[tuple[int, int]]:
        """Cut the series into ranges of ids that memory holds; one series is never parted."""
        counts = self.arrow(rows.group_by("sid").agg(rows=rows.count()).order_by("sid"))
        sids, upto = counts["sid"].to_numpy(), np.cumsum(counts["rows"].to_numpy())
        first, done = 0, 0
        while first < sids.size:
            stop = max(int(np.searchsorted(upto, done + PART_ROWS, side="right")), first + 1)
            yield int(sids[first]), int(sids[stop - 1])
            first, done = stop, int(upto[stop - 1])

    def _columns(self, rows: ir.Table) -> Columns:
        found = self.con.con.sql(self.con.compile(rows)).fetchnumpy()
        return {name: np.ma.filled(values, np.nan) if np.ma.isMA(values) else values for name, values in found.items()}

    def _mapped(self, rows: ir.Table, function: Callable[[Columns], pa.Table], schema: pa.Schema) -> Any:
        from pyspark.sql.pandas.types import from_arrow_schema

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            found = list(batches)
            if found:
                whole = pa.Table.from_batches(found)
                columns = {name: whole[name].to_numpy() for name in whole.column_names}
                yield from function(columns).to_batches()

        frame = self._session.sql(self.con.compile(rows)).repartition("sid")
        return frame.mapInArrow(run, from_arrow_schema(schema))

    def run(self, planned: Future[Plan]) -> Iterator[tuple[str, pa.Table]]:
        """Run the steps of a plan; then fetch its results, one after another."""
        plan = planned.result()
        for name, query in plan.steps:
            self._keep(name, query)
        for name, query in plan.results.items():
            yield name, self._fetched(query)

    def arrow(self, table: ir.Table) -> pa.Table:
        """Run a query and fetch its rows."""
        self.con._run_pre_execute_hooks(table)
        # DuckDB's sums of integers are wider than Ibis says.
        return self._fetched(self.con.compile(table)).cast(table.schema().to_pyarrow())

    def _fetched(self, query: str) -> pa.Table:
        if self.kind == "duckdb":
            return self.con.con.sql(query).to_arrow_table()
        # Ibis fetches from Spark by way of pandas, which takes NaN for null and loses the zone of times.
        name = next(self._names)
        self._file(name, self._session.sql(query))
        return pq.read_table(self._scratch / name, partitioning=None)

    def release(self) -> None:
        """Drop what was kept."""
        if self.kind == "spark":
            # Parts of a query whose result needed no more of them may still be reading.
            self._session.sparkContext.cancelAllJobs()
        self._kept.close()

    def _keep(self, name: str, query: str) -> None:
        if self.kind == "spark":
            self._file(name, self._session.sql(query))
        else:
            self._create("TABLE", name, query)

    def _create(self, kind: str, name: str, query: str) -> None:
        self._kept.callback(self.con.raw_sql, f'DROP {kind} IF EXISTS "{name}"')
        self.con.raw_sql(f'CREATE TEMP {kind} "{name}" AS {query}')

    @property
    def _session(self) -> Any:
        return self.con._session

    def _file(self, name: str, frame: Any) -> None:
        """Keep in files: Spark would plan everything again for every use; files end the plan and hold any amount."""
        folder = self._scratch / name
        self._kept.callback(shutil.rmtree, folder, ignore_errors=True)
        frame.write.mode("overwrite").parquet(str(folder))
        self._view(name, self._session.read.parquet(str(folder)))

    def _view(self, name: str, frame: Any) -> None:
        self._kept.callback(self._session.catalog.dropTempView, name)
        frame.createOrReplaceTempView(name)


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
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers run whatever python3 is first in PATH
    for name, value in options.items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise ConfigError(f"Spark does not start: {error}", "Java 17", "install it and set JAVA_HOME") from error
    session.sparkContext.setLogLevel("ERROR")
    return ibis.pyspark.connect(session)
