"""Function traces by name: a table, a folder or file of a known format, or ``synthetic``."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sched_env.functions import azure as azure_functions
from sched_env.functions import synthetic as synthetic_functions
from sched_env.functions.tables import FunctionTrace
from sched_env.scenarios import SYNTHETIC
from sched_env.tables import NodeTable
from sched_env.traces import snapshot as snapshots
from sched_env.traces.nodes import find, read_nodes
from sched_env.traces.reader import Floats, header, read_columns, read_text
from sched_env.traces.snapshot import is_snapshot
from wire.errors import ConfigError, TraceError

if TYPE_CHECKING:
    from sched_env.functions.scenario import ServerlessScenario

REQUIRED = ("arrival_s", "function", "cpu", "mem", "net", "disk", "requests", "duration_s")
OPTIONAL = ("slo_s", "response_s")
SNAPSHOT_LIFE_S = 600.0
"""How long the pods of a snapshot go on when all are placed: nobody leaves while others come."""


def read(path: Path | str, *, skip_bad: bool = False) -> tuple[FunctionTrace, NodeTable | None, int]:
    """Read a function trace; returns it, its nodes if it brings any, and the number of bad rows skipped.

    A file is a CSV with the columns of ``FunctionTrace`` (function as a number; ``slo_s``, ``response_s`` optional).
    A folder holds such a ``functions.csv`` and perhaps a ``nodes.csv`` (the columns of ``NodeTable``), or the three
    tables of Azure Functions. Everything may be gzipped. A JSON file is the snapshot of a live cluster.
    """
    path = Path(path)
    if is_snapshot(path):
        return *_read_snapshot(path), 0
    if not path.is_dir():
        trace, skipped = _read_tasks(path, skip_bad)
        return trace, None, skipped
    if find(path, "invocations"):
        trace, skipped = azure_functions.read(path, skip_bad=skip_bad)
        return trace, None, skipped
    tasks, nodes = find(path, "functions"), find(path, "nodes")
    if tasks is None:
        raise TraceError(f"{path} has no functions.csv", "functions.csv (and nodes.csv), or Azure's invocations.csv")
    trace, skipped = _read_tasks(tasks, skip_bad)
    return trace, read_nodes(nodes) if nodes else None, skipped


def _read_snapshot(path: Path) -> tuple[FunctionTrace, NodeTable]:
    """Take the pods of a live cluster as instances that come one after another, to be placed anew on its nodes."""
    snapshot, nodes = snapshots.read(path)
    pods = [pod for pod in snapshot.pods if pod.cpu_cores > 0.0 and pod.mem_gib > 0.0]
    if not pods:
        raise TraceError(f"{path} has no pod that requests cpu and memory", "one or more")
    names = {name: number for number, name in enumerate(sorted({pod.workload for pod in pods}))}
    size = len(pods)
    trace = FunctionTrace(
        arrival_s=np.arange(size, dtype=np.float64),
        function=np.array([names[pod.workload] for pod in pods], np.int32),
        cpu=np.array([pod.cpu_cores for pod in pods]),
        mem=np.array([pod.mem_gib for pod in pods]),
        net=np.zeros(size),
        disk=np.zeros(size),
        requests=np.ones(size, np.int32),
        duration_s=np.full(size, size + SNAPSHOT_LIFE_S),
        response_s=np.ones(size),
        function_names=tuple(names),
    )
    return trace, snapshots.node_table(nodes)


def _read_tasks(path: Path, skip_bad: bool) -> tuple[FunctionTrace, int]:
    text = read_text(path)
    wanted = [*REQUIRED, *(name for name in OPTIONAL if name in header(text))]
    columns, skipped = read_columns(path, text, {name: name for name in wanted}, _check, skip_bad=skip_bad)
    order = np.argsort(columns["arrival_s"], kind="stable")
    return FunctionTrace(**{name: values[order] for name, values in columns.items()}), skipped  # type: ignore[arg-type]


def _check(columns: Mapping[str, Floats]) -> dict[str, NDArray[np.bool_]]:
    bad = {f"{name} is not positive": ~(columns[name] > 0) for name in ("cpu", "mem", "duration_s")}
    bad.update({f"{name} is negative": columns[name] < 0 for name in ("net", "disk")})
    bad.update({f"{name} is not positive": ~(columns[name] > 0) for name in OPTIONAL if name in columns})
    bad["function is not a whole number"] = (columns["function"] < 0) | (columns["function"] % 1 != 0)
    bad["requests is not a whole number above 0"] = (columns["requests"] < 1) | (columns["requests"] % 1 != 0)
    return bad


def load(trace: Any, scenario: ServerlessScenario) -> tuple[FunctionTrace, NodeTable]:
    """Return the trace and nodes asked for, or the scenario's own; what was read before is not read again.

    ``trace`` is a (FunctionTrace, NodeTable) pair, a FunctionTrace for the scenario's nodes, a path, or None.
    """
    nodes = synthetic_functions.nodes(scenario.nodes, scenario.net_mb_s, scenario.disk_iops)
    if isinstance(trace, FunctionTrace):
        return trace, nodes
    if isinstance(trace, tuple):
        if len(trace) != 2 or not isinstance(trace[0], FunctionTrace) or not isinstance(trace[1], NodeTable):
            kinds = ", ".join(type(part).__name__ for part in trace)
            raise ConfigError(f"the trace is a tuple of {kinds}", "a (FunctionTrace, NodeTable) pair")
        return trace
    source = str(trace if trace is not None else scenario.trace)
    if source == SYNTHETIC:
        cores = float(nodes.cpu.sum())
        generated = _generated(
            scenario.workload, scenario.trace_rows, scenario.functions, cores, scenario.load, scenario.trace_seed
        )
        away = scenario.outages_per_hour, scenario.outage_s
        return synthetic_functions.outages(generated, len(nodes), *away, scenario.trace_seed), nodes
    path = Path(source)
    read_trace, own_nodes = _read_once(path, path.stat().st_mtime_ns if path.exists() else 0, scenario.skip_bad_rows)
    return read_trace, own_nodes or nodes


@lru_cache(maxsize=4)
def _read_once(path: Path, _modified_ns: int, skip_bad: bool) -> tuple[FunctionTrace, NodeTable | None]:
    trace, nodes, skipped = read(path, skip_bad=skip_bad)
    if skipped:
        warnings.warn(f"{path}: {skipped} bad rows skipped", stacklevel=4)
    return trace, nodes


@lru_cache(maxsize=4)
def _generated(workload: str, rows: int, functions: int, cores: float, load: float, seed: int) -> FunctionTrace:
    if workload == "tutorial":
        return synthetic_functions.tutorial(rows, functions, seed)
    return synthetic_functions.serverless(rows, functions, cores, load, seed)
