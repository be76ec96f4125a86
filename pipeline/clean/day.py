"""One day, from raw files to window tables, with the proof that every row is in one of them or accounted for."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any

import ibis
import ibis.expr.types as ir
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.clean import demands, events, quarantine, rules, tasks
from pipeline.clean.account import Account
from pipeline.clean.config import CleanConfig
from pipeline.clean.engine import Engine
from pipeline.clean.expressions import SECOND_US
from pipeline.clean.sampled import SampleCleaner
from pipeline.clean.tables import DAY, INNER, PRICES, Given, in_order, window_tables
from pipeline.contracts import raw as raw_contract
from pipeline.contracts.windows import QUARANTINE, TABLES

DAY_SECONDS = 86_400


@dataclass(frozen=True)
class RawDay:
    """The raw files of one day, and of the days before and after it for what spans midnight."""

    day: date
    files: dict[str, list[Path]]
    near: list[Path] = dataclasses.field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows of all its files."""
        return sum(_rows(files) for files in self.files.values())

    @property
    def span_us(self) -> tuple[int, int]:
        """First microsecond of the day and of the next."""
        start = datetime(self.day.year, self.day.month, self.day.day, tzinfo=UTC)
        low = int(start.timestamp()) * SECOND_US
        return low, low + DAY_SECONDS * SECOND_US


@dataclass(frozen=True)
class CleanedDay:
    """Tables of one day, ready to be written, and the account of its rows."""

    tables: dict[str, pa.Table]
    """Those that are still to be written: all, or those that an engine's workers had no row of."""
    accounts: dict[str, Account]
    rows: dict[str, int]
    """By table."""


def clean_day(
    engine: Engine, day: RawDay, prices: dict[str, float], config: CleanConfig, into: Path | None = None
) -> CleanedDay:
    """Clean one day.

    Args:
        engine: Where to run.
        day: Raw files.
        prices: Instance type → USD/hour; may be empty.
        config: Settings.
        into: Where an engine that is spread has its workers write the tables, a folder each.
    """
    try:
        return _Day(engine, day, config, into).run(prices)
    finally:
        engine.release()


