"""One day, from raw files to window tables, with the proof that every row is in one of them or accounted for."""

from __future__ import annotations

import dataclasses
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

from pipeline.cleaning import demands, events, functions, labels, nodes, pods, presence, quarantine, rules
from pipeline.cleaning.account import Account
from pipeline.cleaning.config import CleanConfig
from pipeline.cleaning.engine import Engine
from pipeline.cleaning.gaps import fill
from pipeline.cleaning.sampled import SampleCleaner
from pipeline.cleaning.samples import Samples
from pipeline.cleaning.series import SECOND_US
from pipeline.contracts import raw as raw_contract
from pipeline.contracts.windows import KEYS, TABLES

DAY_SECONDS = 86_400


@dataclass(frozen=True)
class RawDay:
    """The raw files of one day, and of the days before and after it for what spans midnight."""

    day: date
    files: dict[str, list[Path]]
    near: list[Path] = dataclasses.field(default_factory=list)

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
    accounts: dict[str, Account]


def clean_day(
    engine: Engine, day: RawDay, prices: dict[str, float], earlier: pa.Table, config: CleanConfig
) -> CleanedDay:
    """Clean one day.

    Args:
        engine: Where to run.
        day: Raw files.
        prices: Instance type → USD/hour; may be empty.
        earlier: ``cluster``, ``function``, ``standard_response_s`` known from the day before; may be empty.
        config: Settings.
    """
    try:
        return _Day(engine, day, config).run(prices, earlier)
    finally:
        engine.release()


