"""Phrases of Ibis that several tables use. Times are integers (microseconds, windows in seconds): engines agree."""

from __future__ import annotations

import ibis
import ibis.expr.types as ir

from wire.contracts.window import WINDOW_SECONDS

SECOND_US = 1_000_000
WINDOW_US = WINDOW_SECONDS * SECOND_US


def window_of(t: ir.IntegerColumn) -> ir.IntegerColumn:
    """Start of the window, in seconds since 1970: floor(epoch / 300) x 300."""
    return ((t - t % WINDOW_US) / SECOND_US).cast("int64")


def exact_sum(values: ir.FloatingColumn, over: ibis.expr.builders.WindowBuilder | None = None) -> ir.FloatingValue:
    """Add numbers up, the same to the last bit in any order: threads and engines take rows as they come."""
    total = values.cast("decimal(38, 12)").sum()
    return (total if over is None else total.over(over)).cast("float64")


def exact_mean(values: ir.FloatingColumn) -> ir.FloatingScalar:
    """Mean of the numbers that are not null, the same in any order."""
    return exact_sum(values) / values.count().nullif(0)


def ended(joined: ir.Table) -> ir.Table:
    """End a join: Ibis would take the next one for a part of it."""
    return joined.select(joined.columns)
