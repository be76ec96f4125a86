"""How much of each window a pod was there, and pods that were there though no scrape saw them."""

from __future__ import annotations

import ibis
import ibis.expr.types as ir

from pipeline.cleaning.expressions import SECOND_US, WINDOW_US, window_of

KEY = ["cluster", "pod", "window"]


def lives(told: ir.Table) -> ir.Table:
    """When each pod that events tell of came and went (null: not on this day), and what they tell of it."""
    mine = told.filter(told.kind == "pod")
    created, deleted = mine.action == "create", mine.action == "delete"
    pods = mine.group_by("cluster", pod=mine.entity).agg(
        created=mine.t.min(where=created),
        deleted=mine.t.max(where=deleted),
        first_deleted=mine.t.min(where=deleted),
        last_created=mine.t.max(where=created),
        node=mine.node.max(),
        function=mine.function.max(),
        cpu_cores=mine.cpu_cores.max(),
        mem_gib=mine.mem_gib.max(),
    )
    # A pod that is deleted before it is created (again, under its old name) was there before, and one that is created
    # after it was deleted is there still.
    before = (pods.first_deleted < pods.created).fill_null(False)
    still = (pods.last_created > pods.deleted).fill_null(False)
    nothing = ibis.null("int64")
    return pods.mutate(
        begin=ibis.ifelse(before, nothing, pods.created), end=ibis.ifelse(still, nothing, pods.deleted)
    ).drop("created", "deleted", "first_deleted", "last_created")


def with_presence(pods: ir.Table, living: ir.Table) -> ir.Table:
    """Add ``present_ratio``, and measure ``completeness`` against the part of the window that the pod was there.

    Where a cluster's events tell, that part is theirs. Elsewhere a pod was there as long as it was scraped in its first
    and last window, and throughout in between.
    """
    tellers = living.select("cluster").distinct().mutate(told=True)
    joined = pods.left_join(living, ["cluster", "pod"]).left_join(tellers, "cluster")
    rows = joined.select(*[pods[name] for name in pods.columns], living.begin, living.end, tellers.told)
    scraped = ibis.ifelse(rows.outer, rows.completeness, 1.0)
    overlap = _overlap(rows)
    # Clocks differ: a pod may be scraped a moment before it is created.
    by_events = ibis.ifelse(overlap > 0, overlap, rows.completeness)
    rows = rows.mutate(present_ratio=ibis.ifelse(rows.told.fill_null(False), by_events, scraped))
    # Scrapes that must have hit that part; one that lies across its ends may or may not have.
    due = ibis.greatest((rows.present_ratio * rows.often).floor(), 1.0) / rows.often
    # In a gap nothing is known of it: the least of 1 and nothing would be 1.
    complete = ibis.least(1.0, (rows.completeness / due).fill_null(0.0))
    return rows.mutate(completeness=complete).drop("begin", "end", "told", "often", "outer")


def with_unseen(pods: ir.Table, living: ir.Table, requests: ir.Table) -> ir.Table:
    """Add empty rows for pods that answered requests in windows in which no scrape saw them.

    Only for pods that are known, from another window or from events: any other name in a log is a fault of the log,
    and validation shows it.
    """
    named = requests.filter(requests.pod.nullif("").notnull())
    named = named.mutate(window=window_of(named.t)).select(KEY).distinct().anti_join(pods, KEY)
    known = pods.group_by("cluster", "pod").agg(
        seen_node=pods.node.argmax(pods.window, where=pods.node.notnull()),
        seen_function=pods.function.max(),
        seen_cpu=pods.cpu_request_cores.max(),
        seen_mem=pods.mem_request_gib.max(),
    )
    joined = named.left_join(known, ["cluster", "pod"]).left_join(living, ["cluster", "pod"])
    rows = joined.select(
        *[named[name] for name in KEY],
        living.begin,
        living.end,
        known=living.pod.notnull() | known.pod.notnull(),
        node=ibis.coalesce(living.node, known.seen_node),
        function=ibis.coalesce(living.function, known.seen_function),
        cpu_request_cores=ibis.coalesce(known.seen_cpu, living.cpu_cores),
        mem_request_gib=ibis.coalesce(known.seen_mem, living.mem_gib),
    )
    rows = rows.filter(rows.known)
    overlap = _overlap(rows)
    zero, no = ibis.literal(0, "int64"), ibis.literal(False)
    quality = {"samples": zero, "completeness": ibis.literal(0.0), "filled": no, "repaired": zero, "moved": no}
    rows = rows.mutate(present_ratio=ibis.ifelse(overlap > 0, overlap, 1.0), **quality)
    pods = pods.drop("thing")
    empty = {name: ibis.null(kind) for name, kind in pods.schema().items() if name not in rows.columns}
    return ibis.union(pods, rows.mutate(**empty).select(pods.columns))


def _overlap(rows: ir.Table) -> ir.FloatingColumn:
    """Share of the window that lies between ``begin`` and ``end``; not above 0 when none does."""
    low = rows.window * SECOND_US
    high = low + WINDOW_US
    until = ibis.least(rows.end.fill_null(high), high)
    return (until - ibis.greatest(rows.begin.fill_null(low), low)) / WINDOW_US
