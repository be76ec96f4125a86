"""Read CSV columns, gzipped or not: fast when the file is clean, exact about file, line and reason when it is not."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wire.errors import TraceError

Floats = NDArray[np.float64]
Check = Callable[[Mapping[str, Floats]], Mapping[str, NDArray[np.bool_]]]
"""Looks at the columns; returns, for each reason a row may be bad, which rows are."""


class Columns(NamedTuple):
    """What was read."""

    values: dict[str, Floats]
    skipped: int
    """Bad rows left out, when told so."""


def read_list(path: Path) -> list[Any]:
    """Read a JSON list of jobs."""
    try:
        document = json.loads(read_text(path))
    except ValueError as error:
        raise TraceError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, list):
        raise TraceError(f"{path} holds a {type(document).__name__}", "a list of jobs")
    return document


def read_text(path: Path) -> str:
    """Return the text of a file, unpacked when its name ends in ``.gz``."""
    try:
        data = path.read_bytes()
        # With or without a byte-order mark, which spreadsheets write.
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except FileNotFoundError as error:
        raise TraceError(f"trace {path} does not exist", "the path of a trace file, or 'synthetic'") from error
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise TraceError(f"trace {path} cannot be read: {error}") from error


def pieces(path: Path, rows: int) -> Iterator[tuple[str, int]]:
    """Yield the text of a CSV file in pieces that memory can hold, and how many rows came before each.

    Every piece has the header as its first line. A file without a row is one piece.
    """
    try:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8-sig") as file:
            first, before = file.readline(), 0
            while (lines := list(islice(file, rows))) or not before:
                yield first + "".join(lines), before
                before += rows
    except FileNotFoundError as error:
        raise TraceError(f"trace {path} does not exist", "the path of a trace file") from error
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise TraceError(f"trace {path} cannot be read: {error}") from error


def header(text: str) -> list[str]:
    """Return the column names in the first line."""
    return [name.strip() for name in text.partition("\n")[0].split(",")]


def read_columns(
    path: Path, text: str, wanted: Mapping[str, str], check: Check, *, skip_bad: bool = False, before: int | None = None
) -> Columns:
    """Read numeric columns by name.

    Args:
        path: Named in errors.
        text: The file's text.
        wanted: Column in the file -> name of the result.
        check: Finds rows whose values are numbers but make no sense.
        skip_bad: Count and leave out bad rows instead of raising.
        before: Rows of the file that came before this text, when it is one of its :func:`pieces`, which alone may be
            without a usable row.
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
    lines, bad = lines + (before or 0), {line + (before or 0): reason for line, reason in bad.items()}
    columns = table.T.copy() if len(table) else np.empty((len(wanted), 0))
    values = dict(zip(wanted.values(), columns, strict=True))
    keep = np.ones(len(table), np.bool_)
    nonsense = {f"{name} is not finite": ~np.isfinite(column) for name, column in values.items()}
    for reason, rows in {**nonsense, **check(values)}.items():
        bad.update({int(lines[row]): reason for row in np.flatnonzero(rows)})
        keep &= ~rows
    if bad and not skip_bad:
        line = min(bad)
        raise TraceError(f"{path}, line {line}: {bad[line]}", fix="mend the row, or have bad rows skipped (skip_bad)")
    if before is None and not keep.any():
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
