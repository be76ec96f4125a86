"""Rows that were not trusted, as they were, with the rule that caught them."""

from __future__ import annotations

import ibis
import ibis.expr.types as ir
import msgspec
import pyarrow as pa

from pipeline.contracts.raw import TABLES
from pipeline.contracts.windows import QUARANTINE
from wire.contracts.window import WINDOW_SECONDS


def broken(table: str, marked: ir.Table) -> ir.Table:
    """Pick the raw rows that have a ``rule``: the one that they break."""
    return marked.filter(marked.rule.notnull()).select([*TABLES[table].names, "rule"])


def rejected(rows: ir.Table, found: ir.Table, *, copies: bool) -> ir.Table:
    """Pick the raw rows of samples that were rejected beside other rows.

    Args:
        rows: Labelled raw rows of the day.
        found: ``sid``, ``t``, ``value`` and ``rule`` of the rejected samples, each once.
        copies: Whether every copy was rejected; otherwise one row is picked, as the others were merged before.
    """
    joined = rows.inner_join(found, ["sid", "t", "value"]).select([*[rows[name] for name in rows.columns], found.rule])
    if not copies:
        order = ibis.window(group_by=["sid", "t"], order_by="value")
        joined = joined.mutate(copy=ibis.row_number().over(order))
        joined = joined.filter(joined["copy"] == 0)
    return joined.select([*TABLES["samples"].names, "rule"])


def document(table: str, rows: pa.Table) -> pa.Table:
    """Turn raw rows with their rule into rows of the ``quarantine`` table."""
    names = TABLES[table].names
    rows = rows.select([*names, "rule"]).cast(pa.schema([*_nullable(table), pa.field("rule", pa.string())]))
    seconds = [value // 1_000_000 for value in rows["time"].cast(pa.int64()).to_pylist()]
    windows = [(second - second % WINDOW_SECONDS) * 1_000_000 for second in seconds]
    raw = [msgspec.json.encode(_plain(row)).decode() for row in rows.select(names).to_pylist()]
    columns = [
        pa.array(windows, pa.int64()).cast(QUARANTINE.field("window_start").type),
        rows["cluster"],
        pa.array([table] * rows.num_rows, pa.string()),
        rows["rule"],
        pa.array(raw, pa.string()),
    ]
    return pa.table(columns, schema=QUARANTINE)


def _nullable(table: str) -> list[pa.Field]:
    """Columns of a raw table as every engine can fill them."""
    return [field.with_nullable(True) for field in TABLES[table]]


def _plain(row: dict[str, object]) -> dict[str, object]:
    """Make values that JSON lacks readable: NaN and infinities become words."""
    return {
        name: str(value) if isinstance(value, float) and not -1e308 < value < 1e308 else value
        for name, value in row.items()
    }
