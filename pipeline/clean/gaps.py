"""What is missing: short gaps are filled and flagged, longer ones get empty rows, and rows say how complete they are.

A filled value is the one of the window before: what a live service would have known at that time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import ibis
import ibis.expr.types as ir

from pipeline.clean.config import CleanConfig
from pipeline.clean.expressions import ended
from pipeline.clean.rules import CODE
from pipeline.clean.samples import Samples
from wire.contracts.window import WINDOW_SECONDS


class Column(NamedTuple):
    """Where a column of a window table comes from: the first of ``metrics`` that has a value."""

    metrics: Sequence[str]
    statistic: str
    scale: float = 1.0


def _between(windows: ir.Table, least: int, most: int) -> ir.Table:
    """Repeat each row whose ``following`` window is ``least`` to ``most`` windows late in each window of the gap."""
    lacking = windows.following - windows.window
    gaps = windows.filter(lacking.between((least + 1) * WINDOW_SECONDS, (most + 1) * WINDOW_SECONDS))
    lost = ibis.range(gaps.window + WINDOW_SECONDS, gaps.following, WINDOW_SECONDS).unnest()
    return gaps.mutate(window=lost).drop("following")


def fill(long: ir.Table, config: CleanConfig) -> ir.Table:
    """Fill short gaps of each series with its statistics in the window before, with no samples."""
    copies = _between(long, 1, config.fill_windows)
    zero = ibis.literal(0, "int64")
    copies = copies.mutate(increase=ibis.null("float64"), samples=zero, rows=zero, rejected=zero, repaired=zero)
    long = long.drop("following")
    return ibis.union(long, copies.select(long.columns))


def wide(long: ir.Table, samples: Samples, entity: str, columns: Mapping[str, Column], config: CleanConfig) -> ir.Table:
    """Turn one row a series into one row a ``thing`` and window, with the columns that tell its quality.

    ``often`` is how many samples a window has of what is scraped most; ``outer`` marks the first and the last window of
    a thing. Things with a gap too long to fill but too short for them to be gone get empty rows, completeness 0.
    """
    series = samples.series
    long = _with_expected(long, series.filter(series.entity == entity), config)
    values = {}
    for name, column in columns.items():
        picked = [
            long[column.statistic].max(where=long.code == CODE[metric])
            for metric in column.metrics
            if metric in samples.present
        ]
        values[name] = ibis.coalesce(*picked) * column.scale if picked else ibis.null("float64")
    rows = long.group_by("thing", "window").agg(
        **values,
        samples=long.samples.sum(),
        seen=ibis.least(long.samples.cast("float64"), long.expected).sum(),
        due=long.due.max(),
        often=long.expected.max(),
        filled=((long.samples == 0) & long.mean.notnull()).any(),
        repaired=long.repaired.sum(),
    )
    return _add_missing(rows.mutate(completeness=ibis.least(1.0, rows.seen / rows.due)).drop("seen", "due"), config)


def _with_expected(long: ir.Table, series: ir.Table, config: CleanConfig) -> ir.Table:
    """Add ``thing``, ``code``, the samples ``expected`` of a series in a window, and ``due``: of all its thing has."""
    joined = long.inner_join(series, "sid")
    long = ended(joined.select(*[long[name] for name in long.columns], series.thing, series.family, series.code))
    scraped = long.filter(long.samples > 0)
    if config.scrape_seconds is None:
        typical = scraped.group_by("family").agg(expected=scraped.samples.median())
    else:
        least_one = max(1.0, WINDOW_SECONDS // config.scrape_seconds)
        typical = scraped.select("family").distinct().mutate(expected=ibis.literal(least_one, "float64"))
    each = series.inner_join(typical, "family").select(series.sid, series.thing, typical.expected)
    due = each.mutate(due=each.expected.sum().over(ibis.window(group_by="thing"))).drop("thing")
    return long.inner_join(due, "sid").select(*[long[name] for name in long.columns], due.expected, due.due)


def _add_missing(rows: ir.Table, config: CleanConfig) -> ir.Table:
    order = ibis.window(group_by="thing", order_by="window")
    before, after = rows.window.lag().over(order), rows.window.lead().over(order)
    rows = rows.mutate(following=after, outer=before.isnull() | after.isnull())
    gaps = _between(rows, 1, config.missing_windows)
    rows = rows.drop("following")
    empty = {name: ibis.null(rows.schema()[name]) for name in rows.columns if name not in ("thing", "window")}
    empty |= {
        "samples": ibis.literal(0, "int64"),
        "completeness": ibis.literal(0.0),
        "filled": ibis.literal(False),
        "repaired": ibis.literal(0, "int64"),
        "outer": ibis.literal(False),
    }
    return ibis.union(rows, gaps.mutate(**empty).select(rows.columns))