class _Day:
    """The work on one day: the tables in the order they depend on each other."""

    def __init__(self, engine: Engine, day: RawDay, config: CleanConfig) -> None:
        self.engine, self.day, self.config = engine, day, config
        self.accounts = {table: Account(rows_in=_rows(day.files.get(table, []))) for table in raw_contract.TABLES}
        self.bad: list[pa.Table] = []

    def run(self, prices: dict[str, float], earlier: pa.Table) -> CleanedDay:
        if self.day.near or self.day.files.get("samples") or self.day.files.get("requests"):
            results = self._tables(prices, earlier)
        else:
            # Traces of VMs and jobs hold nothing but events, often over hundreds of days.
            results = {"events": self._told_events()}
        tables = {name: schema.empty_table() for name, schema in TABLES.items()}
        tables |= {name: self._finished(name, rows) for name, rows in results.items()}
        tables["quarantine"] = pa.concat_tables([tables["quarantine"], *self.bad]).sort_by(
            [(name, "ascending") for name in ("table", "rule", "window_start", "cluster", "raw")]
        )
        for table, account in self.accounts.items():
            account.check(f"{table} of {self.day.day}")
        return CleanedDay(tables, self.accounts)

    def _tables(self, prices: dict[str, float], earlier: pa.Table) -> dict[str, ir.Table]:
        cache, config = self.engine.cache, self.config
        samples, long = self._samples()
        filled = cache(fill(long, config))
        seen = labels.sightings(self.engine, samples)
        series = samples.series
        node_rows = cache(nodes.node_rows(filled, series, labels.details(seen, "node"), config))
        told = self._told_events()
        living = cache(presence.lives(told))
        seen_pods = pods.pod_rows(filled, series, labels.places(seen), config)
        seen_pods = cache(presence.with_presence(seen_pods, living))
        card_rows = nodes.card_rows(filled, series, labels.details(seen, "card"), config)
        of_functions = functions.named(filled, series)

        requests = demands.with_function(self._requests(), seen_pods)
        pod_rows = cache(presence.with_unseen(seen_pods, living, requests))
        dealt = cache(demands.deal(requests, pod_rows))
        gateway = functions.from_gateway(of_functions)
        function_rows = cache(functions.function_rows(gateway, functions.from_log(requests), ibis.memtable(earlier)))
        handled = demands.handled(dealt, functions.counted_by_pod(of_functions))
        if self.accounts["requests"].rows_out:
            demand_rows = demands.from_log(dealt, pod_rows)
        else:
            demand_rows = demands.from_counts(function_rows, pod_rows, config)
        return {
            "nodes": nodes.complete_nodes(node_rows, pod_rows, nodes.price_table(prices)),
            "pods": pods.complete_pods(pod_rows, node_rows, handled),
            "functions": function_rows,
            "demands": demand_rows,
            "events": events.event_rows(told, events.seen(labels.lifetimes(seen), pod_rows, self.day.span_us)),
            "cards": card_rows,
        }

    def _read(self, table: str, files: list[Path]) -> ir.Table:
        """Read raw files, with ``t`` in microseconds beside their columns."""
        if not files:
            columns = [column.with_nullable(True) for column in raw_contract.TABLES[table]]
            return ibis.memtable(pa.schema([*columns, pa.field("t", pa.int64())]).empty_table())
        rows = self.engine.parquet(files)
        return rows.mutate(t=self.engine.epoch_us(rows.time))

    def _put_aside(self, table: str, rows: ir.Table) -> None:
        found = self.engine.arrow(rows)
        if found.num_rows:
            documented = quarantine.document(table, found)
            self.bad.append(documented)
            self.accounts[table].put_aside(documented["rule"].to_pylist())

    def _samples(self) -> tuple[Samples, ir.Table]:
        own = self._read("samples", self.day.files.get("samples", []))
        near = self._read("samples", self.day.near) if self.day.near else None
        put_aside = partial(self._put_aside, "samples")
        cleaner = SampleCleaner(self.engine, self.day.span_us, self.accounts["samples"], put_aside, self.config)
        return cleaner.run(own, near)

    def _requests(self) -> ir.Table:
        """Requests of the day that break no rule, copies merged."""
        rows = self._read("requests", self.day.files.get("requests", []))
        rule = rules.request_rule(rows, self.day.span_us)
        self._put_aside("requests", quarantine.broken("requests", rows, rule))
        unique = self.engine.cache(demands.unique_requests(rows.filter(rule.isnull())))
        self._count("requests", unique)
        return unique

    def _told_events(self) -> ir.Table:
        rows = self._read("events", self.day.files.get("events", []))
        rule = rules.event_rule(rows, self.day.span_us)
        self._put_aside("events", quarantine.broken("events", rows, rule))
        told = self.engine.cache(events.told(rows.filter(rule.isnull())))
        self._count("events", told)
        return told

    def _count(self, table: str, unique: ir.Table) -> None:
        count = self.engine.arrow(unique.agg(unique=unique.count(), rows=unique.rows.sum())).to_pylist()[0]
        self.accounts[table].rows_out += count["unique"]
        self.accounts[table].merged += (count["rows"] or 0) - count["unique"]

    def _finished(self, name: str, rows: ir.Table) -> pa.Table:
        """Fetch a table's rows of the day in the contract's columns, types and order."""
        low, high = (bound // SECOND_US for bound in self.day.span_us)
        rows = rows.filter((rows.window >= low) & (rows.window < high))
        inner = {"window_start": "window", "time": "t"}
        found = self.engine.arrow(rows.order_by([inner.get(key, key) for key in KEYS[name]]))
        columns: list[Any] = []
        for column in TABLES[name]:
            values = found[inner.get(column.name, column.name)]
            if column.name == "window_start":
                values = pc.multiply(values.cast(pa.int64()), SECOND_US)
            columns.append(values.cast(column.type))
        return pa.table(columns, schema=TABLES[name])


def _rows(files: list[Path]) -> int:
    return sum(pq.read_metadata(file).num_rows for file in files)


def nothing_earlier() -> pa.Table:
    """Return the ``earlier`` of a first day."""
    schema = pa.schema([("cluster", pa.string()), ("function", pa.string()), ("standard_response_s", pa.float64())])
    return schema.empty_table()
