"""Window tables as datasets: time splits without overlap, and the arrays that environments replay.

Arrays are built once for a table's content and span, kept as ``.npy`` files under ``var/cache/windows`` and mapped
into memory, copy-on-write: any number of environments and processes share one copy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline import kept
from pipeline.contracts.windows import SCHEMA_VERSION, TABLES, VERSION_KEY
from pipeline.errors import DataError
from pipeline.prices import DEFAULT_USD_PER_HOUR
from sched_env.tables import NodeTable
from wire.contracts.window import WINDOW_SECONDS
from wire.errors import ConfigError, ContractError

DEFAULT_NET_MB_S = 1000.0
DEFAULT_DISK_IOPS = 5000.0
"""Capacities of a node whose network or disk nobody reports: those of the functions scenarios."""
Arrays = dict[str, NDArray[np.generic]]
STAGE = "windows"


class SplitConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section ``splits`` of ``params.yaml``: shares of the time there is, in this order."""

    train: float = 0.6
    """The largest share: what is learned from."""
    validation: float = 0.15
    """For choosing between checkpoints and seeds; the rest, after it, is the test that the gate sees."""
    gap_windows: int = 12
    """Windows dropped between two parts (an hour): most pods of one part are gone when the next begins."""

    def __post_init__(self) -> None:
        """Refuse shares that leave nothing for one of the three."""
        if not (0 < self.train < 1 and 0 < self.validation < 1 and self.train + self.validation < 1):
            raise ConfigError(
                f"splits.train is {self.train} and splits.validation {self.validation}",
                "positive shares that leave some of 1 for the test",
            )
        if self.gap_windows < 0:
            raise ConfigError(f"splits.gap_windows is {self.gap_windows}", "at least 0")


@dataclass(frozen=True)
class Span:
    """Time from ``start`` up to, not including, ``end``; both on window borders, UTC."""

    start: datetime
    end: datetime


@dataclass(frozen=True)
class Splits:
    """Three spans in order of time with a gap between them: no window is in two of them."""

    train: Span
    validation: Span
    test: Span


LEAST_PER_GAP = 16
"""A gap takes at most this part of the windows: half an hour of eight, the whole hour of sixteen or more."""


