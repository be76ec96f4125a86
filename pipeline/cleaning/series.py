"""From samples to statistics of a window, series by series: duplicates, resets, clock jumps, rates.

A gauge counts in the window its sample lies in. A counter counts where its *interval* lies: the increase between two
samples is split over the windows it spans, in proportion to time, so scrapes need not divide 300 s and no increase is
lost at a border. Times are integers (microseconds, windows in seconds), so that engines agree exactly.

The result is ``long``: one row a series and window with ``mean``, ``p95``, ``peak``, ``lowest``, ``increase`` (of
counters), and counts: ``samples`` (used), ``rows`` (before merging copies), ``rejected`` and ``repaired``.
"""

from __future__ import annotations

import ibis
import ibis.expr.types as ir

from pipeline.cleaning.engine import Engine
from pipeline.contracts.windows import WINDOW_SECONDS

SECOND_US = 1_000_000
WINDOW_US = WINDOW_SECONDS * SECOND_US
SLOTS = 50
"""Parts of a window, six seconds each, of which those with a sample are marked; sums of as many bits are exact."""


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


@ibis.udf.agg.builtin(name="bit_or", signature=(("int64",), "int64"))
def _together(marks):  # type: ignore[no-untyped-def]
    """All bits that are set in any of the values (a function of both engines that Ibis knows of one)."""


