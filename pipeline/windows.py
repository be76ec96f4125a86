"""Window tables as datasets: time splits without overlap, and the arrays that environments replay.

Arrays are built once for a table's content and span, kept as ``.npy`` files under ``var/cache/windows`` and mapped
into memory read-only: any number of environments and processes share one copy.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
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
from pipeline.contracts.windows import SCHEMA_VERSION, TABLES, VERSION_KEY, WINDOW_SECONDS
from pipeline.errors import DataError
from pipeline.prices import DEFAULT_USD_PER_HOUR
from sched_env.functions.tables import SLO_FACTOR, FunctionTrace
from sched_env.tables import NodeTable
from sched_env.vm.tables import VmTrace
from wire.errors import ConfigError, ContractError

DEFAULT_NET_MB_S = 1000.0
DEFAULT_DISK_IOPS = 5000.0
"""Capacities of a node whose network or disk nobody reports: those of the functions scenarios."""
_LOADER = 1
"""Raised when an array's meaning changes, so that files of older code are not mapped."""

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
    for file in files_of(windows, table, start, end):
        if (pq.read_schema(file).metadata or {}).get(VERSION_KEY) != str(SCHEMA_VERSION).encode():
            raise ContractError(
                f"{file}: not of window schema {SCHEMA_VERSION}", fix="run python -m pipeline.clean again"
            )
        names = None if columns is None else list(dict.fromkeys(["window_start", *columns]))
        part = pq.ParquetFile(file).read(columns=names)
        keep = pc.and_(
            pc.greater_equal(part["window_start"], _scalar(start)), pc.less(part["window_start"], _scalar(end))
        )
        parts.append(part.filter(keep))
    if not parts:
        empty = TABLES[table].empty_table()
        return empty if columns is None else empty.select(columns)
    return pa.concat_tables(parts)


def _scalar(time: datetime) -> pa.Scalar:
    return pa.scalar(time, pa.timestamp("us", "UTC"))


def files_of(windows: Path, table: str, start: datetime, end: datetime) -> list[Path]:
    """List the files of one table that hold days of a span, in order."""
    low, high = start.date().isoformat(), (end - timedelta(microseconds=1)).date().isoformat()
    folders = (windows / table).glob("date=*")
    picked = [folder for folder in folders if low <= folder.name.removeprefix("date=") <= high]
    return sorted(file for folder in picked for file in folder.glob("*.parquet"))


def mapped(name: str, files: list[Path], key: object, build: Callable[[], Mapping[str, NDArray[np.generic]]]) -> Arrays:
    """Build arrays once and map them into memory; the same content and key gives the same files."""
    digest = hashlib.sha256(msgspec.json.encode([_LOADER, name, key]))
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


def function_trace(
    windows: Path, start: datetime, end: datetime, cluster: str | None = None
) -> tuple[FunctionTrace, NodeTable]:
    """Load function instances to place, and the nodes there were.

    Every pod created in ``[start, end)`` is one request: its size from the event (else from its metrics), its network
    and disk use and the requests it answered from its windows, its SLO from its function's standard response. A life
    that goes on beyond ``end`` is cut there: nothing of a later split is seen.

    Args:
        windows: Folder of window tables.
        start: First moment.
        end: First moment after it.
        cluster: One cluster; None takes all, with names spelled ``cluster/name`` when there are several.
    """
    whole = span(windows)
    files = [file for table in ("pods", "functions") for file in files_of(windows, table, start, end)]
    files += files_of(windows, "events", whole.start, whole.end)
    key = ["functions", start, end, cluster]
    arrays = mapped("function-trace", files, key, lambda: _build_functions(windows, start, end, cluster))
    names = tuple(str(name) for name in arrays.pop("function_names"))
    trace = FunctionTrace(**arrays, function_names=names)  # type: ignore[arg-type]
    return trace, node_table(windows, start, end, cluster)


