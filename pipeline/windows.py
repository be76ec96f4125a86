"""Window tables as datasets: time splits without overlap, and the arrays that environments replay.

Arrays are built once for a table's content and span, kept as ``.npy`` files under ``var/cache/windows`` and mapped
into memory read-only: any number of environments and processes share one copy.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
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

from pipeline import settings
from pipeline.contracts.windows import SCHEMA_VERSION, TABLES, VERSION_KEY
from pipeline.errors import DataError
from pipeline.prices import DEFAULT_USD_PER_HOUR
from sched_env.tables import NodeTable
from wire import closure
from wire.contracts.window import WINDOW_SECONDS
from wire.errors import ConfigError, ContractError

DEFAULT_NET_MB_S = 1000.0
DEFAULT_DISK_IOPS = 5000.0
"""Capacities of a node whose network or disk nobody reports: those of the functions scenarios."""
Arrays = dict[str, NDArray[np.generic]]


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


def splits(start: datetime, end: datetime, config: SplitConfig | None = None) -> Splits:
    """Divide ``[start, end)`` into train | validation | test, in that order, with gaps."""
    config = config or SplitConfig()
    windows = int((end - start).total_seconds()) // WINDOW_SECONDS
    usable = windows - 2 * config.gap_windows
    train, validation = int(usable * config.train), int(usable * config.validation)
    if min(train, validation, usable - train - validation) < 1:
        raise DataError(
            f"{start} to {end} has {windows} windows, {max(usable, 0)} without the gaps",
            "at least one window each for train, validation and test",
            "ask for more days, or lower splits.gap_windows",
        )
    step = timedelta(seconds=WINDOW_SECONDS)
    first = start + train * step
    second = first + config.gap_windows * step
    third = second + validation * step
    return Splits(
        Span(start, first), Span(second, third), Span(third + config.gap_windows * step, start + windows * step)
    )


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


def read(windows: Path, table: str, start: datetime, end: datetime, columns: list[str] | None = None) -> pa.Table:
    """Read the rows of one table whose window lies in ``[start, end)``, in the contract's order."""
    parts = []
    names = None if columns is None else list(dict.fromkeys(["window_start", *columns]))
    for file in files_of(windows, table, start, end):
        if (pq.read_schema(file).metadata or {}).get(VERSION_KEY) != str(SCHEMA_VERSION).encode():
            raise ContractError(
                f"{file}: not of window schema {SCHEMA_VERSION}", fix="run python -m pipeline.clean again"
            )
        part = pq.ParquetFile(file).read(columns=names)
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
    name = module.rpartition(".")[2]
    digest = hashlib.sha256(msgspec.json.encode([closure.fingerprint(module), key]))
    for file in files:
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    cache = settings.var() / "cache" / "windows"
    folder = cache / f"{name}-{digest.hexdigest()[:24]}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        arrays = build()
        temporary = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=cache))
        for column, values in arrays.items():
            np.save(temporary / f"{column}.npy", values, allow_pickle=False)
        try:
            temporary.rename(folder)
        except OSError:
            # Another process was faster; its files are the same.
            shutil.rmtree(temporary)
    return {file.stem: np.load(file, mmap_mode="r", allow_pickle=False) for file in sorted(folder.glob("*.npy"))}


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
