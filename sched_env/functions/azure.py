"""Azure Functions 2019 (Shahrad et al., ATC 2020): calls a minute, durations and memory, turned into instances.

The data say how often a function was called in each minute and how long a call takes, not which container answered.
An instance here is one container for one minute: as many of them as the minute's calls keep busy, each answering its
share. What the data do not have is assumed, and said: one core for each 1769 MB (as AWS Lambda sells them), but at
least the time the calls keep a core busy; a little network and disk.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sched_env.functions.tables import FunctionTrace
from sched_env.traces.nodes import find
from sched_env.traces.reader import read_text
from wire.errors import TraceError

FILES = ("invocations", "durations", "memory")
KEY = "HashFunction"
MINUTE_S = 60.0
MB_PER_CORE = 1769.0
MIN_CORES, MIN_GIB, MIN_RESPONSE_S = 0.1, 0.0625, 0.001
MOST_CORES = 4.0
NET_MB_S, DISK_IOPS = 10.0, 100.0
Row = TypeVar("Row")


def read(folder: Path | str, *, skip_bad: bool = False, seed: int = 0) -> tuple[FunctionTrace, int]:
    """Read the three tables of a folder; returns the trace and the number of bad rows skipped.

    Args:
        folder: Holds ``invocations``, ``durations`` and ``memory`` as ``.csv`` or ``.csv.gz``.
        skip_bad: Count and leave out bad rows instead of raising.
        seed: Names the seconds within a minute at which instances begin.
    """
    folder = Path(folder)
    paths = {name: find(folder, name) for name in FILES}
    missing = [name for name, path in paths.items() if path is None]
    if missing:
        raise TraceError(f"{folder} has no {missing[0]}.csv or {missing[0]}.csv.gz", f"the tables {', '.join(FILES)}")
    seconds, bad_durations = _table(paths["durations"], _seconds, skip_bad)
    gib, bad_memory = _table(paths["memory"], _gib, skip_bad)
    calls, bad_calls = _table(paths["invocations"], _calls, skip_bad)
    names = [name for name in calls if name in seconds and name in gib]
    if not names:
        raise TraceError(f"{folder}: no function is in all three tables", f"the same {KEY} in each")
    skipped = bad_durations + bad_memory + bad_calls + len(calls) - len(names)
    return _instances(
        names, [calls[n] for n in names], [seconds[n] for n in names], [gib[n] for n in names], seed
    ), skipped


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.DictReader(io.StringIO(read_text(path)))
    if KEY not in (reader.fieldnames or ()):
        raise TraceError(f"{path}, line 1: column {KEY!r} is missing")
    for row in reader:
        yield reader.line_num, row


def _table(path: Path | None, convert: Callable[[dict[str, str]], Row], skip_bad: bool) -> tuple[dict[str, Row], int]:
    table: dict[str, Row] = {}
    skipped = 0
    if path is None:
        return table, skipped
    for line, row in _rows(path):
        try:
            if row[KEY] in table:
                raise ValueError(f"function {row[KEY][:12]}… is there twice")  # noqa: TRY301 - all reasons meet below
            table[row[KEY]] = convert(row)
        except (KeyError, TypeError, ValueError) as error:
            if not skip_bad:
                fix = "mend the row, or have bad rows skipped (skip_bad)"
                raise TraceError(f"{path}, line {line}: {error}", fix=fix) from error
            skipped += 1
    return table, skipped


def _positive(name: str, text: str) -> float:
    value = float(text)
    if not (np.isfinite(value) and value >= 0.0):
        raise ValueError(f"{name} is {text}")
    return value


def _seconds(row: dict[str, str]) -> float:
    return max(_positive("Average", row["Average"]) / 1000.0, MIN_RESPONSE_S)


def _gib(row: dict[str, str]) -> float:
    return max(_positive("AverageAllocatedMb", row["AverageAllocatedMb"]) / 1024.0, MIN_GIB)


def _calls(row: dict[str, str]) -> NDArray[np.int64]:
    minutes = sorted((int(name), value) for name, value in row.items() if name and name.isdecimal())
    if not minutes:
        raise ValueError("no minutes")
    calls = np.array([int(value) for _, value in minutes], np.int64)
    if calls.min() < 0:
        raise ValueError(f"{calls.min()} calls in a minute")
    return calls


def _instances(
    names: list[str], calls: list[NDArray[np.int64]], seconds: list[float], gib: list[float], seed: int
) -> FunctionTrace:
    rng = np.random.default_rng(seed)
    parts: list[tuple[NDArray[Any], ...]] = []
    for index, (minutes, response_s, mem) in enumerate(zip(calls, seconds, gib, strict=True)):
        minute = np.flatnonzero(minutes)
        count = minutes[minute]
        containers = np.minimum(np.ceil(count * response_s / MINUTE_S).astype(np.int64), count)
        which = np.repeat(np.arange(minute.size), containers)
        # The first containers of a minute take what does not divide evenly.
        position = np.arange(which.size) - np.repeat(np.cumsum(containers) - containers, containers)
        requests = (count // containers)[which] + (position < (count % containers)[which])
        cores = np.clip(np.maximum(requests * response_s / MINUTE_S, mem * 1024.0 / MB_PER_CORE), MIN_CORES, MOST_CORES)
        begin_s = minute[which] * MINUTE_S + rng.uniform(0.0, MINUTE_S, which.size)
        parts.append((begin_s, np.full(which.size, index), cores, requests))
    arrival_s, function, cpu, requests = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(arrival_s, kind="stable")
    function = function[order]
    own_s = np.array(seconds)[function]
    return FunctionTrace(
        arrival_s=arrival_s[order],
        function=function.astype(np.int32),
        cpu=cpu[order],
        mem=np.array(gib)[function],
        net=np.full(order.size, NET_MB_S),
        disk=np.full(order.size, DISK_IOPS),
        requests=requests[order].astype(np.int32),
        duration_s=np.maximum(MINUTE_S, own_s),
        response_s=own_s,
        function_names=tuple(names),
    )
