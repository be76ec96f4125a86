"""Read CSV columns, gzipped or not: fast when the file is clean, exact about file, line and reason when it is not."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sched_env.errors import TraceError

Floats = NDArray[np.float64]
Check = Callable[[Mapping[str, Floats]], Mapping[str, NDArray[np.bool_]]]
"""Looks at the columns; returns, for each reason a row may be bad, which rows are."""


class Columns(NamedTuple):
    """What was read."""

    values: dict[str, Floats]
    skipped: int
    """Bad rows left out, when told so."""


def read_text(path: Path) -> str:
    """Return the text of a file, unpacked when its name ends in ``.gz``."""
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except FileNotFoundError as error:
        raise TraceError(f"trace {path} does not exist", "the path of a trace file, or 'synthetic'") from error
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise TraceError(f"trace {path} cannot be read: {error}") from error


def header(text: str) -> list[str]:
    """Return the column names in the first line."""
    return [name.strip() for name in text.partition("\n")[0].split(",")]


def read_columns(path: Path, text: str, wanted: Mapping[str, str], check: Check, *, skip_bad: bool = False) -> Columns:
    """Read numeric columns by name.

    Args:
        path: Named in errors.
        text: The file's text.
        wanted: Column in the file -> name of the result.
        check: Finds rows whose values are numbers but make no sense.
        skip_bad: Count and leave out bad rows instead of raising.
    """
    names = header(text)
    missing = [column for column in wanted if column not in names]
    if missing:
        raise TraceError(f"{path}, line 1: column {missing[0]!r} is missing", f"columns {', '.join(wanted)}")
    body = text.partition("\n")[2]
    at = [names.index(column) for column in wanted]
    bad: dict[int, str] = {}
    try:
        table = np.loadtxt(io.StringIO(body), delimiter=",", usecols=at, ndmin=2) if body.strip() else np.empty((0, 0))
        lines = np.arange(2, 2 + len(table))
    except ValueError:
        table, lines, bad = _parse(body, names, at)
    values = dict(zip(wanted.values(), table.T.copy(), strict=True)) if len(table) else {}
    keep = np.ones(len(table), np.bool_)
    nonsense = {f"{name} is not finite": ~np.isfinite(column) for name, column in values.items()}
    for reason, rows in {**nonsense, **(check(values) if values else {})}.items():
        bad.update({int(lines[row]): reason for row in np.flatnonzero(rows)})
        keep &= ~rows
    if bad and not skip_bad:
        line = min(bad)
        raise TraceError(f"{path}, line {line}: {bad[line]}", fix="mend the row, or have bad rows skipped (skip_bad)")
    if not keep.any():
        raise TraceError(f"{path} has no usable rows ({len(bad)} bad)")
    return Columns({name: column[keep] for name, column in values.items()}, len(bad))


def _parse(body: str, names: list[str], at: list[int]) -> tuple[Floats, NDArray[np.int64], dict[int, str]]:
    """Parse line by line, remembering what is wrong where."""
    rows: list[list[float]] = []
    lines: list[int] = []
    bad: dict[int, str] = {}
    for number, line in enumerate(body.splitlines(), start=2):
        if not line.strip():
            continue
        cells = line.split(",")
        if len(cells) != len(names):
            bad[number] = f"{len(cells)} cells, the header has {len(names)}"
            continue
        try:
            rows.append([float(cells[column]) for column in at])
            lines.append(number)
        except ValueError as error:
            bad[number] = str(error)
    return np.array(rows).reshape(len(rows), len(at)), np.array(lines, np.int64), bad
