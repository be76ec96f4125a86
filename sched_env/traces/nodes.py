"""Tables of nodes that traces bring along."""

from __future__ import annotations

from pathlib import Path

from sched_env.tables import NodeTable
from sched_env.traces.reader import header, read_columns, read_text

COLUMNS = ("cpu", "mem", "net", "disk", "price_usd_per_hour")


def find(folder: Path, name: str) -> Path | None:
    """Return the path of ``name.csv`` or ``name.csv.gz`` in a folder, if it is there."""
    return next((path for path in (folder / f"{name}.csv.gz", folder / f"{name}.csv") if path.is_file()), None)


def read_nodes(path: Path) -> NodeTable:
    """Read a table of nodes: a CSV with the columns of ``NodeTable`` (``speed`` optional, names are made up)."""
    text = read_text(path)
    wanted = [*COLUMNS, *(["speed"] if "speed" in header(text) else [])]
    columns, _ = read_columns(path, text, {name: name for name in wanted}, lambda _: {})
    count = len(columns["cpu"])
    return NodeTable(names=tuple(f"node-{index:04d}" for index in range(count)), **columns)  # type: ignore[arg-type]