def frame_of(
    windows: Path, table: str, start: datetime, end: datetime, cluster: str | None, columns: list[str]
) -> pd.DataFrame:
    """Read columns of one table and span, of one cluster or all, as a data frame."""
    frame: pd.DataFrame = read(windows, table, start, end, ["cluster", *columns]).to_pandas()
    return frame if cluster is None else frame[frame["cluster"] == cluster]


def spelled(frame: pd.DataFrame, column: str, several: bool) -> pd.Series[str]:
    """Spell names so that they differ between clusters, where there are several."""
    return frame["cluster"] + "/" + frame[column] if several else frame[column]


def _build_functions(windows: Path, start: datetime, end: datetime, cluster: str | None) -> Arrays:
    columns = ["entity", "time", "kind", "action", "function", "cpu_cores", "mem_gib"]
    events = frame_of(windows, "events", start, end, cluster, columns)
    events = events[events["kind"] == "pod"]
    created = events[(events["action"] == "create") & events["function"].notna()]
    created = created.sort_values(["time", "cluster", "entity"]).drop_duplicates(["cluster", "entity"])
    if created.empty:
        raise DataError(
            f"{windows} has no pod created between {start} and {end}",
            "events of pods with their function",
            "check the range, and that the source names the function of a pod",
        )
    deleted = events[events["action"] == "delete"].groupby(["cluster", "entity"])["time"].max().rename("deleted")
    used = ["cpu_request_cores", "mem_request_gib", "net_used_mean_mb_s", "disk_used_mean_iops", "requests_handled"]
    seen = frame_of(windows, "pods", start, end, cluster, ["pod", *used]).rename(columns={"pod": "entity"})
    pods = seen.groupby(["cluster", "entity"]).agg(
        cpu=("cpu_request_cores", "max"),
        mem=("mem_request_gib", "max"),
        net=("net_used_mean_mb_s", "mean"),
        disk=("disk_used_mean_iops", "mean"),
        requests=("requests_handled", "sum"),
    )
    functions = frame_of(windows, "functions", start, end, cluster, ["function", "standard_response_s"])
    standard = functions.groupby(["cluster", "function"])["standard_response_s"].min().rename("standard")
    rows = created.join(deleted, on=["cluster", "entity"]).join(pods, on=["cluster", "entity"])
    rows = rows.join(standard, on=["cluster", "function"])
    rows["cpu"] = rows["cpu_cores"].fillna(rows["cpu"])
    rows["mem"] = rows["mem_gib"].fillna(rows["mem"])
    cut = pd.Timestamp(end)
    rows["duration"] = (rows["deleted"].where(rows["deleted"] < cut, cut) - rows["time"]).dt.total_seconds()
    rows = rows[(rows["cpu"] > 0) & (rows["mem"] > 0) & (rows["duration"] > 0)]
    requests = rows["requests"].fillna(0).clip(lower=1, upper=np.iinfo(np.int32).max)
    response = rows["standard"].where(rows["standard"] > 0).fillna(rows["duration"] / requests)
    # Numbered over all days there are, so that a function has one number in train, validation and test.
    whole = span(windows)
    everywhere = frame_of(windows, "events", whole.start, whole.end, cluster, ["function"]).dropna()
    several = everywhere["cluster"].nunique() > 1
    names = np.unique(spelled(everywhere, "function", several).to_numpy(str))
    codes = np.searchsorted(names, spelled(rows, "function", several).to_numpy(str))
    return {
        "arrival_s": (rows["time"] - pd.Timestamp(start)).dt.total_seconds().to_numpy(np.float64),
        "function": codes.astype(np.int32),
        "cpu": rows["cpu"].to_numpy(np.float64),
        "mem": rows["mem"].to_numpy(np.float64),
        "net": rows["net"].fillna(0.0).to_numpy(np.float64),
        "disk": rows["disk"].fillna(0.0).to_numpy(np.float64),
        "requests": requests.to_numpy(np.int32),
        "duration_s": rows["duration"].to_numpy(np.float64),
        "slo_s": (SLO_FACTOR * response).to_numpy(np.float64),
        "response_s": response.to_numpy(np.float64),
        "function_names": names,
    }


