"""Read CSV columns of names, times and numbers; a bad row is an error naming file, line and reason, or is counted."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sched_env.traces.reader import Floats, read_text
from wire.errors import TraceError

_EMPTY = frozenset({"", "nan", "NaN"})
Texts = NDArray[np.object_]
Check = Callable[["Table"], Mapping[str, NDArray[np.bool_]]]
"""Looks at the columns; returns, for each reason a row may be bad, which rows are."""


@dataclass(frozen=True)
class Table:
    """Columns by name; all have one entry a row."""

    numbers: dict[str, Floats]
    texts: dict[str, Texts]
    skipped: int = 0
    """Bad rows left out, when told so."""

    def __len__(self) -> int:
        return len(next(iter({**self.numbers, **self.texts}.values()), ()))

    def take(self, keep: NDArray[Any]) -> Table:
        """Pick rows."""
        numbers = {name: column[keep] for name, column in self.numbers.items()}
        return Table(numbers, {name: column[keep] for name, column in self.texts.items()}, self.skipped)


@dataclass(frozen=True)
class Layout:
    """Which columns a file has, by what is in them; further columns are ignored."""

    numbers: Sequence[str] = ()
    """Must be finite numbers."""
    optional: Sequence[str] = ()
    """Numbers that may be left empty, or say ``nan``: NaN then."""
    texts: Sequence[str] = ()
    times: Mapping[str, str] | None = None
    """Column -> format of ``strptime``, or ``iso``; read as UTC, as seconds since 1970."""
    delimiter: str = ","

    def names(self) -> list[str]:
        """List the columns the file must have."""
        return [*self.numbers, *self.optional, *self.texts, *(self.times or {})]


def read_table(path: Path, layout: Layout, check: Check | None = None, *, skip_bad: bool = False) -> Table:
    """Read the columns of a layout, gzipped or not.

    Args:
        path: The file.
        layout: The columns wanted.
        check: Finds rows whose cells can be read but make no sense.
        skip_bad: Count and leave out bad rows instead of raising.
    """
    rows = csv.reader(io.StringIO(read_text(path)), delimiter=layout.delimiter)
    header = [name.strip() for name in next(rows, [])]
    for name in layout.names():
        if name not in header:
            raise TraceError(f"{path}, line 1: column {name!r} is missing", f"columns {', '.join(layout.names())}")
    bad: dict[int, str] = {}
    cells: list[list[str]] = []
    lines: list[int] = []
    for row in rows:
        if len(row) == len(header):
            cells.append(row)
            lines.append(rows.line_num)
        elif row:
            bad[rows.line_num] = f"{len(row)} cells, the header has {len(header)}"
    columns: dict[str, Sequence[str]] = dict(zip(header, zip(*cells, strict=True), strict=True)) if cells else {}
    wrong = np.zeros(len(cells), np.bool_)

    def blame(reason: str, which: NDArray[np.bool_]) -> None:
        for row in np.flatnonzero(which & ~wrong):
            bad[lines[row]] = reason
        wrong[which] = True

    numbers: dict[str, Floats] = {}
    for name in (*layout.numbers, *layout.optional):
        numbers[name], unreadable = _numbers(columns.get(name, ()), empty=name in layout.optional)
        blame(f"{name} is not a finite number", unreadable)
    for name, form in (layout.times or {}).items():
        numbers[name] = _times(columns.get(name, ()), form)
        blame(f"{name} is not a time", np.isnan(numbers[name]))
    table = Table(numbers, {name: np.array(columns.get(name, ()), dtype=object) for name in layout.texts})
    for reason, which in (check(table) if check and cells else {}).items():
        blame(reason, which)
    if bad and not skip_bad:
        line = min(bad)
        raise TraceError(f"{path}, line {line}: {bad[line]}", fix="mend the row, or have bad rows skipped (skip_bad)")
    if wrong.all():
        raise TraceError(f"{path} has no usable rows ({len(bad)} bad)")
    kept = table.take(~wrong) if wrong.any() else table
    return Table(kept.numbers, kept.texts, len(bad))


def _numbers(cells: Sequence[str], *, empty: bool) -> tuple[Floats, NDArray[np.bool_]]:
    """Convert cells; also which of them are not finite numbers."""
    texts = np.array(cells, dtype=object)
    blank = np.array([empty and cell.strip() in _EMPTY for cell in cells], dtype=np.bool_)
    texts[blank] = "nan"
    try:
        values = texts.astype(np.float64)
    except ValueError:
        values = np.array([_number(cell) for cell in texts], dtype=np.float64)
    return values, ~np.isfinite(values) & ~blank


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return np.nan


def _times(cells: Sequence[str], form: str) -> Floats:
    """Convert times; NaN where it cannot be done."""
    if form == "iso":
        try:
            return np.array(cells, dtype="datetime64[s]").astype(np.float64)
        except ValueError:
            form = "%Y-%m-%d %H:%M:%S"
    return np.array([_time(cell.strip(), form) for cell in cells], dtype=np.float64)


def _time(cell: str, form: str) -> float:
    try:
        return datetime.strptime(cell, form).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return np.nan