class _Day:
    """The work on one day: the tables in the order they depend on each other."""

    def __init__(self, engine: Engine, day: RawDay, config: CleanConfig, into: Path | None) -> None:
        self.engine, self.day, self.config, self.into = engine, day, config, into
        self.accounts = {table: Account(rows_in=_rows(day.files.get(table, []))) for table in raw_contract.TABLES}
        self.bad: list[pa.Table] = []
        self.documented: list[ir.Table] = []
        self.tables = {name: schema.empty_table() for name, schema in TABLES.items()}
        self.rows = dict.fromkeys(TABLES, 0)

    def run(self, prices: dict[str, float]) -> CleanedDay:
        if self.day.near or self.day.files.get("samples") or self.day.files.get("requests"):
            self._window_tables(prices)
        else:
            # Traces of VMs and jobs hold nothing but events, often over hundreds of days.
            stated = self._source_events()
            if stated is not None:
                self._deliver("events", in_order("events", stated))
        flows = self._good("tasks", tasks.judged, tasks.unique_tasks, "flows")
        if flows is not None:
            self._deliver("tasks", in_order("tasks", flows))
        self._deliver_quarantine()
        for table, account in self.accounts.items():
            account.check(f"{table} of {self.day.day}")
        return CleanedDay(self.tables, self.accounts, self.rows)

    def _deliver(self, name: str, rows: ir.Table | str) -> None:
        """Finish a table: here, or where the engine's workers are."""
        low, high = (bound // SECOND_US for bound in self.day.span_us)
        finish = partial(_finished, name=name, low=low, high=high)
        if self.into is not None:
            self._written(name, rows, finish)
        else:
            found = self.engine.fetched(rows) if isinstance(rows, str) else self.engine.arrow(rows)
            self.tables[name] = finish(found)
            self.rows[name] = self.tables[name].num_rows

    def _written(self, name: str, rows: ir.Table | str, finish: Callable[[pa.Table], pa.Table]) -> None:
        assert self.into is not None  # noqa: S101 - for the type checker
        self.rows[name] = self.engine.written(rows, finish, self.into / name)
        if self.rows[name]:
            del self.tables[name]

    def _deliver_quarantine(self) -> None:
        order = ["table", "rule", "window_start", "cluster", "raw"]
        if self.documented:
            rows = ibis.union(*self.documented) if len(self.documented) > 1 else self.documented[0]
            self._written("quarantine", rows.order_by(order), _as_quarantine)
        elif self.bad:
            self.tables["quarantine"] = pa.concat_tables(self.bad).sort_by([(name, "ascending") for name in order])
            self.rows["quarantine"] = self.tables["quarantine"].num_rows

    def _window_tables(self, prices: dict[str, float]) -> None:
        """Make the window tables; their queries are put together while the samples are read."""
        put_aside = partial(self._put_aside, "samples")
        cleaner = SampleCleaner(self.engine, self.day.span_us, self.accounts["samples"], put_aside, self.config)
        own = self._read("samples", self.day.files.get("samples", []))
        near = self._read("samples", self.day.near) if self.day.near else None
        source_events, requests = self._source_events(), self._requests()
        samples = cleaner.number(own, near)
        given = Given(samples, source_events, requests)
        make = partial(window_tables, given=given, config=self.config)
        plan = self.engine.plans.get("windows", *given.described, make=make)
        self.engine.call("long", cleaner.run(samples))
        price_list = [{"instance_type": kind, "price_usd_per_hour": price} for kind, price in prices.items()]
        self.engine.put("prices", pa.Table.from_pylist(price_list, PRICES))
        self.engine.put("day", pa.table([[bound] for bound in self.day.span_us], DAY))
        for name, query in self.engine.prepared(plan).items():
            self._deliver(name, query)

    def _read(self, table: str, files: list[Path]) -> ir.Table:
        """Read raw files, with ``t`` in microseconds beside their columns."""
        if not files:
            columns = [column.with_nullable(True) for column in raw_contract.TABLES[table]]
            return ibis.memtable(pa.schema([*columns, pa.field("t", pa.int64())]).empty_table())
        rows = self.engine.parquet(files)
        return rows.mutate(t=self.engine.epoch_us(rows.time))

    def _put_aside(self, table: str, rows: ir.Table) -> None:
        if self.into is not None:
            self._document(table, rows)
            return
        found = self.engine.arrow(rows)
        if found.num_rows:
            documented = quarantine.document(table, found)
            self.bad.append(documented)
            self.accounts[table].put_aside(Counter(documented["rule"].to_pylist()))

    def _document(self, table: str, rows: ir.Table) -> None:
        """Have the engine's workers put rows aside; only how many there are of each rule comes back."""
        documented = self.engine.documented(rows, partial(quarantine.document, table), QUARANTINE)
        counts = self.engine.arrow(documented.group_by("rule").agg(count=documented.count())).to_pylist()
        if counts:
            self.documented.append(documented)
            self.accounts[table].put_aside({row["rule"]: row["count"] for row in counts})

    def _requests(self) -> ir.Table | None:
        return self._good("requests", _by(rules.request_rule), demands.unique_requests, "requests")

    def _source_events(self) -> ir.Table | None:
        return self._good("events", _by(rules.event_rule), events.from_source, "source_events")

    def _good(
        self, table: str, judge: Callable[..., ir.Table], unique_of: Callable[..., ir.Table], name: str
    ) -> ir.Table | None:
        """Keep the rows of a raw table that break no rule, copies merged, under a name; None if there are none."""
        files = self.day.files.get(table, [])
        if not files:
            return None
        marked = judge(self._read(table, files), self.day.span_us)
        self._put_aside(table, quarantine.broken(table, marked))
        unique = self.engine.cache(unique_of(marked.filter(marked.rule.isnull()).drop("rule")), name)
        alike = {"alike": unique.alike.cast("int64").sum()} if "alike" in unique.columns else {}
        count = self.engine.arrow(unique.agg(unique=unique.count(), rows=unique.rows.sum(), **alike)).to_pylist()[0]
        self.accounts[table].alike += count.get("alike") or 0
        self.accounts[table].rows_out += count["unique"]
        self.accounts[table].merged += (count["rows"] or 0) - count["unique"]
        return unique if count["unique"] else None


def _finished(rows: pa.Table, name: str, low: int, high: int) -> pa.Table:
    """Give a table's rows of the day, seconds ``low`` to ``high``, the contract's types."""
    window = rows["window"].cast(pa.int64())
    if rows.num_rows and (pc.min(window).as_py() < low or pc.max(window).as_py() >= high):
        rows = rows.filter(pc.and_(pc.greater_equal(window, low), pc.less(window, high)))
    columns: list[Any] = []
    for column in TABLES[name]:
        values = rows[INNER.get(column.name, column.name)]
        if column.name == "window_start":
            values = pc.multiply(values.cast(pa.int64()), SECOND_US)
        columns.append(values.cast(column.type))
    return pa.table(columns, schema=TABLES[name])


def _as_quarantine(rows: pa.Table) -> pa.Table:
    return rows.cast(QUARANTINE)


def _by(rule_of: Callable[..., ir.StringColumn]) -> Callable[..., ir.Table]:
    """Judge every row by itself."""
    return lambda rows, span_us: rows.mutate(rule=rule_of(rows, span_us))


def _rows(files: list[Path]) -> int:
    rows = 0
    for file in files:
        with file.open("rb") as content:
            rows += pq.read_metadata(content).num_rows
    return rows