def node_table(
    windows: Path, start: datetime, end: datetime, cluster: str | None = None, *, several: bool = False
) -> NodeTable:
    """Load the nodes seen in a span, each as it was last, in order of name.

    ``several``: spell names with their cluster even where only one has nodes, because other tables know more.
    """
    capacities = ["cpu_capacity_cores", "mem_capacity_gib", "net_capacity_mb_s", "disk_capacity_iops"]
    nodes = frame_of(windows, "nodes", start, end, cluster, ["node", *capacities, "price_usd_per_hour"])
    nodes = nodes.dropna(subset=capacities[:2]).sort_values(["cluster", "node", "window_start"])
    nodes = nodes.drop_duplicates(["cluster", "node"], keep="last")
    if nodes.empty:
        raise DataError(
            f"{windows} has no node with cpu and memory capacity between {start} and {end}",
            "at least one",
            "check that the source reports capacities",
        )
    return NodeTable(
        names=tuple(spelled(nodes, "node", several or nodes["cluster"].nunique() > 1)),
        cpu=nodes["cpu_capacity_cores"].to_numpy(np.float64),
        mem=nodes["mem_capacity_gib"].to_numpy(np.float64),
        net=nodes["net_capacity_mb_s"].fillna(DEFAULT_NET_MB_S).to_numpy(np.float64),
        disk=nodes["disk_capacity_iops"].fillna(DEFAULT_DISK_IOPS).to_numpy(np.float64),
        price_usd_per_hour=nodes["price_usd_per_hour"].fillna(DEFAULT_USD_PER_HOUR).to_numpy(np.float64),
    )


def vm_trace(windows: Path, start: datetime, end: datetime, cluster: str | None = None) -> VmTrace:
    """Load creations and deletions of VMs in order of time, deletions first within one moment."""
    files = files_of(windows, "events", start, end)
    arrays = mapped("vm-trace", files, [start, end, cluster], lambda: _build_vms(windows, start, end, cluster))
    return VmTrace(**arrays)  # type: ignore[arg-type]


def _build_vms(windows: Path, start: datetime, end: datetime, cluster: str | None) -> Arrays:
    events = frame_of(
        windows, "events", start, end, cluster, ["entity", "time", "kind", "action", "cpu_cores", "mem_gib"]
    )
    events = events[events["kind"] == "vm"]
    created = events[events["action"] == "create"].groupby(["cluster", "entity"])[["cpu_cores", "mem_gib"]].first()
    known = events[["cluster", "entity"]].join(created, on=["cluster", "entity"])
    # A deletion seldom says how large its VM was; one of a VM from before the span has no size and is left out.
    events = events.assign(
        cpu=events["cpu_cores"].where(events["cpu_cores"] > 0).fillna(known["cpu_cores"]),
        mem=events["mem_gib"].where(events["mem_gib"] > 0).fillna(known["mem_gib"]),
    ).dropna(subset=["cpu", "mem"])
    if events.empty:
        raise DataError(
            f"{windows} has no VM created between {start} and {end}", "events of kind vm", "check the range"
        )
    events = events.sort_values(["time", "action", "cluster", "entity"], ascending=[True, False, True, True])
    numbers, _ = pd.factorize(events["cluster"] + "/" + events["entity"])
    return {
        "vmid": numbers.astype(np.int64),
        "cpu": events["cpu"].to_numpy(np.float64),
        "mem": events["mem"].to_numpy(np.float64),
        "time": (events["time"] - pd.Timestamp(start)).dt.total_seconds().to_numpy(np.float64),
        "kind": (events["action"] == "delete").to_numpy(np.int8),
    }
