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


def window_of(t: ir.IntegerColumn) -> ir.IntegerColumn:
    """Start of the window, in seconds since 1970: floor(epoch / 300) x 300."""
    return ((t - t % WINDOW_US) / SECOND_US).cast("int64")


def gauges(engine: Engine, rows: ir.Table) -> ir.Table:
    """Statistics of gauges; of equal times the largest value counts.

    ``rows`` has ``sid``, ``t``, ``value`` and booleans ``rejected`` and ``repaired``. Few windows hold a time twice:
    all are summed up as they are first, and only those that do are summed up again without copies.
    """
    rows = rows.mutate(window=window_of(rows.t))
    first = engine.cache(_summed(rows, times=engine.distinct(rows.t, ~rows.rejected)))
    doubled = first.filter(first.times < first.rows - first.rejected).select("sid", "window")
    again = rows.semi_join(doubled, ["sid", "window"])
    good = again.filter(~again.rejected)
    unique = good.group_by("sid", "window", "t").agg(
        value=good.value.max(), repaired=good.repaired.any(), rows=good.count()
    )
    unique = unique.mutate(rejected=ibis.literal(False))
    second = _summed(unique, times=unique.count())
    counts = first.select("sid", "window", rows=first.rows, rejected=first.rejected)
    second = second.drop("rows", "rejected", "times").inner_join(counts, ["sid", "window"])
    once = first.anti_join(doubled, ["sid", "window"]).drop("times")
    return ibis.union(once, second.select(once.columns))


def _summed(rows: ir.Table, *, times: ir.IntegerScalar) -> ir.Table:
    good = ~rows.rejected
    return rows.group_by("sid", "window").agg(
        mean=rows.value.mean(where=good),
        p95=rows.value.quantile(0.95, where=good),
        peak=rows.value.max(where=good),
        lowest=rows.value.min(where=good),
        increase=ibis.null("float64"),
        samples=good.cast("int64").sum(),
        rows=rows.count(),
        rejected=rows.rejected.cast("int64").sum(),
        repaired=(good & rows.repaired).cast("int64").sum(),
        times=times,
    )


def intervals(rows: ir.Table, max_interval_us: int) -> ir.Table:
    """Turn each counter's samples into intervals ``(start_t, t]`` with their rate; marks samples that jumped.

    A reset (the counter starts again at zero) makes the sample's own value the increase. A sample out of line with
    both neighbours, where a reset is less likely than a clock that jumped or a wrong copy, is ``rejected`` and the
    interval of the next one begins at the sample before it. Of equal times the largest value counts.
    """
    unique = rows.group_by("sid", "t").agg(value=rows.value.max(), rows=rows.count(), repaired=rows.renamed.any())
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
    columns = ["sid", "window", "rate", "weight", "samples", "rows", "rejected", "repaired"]
    inside = steps.filter(steps["first"] == steps["last"])
    inside = inside.mutate(
        window=inside["last"], weight=inside.t - inside.start_t, samples=(~inside.rejected).cast("int64")
    )
    across = steps.filter(steps["first"] != steps["last"])
    # A usable interval is bounded, so it touches a bounded number of windows.
    touched = ibis.range(across["first"], across["last"] + WINDOW_SECONDS, WINDOW_SECONDS)
    across = across.mutate(window=touched.unnest())
    begin = ibis.greatest(across.start_t, across.window * SECOND_US)
    end = ibis.least(across.t, (across.window + WINDOW_SECONDS) * SECOND_US)
    own = across.window == across["last"]
    across = across.mutate(
        weight=end - begin,
        samples=(own & ~across.rejected).cast("int64"),
        rows=ibis.ifelse(own, across.rows, 0),
        rejected=own & across.rejected,
        repaired=own & across.repaired,
    )
    pieces = ibis.union(inside.select(columns), across.select(columns))
    timed = pieces.weight > 0
    weight = pieces.weight.sum(where=pieces.rate.notnull())
    amount = (pieces.rate * pieces.weight).sum()
    peak = pieces.rate.max(where=timed)
    return pieces.group_by("sid", "window").agg(
        # Rounding may lift the weighted mean of equal rates above them by one bit.
        mean=ibis.least(amount / weight.nullif(0), peak),
        p95=pieces.rate.quantile(0.95, where=timed),
        peak=peak,
        lowest=pieces.rate.min(where=timed),
        increase=amount / SECOND_US,
        samples=pieces.samples.sum(),
        rows=pieces.rows.sum(),
        rejected=pieces.rejected.cast("int64").sum(),
        repaired=pieces.repaired.cast("int64").sum(),
    )
