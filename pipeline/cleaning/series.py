"""From samples to statistics of a window, series by series: duplicates, resets, clock jumps, rates, units.

A gauge counts in the window its sample lies in. A counter counts where its *interval* lies: the increase between two
samples is split over the windows it spans, in proportion to time, so scrapes need not divide 300 s and no increase is
lost at a border. All times here are integers (microseconds, windows in seconds), so that engines agree exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

import ibis
import ibis.expr.types as ir

from pipeline.contracts.raw import METRICS
from pipeline.contracts.windows import WINDOW_SECONDS

SECOND_US = 1_000_000
WINDOW_US = WINDOW_SECONDS * SECOND_US

KEYS: dict[str, tuple[str, ...]] = {
    "node": ("cluster", "node"),
    "pod": ("cluster", "pod"),
    "function": ("cluster", "function", "pod", "le"),
    "card": ("cluster", "node", "card"),
}
"""What tells two series of one metric apart, by the kind of thing it is about; all else on a row is a label."""


def metrics_of(entity: str, *kinds: str) -> list[str]:
    """Canonical metrics about one kind of thing, of the given kinds (all when none is given)."""
    return [name for name, metric in METRICS.items() if metric.entity == entity and (not kinds or metric.kind in kinds)]


def window_of(t: ir.IntegerColumn) -> ir.IntegerColumn:
    """Start of the window, in seconds since 1970: floor(epoch / 300) x 300."""
    return ((t - t % WINDOW_US) / SECOND_US).cast("int64")


def gauges(samples: ir.Table, keys: Sequence[str]) -> ir.Table:
    """Mean, p95, max and min of each gauge in each window; of equal times the largest value counts.

    ``samples`` has the keys, ``metric``, ``t``, ``value`` and booleans ``rejected`` and ``repaired``.
    """
    order = ibis.window(group_by=[*keys, "metric"], order_by=["t", ibis.desc("value")])
    marked = samples.mutate(before=samples.t.lag().over(order))
    kept = (marked.before.isnull() | (marked.before != marked.t)) & ~marked.rejected
    marked = marked.mutate(kept=kept, window=window_of(marked.t))
    return marked.group_by([*keys, "metric", "window"]).agg(
        mean=marked.value.mean(where=marked.kept),
        p95=marked.value.quantile(0.95, where=marked.kept),
        peak=marked.value.max(where=marked.kept),
        lowest=marked.value.min(where=marked.kept),
        increase=ibis.null("float64"),
        samples=marked.kept.cast("int64").sum(),
        rows=marked.count(),
        rejected=marked.rejected.cast("int64").sum(),
        repaired=(marked.kept & marked.repaired).cast("int64").sum(),
    )


def intervals(samples: ir.Table, keys: Sequence[str], max_interval_us: int) -> ir.Table:
    """Turn each counter's samples into intervals ``(before, t]`` with their increase; marks samples that jumped.

    A reset (the counter starts again at zero) makes the sample's own value the increase. A sample out of line with
    both neighbours, where a reset is less likely than a clock that jumped or a wrong copy, is ``rejected`` and the
    interval of the next one begins at the sample before it.
    """
    unique = samples.group_by([*keys, "metric", "t"]).agg(value=samples.value.max(), rows=samples.count())
    order = ibis.window(group_by=[*keys, "metric"], order_by="t")
    seen = unique.mutate(
        before=unique.value.lag().over(order),
        before_t=unique.t.lag().over(order),
        earlier=unique.value.lag(2).over(order),
        earlier_t=unique.t.lag(2).over(order),
        after=unique.value.lead().over(order),
    )
    skip = _jumped(seen.earlier, seen.before, seen.value)
    seen = seen.mutate(
        rejected=_jumped(seen.before, seen.value, seen.after),
        start=ibis.ifelse(skip, seen.earlier, seen.before),
        start_t=ibis.ifelse(skip, seen.earlier_t, seen.before_t),
    )
    usable = ~seen.rejected & seen.start_t.notnull() & (seen.t - seen.start_t <= max_interval_us)
    increase = ibis.ifelse(seen.value >= seen.start, seen.value - seen.start, seen.value)
    rate = increase / (seen.t - seen.start_t) * SECOND_US
    return seen.select(
        *keys,
        "metric",
        "t",
        "value",
        "rows",
        "rejected",
        rate=ibis.ifelse(usable, rate, ibis.null("float64")),
        start_t=ibis.ifelse(usable, seen.start_t, seen.t),
    )


def _jumped(before: ir.FloatingColumn, value: ir.FloatingColumn, after: ir.FloatingColumn) -> ir.BooleanColumn:
    """Tell whether a counter's sample is out of line: lower or higher than both neighbours, which agree.

    A real reset drops to near zero (so the next increase exceeds the value); a real burst before a real reset exceeds
    what comes after it. Neither is taken for a jump.
    """
    dip = (value < before) & (before <= after) & (after - value < value)
    spike = (value > after) & (after >= before) & (value - before < after)
    return (dip | spike).fill_null(False)


def counters(steps: ir.Table, keys: Sequence[str]) -> ir.Table:
    """Statistics of the rates of :func:`intervals` in each window, and the increase that falls into it."""
    steps = steps.mutate(first=window_of(steps.start_t), last=window_of(steps.t))
    columns = [*keys, "metric", "window", "rate", "weight", "own", "rows", "rejected", "repaired"]
    inside = steps.filter(steps["first"] == steps["last"])
    inside = inside.mutate(window=inside["last"], weight=inside.t - inside.start_t, own=ibis.literal(1, "int64"))
    across = steps.filter(steps["first"] != steps["last"])
    # A usable interval is bounded, so it touches a bounded number of windows.
    across = across.mutate(window=_windows_touched(across["first"], across["last"]).unnest())
    begin = ibis.greatest(across.start_t, across.window * SECOND_US)
    end = ibis.least(across.t, (across.window + WINDOW_SECONDS) * SECOND_US)
    own = across.window == across["last"]
    across = across.mutate(
        weight=end - begin,
        own=own.cast("int64"),
        rows=ibis.ifelse(own, across.rows, 0),
        rejected=own & across.rejected,
        repaired=own & across.repaired,
    )
    pieces = ibis.union(inside.select(columns), across.select(columns))
    timed = pieces.weight > 0
    weight = pieces.weight.sum(where=pieces.rate.notnull())
    amount = (pieces.rate * pieces.weight).sum()
    peak = pieces.rate.max(where=timed)
    return pieces.group_by([*keys, "metric", "window"]).agg(
        # Rounding may lift the weighted mean of equal rates above them by one bit.
        mean=ibis.least(amount / weight.nullif(0), peak),
        p95=pieces.rate.quantile(0.95, where=timed),
        peak=peak,
        lowest=pieces.rate.min(where=timed),
        increase=amount / SECOND_US,
        samples=(pieces.own * (~pieces.rejected).cast("int64")).sum(),
        rows=pieces.rows.sum(),
        rejected=pieces.rejected.cast("int64").sum(),
        repaired=pieces.repaired.cast("int64").sum(),
    )


def _windows_touched(first: ir.IntegerColumn, last: ir.IntegerColumn) -> ir.ArrayColumn:
    return ibis.range(first, last + WINDOW_SECONDS, WINDOW_SECONDS)
