"""Rows that were not trusted, as they were, with the rule that caught them."""

from __future__ import annotations

import ibis
import ibis.expr.types as ir
import msgspec
import pyarrow as pa

from pipeline.contracts.raw import TABLES
from pipeline.contracts.windows import QUARANTINE, WINDOW_SECONDS


def broken(table: str, rows: ir.Table, rule: ir.StringColumn) -> ir.Table:
    """Pick the raw rows that break a row rule."""
    marked = rows.mutate(rule=rule)
    return _as_it_was(table, marked.filter(marked.rule.notnull()))


def _as_it_was(table: str, rows: ir.Table) -> ir.Table:
    if "raw_metric" in rows.columns:
        rows = rows.mutate(metric=rows.raw_metric)
    return rows.select([*TABLES[table].names, "rule"])


def rejected(samples: ir.Table, found: ir.Table, keys: tuple[str, ...], rule: str) -> ir.Table:
    """Pick the raw rows of series samples that were rejected; ``found`` has keys, metric, t and value.

    Where a rejected sample has exact copies, one row is picked: the others were merged before.
    """
    predicates = [samples[name].identical_to(found[name]) for name in keys]
    predicates += [samples[name] == found[name] for name in ("metric", "t", "value")]
    joined = samples.semi_join(found, predicates)
    copies = ibis.window(group_by=[*keys, "metric", "t"], order_by="value")
    joined = joined.mutate(copy=ibis.row_number().over(copies))
    return _as_it_was("samples", joined.filter(joined["copy"] == 0).mutate(rule=ibis.literal(rule)))


def document(table: str, rows: pa.Table) -> pa.Table:
    """Turn raw rows with their rule into rows of the ``quarantine`` table."""
    names = TABLES[table].names
    seconds = [
        value // 1_000_000 for value in rows["time"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
    ]
    windows = [(second - second % WINDOW_SECONDS) * 1_000_000 for second in seconds]
    raw = [msgspec.json.encode(_plain(row)).decode() for row in rows.select(names).to_pylist()]
    columns = [
        pa.array(windows, pa.int64()).cast(QUARANTINE.field("window_start").type),
        rows["cluster"].cast(pa.string()),
        pa.array([table] * rows.num_rows, pa.string()),
        rows["rule"].cast(pa.string()),
        pa.array(raw, pa.string()),
    ]
    return pa.table(columns, schema=QUARANTINE)


def _plain(row: dict[str, object]) -> dict[str, object]:
    """Make values that JSON lacks readable: NaN and infinities become words."""
    return {
        name: str(value) if isinstance(value, float) and not -1e308 < value < 1e308 else value
        for name, value in row.items()
    }
