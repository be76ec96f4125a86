"""The engines that run the definition: an Ibis connection and the things Ibis does not say portably."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import ibis
import ibis.expr.types as ir
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import dataset

from pipeline import storage
from pipeline.clean.config import CleanConfig
from pipeline.clean.plan import Plan, Plans, promised
from pipeline.contracts.windows import SCHEMA_VERSION, VERSION_KEY
from wire.errors import ConfigError

Columns = dict[str, NDArray[Any]]

COUNTED = pa.schema([("rows", pa.int64())])
PART_BITS = 33
"""How many bits Spark gives to the rows of a part in an id that only grows."""
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
        self.spread = config.engine == "spark"
        """Whether work is spread over machines: then rows stay with the workers, which write what comes of them."""
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
        remote = storage.is_remote(files[0])
        if self.kind == "spark":
            # Ibis takes a list of files for the name of one.
            view = next(self._names)
            frame = self._remote(files) if remote else self._session.read.parquet(*map(str, files))
            self._view(view, frame)
            return self.con.table(view)
        if remote:
            # DuckDB's own way to S3 is an extension that it would download; pyarrow reads what DuckDB asks for.
            name = next(self._names)
            self.con.con.register(name, dataset_of(files))
            self._kept.callback(self.con.con.unregister, name)
            rows = self.con.table(name)
        else:
            rows = self.con.read_parquet([str(file) for file in files], hive_partitioning=False)
        # A file's minimum and maximum leave NaN out, and DuckDB folds filters by them (duckdb/duckdb#25521): a NaN
        # would pass for a number. What went through a condition has no minimum and maximum.
        floats = [rows[name] for name, kind in rows.schema().items() if kind.is_floating()]
        hidden = {value.get_name(): ibis.ifelse(value.isnull(), ibis.null("float64"), value) for value in floats}
        return rows.mutate(**hidden)

    def _remote(self, files: Sequence[Path]) -> Any:
        """Have the workers read objects of a store, each some of them."""
        with files[0].open("rb") as content:
            schema = pq.read_schema(content)
        names = self._session.createDataFrame([(str(file),) for file in files], "name string")
        return _map(names.repartition(len(files)), partial(_read_objects, schema=schema), schema)

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
        frame = self._session.sql(self.con.compile(rows)).repartition("sid")
        return _map(frame, lambda part: function({name: part[name].to_numpy() for name in part.column_names}), schema)

    def documented(self, rows: ir.Table, function: Callable[[pa.Table], pa.Table], schema: pa.Schema) -> ir.Table:
        """Have the workers turn rows into others, any part of them by itself, and keep what comes of it."""
        name = next(self._names)
        self._file(name, _map(self._sql(rows), function, schema))
        return promised(name, schema)

    def written(self, rows: ir.Table | str, finish: Callable[[pa.Table], pa.Table], folder: Path) -> int:
        """Have the workers finish the rows of a query and write them, each its part, in order; returns how many."""
        folder.mkdir(parents=True, exist_ok=True)
        frame = self._session.sql(rows) if isinstance(rows, str) else self._sql(rows)
        counts = _map(frame, partial(_write_part, finish=finish, folder=folder), COUNTED)
        return int(counts.toArrow()["rows"].to_numpy().sum())

    def run(self, planned: Future[Plan]) -> Iterator[tuple[str, pa.Table]]:
        """Run the steps of a plan; then fetch its results, one after another."""
        for name, query in self.prepared(planned).items():
            yield name, self.fetched(query)

    def prepared(self, planned: Future[Plan]) -> dict[str, str]:
        """Run the steps of a plan; returns the queries of its results."""
        plan = planned.result()
        for name, query in plan.steps:
            if name in plan.numbered:
                self._number(name, query, plan.numbered[name])
            else:
                self._keep(name, query)
        return plan.results

    def _number(self, name: str, query: str, number: str) -> None:
        """Keep the rows of a query, which are in order, with their number; no machine sees all of them."""
        from pyspark.sql import functions as f

        place = f.monotonically_increasing_id()  # the part in the upper bits, the row of the part in the lower
        self._file(f"{name}_placed", self._session.sql(query).withColumn("place", place))
        placed = self._session.table(f"{name}_placed")
        part, row = f.shiftright("place", PART_BITS), f.col("place").bitwiseAND((1 << PART_BITS) - 1)
        sizes = placed.groupBy(part.alias("part")).count().toArrow().sort_by("part")
        before = np.cumsum([0, *sizes["count"].to_pylist()])
        starts = [(f.lit(key), f.lit(int(low))) for key, low in zip(sizes["part"].to_pylist(), before, strict=False)]
        if not starts:
            starts = [(f.lit(0), f.lit(0))]
        start = f.create_map(*[item for pair in starts for item in pair])[part]
        self._file(name, placed.withColumn(number, (start + row).cast("int")).drop("place"))

    def arrow(self, table: ir.Table) -> pa.Table:
        """Run a query and fetch its rows."""
        self.con._run_pre_execute_hooks(table)
        # DuckDB's sums of integers are wider than Ibis says.
        return self.fetched(self.con.compile(table)).cast(table.schema().to_pyarrow())

    def fetched(self, query: str) -> pa.Table:
        """Fetch the rows of a query."""
        if self.kind == "duckdb":
            return self.con.con.sql(query).to_arrow_table()
        # Ibis fetches from Spark by way of pandas, which takes NaN for null and loses the zone of times.
        return self._session.sql(query).toArrow()

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

    def _sql(self, table: ir.Table) -> Any:
        self.con._run_pre_execute_hooks(table)
        return self._session.sql(self.con.compile(table))

    def _file(self, name: str, frame: Any) -> None:
        """Keep in files: Spark would plan everything again for every use; files end the plan and hold any amount."""
        folder = self._scratch / name
        self._kept.callback(shutil.rmtree, folder, ignore_errors=True)
        frame.write.mode("overwrite").parquet(str(folder))
        self._view(name, self._session.read.parquet(str(folder)))

    def _view(self, name: str, frame: Any) -> None:
        self._kept.callback(self._session.catalog.dropTempView, name)
        frame.createOrReplaceTempView(name)


def _map(frame: Any, function: Callable[[pa.Table], pa.Table], schema: pa.Schema) -> Any:
    """Have Spark's workers run a function on each part of a frame."""
    from pyspark.sql.pandas.types import from_arrow_schema

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = list(batches)
        if found:
            yield from function(pa.Table.from_batches(found)).to_batches()

    return frame.mapInArrow(run, from_arrow_schema(schema))


