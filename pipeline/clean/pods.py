"""The ``pods`` table: what each pod asks for, gets, uses and answers, and where it is."""

from __future__ import annotations

import ibis
import ibis.expr.types as ir

from pipeline.clean import labels
from pipeline.clean.config import CleanConfig
from pipeline.clean.expressions import ended
from pipeline.clean.gaps import Column, wide
from pipeline.clean.nodes import GIB, MB, STATISTIC
from pipeline.clean.samples import Samples, things
from pipeline.contracts.windows import STATISTICS
from wire.contracts.window import WINDOW_SECONDS

USED = {
    "cpu": (["pod_cpu_seconds", "pod_cpu_used_cores"], "cores", 1.0),
    "mem": (["pod_mem_used_bytes"], "gib", GIB),
}
COLUMNS = {
    "cpu_request_cores": Column(["pod_cpu_request_cores"], "peak"),
    "mem_request_gib": Column(["pod_mem_request_bytes"], "peak", GIB),
    "gpu_request_cards": Column(["pod_gpu_request_cards"], "peak"),
    **{
        f"{resource}_used_{statistic}_{unit}": Column(metrics, STATISTIC[statistic], scale)
        for resource, (metrics, unit, scale) in USED.items()
        for statistic in STATISTICS
    },
    "net_used_mean_mb_s": Column(["pod_net_bytes", "pod_net_used_bytes_s"], "mean", MB),
    "disk_used_mean_iops": Column(["pod_disk_ops", "pod_disk_used_iops"], "mean"),
}

OF_HOME = ("home", "moves", "function", "owner_kind")


def pod_rows(long: ir.Table, samples: Samples, seen: ir.Table, config: CleanConfig) -> ir.Table:
    """Rows of ``pods`` but for what depends on nodes, events and requests."""
    rows = wide(long, samples, "pod", COLUMNS, config)
    named, homes = things(samples.series, "pod"), labels.homes(seen)
    joined = named.left_join(homes, "thing")
    who = ended(joined.select(*[named[name] for name in named.columns], *[homes[name] for name in OF_HOME]))
    movers = who.filter(who.moves)
    places = labels.places(seen.semi_join(movers, "thing"))
    trails = _trails(rows.select("thing", "window").semi_join(movers, "thing"), places)
    joined = rows.inner_join(who, "thing").left_join(trails, ["thing", "window"])
    return ended(
        joined.select(
            *[rows[name] for name in rows.columns],
            who.cluster,
            who.pod,
            who.function,
            who.owner_kind,
            node=ibis.coalesce(trails.node, who.home),
            moved=trails.moved.fill_null(False),
        )
    )


def _trails(rows: ir.Table, places: ir.Table) -> ir.Table:
    """Where pods that move were in each of their windows: as told, else as before (before the first, as first told)."""
    joined = rows.left_join(places, ["thing", "window"])
    told = ibis.ifelse(places.node.isnull(), ibis.null("int64"), rows.window)
    rows = ended(joined.select(rows.thing, rows.window, places.several, at=told))
    order = {"group_by": "thing", "order_by": "window"}
    first = rows["at"].min().over(ibis.window(group_by="thing"))
    upto, before = (rows["at"].max().over(ibis.window(**order, preceding=(None, end))) for end in (0, 1))
    new = rows.window.lag().over(ibis.window(**order)).isnull()
    rows = rows.mutate(
        at=ibis.coalesce(upto, first), before=ibis.ifelse(new, ibis.null("int64"), ibis.coalesce(before, first))
    )
    was = places.view()
    joined = rows.left_join(places, [rows.thing == places.thing, rows["at"] == places.window]).left_join(
        was, [rows.thing == was.thing, rows.before == was.window]
    )
    moved = rows.several.fill_null(False) | (was.node != places.node).fill_null(False)
    return ended(joined.select(rows.thing, rows.window, places.node, moved=moved))


def complete_pods(pods: ir.Table, nodes: ir.Table, handled: ir.Table) -> ir.Table:
    """Add what each pod gets: all cpu of its node shared in proportion to requests, memory as asked.

    A pod that came or went inside the window counts for the part of it that it was there. ``nodes`` are complete.
    """
    there = nodes.select("cluster", "node", "window", "cpu_capacity_cores", "cpu_requested_cores")
    joined = pods.left_join(there, ["cluster", "node", "window"]).left_join(handled, ["cluster", "pod", "window"])
    share = there.cpu_capacity_cores * pods.cpu_request_cores / there.cpu_requested_cores.nullif(0.0)
    return joined.select(
        *[pods[name] for name in pods.columns],
        handled.requests_handled,
        cpu_assigned_cores=share,
        mem_assigned_gib=ibis.ifelse(pods.node.notnull(), pods.mem_request_gib, None),
    )


WINDOWS_TO_BE_GONE = 2
"""A pod that has not been seen for this many windows at the end of a day has been deleted."""
GONE_US = WINDOWS_TO_BE_GONE * WINDOW_SECONDS * 1_000_000
