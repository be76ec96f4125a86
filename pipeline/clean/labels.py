"""What labels say over time: where pods are and whose they are, what kind of machine a node is, when pods lived."""

from __future__ import annotations

import ibis.expr.types as ir

from pipeline.clean.expressions import ended, window_of
from pipeline.clean.samples import Samples


def sightings(samples: Samples) -> ir.Table:
    """When each informative label set was seen in each window: its ``thing``, labels, ``window``, ``first``, ``last``.

    Info metrics exist to carry labels; only where pods have none is every pod sample read for its own.
    """
    wanted = ["node_info", "card_info", "pod_info"]
    labels = samples.labels
    telling = labels.canonical.isin(wanted)
    if "pod_info" not in samples.present:
        telling |= labels.entity == "pod"
    telling = labels.filter(labels.rule.isnull() & telling)
    rows = samples.rows.semi_join(telling, "label")
    rows = rows.mutate(window=window_of(rows.t))
    seen = rows.group_by("label", "window").agg(first=rows.t.min(), last=rows.t.max())
    series = samples.series
    told = telling.inner_join(series, "sid").select(
        telling.label,
        series.thing,
        *[telling[name].nullif("").name(name) for name in ("entity", "cluster", "node", "pod", "function", "detail")],
    )
    told = ended(told)
    return seen.inner_join(told, "label").drop("label")


def homes(seen: ir.Table) -> ir.Table:
    """One row a pod: its function and owner, which never change, a node, and whether it was on others (``moves``)."""
    mine = seen.filter(seen.entity == "pod")
    return mine.group_by("thing").agg(
        home=mine.node.max(),
        moves=(mine.node.min() != mine.node.max()).fill_null(False),
        function=mine.function.max(),
        owner_kind=mine.detail.max(),
    )


def places(seen: ir.Table) -> ir.Table:
    """Where each pod was in each window in which that is known: its last node, and whether it had several."""
    mine = seen.filter((seen.entity == "pod") & seen.node.notnull())
    return mine.group_by("thing", "window").agg(
        node=mine.node.argmax(mine["last"]), several=mine.node.min() != mine.node.max()
    )


def lifetimes(seen: ir.Table) -> ir.Table:
    """When each pod was first and last seen, in microseconds, within the day and its margins."""
    mine = seen.filter(seen.entity == "pod")
    return mine.group_by("cluster", "pod").agg(first=mine["first"].min(), last=mine["last"].max())


def details(seen: ir.Table, entity: str) -> ir.Table:
    """What the day's last info sample says about each node or card: its instance type or model."""
    mine = seen.filter((seen.entity == entity) & seen.detail.notnull())
    return mine.group_by("thing").agg(detail=mine.detail.argmax(mine["last"]))