def _read_objects(names: pa.Table, schema: pa.Schema) -> pa.Table:
    return dataset_of([storage.place(name) for name in names["name"].to_pylist()]).to_table().cast(schema)


def dataset_of(files: Sequence[Path]) -> dataset.Dataset:
    """Return files, here or in an object store, as what pyarrow and DuckDB read the needed part of."""
    where = storage.filesystem(files[0]) if storage.is_remote(files[0]) else None
    return dataset.dataset([storage.name_in(file) for file in files], format="parquet", filesystem=where)


def _write_part(rows: pa.Table, finish: Callable[[pa.Table], pa.Table], folder: Path) -> pa.Table:
    """Finish and write one part, on the machine that has it; one that is done twice is the same."""
    from pyspark import TaskContext

    table = finish(rows)
    context = TaskContext.get()
    if table.num_rows and context is not None:
        write_windows(table, folder / f"part-{context.partitionId():05d}.parquet")
    return pa.table([[table.num_rows]], COUNTED)


def write_windows(table: pa.Table, path: Path) -> None:
    """Write rows of a window table, with the version of its schema."""
    table = table.replace_schema_metadata({VERSION_KEY: str(SCHEMA_VERSION).encode()})
    # Names repeat; measured numbers hardly do, and looking for it takes longer than writing them.
    names = [column.name for column in table.schema if pa.types.is_string(column.type)]
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    pq.write_table(table, unfinished, compression="zstd", use_dictionary=names)
    unfinished.replace(path)


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
        # Without its UI too Spark keeps plans and metrics of the last 1,000 queries, and a day has a hundred: the
        # driver would grow with the days.
        "spark.sql.ui.retainedExecutions": "10",
        "spark.ui.retainedJobs": "10",
        "spark.ui.retainedStages": "10",
        "spark.ui.retainedTasks": "1000",
    }
    if config.spark_master.startswith("local"):
        options |= {"spark.local.dir": str(scratch / "spill"), "spark.sql.shuffle.partitions": str(config.threads)}
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers run whatever python3 is first in PATH
    for name, value in (options | config.spark_options).items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise ConfigError(f"Spark does not start: {error}", "Java 17", "install it and set JAVA_HOME") from error
    session.sparkContext.setLogLevel("ERROR")
    return ibis.pyspark.connect(session)
