"""Plans: queries about tables that need not exist yet, put together once and run for every day that has such tables.

Putting a query together and into SQL takes Ibis longer than the engine takes to run it on a small day. So plans are
made by a thread of their own, while the engine reads samples, and kept in files, as compiled code is.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import ibis
import ibis.expr.types as ir
import msgspec
import pyarrow as pa

from pipeline.clean.config import CleanConfig
from pipeline.files import write_atomic

SOURCES = (Path(__file__).parent, Path(__file__).parents[1] / "contracts")
"""What is written in these folders, and the packages that turn it into SQL, make a plan what it is."""


def promised(name: str, schema: ibis.Schema | pa.Schema) -> ir.Table:
    """Speak of a table by its name; it need not exist yet."""
    return ibis.table(ibis.schema(schema), name=name)


class Plan(msgspec.Struct):
    """Queries in the order to run them."""

    steps: list[tuple[str, str]] = msgspec.field(default_factory=list)
    """Tables to keep, for use in later queries: name and query."""
    results: dict[str, str] = msgspec.field(default_factory=dict)
    """Tables that the plan is for."""
    numbered: dict[str, str] = msgspec.field(default_factory=dict)
    """Steps whose rows get a number, in their order -> the column of it."""


class Planner:
    """Puts a plan together."""

    def __init__(self, compile_: Callable[[ir.Table], str], spread: bool = False) -> None:
        self._compile, self._spread = compile_, spread
        self.plan = Plan()

    def cache(self, table: ir.Table, name: str) -> ir.Table:
        """Add a step that keeps a table."""
        self.plan.steps.append((name, self._compile(table)))
        return promised(name, table.schema())

    def numbered(self, table: ir.Table, name: str, **numbers: list[str]) -> ir.Table:
        """Add steps that keep a table with numbers: rows alike in some columns have the same, in the columns' order.

        That is a rank over all rows, for which an engine of many machines would bring them all to one. Where work is
        spread, the engine sorts what is different and numbers it part by part.
        """
        if not self._spread:
            ranks = {number: ibis.dense_rank().over(ibis.window(order_by=by)) for number, by in numbers.items()}
            return self.cache(table.mutate(**{number: rank.cast("int32") for number, rank in ranks.items()}), name)
        table = plain = self.cache(table, f"{name}_plain")
        for number, by in numbers.items():
            step = f"{name}_{number}"
            different = plain.select(by).distinct().order_by(by)
            self.plan.steps.append((step, self._compile(different)))
            self.plan.numbered[step] = number
            ids = promised(step, ibis.schema({**different.schema(), number: "int32"}))
            joined = table.inner_join(ids, [table[column].identical_to(ids[column]) for column in by])
            table = joined.select(*[table[column] for column in table.columns], ids[number])
        return self.cache(table, name)

    def result(self, name: str, table: ir.Table) -> None:
        """Add a result."""
        self.plan.results[name] = self._compile(table)


class Plans:
    """The plans of a run, from files where an earlier run has made them."""

    def __init__(self, folder: Path, config: CleanConfig, compile_: Callable[[ir.Table], str]) -> None:
        packages = [version(name) for name in ("ibis-framework", "sqlglot")]
        sources = [file.read_bytes() for source in SOURCES for file in sorted(source.glob("*.py"))]
        self._folder = folder / hashlib.sha256(b"".join(sources) + repr(packages).encode()).hexdigest()[:16]
        self._config, self._compile = config, compile_
        self._thread = ThreadPoolExecutor(1)
        self._known: dict[str, Future[Plan]] = {}

    def get(self, what: str, *given: object, make: Callable[[Planner], None]) -> Future[Plan]:
        """Begin to make a plan, unless there is one for the same ``given``, on which alone it depends."""
        key = hashlib.sha256(repr((self._config, given)).encode()).hexdigest()[:16]
        name = f"{what}-{key}"
        if name not in self._known:
            self._known[name] = self._thread.submit(self._read_or_made, self._folder / f"{name}.json", make)
        return self._known[name]

    def _read_or_made(self, file: Path, make: Callable[[Planner], None]) -> Plan:
        with suppress(FileNotFoundError, msgspec.DecodeError):  # a damaged one is made anew
            return msgspec.json.decode(file.read_bytes(), type=Plan)
        planner = Planner(self._compile, spread=self._config.engine == "spark")
        make(planner)
        for old in self._folder.parent.glob("*"):
            if old != self._folder:
                shutil.rmtree(old, ignore_errors=True)
        write_atomic(file, msgspec.json.encode(planner.plan))
        return planner.plan

    def close(self) -> None:
        """Stop making plans."""
        self._thread.shutdown(cancel_futures=True)
