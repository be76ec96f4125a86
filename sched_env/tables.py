"""Tables of parallel numpy arrays, checked once when they are built, so that kernels need no checks.

Here is what problems share: the table of nodes, and the checks of a column.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from wire.errors import TraceError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Table = TypeVar("Table", bound=Any)


def no_floats() -> Floats:
    """Return the value of a column that was left out."""
    return np.empty(0)


def listed(items: Ints, first: Ints, stop: Ints, lists: int) -> tuple[NDArray[np.int32], Ints]:
    """Put each item into the lists from ``first`` up to ``stop``; return them one after another, and where each begins.

    There is one entry more than lists: the end of the last.
    """
    count = np.maximum(stop - first, 0)
    at = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
    order = np.argsort(at, kind="stable")
    sizes = np.bincount(at, minlength=lists)
    return np.repeat(items, count)[order].astype(np.int32), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def first_rows(table: Table, rows: int) -> Table:
    """Return a table of rows with only the first of them: columns are its arrays of one axis with an entry a row."""
    size = len(table)
    columns = {name: getattr(table, name) for name in table.__dataclass_fields__}
    cut = {
        name: values[:rows]
        for name, values in columns.items()
        if isinstance(values, np.ndarray) and values.shape == (size,)
    }
    return dataclasses.replace(table, **cut)


def column(table: str, name: str, values: Any, dtype: type, rows: int) -> NDArray[Any]:
    """Return a column as a contiguous array of its type; refuse another shape, or what is not of that type."""
    try:
        array: NDArray[Any] = np.ascontiguousarray(values, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise TraceError(f"{table}.{name}: {error}", f"{np.dtype(dtype)} values") from error
    if array.shape != (rows,):
        raise TraceError(f"{table}.{name} has shape {array.shape}", f"({rows},), one value a row")
    return array


def demand(table: str, name: str, values: NDArray[Any], legal: Callable[[Any], Any], expected: str) -> None:
    """Refuse a column that has a value which is not legal, naming its first such row."""
    bad = np.flatnonzero(~legal(values))
    if bad.size:
        raise TraceError(f"{table}.{name} row {bad[0]}: {values[bad[0]]}", expected)


def finite_at_least(low: float, *, strictly: bool = False) -> Callable[[Any], Any]:
    """Return the check that values are finite and not below (strictly: above) a limit."""
    return lambda values: np.isfinite(values) & (values > low if strictly else values >= low)


@dataclass(frozen=True)
class NodeTable:
    """The nodes function instances may be placed on."""

    names: tuple[str, ...]
    cpu: Floats
    """Cores."""
    mem: Floats
    """GiB."""
    net: Floats
    """MB/s."""
    disk: Floats
    """IOPS."""
    price_usd_per_hour: Floats
    speed: Floats = field(default_factory=no_floats)
    """What a core does in a second, relative to that of the trace's run times; left out: 1. Workflows take it into
    account; single function instances serve a stream of calls and live as long as it lasts."""
    domain: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    """Cluster of the node: what belongs to another one cannot go there; left out: one cluster."""

    def __post_init__(self) -> None:
        """Coerce the columns and refuse empty tables, doubled names and capacities that are not positive."""
        rows = len(self.names)
        if rows == 0 or len(set(self.names)) != rows:
            raise TraceError(f"NodeTable.names has {rows} entries, {len(set(self.names))} distinct", "distinct names")
        object.__setattr__(self, "names", tuple(self.names))
        if np.size(self.speed) == 0:
            object.__setattr__(self, "speed", np.ones(rows))
        domain = self.domain if np.size(self.domain) else np.zeros(rows)
        object.__setattr__(self, "domain", column("NodeTable", "domain", domain, np.int32, rows))
        for name in ("cpu", "mem", "net", "disk", "price_usd_per_hour", "speed"):
            values = column("NodeTable", name, getattr(self, name), np.float64, rows)
            strictly = name != "price_usd_per_hour"
            demand("NodeTable", name, values, finite_at_least(0, strictly=strictly), "a positive number")
            object.__setattr__(self, name, values)

    def __len__(self) -> int:
        return len(self.names)
