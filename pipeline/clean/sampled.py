"""Samples of one day, from raw rows to ``long`` (statistics of every series in every window), all accounted for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import ibis
import ibis.expr.types as ir

from pipeline.clean import quarantine, units
from pipeline.clean.account import Account
from pipeline.clean.config import CleanConfig
from pipeline.clean.engine import Engine
from pipeline.clean.expressions import SECOND_US
from pipeline.clean.rules import metric_table
from pipeline.clean.samples import LABELS, Samples, labelled, numbering, numbers, row_rule
from pipeline.clean.series import LONG, STEPS, counter_steps, counter_windows, gauge_windows, sample_windows


def _time(us: int) -> ir.TimestampScalar:
    return ibis.literal(datetime.fromtimestamp(us // SECOND_US, UTC), "timestamp('UTC', 6)")


class SampleCleaner:
    """The steps from raw samples to ``long``: :meth:`number`, then :meth:`run`.

    Args:
        engine: Where to run.
        span_us: The day.
        account: Where its rows are counted.
        put_aside: Takes raw rows with their rule into quarantine.
        config: Settings.
    """

    def __init__(
        self,
        engine: Engine,
        span_us: tuple[int, int],
        account: Account,
        put_aside: Callable[[ir.Table], None],
        config: CleanConfig,
    ) -> None:
        self._engine, self._span_us, self._account = engine, span_us, account
        self._put_aside, self._config = put_aside, config
        self._margin_us = config.margin_seconds * SECOND_US

    def number(self, own: ir.Table, near: ir.Table | None) -> Samples:
        """Give label sets and series their ids, and keep the rows that break no rule as numbers.

        ``own`` are the day's own rows, ``near`` those of the days on either side.
        """
        low, high = self._span_us
        everything = own.select(LABELS)
        if near is not None:
            # By the column itself: then engines need not read the rest of the neighbours' files.
            begin, end = (_time(us) for us in (low - self._margin_us, high + self._margin_us))
            near = near.filter(near.time.between(begin, end) & ((near.t < low) | (near.t >= high)))
            everything = ibis.union(everything, near.select(LABELS))
        engine, metrics = self._engine, metric_table()
        engine.call("everything", everything)
        engine.put("metrics", metrics)
        make = partial(numbering, rows=everything.schema(), metrics=metrics.schema)
        found = dict(engine.run(engine.plans.get("numbers", everything.schema(), make=make)))["metrics"].to_pylist()
        labels, series = engine.table("labels"), engine.table("series")
        self._own, self._near = labelled(own, labels), None if near is None else labelled(near, labels)
        doubts = partial(units.doubts, series=series.schema(), config=self._config)
        self._doubts = engine.plans.get("doubts", series.schema(), make=doubts)
        counters = [row["first_counter"] for row in found if row["first_counter"] is not None]
        self._first_counter = min(counters, default=2**31 - 1)
        rows = numbers(self._own, self._span_us)
        if self._near is not None:
            rows = ibis.union(rows, numbers(self._near, (low - self._margin_us, high + self._margin_us)))
        return Samples(rows, labels, series, frozenset(row["metric"] for row in found))

    def run(self, samples: Samples) -> ir.Table:
        """Sum the samples up."""
        cache, first_counter = self._engine.cache, self._first_counter
        rows = cache(samples.rows, "samples")
        self._count_rows(rows)
        level, rising = rows.filter(rows.sid < first_counter), rows.filter(rows.sid >= first_counter)
        windows = partial(sample_windows, first_counter=first_counter, max_interval_us=self._margin_us)
        long = self._engine.by_series(rows.select("sid", "t", "value", "renamed"), windows, LONG)

        self._engine.call("measured", long)
        count = {name: found["count"][0].as_py() for name, found in self._engine.run(self._doubts)}
        scales, doubtful = self._engine.table("scales"), self._engine.table("doubtful")
        if count["scales"]:
            long = cache(units.apply_scales(long, scales))
            self._count_scaled(long, scales)
        if count["doubtful"]:
            long = self._judge(long, level, rising, doubtful)
        jumped = long.filter((long.rejected > 0) & (long.sid >= first_counter)).anti_join(doubtful, "sid")
        if self._any(jumped):
            self._reject(self._steps(rising, jumped), "clock_jump", copies=False)
        self._count(long)
        return long

    def _count_rows(self, rows: ir.Table) -> None:
        good = self._today(rows)
        count = self._one(good.agg(rows=good.count(), renamed=good.renamed.cast("int64").sum()))
        self._account.put_right({"renamed": count["renamed"]})
        if count["rows"] < self._account.rows_in:
            marked = self._own.mutate(rule=row_rule(self._own, self._span_us))
            self._put_aside(quarantine.broken("samples", marked))

    def _judge(self, long: ir.Table, level: ir.Table, rising: ir.Table, doubtful: ir.Table) -> ir.Table:
        """Sum doubtful series up again, sample by sample."""
        cache, config = self._engine.cache, self._config
        at = cache(units.moments(long, self._engine.table("series"), doubtful))
        judged = cache(units.judged_gauges(level, doubtful, at, config))
        steps = cache(units.judged_intervals(self._steps(rising, doubtful), doubtful, at, config))
        samples = judged.select("sid", "t", "value", "rejected", "repaired")
        again = [
            self._engine.by_series(samples, gauge_windows, LONG),
            self._engine.by_series(steps.select(STEPS.names), counter_windows, LONG),
        ]
        parts = [long.anti_join(doubtful, "sid"), *again]
        long = cache(ibis.union(*[part.select(long.columns) for part in parts]))
        for rows, copies in ((self._today(judged), True), (self._today(steps), False)):
            right = rows.filter(rows.repair.notnull() & ~rows.rejected)
            counts = self._engine.arrow(right.group_by("repair").agg(count=right.count())).to_pylist()
            self._account.put_right({row["repair"]: row["count"] for row in counts})
            over = rows.filter(rows.over)
            if self._any(over):
                self._reject(over.mutate(rejected=ibis.literal(True)), "over_capacity", copies=copies)
        unread = judged.filter(judged.doubt)
        if self._any(unread):
            self._reject(unread, "doubtful_unit", copies=True)
        jumped = steps.filter(steps.rejected & ~steps.over)
        if self._any(jumped):
            self._reject(jumped, "clock_jump", copies=False)
        return long

    def _steps(self, rising: ir.Table, of: ir.Table) -> ir.Table:
        rows = rising.semi_join(of, "sid").select("sid", "t", "value", "renamed")
        return self._engine.by_series(rows, partial(counter_steps, max_interval_us=self._margin_us), STEPS)

    def _reject(self, rows: ir.Table, rule: str, *, copies: bool) -> None:
        """Put the raw rows of rejected samples aside."""
        bad = self._today(rows.filter(rows.rejected))
        value = bad.raw if "raw" in bad.columns else bad.value
        bad = bad.select("sid", "t", value=value, rule=ibis.literal(rule)).distinct()
        self._put_aside(quarantine.rejected(self._own, bad, copies=copies))

    def _count_scaled(self, long: ir.Table, scales: ir.Table) -> None:
        whole = self._today(long).inner_join(scales, "sid").select("samples", "repair")
        counts = self._engine.arrow(whole.group_by("repair").agg(count=whole.samples.sum())).to_pylist()
        self._account.put_right({row["repair"]: row["count"] for row in counts})

    def _count(self, long: ir.Table) -> None:
        today = self._today(long)
        count = self._one(today.agg(**{name: today[name].sum() for name in ("rows", "samples", "rejected")}))
        self._account.rows_out += count["samples"]
        self._account.merged += count["rows"] - count["samples"] - count["rejected"]

    def _today(self, rows: ir.Table) -> ir.Table:
        low, high = self._span_us
        if "t" in rows.columns:
            return rows.filter((rows.t >= low) & (rows.t < high))
        return rows.filter((rows.window >= low // SECOND_US) & (rows.window < high // SECOND_US))

    def _any(self, rows: ir.Table) -> bool:
        return self._one(rows.agg(count=rows.count()))["count"] > 0

    def _one(self, rows: ir.Table) -> dict[str, int]:
        return {name: value or 0 for name, value in self._engine.arrow(rows).to_pylist()[0].items()}
