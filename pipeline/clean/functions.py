"""The ``functions`` table: requests and response times, from the gateway's counters or from the request log."""

from __future__ import annotations

from collections.abc import Collection

import ibis
import ibis.expr.types as ir

from pipeline.clean.expressions import ended, exact_mean, exact_sum, window_of

BUCKETS = "function_response_seconds_bucket"
FASTEST = 0.1
"""The standard response is the mean of the fastest tenth of windows: hardly any request in them had to share."""


def named(long: ir.Table, series: ir.Table) -> ir.Table:
    """Give the series of functions their keys and metric back."""
    mine = series.filter(series.entity == "function")
    keys = [mine[name] for name in ("cluster", "metric", "function", "pod", "le")]
    joined = long.inner_join(mine, "sid").select(*[long[name] for name in long.columns], *keys)
    return ended(joined)


def from_gateway(long: ir.Table, present: Collection[str]) -> ir.Table:
    """Functions of a day from counters; ``long`` has one row a (function, pod, bucket, metric, window)."""
    key = ["cluster", "function", "window"]

    def total(metric: str) -> ir.FloatingScalar:
        return exact_sum(ibis.ifelse(long.metric == metric, long.increase, ibis.null("float64")))

    requests = long.metric == "function_requests"
    rows = long.group_by(key).agg(
        count=total("function_requests"),
        seconds=total("function_response_seconds_sum"),
        net=total("function_net_bytes"),
        disk=total("function_disk_ops"),
        samples=long.samples.sum(),
        scraped=(requests & (long.samples > 0)).cast("float64").mean(where=requests),
        filled=((long.samples == 0) & long.mean.notnull()).any(),
        repaired=long.repaired.sum(),
    )
    # Splitting at borders leaves fractions; rounding the running total loses none over the day.
    so_far = ibis.window(group_by=["cluster", "function"], order_by="window", preceding=(None, 0))
    rows = rows.mutate(total=exact_sum(rows["count"].fill_null(0.0), so_far).round().cast("int64"))
    order = ibis.window(group_by=["cluster", "function"], order_by="window")
    rows = rows.mutate(requests=rows.total - rows.total.lag().over(order).fill_null(0))
    some = rows["count"].nullif(0.0)
    rows = rows.select(
        *key,
        "requests",
        "samples",
        "filled",
        "repaired",
        response_mean_s=rows.seconds / some,
        response_p95_s=ibis.null("float64"),
        net_mb_per_request=rows.net / some * 1e-6,
        disk_io_per_request=rows.disk / some,
        completeness=rows.scraped.fill_null(0.0),
    )
    if BUCKETS not in present:
        return rows
    p95 = _bucket_quantile(histograms(long), 0.95)
    kept = [rows[name] for name in rows.columns if name != "response_p95_s"]
    return ended(rows.left_join(p95, key).select(*kept, response_p95_s=p95["quantile"]))


def histograms(long: ir.Table) -> ir.Table:
    """Calls of a window up to every bound of the gateway's histogram (table ``responses``)."""
    buckets = long.filter((long.metric == BUCKETS) & long.increase.notnull() & long.le.notnull())
    key = [buckets[name] for name in ("cluster", "function", "window")]
    return buckets.group_by(*key, le_s=buckets.le).agg(calls=exact_sum(buckets.increase))


def _bucket_quantile(buckets: ir.Table, quantile: float) -> ir.Table:
    """Estimate a quantile of response times from cumulative buckets, linear within a bucket."""
    by_bound = buckets.rename(le="le_s", upto="calls")
    order = ibis.window(group_by=["cluster", "function", "window"], order_by="le")
    everything = ibis.window(group_by=["cluster", "function", "window"])
    by_bound = by_bound.mutate(
        low=by_bound.le.lag().over(order).fill_null(0.0),
        below=by_bound.upto.lag().over(order).fill_null(0.0),
        wanted=by_bound.upto.max().over(everything) * quantile,
    )
    hit = by_bound.filter(
        (by_bound.wanted > 0) & (by_bound.upto >= by_bound.wanted) & (by_bound.below < by_bound.wanted)
    )
    inside = hit.low + (hit.le - hit.low) * (hit.wanted - hit.below) / (hit.upto - hit.below)
    hit = hit.mutate(estimate=ibis.ifelse(hit.le.isinf(), hit.low, inside))
    return hit.group_by("cluster", "function", "window").agg(quantile=hit.estimate.min())


def from_log(requests: ir.Table) -> ir.Table:
    """Functions of a day from the request log; ``requests`` are good, unique and have their function."""
    named = requests.filter(requests.function.notnull())
    named = named.mutate(window=window_of(named.t))
    rows = named.group_by("cluster", "function", "window").agg(
        requests=named.count(),
        samples=named.count(),
        response_p95_s=named.duration_s.quantile(0.95),
        response_mean_s=exact_mean(named.duration_s),
    )
    unknown = ibis.null("float64")
    return rows.mutate(net_mb_per_request=unknown, disk_io_per_request=unknown, completeness=ibis.literal(1.0))


def with_log(gateway: ir.Table, log: ir.Table) -> ir.Table:
    """Rows from both: the log counts exactly and wins, the gateway adds what only it knows."""
    key = ["cluster", "function", "window"]
    logged = log.select("cluster").distinct().mutate(logged=True)
    gateway = gateway.left_join(logged, "cluster").select(*[gateway[name] for name in gateway.columns], logged.logged)
    # Where there is a log, a window without an entry had no arrival, whatever the gateway answered in it.
    gateway = gateway.mutate(requests=ibis.ifelse(gateway.logged.fill_null(False), 0, gateway.requests)).drop("logged")
    both = gateway.outer_join(log, key)

    def first(name: str) -> ir.Column:
        return ibis.coalesce(log[name], gateway[name]).name(name)

    names = ["requests", "response_mean_s", "response_p95_s", "net_mb_per_request", "disk_io_per_request"]
    rows = both.select(
        *[first(name) for name in [*key, *names, "completeness"]],
        samples=ibis.coalesce(log.samples, 0) + ibis.coalesce(gateway.samples, 0),
        filled=log.requests.isnull() & gateway.filled.fill_null(False),
        repaired=ibis.coalesce(gateway.repaired, 0),
    )
    return ended(rows)


def with_standard(rows: ir.Table) -> ir.Table:
    """Add the standard response: of the day's fastest windows."""
    standard = rows.group_by("cluster", "function").agg(today=rows.response_mean_s.quantile(FASTEST))
    joined = rows.left_join(standard, ["cluster", "function"])
    return joined.select(*[rows[name] for name in rows.columns], standard_response_s=standard.today)


def counted_by_pod(long: ir.Table) -> ir.Table:
    """How many requests each pod answered in each window, where the counter tells pods apart."""
    mine = long.filter((long.metric == "function_requests") & long.pod.notnull())
    total = exact_sum(mine.increase).round().cast("int64")
    return mine.group_by("cluster", "pod", "window").agg(requests_handled=total)
