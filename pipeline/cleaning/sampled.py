"""Samples of one day, from raw rows to ``long`` (statistics of every series in every window), all accounted for."""

from __future__ import annotations

from collections.abc import Callable

import ibis
import ibis.expr.types as ir

from pipeline.cleaning import quarantine, units
from pipeline.cleaning.account import Account
from pipeline.cleaning.config import CleanConfig
from pipeline.cleaning.engine import Engine
from pipeline.cleaning.samples import LABELS, Samples, label_sets, labelled, numbers, row_rule, series_table
from pipeline.cleaning.series import SECOND_US, counters, gauges, intervals, unique_samples


class SampleCleaner:
    """The steps from raw samples to ``long``.

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

    def run(self, own: ir.Table, near: ir.Table | None) -> tuple[Samples, ir.Table]:
        """Clean the day's own rows, with the help of those near midnight on either side."""
        cache = self._engine.cache
        labels, rows = self._number(own, near)
        own = labelled(own, labels)
        series = series_table(self._engine, labels)
        found = self._engine.arrow(series.select("sid", "metric", "counter")).to_pylist()
        samples = Samples(rows, labels, series, frozenset(row["metric"] for row in found))
        first_counter = min((row["sid"] for row in found if row["counter"]), default=2**31 - 1)
        level = rows.filter(rows.sid < first_counter)
        rising = unique_samples(self._engine, rows.filter(rows.sid >= first_counter))
        level = level.mutate(rejected=ibis.literal(False), repaired=level.renamed)
        steps = intervals(rising, self._margin_us)
        long = cache(ibis.union(gauges(self._engine, level), counters(steps)))

        stats = cache(units.summaries(long, series))
        scales = cache(units.scales(stats, self._config))
        if self._any(scales):
            long = cache(units.apply_scales(long, scales))
            self._count_scaled(long, scales)
        doubtful = cache(units.suspects(stats, scales))
        if self._any(doubtful):
            long = self._judge(own, long, level, rising, doubtful)
        jumped = long.filter((long.rejected > 0) & (long.sid >= first_counter)).anti_join(doubtful, "sid")
        if self._any(jumped):
            again = intervals(rising.semi_join(jumped, "sid"), self._margin_us)
            self._reject(own, again, "clock_jump", copies=False)
        self._count(long)
        return samples, long

    def _number(self, own: ir.Table, near: ir.Table | None) -> tuple[ir.Table, ir.Table]:
        """Give label sets and series their ids, and keep the rows that break no rule as numbers."""
        low, high = self._span_us
        everything = own.select(LABELS)
        if near is not None:
            near = near.filter(
                ((near.t < low) | (near.t >= high)) & near.t.between(low - self._margin_us, high + self._margin_us)
            )
            everything = ibis.union(everything, near.select(LABELS))
        labels = label_sets(self._engine, everything)
        marked = labelled(own, labels)
        rows = numbers(marked, self._span_us)
        if near is not None:
            around = (low - self._margin_us, high + self._margin_us)
            rows = ibis.union(rows, numbers(labelled(near, labels), around))
        rows = self._engine.cache(rows)
        good = self._today(rows)
        count = self._one(good.agg(rows=good.count(), renamed=good.renamed.cast("int64").sum()))
        self._account.put_right({"renamed": count["renamed"]})
        if count["rows"] < self._account.rows_in:
            self._put_aside(quarantine.broken("samples", marked, row_rule(marked, self._span_us)))
        return labels, rows

    def _judge(self, own: ir.Table, long: ir.Table, level: ir.Table, rising: ir.Table, doubtful: ir.Table) -> ir.Table:
        """Sum doubtful series up again, sample by sample."""
        cache, config = self._engine.cache, self._config
        judged = cache(units.judged_gauges(level, doubtful, config))
        steps = intervals(rising.semi_join(doubtful, "sid"), self._margin_us)
        steps = cache(units.judged_intervals(steps, doubtful, config))
        parts = [long.anti_join(doubtful, "sid"), gauges(self._engine, judged), counters(steps)]
        long = cache(ibis.union(*[part.select(long.columns) for part in parts]))
        for rows, copies in ((self._today(judged), True), (self._today(steps), False)):
            right = rows.filter(rows.repair.notnull() & ~rows.rejected)
            counts = self._engine.arrow(right.group_by("repair").agg(count=right.count())).to_pylist()
            self._account.put_right({row["repair"]: row["count"] for row in counts})
            over = rows.filter(rows.over)
            if self._any(over):
                self._reject(own, over.mutate(rejected=ibis.literal(True)), "over_capacity", copies=copies)
        jumped = steps.filter(steps.rejected & ~steps.over)
        if self._any(jumped):
            self._reject(own, jumped, "clock_jump", copies=False)
        return long

    def _reject(self, own: ir.Table, rows: ir.Table, rule: str, *, copies: bool) -> None:
        """Put the raw rows of rejected samples aside."""
        bad = self._today(rows.filter(rows.rejected))
        value = bad.raw if "raw" in bad.columns else bad.value
        bad = bad.select("sid", "t", value=value, rule=ibis.literal(rule)).distinct()
        self._put_aside(quarantine.rejected(own, bad, copies=copies))

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
