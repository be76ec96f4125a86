"""The ``pods`` table: what each pod asks for, gets, uses and answers, and where it is."""

from __future__ import annotations

import ibis
import ibis.expr.types as ir

from pipeline.cleaning.config import CleanConfig
from pipeline.cleaning.gaps import Column, wide
from pipeline.cleaning.nodes import GIB, MB, STATISTIC
from pipeline.cleaning.samples import named
from pipeline.cleaning.series import exact_sum
from pipeline.contracts.windows import STATISTICS, WINDOW_SECONDS

USED = {
    "cpu": (["pod_cpu_seconds", "pod_cpu_used_cores"], "cores", 1.0),
    "mem": (["pod_mem_used_bytes"], "gib", GIB),
}
COLUMNS = {
    "cpu_request_cores": Column(["pod_cpu_request_cores"], "peak"),
    "mem_request_gib": Column(["pod_mem_request_bytes"], "peak", GIB),
    **{
        f"{resource}_used_{statistic}_{unit}": Column(metrics, STATISTIC[statistic], scale)
        for resource, (metrics, unit, scale) in USED.items()
        for statistic in STATISTICS
    },
    "net_used_mean_mb_s": Column(["pod_net_bytes", "pod_net_used_bytes_s"], "mean", MB),
    "disk_used_mean_iops": Column(["pod_disk_ops", "pod_disk_used_iops"], "mean"),
}


def pod_rows(long: ir.Table, series: ir.Table, places: ir.Table, config: CleanConfig) -> ir.Table:
    """Rows of ``pods`` but for what depends on nodes, events and requests."""
    rows = wide(long, series.filter(series.entity == "pod"), COLUMNS, config)
    joined = rows.left_join(places, ["thing", "window"])
    rows = joined.select(*[rows[name] for name in rows.columns], places.node, places.several, places.function)
    rows = rows.select(rows.columns)  # ends the join: Ibis would take the next one for a part of it
    life = ibis.window(group_by="thing")
    so_far = ibis.window(group_by="thing", order_by="window", preceding=(None, 0))
    # A label lost in some scrapes is the one before (before the first, the first); a function never changes.
    rows = rows.mutate(known=rows.node.count().over(so_far), function=rows.function.max().over(life))
    first = ibis.ifelse(rows.known == 1, rows.node, ibis.null("string")).max().over(life)
    since = ibis.window(group_by=["thing", "known"])
    rows = rows.mutate(
        node=ibis.coalesce(rows.node.max().over(since), first), several=rows.several.fill_null(False)
    ).drop("known")
    before = rows.node.lag().over(ibis.window(group_by="thing", order_by="window"))
    rows = rows.mutate(moved=rows.several | (before != rows.node).fill_null(False)).drop("several")
    return named(rows, series, "pod")


def complete_pods(pods: ir.Table, nodes: ir.Table, handled: ir.Table) -> ir.Table:
    """Add what each pod gets: all cpu of its node shared in proportion to requests, memory as asked.

    A pod that came or went inside the window counts for the part of it that it was there.
    """
    capacity = nodes.select("cluster", "node", "window", "cpu_capacity_cores")
    joined = pods.left_join(capacity, ["cluster", "node", "window"]).left_join(handled, ["cluster", "pod", "window"])
    rows = joined.select(*[pods[name] for name in pods.columns], capacity.cpu_capacity_cores, handled.requests_handled)
    together = ibis.window(group_by=["cluster", "node", "window"])
    asked = exact_sum(rows.cpu_request_cores * rows.present_ratio, together)
    share = rows.cpu_capacity_cores * rows.cpu_request_cores / asked.nullif(0.0)
    placed = rows.node.notnull()
    return rows.mutate(
        cpu_assigned_cores=ibis.ifelse(placed, share, ibis.null("float64")),
        mem_assigned_gib=ibis.ifelse(placed, rows.mem_request_gib, ibis.null("float64")),
    ).drop("cpu_capacity_cores")


WINDOWS_TO_BE_GONE = 2
"""A pod that has not been seen for this many windows at the end of a day has been deleted."""
GONE_US = WINDOWS_TO_BE_GONE * WINDOW_SECONDS * 1_000_000
