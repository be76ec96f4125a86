"""How much of each window a pod was there, and pods that were there though no scrape saw them."""

from __future__ import annotations

import ibis
import ibis.expr.types as ir

from pipeline.clean.expressions import SECOND_US, WINDOW_US, ended, window_of
from wire.contracts.window import WINDOW_SECONDS

KEY = ["cluster", "pod", "window"]

NEARLY = 1e-9


def lives(source_events: ir.Table) -> ir.Table:
    """When each pod that events tell of came and went (null: not on this day), and what they tell of it."""
    mine = source_events.filter(source_events.kind == "pod")
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
        gpus=mine.gpus.max(),
        owner_kind=mine.owner_kind.max(),
    )
    # A pod that is deleted before it is created (again, under its old name) was there before, and one that is created
    # after it was deleted is there still.
    before = (pods.first_deleted < pods.created).fill_null(False)
    still = (pods.last_created > pods.deleted).fill_null(False)
    nothing = ibis.null("int64")
    return pods.mutate(
        begin=ibis.ifelse(before, nothing, pods.created), end=ibis.ifelse(still, nothing, pods.deleted)
    ).drop("created", "deleted", "first_deleted", "last_created")


def absences(source_events: ir.Table) -> ir.Table:
    """Share of each window (``away``) between two lives of a pod whose name was given again, as a StatefulSet does."""
    mine = source_events.filter(source_events.kind == "pod").select("cluster", "t", "action", pod="entity")
    order = ibis.window(group_by=["cluster", "pod"], order_by=["t", "action"])
    rows = mine.mutate(back=mine.t.lead().over(order), then=mine.action.lead().over(order))
    gaps = rows.filter((rows.action == "delete") & (rows.then == "create"))
    touched = ibis.range(window_of(gaps.t), window_of(gaps.back) + WINDOW_SECONDS, WINDOW_SECONDS).unnest()
    gaps = gaps.mutate(window=touched)
    gaps = gaps.mutate(away=_overlap(gaps.window, gaps.t, gaps.back))
    return gaps.group_by(KEY).agg(away=gaps.away.sum())


def with_presence(pods: ir.Table, pod_lives: ir.Table | None, away: ir.Table | None) -> ir.Table:
    """Add ``present_ratio``, and measure ``completeness`` against the part of the window that the pod was there.

    Where a cluster's events tell, that part is theirs. Elsewhere a pod was there as long as it was scraped in its first
    and last window, and throughout in between.
    """
    rows = pods.mutate(present_ratio=ibis.ifelse(pods.outer, pods.completeness, 1.0))
    if pod_lives is not None and away is not None:
        tellers = pod_lives.select("cluster").distinct().mutate(by_events=True)
        joined = rows.left_join(pod_lives, ["cluster", "pod"]).left_join(tellers, "cluster").left_join(away, KEY)
        overlap = _overlap(rows.window, pod_lives.begin, pod_lives.end) - away.away.fill_null(0.0)
        # Clocks differ: a pod may be scraped a moment before it is created.
        by_events = ibis.ifelse(overlap > 0, overlap, rows.completeness)
        # Use may be scraped a moment before what the pod asks for and whose it is, or in the last moment of a pod that
        # has completed when that is asked.
        told = {
            "node": pod_lives.node,
            "function": pod_lives.function,
            "owner_kind": pod_lives.owner_kind,
            "cpu_request_cores": pod_lives.cpu_cores,
            "mem_request_gib": pod_lives.mem_gib,
            "gpu_request_cards": pod_lives.gpus,
        }
        known = {name: ibis.coalesce(rows[name], value) for name, value in told.items()}
        kept = [known.get(name, rows[name]).name(name) for name in rows.columns if name != "present_ratio"]
        present = ibis.ifelse(tellers.by_events.fill_null(False), by_events, rows.present_ratio)
        gone = away.away.fill_null(0.0) > 1 - NEARLY
        rows = ended(joined.select(*kept, present_ratio=present, gone=gone))
        # Between two lives a gap in the scrapes is no gap.
        rows = rows.filter(~rows.gone | (rows.samples > 0)).drop("gone")
    # Scrapes that must have hit that part; one that lies across its ends may or may not have.
    due = ibis.greatest((rows.present_ratio * rows.often).floor(), 1.0) / rows.often
    # In a gap nothing is known of it: the least of 1 and nothing would be 1.
    complete = ibis.least(1.0, (rows.completeness / due).fill_null(0.0))
    return rows.mutate(completeness=complete).drop("often", "outer")


def with_unseen(pods: ir.Table, pod_lives: ir.Table | None, requests: ir.Table) -> ir.Table:
    """Add empty rows for pods that answered requests in windows in which no scrape saw them.

    Only for pods that are known, from another window or from events: any other name in a log is a fault of the log,
    and validation shows it.
    """
    named = requests.filter(requests.pod.nullif("").notnull())
    named = named.mutate(window=window_of(named.t)).select(KEY).distinct().anti_join(pods, KEY)
    known = pods.group_by("cluster", "pod").agg(
        node=pods.node.argmax(pods.window, where=pods.node.notnull()),
        function=pods.function.max(),
        cpu_request_cores=pods.cpu_request_cores.max(),
        mem_request_gib=pods.mem_request_gib.max(),
        gpu_request_cards=pods.gpu_request_cards.max(),
        owner_kind=pods.owner_kind.max(),
    )
    if pod_lives is None:
        rows = ended(named.inner_join(known, ["cluster", "pod"]).select(*[named[name] for name in KEY], *_of(known)))
        rows = rows.mutate(present_ratio=ibis.literal(1.0))
    else:
        joined = named.left_join(known, ["cluster", "pod"]).left_join(pod_lives, ["cluster", "pod"])
        overlap = _overlap(named.window, pod_lives.begin, pod_lives.end)
        rows = joined.select(
            *[named[name] for name in KEY],
            known=pod_lives.pod.notnull() | known.pod.notnull(),
            node=ibis.coalesce(pod_lives.node, known.node),
            function=ibis.coalesce(pod_lives.function, known.function),
            cpu_request_cores=ibis.coalesce(known.cpu_request_cores, pod_lives.cpu_cores),
            mem_request_gib=ibis.coalesce(known.mem_request_gib, pod_lives.mem_gib),
            gpu_request_cards=ibis.coalesce(known.gpu_request_cards, pod_lives.gpus),
            owner_kind=ibis.coalesce(known.owner_kind, pod_lives.owner_kind),
            present_ratio=ibis.ifelse(overlap > 0, overlap, 1.0),
        )
        rows = rows.filter(rows.known).drop("known")
    zero, no = ibis.literal(0, "int64"), ibis.literal(False)
    quality = {"samples": zero, "completeness": ibis.literal(0.0), "filled": no, "repaired": zero, "moved": no}
    pods = pods.drop("thing")
    empty = {name: ibis.null(kind) for name, kind in pods.schema().items() if name not in (*rows.columns, *quality)}
    return ibis.union(pods, rows.mutate(**quality, **empty).select(pods.columns))


def _of(known: ir.Table) -> list[ir.Column]:
    return [known[name] for name in known.columns if name not in ("cluster", "pod")]


def _overlap(window: ir.Column, begin: ir.Column, end: ir.Column) -> ir.FloatingColumn:
    """Share of the window that lies between begin and end, where they are known; not above 0 when none does."""
    low = window * SECOND_US
    high = low + WINDOW_US
    until = ibis.least(end.fill_null(high), high)
    return (until - ibis.greatest(begin.fill_null(low), low)) / WINDOW_US
