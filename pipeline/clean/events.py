"""The ``events`` table: creations and deletions as the source tells them, else as pods appear and disappear."""

from __future__ import annotations

import ibis
import ibis.expr.types as ir

from pipeline.clean.expressions import window_of
from pipeline.clean.nodes import GIB
from pipeline.clean.pods import GONE_US

OF_JOBS = ("gpus", "gpu_mem_gib", "data_gb", "epochs", "runtime_s")
"""What only events of the source tell."""
COLUMNS = ["cluster", "entity", "t", "window", "kind", "action", "node", "function", "cpu_cores", "mem_gib", *OF_JOBS]
COLUMNS += ["owner_kind"]
_SOURCE_COLUMNS = (
    "node",
    "function",
    "owner_kind",
    "cpu_cores",
    "mem_bytes",
    "gpus",
    "gpu_mem_bytes",
    "data_gb",
    "epochs",
    "runtime_s",
)
_SEEN = ("function", "cpu_cores", "mem_gib", "gpus", "owner_kind")
"""What the windows of a pod tell of it."""


def from_source(events: ir.Table) -> ir.Table:
    """Events of the source; rows with the same id, time and action are merged (``rows`` counts them)."""
    key = ["cluster", "entity", "t", "kind", "action"]
    rest = {name: events[name].max() for name in _SOURCE_COLUMNS}
    rows = events.group_by(key).agg(rows=events.count(), **rest)
    return rows.mutate(
        window=window_of(rows.t),
        node=rows.node.nullif(""),
        function=rows.function.nullif(""),
        owner_kind=rows.owner_kind.nullif(""),
        mem_gib=rows.mem_bytes * GIB,
        gpu_mem_gib=rows.gpu_mem_bytes * GIB,
    ).drop("mem_bytes", "gpu_mem_bytes")


def seen(lifetimes: ir.Table, pods: ir.Table, day: ir.Table) -> ir.Table:
    """Pod events from when each pod was first and last scraped.

    A pod known before midnight was not created today; one not seen for two windows has been deleted, and when that
    happened in the last windows of yesterday, the deletion is told at the first moment of today.
    """
    size = pods.group_by("cluster", "pod").agg(
        node_first=pods.node.argmin(pods.window, where=pods.node.notnull()),
        node_last=pods.node.argmax(pods.window, where=pods.node.notnull()),
        function=pods.function.max(),
        cpu_cores=pods.cpu_request_cores.max(),
        mem_gib=pods.mem_request_gib.max(),
        gpus=pods.gpu_request_cards.max(),
        owner_kind=pods.owner_kind.max(),
    )
    joined = lifetimes.left_join(size, ["cluster", "pod"]).cross_join(day)
    lives = joined.select(
        day.low,
        day.high,
        lifetimes.cluster,
        lifetimes.pod.name("entity"),
        lifetimes["first"],
        lifetimes["last"],
        *[size[name] for name in ("node_first", "node_last", *_SEEN)],
    )
    created = lives.filter((lives["first"] >= lives.low) & (lives["first"] < lives.high))
    created = created.mutate(t=created["first"], action=ibis.literal("create"), node=created.node_first)
    # Seen in yesterday's margin only: yesterday could not know yet.
    gone = lives.filter((lives["last"] >= lives.low - GONE_US) & (lives["last"] < lives.high - GONE_US))
    gone = gone.mutate(t=ibis.greatest(gone["last"], gone.low), action=ibis.literal("delete"), node=gone.node_last)
    columns = ["cluster", "entity", "t", "action", "node", *_SEEN]
    rows = ibis.union(created.select(columns), gone.select(columns))
    unknown = dict.fromkeys([name for name in OF_JOBS if name not in _SEEN], ibis.null("float64"))
    return rows.mutate(window=window_of(rows.t), kind=ibis.literal("pod"), **unknown)


def with_source_events(seen_rows: ir.Table, source_rows: ir.Table) -> ir.Table:
    """Add the source's own events; where it tells of a cluster's pods, sightings add nothing."""
    tellers = source_rows.filter(source_rows.kind == "pod").select("cluster").distinct()
    unseen = seen_rows.anti_join(tellers, "cluster")
    return ibis.union(source_rows.select(COLUMNS), unseen.select(COLUMNS))
