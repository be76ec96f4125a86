"""What is missing: short gaps are filled and flagged, longer ones get empty rows, and rows say how complete they are.

A filled value is the one of the window before: what a live service would have known at that time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import ibis
import ibis.expr.types as ir

from pipeline.cleaning.config import CleanConfig
from pipeline.contracts.windows import WINDOW_SECONDS


class Column(NamedTuple):
    """Where a column of a window table comes from: the first of ``metrics`` that has a value."""

    metrics: Sequence[str]
    statistic: str
    scale: float = 1.0


def _missing_after(windows: ir.Table, keys: Sequence[str]) -> ir.Table:
    """Add ``following``, the next window of the same keys, and ``lacking``, how many windows lie between."""
    order = ibis.window(group_by=list(keys), order_by="window")
    following = windows.window.lead().over(order)
    windows = windows.mutate(following=following)
    lacking = ((windows.following - windows.window) / WINDOW_SECONDS).cast("int64") - 1
    return windows.mutate(lacking=lacking)


def _between(windows: ir.Table, least: int, most: int) -> ir.Table:
    """Repeat each row that is followed by a gap of ``least`` to ``most`` windows in each window of the gap."""
    gaps = windows.filter(windows.lacking.between(least, most))
    lost = ibis.range(gaps.window + WINDOW_SECONDS, gaps.following, WINDOW_SECONDS).unnest()
    return gaps.mutate(window=lost).drop("following", "lacking")


def fill(long: ir.Table, config: CleanConfig) -> ir.Table:
    """Fill short gaps of each series with its statistics in the window before, with no samples."""
    known = _missing_after(long.filter(long.mean.notnull()), ["sid"])
    copies = _between(known, 1, config.fill_windows)
    zero = ibis.literal(0, "int64")
    copies = copies.mutate(increase=ibis.null("float64"), samples=zero, rows=zero, rejected=zero, repaired=zero)
    return ibis.union(long, copies.select(long.columns))


def wide(long: ir.Table, keys: Sequence[str], columns: Mapping[str, Column], config: CleanConfig) -> ir.Table:
    """Turn one row a series into one row a thing and window, with the columns that tell its quality."""
    long = _with_expected(long, keys, config)
    values = {}
    for name, column in columns.items():
        picked = [long[column.statistic].max(where=long.metric == metric) for metric in column.metrics]
        values[name] = (ibis.coalesce(*picked) if len(picked) > 1 else picked[0]) * column.scale
    rows = long.group_by([*keys, "window"]).agg(
        **values,
        samples=long.samples.sum(),
        seen=ibis.least(long.samples.cast("float64"), long.expected).sum(),
        due=long.due.max(),
        filled=((long.samples == 0) & long.mean.notnull()).any(),
        repaired=long.repaired.sum(),
    )
    return rows.mutate(completeness=ibis.least(1.0, rows.seen / rows.due)).drop("seen", "due")


def _with_expected(long: ir.Table, keys: Sequence[str], config: CleanConfig) -> ir.Table:
    """Add ``expected`` samples of a series in a window, and ``due``: of all series a thing has that day."""
    scraped = long.filter(long.samples > 0)
    if config.scrape_seconds is None:
        typical = scraped.group_by("cluster", "metric").agg(expected=scraped.samples.median())
    else:
        least_one = max(1.0, WINDOW_SECONDS // config.scrape_seconds)
        typical = scraped.select("cluster", "metric").distinct().mutate(expected=ibis.literal(least_one, "float64"))
    series = long.select([*keys, "metric"]).distinct()
    due = series.join(typical, ["cluster", "metric"]).group_by(list(keys)).agg(due=ibis._.expected.sum())
    long = long.inner_join(typical, ["cluster", "metric"]).select(
        *[long[name] for name in long.columns], typical.expected
    )
    return long.inner_join(due, list(keys)).select(*[long[name] for name in long.columns], due.due)


def add_missing(rows: ir.Table, keys: Sequence[str], config: CleanConfig) -> ir.Table:
    """Add empty rows, completeness 0, for gaps that are too long to fill but too short for the thing to be gone."""
    gaps = _between(_missing_after(rows, keys), 1, config.missing_windows)
    empty = {name: ibis.null(rows.schema()[name]) for name in rows.columns if name not in (*keys, "window")}
    empty |= {
        "samples": ibis.literal(0, "int64"),
        "completeness": ibis.literal(0.0),
        "filled": ibis.literal(False),
        "repaired": ibis.literal(0, "int64"),
    }
    return ibis.union(rows, gaps.mutate(**empty).select(rows.columns))
