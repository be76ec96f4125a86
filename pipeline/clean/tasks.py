"""The ``tasks`` table: executions of workflows, whole or not at all."""

from __future__ import annotations

import ibis
import ibis.expr.types as ir

from pipeline.clean.expressions import ended, window_of
from pipeline.clean.nodes import GIB
from pipeline.clean.rules import task_rule
from pipeline.contracts.raw import TASKS

EXECUTION = ["cluster", "workflow", "t"]
CONTENT = [name for name in TASKS.names if name != "time"]


def judged(tasks: ir.Table, span_us: tuple[int, int]) -> ir.Table:
    """Add the ``rule`` that each raw row breaks, by itself or beside the others of its execution; null: none."""
    rows = tasks.mutate(own=task_rule(tasks, span_us))
    alike = rows.group_by([*CONTENT, "t", "own"]).agg(copies=rows.count())
    doubled = alike.group_by([*EXECUTION, "task"]).agg(contents=alike.count())
    linked = _parents(alike)
    joined = rows.left_join(doubled, [*EXECUTION, "task"]).left_join(linked, [*EXECUTION, "task"])
    rule = ibis.coalesce(
        rows.own,
        ibis.cases(
            (doubled.contents > 1, "doubled_task"),
            (linked.twice.fill_null(False), "parent_twice"),
            (linked.unknown.fill_null(False), "unknown_parent"),
            else_=ibis.null("string"),
        ),
    )
    rows = ended(joined.select(*[rows[name] for name in tasks.columns], found=rule))
    broken = rows.filter(rows.found.notnull()).select(EXECUTION).distinct().mutate(broken=True)
    joined = rows.left_join(broken, EXECUTION)
    beside = ibis.ifelse(broken.broken.fill_null(False), "broken_workflow", ibis.null("string"))
    names = [name for name in rows.columns if name != "found"]
    return ended(joined.select(*[rows[name] for name in names], rule=ibis.coalesce(rows.found, beside)))


def _parents(alike: ir.Table) -> ir.Table:
    """Tell of each task that has parents whether one is named twice, and whether one is no task of its execution."""
    told = alike.filter(alike.own.isnull() & (alike.parents.fill_null("") != ""))
    told = told.select(*EXECUTION, "task", parent=told.parents.split(" ").unnest())
    # A task that is there with two contents is `doubled_task`, so a parent counted in both does no harm.
    named = told.group_by([*EXECUTION, "task", "parent"]).agg(times=told.count())
    there = alike.select(*EXECUTION, parent="task").distinct().mutate(known=True)
    joined = named.left_join(there, [*EXECUTION, "parent"])
    rows = ended(joined.select(*[named[name] for name in named.columns], known=there.known.fill_null(False)))
    return rows.group_by([*EXECUTION, "task"]).agg(twice=(rows.times > 1).any(), unknown=(~rows.known).any())


def unique_tasks(tasks: ir.Table) -> ir.Table:
    """Merge rows that are alike in every column (``rows`` counts them), in the units of windows."""
    rows = tasks.group_by([*CONTENT, "t"]).agg(rows=tasks.count())
    empty = {name: rows[name].nullif("") for name in ("function", "node", "parents", "parent_mb")}
    return rows.mutate(window=window_of(rows.t), mem_gib=rows.mem_bytes * GIB, **empty).drop("mem_bytes")
