"""One day, from raw files to window tables, with the proof that every row is in one of them or accounted for."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import ibis
import ibis.expr.types as ir
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.cleaning import demands, events, functions, nodes, pods, quarantine, rules, series
from pipeline.cleaning.account import Account
from pipeline.cleaning.config import CleanConfig
from pipeline.cleaning.engine import Engine
from pipeline.cleaning.gaps import fill
from pipeline.contracts import raw as raw_contract
from pipeline.contracts.windows import KEYS, TABLES

DAY_SECONDS = 86_400
ENTITIES = ("node", "pod", "function", "card")


@dataclass(frozen=True)
class RawDay:
    """The raw files of one day, and of the days before and after it for what spans midnight."""

    day: date
    files: dict[str, list[Path]]
    near: list[Path] = field(default_factory=list)

    @property
    def span_us(self) -> tuple[int, int]:
        """First microsecond of the day and of the next."""
        start = datetime(self.day.year, self.day.month, self.day.day, tzinfo=UTC)
        low = int(start.timestamp()) * series.SECOND_US
        return low, low + DAY_SECONDS * series.SECOND_US


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
        return _Day(engine, day, prices, earlier, config).run()
    finally:
        engine.release()


class _Day:
    """The work on one day: the tables in the order they depend on each other."""

    def __init__(
        self, engine: Engine, day: RawDay, prices: dict[str, float], earlier: pa.Table, config: CleanConfig
    ) -> None:
        self.engine, self.day, self.config = engine, day, config
        self.prices, self.earlier = nodes.price_table(prices), ibis.memtable(earlier)
        self.accounts = {table: Account(rows_in=_rows(day.files.get(table, []))) for table in raw_contract.TABLES}
        self.bad: list[pa.Table] = []
        margin = config.margin_seconds * series.SECOND_US
        low, high = day.span_us
        self.near_us = (low - margin, high + margin)

    def run(self) -> CleanedDay:
        samples = self._samples()
        present = self._metrics_present(samples)
        long = {entity: self._long(samples, entity, present) for entity in ENTITIES}
        cache = self.engine.cache

        filled = {entity: fill(long[entity], series.KEYS[entity], self.config) for entity in ENTITIES}
        node_rows = cache(
            nodes.node_rows(filled["node"], nodes.details(samples, "node_info", series.KEYS["node"]), self.config)
        )
        labelled = pods.labels(samples, info="pod_info" in present)
        pod_rows = cache(pods.pod_rows(filled["pod"], labelled, self.config))
        card_rows = nodes.card_rows(
            filled["card"], nodes.details(samples, "card_info", series.KEYS["card"]), self.config
        )

        unique = self._requests()
        requests = demands.with_function(unique, pod_rows)
        dealt = cache(demands.deal(requests, pod_rows))
        gateway = functions.from_gateway(filled["function"])
        function_rows = cache(functions.function_rows(gateway, functions.from_log(requests), self.earlier))
        by_pod = self._handled_by_counter(long["function"])
        complete_pods = pods.complete_pods(pod_rows, node_rows, demands.handled(dealt, by_pod))
        demand_rows = demands.from_log(dealt, pod_rows)
        if not self.accounts["requests"].rows_out:
            demand_rows = demands.from_counts(function_rows, pod_rows, self.config)

        event_rows = events.event_rows(
            self._told_events(), events.seen(pods.lifetimes(samples), pod_rows, self.day.span_us)
        )
        results = {
            "nodes": nodes.complete_nodes(node_rows, pod_rows, self.prices),
            "pods": complete_pods,
            "functions": function_rows,
            "demands": demand_rows,
            "events": event_rows,
            "cards": card_rows,
        }
        tables = {name: self._finished(name, rows) for name, rows in results.items()}
        tables["quarantine"] = pa.concat_tables([TABLES["quarantine"].empty_table(), *self.bad]).sort_by(
            [(name, "ascending") for name in ("table", "rule", "window_start", "cluster", "raw")]
        )
        for table, account in self.accounts.items():
            account.check(f"{table} of {self.day.day}")
        return CleanedDay(tables, self.accounts)

    def _read(self, table: str, files: list[Path]) -> ir.Table:
        """Read raw files, with ``t`` in microseconds beside their columns."""
        if not files:
            rows = ibis.memtable(raw_contract.TABLES[table].empty_table())
            return rows.mutate(t=ibis.literal(0, "int64"))
        rows = self.engine.parquet(files)
        return rows.mutate(t=self.engine.epoch_us(rows.time))

    def _put_aside(self, table: str, rows: ir.Table) -> None:
        found = self.engine.arrow(rows)
        if found.num_rows:
            documented = quarantine.document(table, found)
            self.bad.append(documented)
            self.accounts[table].put_aside(documented["rule"].to_pylist())

    def _samples(self) -> ir.Table:
        """Samples of the day that break no row rule, with those of the margins."""
        own = _canonical(self._read("samples", self.day.files.get("samples", [])))
        rule = rules.sample_rule(own, self.day.span_us)
        self._put_aside("samples", quarantine.broken("samples", own, rule))
        good = own.filter(rule.isnull())
        if not self.day.near:
            return good
        low, high = self.day.span_us
        near = _canonical(self._read("samples", self.day.near))
        near = near.filter((near.t < low) | (near.t >= high))
        near = near.filter(rules.sample_rule(near, self.near_us).isnull())
        return ibis.union(good, near)

    def _metrics_present(self, samples: ir.Table) -> set[str]:
        return set(self.engine.arrow(samples.select("metric").distinct())["metric"].to_pylist())

    def _long(self, samples: ir.Table, entity: str, present: set[str]) -> ir.Table:
        """Statistics of every series of one kind of thing, and the account of its samples."""
        keys = series.KEYS[entity]
        no = ibis.literal(False)
        level = [name for name in series.metrics_of(entity, "gauge", "info") if name in present]
        rising = [name for name in series.metrics_of(entity, "counter") if name in present]
        mine = samples.filter(samples.metric.isin(level))
        parts = [
            series.gauges(
                mine.select(*keys, "metric", "t", "value", "renamed", rejected=no, repaired=mine.renamed), keys
            )
        ]
        steps = None
        if rising:
            mine = samples.filter(samples.metric.isin(rising))
            steps = series.intervals(mine, keys, self.config.margin_seconds * series.SECOND_US)
            parts.append(series.counters(steps.mutate(repaired=no), keys))
        long = self.engine.cache(ibis.union(*parts) if len(parts) > 1 else parts[0])
        totals = self._today(long).agg(
            rows=long.rows.sum(), samples=long.samples.sum(), rejected=long.rejected.sum(), repaired=long.repaired.sum()
        )
        count = {name: value or 0 for name, value in self.engine.arrow(totals).to_pylist()[0].items()}
        account = self.accounts["samples"]
        account.rows_out += count["samples"]
        account.merged += count["rows"] - count["samples"] - count["rejected"]
        account.repaired += count["repaired"]
        if count["rejected"] and steps is not None:
            low, high = self.day.span_us
            found = steps.filter(steps.rejected & (steps.t >= low) & (steps.t < high))
            self._put_aside("samples", quarantine.rejected(mine, found, keys, "clock_jump"))
        return long

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

    def _handled_by_counter(self, long: ir.Table) -> ir.Table:
        mine = long.filter((long.metric == "function_requests") & long.pod.notnull())
        return mine.group_by("cluster", "pod", "window").agg(counted=mine.increase.sum().round().cast("int64"))

    def _today(self, rows: ir.Table) -> ir.Table:
        low, high = (bound // series.SECOND_US for bound in self.day.span_us)
        return rows.filter((rows.window >= low) & (rows.window < high))

    def _finished(self, name: str, rows: ir.Table) -> pa.Table:
        """Fetch a table's rows of the day in the contract's columns, types and order."""
        schema = TABLES[name]
        found = self.engine.arrow(self._today(rows))
        columns: list[Any] = []
        for column in schema:
            if column.name == "window_start":
                values = pc.multiply(found["window"].cast(pa.int64()), series.SECOND_US)
            elif column.name == "time":
                values = found["t"].cast(pa.int64())
            else:
                values = found[column.name]
            columns.append(values.cast(column.type))
        table = pa.table(columns, schema=schema)
        return table.sort_by([(key, "ascending") for key in KEYS[name]])


def _canonical(rows: ir.Table) -> ir.Table:
    name = rules.canonical(rows.metric)
    return rows.mutate(metric=name, raw_metric=rows.metric, renamed=name != rows.metric)


def _rows(files: list[Path]) -> int:
    return sum(pq.read_metadata(file).num_rows for file in files)


def nothing_earlier() -> pa.Table:
    """Return the ``earlier`` of a first day."""
    schema = pa.schema([("cluster", pa.string()), ("function", pa.string()), ("standard_response_s", pa.float64())])
    return schema.empty_table()