def splits(start: datetime, end: datetime, config: SplitConfig | None = None) -> Splits:
    """Divide ``[start, end)`` into train | validation | test, in that order, with gaps (short ones in short time)."""
    config = config or SplitConfig()
    windows = int((end - start).total_seconds()) // WINDOW_SECONDS
    gap = min(config.gap_windows, windows // LEAST_PER_GAP)
    usable = windows - 2 * gap
    train, validation = int(usable * config.train), int(usable * config.validation)
    if min(train, validation, usable - train - validation) < 1:
        share = min(config.train, config.validation, 1 - config.train - config.validation)
        raise DataError(
            f"{start} to {end} has {windows} windows ({windows * WINDOW_SECONDS / 3600:.3g} h), {usable} without gaps",
            f"at least one window each for train, validation and test, so some {int(1 / share) + 1} of them",
            "ask for more days, or for a larger share of the smallest part (section splits)",
        )
    step = timedelta(seconds=WINDOW_SECONDS)
    first = start + train * step
    second = first + gap * step
    third = second + validation * step
    return Splits(Span(start, first), Span(second, third), Span(third + gap * step, start + windows * step))


def days_of(windows: Path) -> list[date]:
    """List the days of a windows folder; there must be one."""
    try:
        days = sorted({date.fromisoformat(folder.name.removeprefix("date=")) for folder in windows.glob("*/date=*")})
    except ValueError as error:
        raise DataError(f"{windows} has a folder of no day: {error}", "folders <table>/date=YYYY-MM-DD") from error
    if not days:
        raise DataError(
            f"{windows} holds no windows", "folders <table>/date=YYYY-MM-DD", "run python -m pipeline.clean"
        )
    return days


def span(windows: Path) -> Span:
    """Return the days that a folder of window tables covers."""
    days = days_of(windows)
    first, last = (datetime(day.year, day.month, day.day, tzinfo=UTC) for day in (days[0], days[-1]))
    return Span(first, last + timedelta(days=1))


def covered(windows: Path) -> Span:
    """Return the time that window tables really hold, from the first window to the end of the last: what is split.

    Eight hours of a day are eight hours; whole days would put all of them into the first split.
    """
    days = days_of(windows)
    tables = [name for name in TABLES if name != "quarantine"]
    ends = [[_ends(windows, table, day) for table in tables] for day in (days[0], days[-1])]
    first = min((low for low, _ in filter(None, ends[0])), default=None)
    last = max((high for _, high in filter(None, ends[1])), default=None)
    if first is None or last is None:  # a day of nothing but quarantine, at an end
        return span(windows)
    return Span(first, last + timedelta(seconds=WINDOW_SECONDS))


def _ends(windows: Path, table: str, day: date) -> tuple[datetime, datetime] | None:
    """Return the first and last window of a table and day, from the files' footers."""
    found = []
    for file in (windows / table / f"date={day.isoformat()}").glob("*.parquet"):
        with file.open("rb") as content:
            about = pq.read_metadata(content)
        column = about.schema.names.index("window_start")
        groups = [about.row_group(number).column(column).statistics for number in range(about.num_row_groups)]
        found += [(group.min, group.max) for group in groups if group is not None and group.has_min_max]
    return (min(low for low, _ in found), max(high for _, high in found)) if found else None


def standards(windows: Path, end: datetime) -> pd.Series[float]:
    """Return the standard response of functions, by cluster and function: of the fastest day that ended by then."""
    functions = frame_of(windows, "functions", span(windows).start, end, ["function", "standard_response_s"])
    fastest: pd.Series[float] = functions.groupby(["cluster", "function"])["standard_response_s"].min()
    return fastest


def read(windows: Path, table: str, start: datetime, end: datetime, columns: list[str] | None = None) -> pa.Table:
    """Read the rows of one table whose window lies in ``[start, end)``, in the contract's order."""
    parts = []
    names = None if columns is None else list(dict.fromkeys(["window_start", *columns]))
    for file in files_of(windows, table, start, end):
        with file.open("rb") as content:
            whole = pq.ParquetFile(content)
            if (whole.schema_arrow.metadata or {}).get(VERSION_KEY) != str(SCHEMA_VERSION).encode():
                raise ContractError(
                    f"{file}: not of window schema {SCHEMA_VERSION}", fix="run python -m pipeline.clean again"
                )
            names = None if columns is None else list(dict.fromkeys(["window_start", *columns]))
            part = whole.read(columns=names)
        keep = pc.and_(
            pc.greater_equal(part["window_start"], _scalar(start)), pc.less(part["window_start"], _scalar(end))
        )
        parts.append(part.filter(keep))
    if not parts:
        empty = TABLES[table].empty_table()
        return empty if names is None else empty.select(names)
    return pa.concat_tables(parts)


def _scalar(time: datetime) -> pa.Scalar:
    return pa.scalar(time, pa.timestamp("us", "UTC"))


def files_of(windows: Path, table: str, start: datetime, end: datetime) -> list[Path]:
    """List the files of one table that hold days of a span, in order."""
    low, high = start.date().isoformat(), (end - timedelta(microseconds=1)).date().isoformat()
    folders = (windows / table).glob("date=*")
    picked = [folder for folder in folders if low <= folder.name.removeprefix("date=") <= high]
    return sorted(file for folder in picked for file in folder.glob("*.parquet"))


def mapped(
    module: str, files: list[Path], key: object, build: Callable[[], Mapping[str, NDArray[np.generic]]]
) -> Arrays:
    """Build arrays once and map them into memory; the same content, key and code give the same files.

    Args:
        module: Whose ``build`` it is: files made by other code than its present one are not mapped.
        files: What the arrays are made of.
        key: What else they depend on.
        build: Makes them.
    """
    contents = [kept.digest_of(file) for file in files]
    folder = kept.place(STAGE, module.rpartition(".")[2], (module,), key, contents)
    if not kept.there(folder):
        arrays = build()
        with kept.made(folder) as unfinished:
            for column, values in arrays.items():
                np.save(unfinished / f"{column}.npy", values, allow_pickle=False)
        kept.forget(STAGE)
    # "c", not "r": nothing that is written reaches the file either way, but for an array that says it cannot be written
    # to numba compiles every kernel once more, half a minute each.
    return {file.stem: np.load(file, mmap_mode="c", allow_pickle=False) for file in sorted(folder.glob("*.npy"))}


def frame_of(windows: Path, table: str, start: datetime, end: datetime, columns: list[str]) -> pd.DataFrame:
    """Read columns of one table and span as a data frame, ``cluster`` and ``window_start`` among them."""
    frame: pd.DataFrame = read(windows, table, start, end, ["cluster", *columns]).to_pandas()
    return frame


def spelled(frame: pd.DataFrame, column: str, several: bool) -> pd.Series[str]:
    """Spell names so that they differ between clusters, where there are several."""
    return frame["cluster"] + "/" + frame[column] if several else frame[column]


def node_table(windows: Path, start: datetime, end: datetime, clusters: Collection[str]) -> NodeTable:
    """Load the nodes of some clusters seen in a span, each as it was last, in order of name.

    Names are spelled with their cluster where there are several.
    """
    capacities = ["cpu_capacity_cores", "mem_capacity_gib", "net_capacity_mb_s", "disk_capacity_iops"]
    allocatable = ["cpu_allocatable_cores", "mem_allocatable_gib"]
    nodes = frame_of(windows, "nodes", start, end, ["node", *capacities, *allocatable, "price_usd_per_hour"])
    for total, left in zip(capacities[:2], allocatable, strict=True):  # pods may ask for what the system leaves
        nodes[total] = nodes[left].fillna(nodes[total])
    nodes = (
        nodes[nodes["cluster"].isin(clusters)]
        .dropna(subset=capacities[:2])
        .sort_values(["cluster", "node", "window_start"])
    )
    nodes = nodes.drop_duplicates(["cluster", "node"], keep="last")
    if nodes.empty:
        raise DataError(
            f"{windows} has no node with cpu and memory capacity between {start} and {end}",
            f"at least one in {', '.join(sorted(clusters)) or 'some cluster'}",
            "check that the source reports capacities",
        )
    return NodeTable(
        names=tuple(spelled(nodes, "node", len(clusters) > 1)),
        cpu=nodes["cpu_capacity_cores"].to_numpy(np.float64),
        mem=nodes["mem_capacity_gib"].to_numpy(np.float64),
        net=nodes["net_capacity_mb_s"].fillna(DEFAULT_NET_MB_S).to_numpy(np.float64),
        disk=nodes["disk_capacity_iops"].fillna(DEFAULT_DISK_IOPS).to_numpy(np.float64),
        price_usd_per_hour=nodes["price_usd_per_hour"].fillna(DEFAULT_USD_PER_HOUR).to_numpy(np.float64),
        domain=np.searchsorted(sorted(clusters), nodes["cluster"].to_numpy(str)).astype(np.int32),
    )


GAP_WINDOWS = 3
"""So many windows without a word of a node are a gap in the metrics; more, while others report, and it was down."""


def up(
    folder: Path, start: datetime, end: datetime, clusters: Collection[str], names: Collection[str]
) -> NDArray[np.bool_]:
    """Return [windows, nodes]: which nodes of :func:`node_table` were up in each window of a span."""
    count = int((end - start).total_seconds()) // WINDOW_SECONDS
    nodes = frame_of(folder, "nodes", start, end, ["node", "active"])
    nodes = nodes[nodes["cluster"].isin(clusters)]
    if nodes.empty:
        return np.ones((count, len(names)), np.bool_)
    nodes["name"] = spelled(nodes, "node", len(clusters) > 1)
    nodes["window"] = ((nodes["window_start"] - pd.Timestamp(start)).dt.total_seconds() // WINDOW_SECONDS).astype(int)
    told = nodes.pivot_table(index="window", columns="name", values="active", aggfunc="min").astype(float)
    told = told.reindex(index=np.arange(count), columns=list(names))
    cluster = nodes.drop_duplicates("name").set_index("name")["cluster"].reindex(list(names))
    silent = told.isna().T.groupby(cluster.to_numpy()).all().T[cluster.to_numpy()].to_numpy()
    known = told.ffill(limit=GAP_WINDOWS).bfill(limit=GAP_WINDOWS)
    # When nobody of a cluster reports, nothing is known of any node: it is as it was.
    known = known.where(known.notna() | silent, 0.0).ffill().bfill()
    return np.asarray(known.fillna(0.0).to_numpy() > 0.5)