def _crowded(t: ir.IntegerColumn, where: ir.BooleanValue) -> ir.BooleanScalar:
    """Tell whether two samples of a group lie in one slot of a window: only there can a time be doubled.

    Looking at each time costs as much as all the rest. Marks that are all different add up to what they are together.
    """
    mark = ibis.literal(2.0) ** (t % WINDOW_US // (WINDOW_US // SLOTS))
    mark = ibis.ifelse(where, mark, ibis.null("float64"))
    return (mark.sum() != _together(mark.cast("int64")).cast("float64")).fill_null(False)


def gauges(engine: Engine, rows: ir.Table) -> ir.Table:
    """Statistics of gauges; of equal times the largest value counts.

    ``rows`` has ``sid``, ``t``, ``value`` and booleans ``rejected`` and ``repaired``. Few windows hold a time twice:
    all are summed up as they are first, and only those that may are summed up again without copies.
    """
    rows = rows.mutate(window=window_of(rows.t))
    first = engine.cache(_summed(rows, crowded=_crowded(rows.t, ~rows.rejected)))
    doubled = first.filter(first.crowded).select("sid", "window")
    again = rows.semi_join(doubled, ["sid", "window"])
    good = again.filter(~again.rejected)
    unique = good.group_by("sid", "window", "t").agg(value=good.value.max(), repaired=good.repaired.any())
    second = _summed(unique.mutate(rejected=ibis.literal(False))).drop("rows", "rejected")
    counts = first.select("sid", "window", "rows", "rejected")
    once = first.anti_join(doubled, ["sid", "window"]).drop("crowded")
    return ibis.union(once, second.inner_join(counts, ["sid", "window"]).select(once.columns))


def _summed(rows: ir.Table, **more: ir.Scalar) -> ir.Table:
    good = ~rows.rejected
    value = ibis.ifelse(good, rows.value, ibis.null("float64"))
    return rows.group_by("sid", "window").agg(
        # Rounding may lift the mean of equal values above them by one bit.
        mean=ibis.least(exact_mean(value), value.max()),
        p95=rows.value.quantile(0.95, where=good),
        peak=value.max(),
        lowest=rows.value.min(where=good),
        increase=ibis.null("float64"),
        samples=rows.count(where=good),
        rows=rows.count(),
        rejected=rows.count(where=rows.rejected),
        repaired=rows.count(where=good & rows.repaired),
        **more,
    )


def unique_samples(engine: Engine, rows: ir.Table) -> ir.Table:
    """Merge samples of equal times, the largest value counts: ``sid``, ``t``, ``value``, ``rows``, ``repaired``."""
    rows = rows.mutate(window=window_of(rows.t))
    windows = rows.group_by("sid", "window").agg(crowded=_crowded(rows.t, where=ibis.literal(True)))
    doubled = engine.cache(windows.filter(windows.crowded).select("sid", "window"))
    again = rows.semi_join(doubled, ["sid", "window"])
    merged = again.group_by("sid", "t").agg(value=again.value.max(), rows=again.count(), repaired=again.renamed.any())
    once = rows.anti_join(doubled, ["sid", "window"])
    once = once.select("sid", "t", "value", rows=ibis.literal(1, "int64"), repaired=once.renamed)
    return ibis.union(once, merged)


def intervals(unique: ir.Table, max_interval_us: int) -> ir.Table:
    """Turn a counter's :func:`unique_samples` into intervals ``(start_t, t]`` with rates; marks samples that jumped.

    A reset (the counter starts again at zero) makes the sample's own value the increase. A sample out of line with
    both neighbours, where a reset is less likely than a clock that jumped or a wrong copy, is ``rejected`` and the
    interval of the next one begins at the sample before it.
    """
    order = ibis.window(group_by="sid", order_by="t")
    seen = unique.mutate(
        before=unique.value.lag().over(order),
        before_t=unique.t.lag().over(order),
        earlier=unique.value.lag(2).over(order),
        earlier_t=unique.t.lag(2).over(order),
        after=unique.value.lead().over(order),
        later=unique.value.lead(2).over(order),
    )
    skip = _jumped(seen.earlier, seen.before, seen.value, seen.after)
    seen = seen.mutate(
        rejected=_jumped(seen.before, seen.value, seen.after, seen.later),
        start=ibis.ifelse(skip, seen.earlier, seen.before),
        start_t=ibis.ifelse(skip, seen.earlier_t, seen.before_t),
    )
    usable = (~seen.rejected & (seen.t - seen.start_t <= max_interval_us)).fill_null(False)
    increase = ibis.ifelse(seen.value >= seen.start, seen.value - seen.start, seen.value)
    return seen.select(
        "sid",
        "t",
        "value",
        "rows",
        "rejected",
        "repaired",
        rate=ibis.ifelse(usable, increase / (seen.t - seen.start_t) * SECOND_US, ibis.null("float64")),
        start_t=ibis.ifelse(usable, seen.start_t, seen.t),
    )


def _jumped(
    before: ir.FloatingColumn, value: ir.FloatingColumn, after: ir.FloatingColumn, later: ir.FloatingColumn
) -> ir.BooleanColumn:
    """Tell whether a counter's sample is out of line: lower or higher than both neighbours, which agree.

    A real reset drops to near zero (so the next increase exceeds the value); a real burst before a real reset exceeds
    what comes after it. Neither is taken for a jump. Where the counter goes on above a high sample, it is the low one
    after it that jumped.
    """
    dip = (value < before) & (before <= after) & (after - value < value)
    spike = (value > after) & (after >= before) & (value - before < after) & (value > later.fill_null(0.0))
    return (dip | spike).fill_null(False)


def counters(steps: ir.Table) -> ir.Table:
    """Statistics of the rates of :func:`intervals` in each window, and the increase that falls into it."""
    steps = steps.mutate(first=window_of(steps.start_t), last=window_of(steps.t))
    columns = ["sid", "window", "rate", "weight", "own", "rows", "rejected", "repaired"]
    inside = steps.filter(steps["first"] == steps["last"])
    inside = inside.mutate(window=inside["last"], weight=inside.t - inside.start_t, own=ibis.literal(True))
    across = steps.filter(steps["first"] != steps["last"])
    # A usable interval is bounded, so it touches a bounded number of windows.
    touched = ibis.range(across["first"], across["last"] + WINDOW_SECONDS, WINDOW_SECONDS)
    across = across.mutate(window=touched.unnest())
    begin = ibis.greatest(across.start_t, across.window * SECOND_US)
    end = ibis.least(across.t, (across.window + WINDOW_SECONDS) * SECOND_US)
    across = across.mutate(weight=end - begin, own=across.window == across["last"])
    pieces = ibis.union(inside.select(columns), across.select(columns))
    timed, own = pieces.weight > 0, pieces.own
    weight = pieces.weight.sum(where=pieces.rate.notnull())
    amount = exact_sum(pieces.rate * pieces.weight / SECOND_US)
    peak = pieces.rate.max(where=timed)
    return pieces.group_by("sid", "window").agg(
        # Rounding may lift the weighted mean of equal rates above them by one bit.
        mean=ibis.least(amount * SECOND_US / weight.nullif(0), peak),
        p95=pieces.rate.quantile(0.95, where=timed),
        peak=peak,
        lowest=pieces.rate.min(where=timed),
        increase=amount,
        samples=pieces.count(where=own & ~pieces.rejected),
        rows=pieces.rows.sum(where=own).fill_null(0),
        rejected=pieces.count(where=own & pieces.rejected),
        repaired=pieces.count(where=own & pieces.repaired),
    )
