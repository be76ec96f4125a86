"""Samples as numbers: every label set gets an id once, so that the millions of rows carry four numbers each.

A *label set* is what a source wrote beside a value. A *series* is what one counter or gauge is about: label sets that
differ only in labels (a pod's node, when it moved) or in a metric's old name belong to one series.
"""

from __future__ import annotations

from dataclasses import dataclass

import ibis
import ibis.expr.types as ir
import pyarrow as pa

from pipeline.clean import rules
from pipeline.clean.expressions import ended
from pipeline.clean.plan import Planner, promised

LABELS = ["cluster", "metric", "node", "pod", "function", "card", "detail", "le"]
IDENTITY = [
    "counter",
    "entity",
    "cluster",
    "canonical",
    "key_node",
    "key_pod",
    "key_function",
    "key_card",
    "key_detail",
    "key_le",
]
"""What a series is. Gauges come first: then a range of ids is a kind, and choosing a kind costs nothing."""
KEYS: dict[str, tuple[str, ...]] = {
    "node": ("cluster", "node"),
    "pod": ("cluster", "pod"),
    "function": ("cluster", "function", "pod", "detail", "le"),
    "card": ("cluster", "node", "card"),
}
"""What tells two series of one metric apart, by the kind of thing it is about; all else on a row is a label."""


@dataclass(frozen=True)
class Samples:
    """Good samples of a day and its margins, as numbers, with what the numbers stand for."""

    rows: ir.Table
    """``label`` and ``sid`` (ids), ``t`` (microseconds), ``value``, and whether the metric was ``renamed``."""
    labels: ir.Table
    """One row a label set: :data:`LABELS`, ``label``, ``sid``, ``rule`` and what is known of the metric."""
    series: ir.Table
    """One row a series: ``sid``, ``entity``, ``metric`` (canonical), its ``code``, ``thing``, ``cluster``, … ``le``."""
    present: frozenset[str]
    """Canonical metrics that have a series."""


def numbering(plan: Planner, rows: ibis.Schema, metrics: pa.Schema) -> None:
    """Add the queries that number label sets (``labels``) and series (``series``).

    They are about ``everything``, rows with their labels, and ``metrics``, what is known of them.
    """
    sets = _label_sets(promised("everything", rows), promised("metrics", metrics))
    labels = plan.numbered(sets, "labels", label=[*dict.fromkeys([*IDENTITY, *LABELS])], sid=IDENTITY)
    things = ["entity", "cluster", "node", "own_pod", "function", "card"]
    series = plan.numbered(_series(labels), "series", thing=things, family=["cluster", "metric"])
    by_metric = series.group_by("metric").agg(first_counter=series.sid.min(where=series.counter))
    plan.result("metrics", by_metric)


def _label_sets(rows: ir.Table, known: ir.Table) -> ir.Table:
    """The label sets of raw rows and the series they belong to; which rules they break."""
    sets = rows.select(LABELS).distinct()
    joined = sets.left_join(known, "metric").select(
        *[sets[name] for name in LABELS], *[known[name] for name in known.columns if name != "metric"]
    )
    joined = joined.mutate(rule=rules.label_rule(joined))

    def only(column: str, *entities: str) -> ir.Value:
        empty = ibis.null(joined[column].type())
        return ibis.ifelse(joined.entity.isin(list(entities)), joined[column], empty)

    return joined.mutate(
        key_node=only("node", "node", "card"),
        key_pod=only("pod", "pod", "function"),
        key_function=only("function", "function"),
        key_card=only("card", "card"),
        # Who counted: of several gateways each has counters of its own, which start again one by one.
        key_detail=only("detail", "function"),
        key_le=only("le", "function"),
    )


def _series(labels: ir.Table) -> ir.Table:
    """One row a series; ``thing`` will number nodes, pods, functions and cards, ``family`` metrics of a cluster."""
    good = labels.filter(labels.rule.isnull())
    series = good.group_by("sid").agg(
        entity=good.entity.max(),
        counter=good.counter.any(),
        metric=good.canonical.max(),
        code=good.code.max(),
        cluster=good.cluster.max(),
        node=good.key_node.max(),
        pod=good.key_pod.max(),
        function=good.key_function.max(),
        card=good.key_card.max(),
        detail=good.key_detail.max(),
        le=good.key_le.max(),
    )
    # A function's pods and buckets are series of the function.
    return series.mutate(own_pod=ibis.ifelse(series.entity == "pod", series.pod, ibis.null("string")))


def named(rows: ir.Table, series: ir.Table, entity: str) -> ir.Table:
    """Give rows of things their keys back, by ``thing``."""
    who = things(series, entity)
    joined = rows.inner_join(who, "thing")
    return ended(joined.select(*[rows[name] for name in rows.columns], *[who[name] for name in KEYS[entity]]))


def things(series: ir.Table, entity: str) -> ir.Table:
    """One row a ``thing``, with its keys."""
    mine = series.filter(series.entity == entity)
    return mine.group_by("thing").agg(**{name: mine[name].max() for name in KEYS[entity]})


def labelled(rows: ir.Table, labels: ir.Table) -> ir.Table:
    """Join raw rows to their label sets."""
    return rows.inner_join(labels, [rows[name].identical_to(labels[name]) for name in LABELS]).select(
        *[rows[name] for name in rows.columns],
        labels.label,
        labels.sid,
        labels.renamed,
        labels.rule.name("label_rule"),
        labels.never_zero,
        labels.largest,
    )


def row_rule(rows: ir.Table, span_us: tuple[int, int]) -> ir.StringColumn:
    """Name the first rule a labelled row breaks, or null."""
    return ibis.coalesce(
        ibis.ifelse(rules.outside(rows.t, span_us), "time_outside_day", ibis.null("string")),
        rows.label_rule,
        rules.value_rule(rows.value, rows.never_zero, rows.largest),
    )


def numbers(rows: ir.Table, span_us: tuple[int, int]) -> ir.Table:
    """Keep labelled rows that break no rule, as numbers."""
    good = ~rules.outside(rows.t, span_us) & rows.label_rule.isnull()
    good &= rules.value_is_good(rows.value, rows.never_zero, rows.largest)
    return rows.filter(good).select("label", "sid", "t", "value", "renamed")
