"""``workflow`` from windows: recorded executions as DAGs to place, among what else their cluster ran at that time."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline import windows
from pipeline.contracts.calibration import Calibration
from pipeline.contracts.evaluation import Origin
from pipeline.datasets.copies import Copies, copied
from pipeline.datasets.dataset import Dataset, Rows, later
from pipeline.datasets.origins import Tally
from pipeline.errors import DataError
from sched_env.scenarios import Scenario
from sched_env.tables import Floats, Ints, NodeTable
from sched_env.workflow.features import fits
from sched_env.workflow.tables import Dag, Surroundings
from sched_env.workflow.trace import ASSUMED_CORES, ASSUMED_GIB
from wire.contracts.window import WINDOW_SECONDS
from wire.errors import TraceError

_EXECUTION = ["time", "cluster", "workflow"]
OWNER = "Workflow"
"""Kind of what makes the pods of an execution (Argo Workflows)."""
BEFORE = timedelta(days=1)
"""How far back an execution can have begun of which a task still runs."""
SPEED = "speed_of_"
"""With the instance type behind it: a value of the calibration."""

ABOUT: dict[str, tuple[str, str]] = {
    "run time": ("makespan_s", "the run time of each task"),
    "size": ("makespan_s", "cores and memory of tasks (requests of their pods)"),
    "links": ("makespan_s", "the parents of tasks, from the workflow engine (spans, or its own records)"),
    "time to move data": ("makespan_s", "parent_mb of tasks and the network capacity of nodes, or start_s of tasks"),
    "recorded node": ("", "the node of each task"),
    "starting state": ("makespan_s", "start_s and node of tasks: what ran beside an execution"),
    "node size": ("makespan_s", "capacities of nodes (kube-state-metrics or node-exporter)"),
    "price": ("", "ingest.prices: a CSV of instance_type and usd_per_hour"),
}
"""Feature -> what it decides and what would measure it."""


class Executions(tuple[Dag, ...]):
    """Workflows in order of time, as environments take them, with what is known beside their DAGs."""

    time_s: NDArray[np.float64]
    """When each began, from the start of the span."""
    start_s: tuple[NDArray[np.float64], ...]
    """When each of its tasks began, from its own start; NaN: nobody says."""
    functions: tuple[tuple[str, ...], ...]
    """What each task calls; "": nobody says."""
    types: tuple[str, ...] = ()
    """Instance type of each node; "": nobody says."""

    @classmethod
    def of(
        cls,
        dags: list[Dag],
        time_s: list[float],
        start_s: list[Floats],
        functions: list[tuple[str, ...]],
        types: tuple[str, ...],
    ) -> Executions:
        """Put workflows and what is known of them together."""
        executions = cls(dags)
        executions.time_s, executions.start_s = np.array(time_s), tuple(start_s)
        executions.functions, executions.types = tuple(functions), types
        return executions

    def replaced(self, dags: list[Dag]) -> Executions:
        """Return the same executions with other DAGs."""
        return self.of(dags, self.time_s.tolist(), list(self.start_s), list(self.functions), self.types)

    @property
    def node(self) -> Ints:
        """Where all tasks were recorded, one after another."""
        return np.concatenate([dag.node for dag in self]) if self else np.empty(0, np.int64)


Trace = tuple[Executions, NodeTable]


def load(folder: Path, start: datetime, end: datetime) -> Trace:
    """Load the executions that began in ``[start, end)`` and have ended in it: later ones are not known by then.

    Each begins among the tasks of others that still ran, and takes of a node what other pods left of it.
    """
    return _load(folder, start, end, Tally())


def origins(folder: Path, start: datetime, end: datetime) -> list[Origin]:
    """Say where the numbers of a span come from."""
    tally = Tally()
    _load(folder, start, end, tally)
    return [Origin(name, *counts, *ABOUT[name]) for name, counts in tally.counts.items()]


def _load(folder: Path, start: datetime, end: datetime, tally: Tally) -> Trace:
    tasks = _tasks(folder, start, end)
    ended = tasks.groupby(_EXECUTION)["finish"].transform("max") <= (end - start).total_seconds()
    asked = tasks[(tasks["began"] >= 0.0) & ended]
    if asked.empty:
        raise DataError(
            f"{folder} has no workflow that began and can have ended between {start} and {end}",
            "tasks of at least one execution",
            "check the range, and that the source lands tasks (docs/sources.md)",
        )
    clusters = sorted(set(asked["cluster"]))
    nodes = windows.node_table(folder, start, end, clusters)
    types, priced = _about_nodes(folder, start, end, clusters, nodes)
    tasks = tasks[tasks["cluster"].isin(clusters)]
    home = pd.Index(nodes.names).get_indexer(pd.Index(windows.spelled(tasks, "node", len(clusters) > 1).fillna("")))
    tasks = tasks.assign(home=home)
    _count(tally, tasks.loc[asked.index], nodes, priced)
    free = _free(folder, start, end, clusters, nodes)
    running = tasks[tasks["home"] >= 0].sort_values("begin", kind="stable")
    there, own = running[["home", "finish", "cpu", "mem"]].to_numpy(np.float64), running.index.to_numpy()
    begin = running["begin"].to_numpy(np.float64)
    dags: list[Dag] = []
    began: list[float] = []
    starts: list[Floats] = []
    functions: list[tuple[str, ...]] = []
    # Column by column and not frame by frame: there are thousands of executions.
    mine = tasks.loc[asked.index]
    index, names = mine.index.to_numpy(), mine["function"].fillna("").to_numpy()
    columns = {name: mine[name].to_numpy() for name in mine.columns}
    groups: dict[Any, NDArray[np.int64]] = mine.groupby(_EXECUTION).indices  # type: ignore[assignment]
    for (_, cluster, workflow), rows in sorted(groups.items()):
        now = float(columns["began"][rows[0]])
        dag = _dag(f"{cluster}/{workflow}", {name: values[rows] for name, values in columns.items()}, folder)
        room = free[min(int(now // WINDOW_SECONDS), len(free) - 1)].copy()
        room[nodes.domain != clusters.index(cluster)] = 0.0
        before = int(np.searchsorted(begin, now, side="right"))
        beside = there[:before][(there[:before, 1] > now) & ~np.isin(own[:before], index[rows])]
        beside[:, 1] -= now
        around = Surroundings(_with_room(dag, room, nodes, clusters.index(cluster)), beside)
        dags.append(dataclasses.replace(dag, around=around))
        began.append(now)
        starts.append(columns["start_s"][rows].astype(np.float64))
        functions.append(tuple(names[rows]))
    return Executions.of(dags, began, starts, functions, types), nodes


def _tasks(folder: Path, start: datetime, end: datetime) -> pd.DataFrame:
    """Return tasks with ``began`` of their execution, ``begin`` and ``finish``: seconds from the start of the span."""
    amounts = ["runtime_s", "cpu_cores", "mem_gib", "input_mb", "start_s"]
    columns = ["workflow", "time", "task", "node", "function", *amounts, "parents", "parent_mb", "estimated"]
    rows = windows.frame_of(folder, "tasks", start - BEFORE, end, columns)
    rows["began"] = (rows["time"] - pd.Timestamp(start)).dt.total_seconds()
    rows["sized"] = rows["cpu_cores"].gt(0) & rows["mem_gib"].gt(0)
    rows["cpu"] = rows["cpu_cores"].where(rows["cpu_cores"] > 0, ASSUMED_CORES).astype(float)
    rows["mem"] = rows["mem_gib"].where(rows["mem_gib"] > 0, ASSUMED_GIB).astype(float)
    rows["told"] = rows["start_s"].notna()
    untold = rows[(~rows["told"]).groupby([rows[name] for name in _EXECUTION]).transform("any")]
    guessed = [_earliest(group) for _, group in untold.groupby(_EXECUTION)]
    started = rows["start_s"].fillna(pd.concat(guessed)) if guessed else rows["start_s"]
    rows["begin"] = rows["began"] + started.astype(float)
    rows["finish"] = rows["begin"] + rows["runtime_s"]
    return rows


def _earliest(rows: pd.DataFrame) -> pd.Series[float]:
    """Return when tasks begin if nothing but their parents holds them up: where nobody tells when they did."""
    parents = dict(zip(rows["task"], rows["parents"], strict=True))
    run = dict(zip(rows["task"], rows["runtime_s"], strict=True))
    begin: dict[str, float] = {}
    open_ = list(parents)
    for _ in range(len(parents)):  # a cycle ends here too, and is refused where the DAG is made
        later_ = []
        for task in open_:
            ids = parents[task].split(" ") if isinstance(parents[task], str) else []
            if all(one in begin or one not in parents for one in ids):
                begin[task] = max((begin[one] + run[one] for one in ids if one in begin), default=0.0)
            else:
                later_.append(task)
        if not later_ or len(later_) == len(open_):
            break
        open_ = later_
    return rows["task"].map(begin).fillna(0.0)


def _dag(name: str, tasks: Mapping[str, NDArray[Any]], folder: Path) -> Dag:
    at = {task: position for position, task in enumerate(tasks["task"])}
    edges: list[tuple[int, int]] = []
    moved: list[float] = []
    for task, parents, amounts in zip(tasks["task"], tasks["parents"], tasks["parent_mb"], strict=True):
        ids = parents.split(" ") if isinstance(parents, str) else []
        unknown = [parent for parent in ids if parent not in at]
        if unknown:
            raise DataError(
                f"{folder}: task {task!r} of {name!r} has the parent {unknown[0]!r}",
                "a task of the same execution",
                "clean the day again: such executions are quarantined",
            )
        edges += [(at[parent], at[task]) for parent in ids]
        moved += [float(mb) for mb in amounts.split(" ")] if isinstance(amounts, str) else [0.0] * len(ids)
    try:
        return Dag(
            name=name,
            runtime_s=tasks["runtime_s"].astype(np.float64),
            cpu=tasks["cpu"].astype(np.float64),
            mem=np.maximum(tasks["mem"].astype(np.float64), 1.0 / 1024.0),
            edges=np.array(edges, np.int64).reshape(-1, 2),
            edge_mb=np.array(moved),
            input_mb=np.nan_to_num(tasks["input_mb"].astype(np.float64)),
            node=tasks["home"].astype(np.int64),
        )
    except TraceError as error:
        raise DataError(
            f"{folder}: {error}", fix="mend the execution where it comes from, or leave it out, and clean the day again"
        ) from error


def _about_nodes(
    folder: Path, start: datetime, end: datetime, clusters: list[str], nodes: NodeTable
) -> tuple[tuple[str, ...], NDArray[np.bool_]]:
    """Return the instance type of each node, and whether its price and network are known: [nodes, 2]."""
    told = windows.frame_of(
        folder, "nodes", start, end, ["node", "instance_type", "price_usd_per_hour", "net_capacity_mb_s"]
    )
    told = told[told["cluster"].isin(clusters)]
    told["name"] = windows.spelled(told, "node", len(clusters) > 1)
    last = told.groupby("name").last().reindex(list(nodes.names))
    known = last[["price_usd_per_hour", "net_capacity_mb_s"]].notna().to_numpy()
    return tuple(last["instance_type"].fillna("")), known


def _free(folder: Path, start: datetime, end: datetime, clusters: list[str], nodes: NodeTable) -> Floats:
    """Return [windows, nodes, 2]: what pods that are no tasks leave of each node; nothing of one that is down."""
    up = windows.up(folder, start, end, clusters, list(nodes.names))
    up = up if len(up) else np.ones((1, len(nodes)), np.bool_)  # less than a window
    free = np.where(up[:, :, None], np.stack([nodes.cpu, nodes.mem], axis=1)[None], 0.0)
    columns = ["node", "owner_kind", "cpu_request_cores", "mem_request_gib", "present_ratio"]
    pods = windows.frame_of(folder, "pods", start, end, columns)
    pods = pods[pods["cluster"].isin(clusters) & (pods["owner_kind"] != OWNER)].dropna(subset=["node"])
    home = np.asarray(pd.Index(nodes.names).get_indexer(pd.Index(windows.spelled(pods, "node", len(clusters) > 1))))
    elapsed = (pods["window_start"] - pd.Timestamp(start)).dt.total_seconds()
    window = np.asarray(elapsed // WINDOW_SECONDS, np.int64)
    inside = (home >= 0) & (window < len(free))
    for resource, column in enumerate(("cpu_request_cores", "mem_request_gib")):
        held = (pods[column].fillna(0.0) * pods["present_ratio"].fillna(1.0)).to_numpy(np.float64)
        np.subtract.at(free[:, :, resource], (window[inside], home[inside]), held[inside])
    return np.maximum(free, 0.0)


def _with_room(dag: Dag, room: Floats, nodes: NodeTable, domain: int) -> Floats:
    """Raise the room to what the record proves: a task fits where it ran, and every task somewhere."""
    for column, need in enumerate((dag.cpu, dag.mem)):
        np.maximum.at(room[:, column], dag.node[dag.node >= 0], need[dag.node >= 0])
    whole = np.stack([nodes.cpu, nodes.mem], axis=1)
    room = np.minimum(room, whole)
    holds = fits(room[:, 0], room[:, 1], dag.cpu[:, None], dag.mem[:, None]).any(axis=1)
    mine = nodes.domain == domain
    return room if holds.all() else np.where(mine[:, None], whole, 0.0)


def _count(tally: Tally, tasks: pd.DataFrame, nodes: NodeTable, known: NDArray[np.bool_]) -> None:
    """Count where the numbers of the tasks and of their nodes come from."""
    tally.add("run time", np.ones(len(tasks), bool))
    tally.add("size", tasks["sized"].to_numpy())
    guessed = tasks["estimated"].fillna(False).to_numpy(bool)
    tally.add("links", ~guessed, guessed)
    linked = tasks["parents"].notna().to_numpy()
    amounts = tasks["parent_mb"].notna().to_numpy() & bool(known[:, 1].all())
    when = tasks["told"].to_numpy()
    # Where it is known when tasks began, what moving data took is part of the fitted delay.
    tally.add("time to move data", (amounts | ~linked), when)
    tally.add("recorded node", (tasks["home"] >= 0).to_numpy())
    tally.add("starting state", when & (tasks["home"] >= 0).to_numpy(), (tasks["home"] >= 0).to_numpy())
    tally.add("node size", np.ones(len(nodes), bool))
    tally.add("price", known[:, 0])


def starts(trace: Trace, _scenario: Scenario) -> Rows:
    """Every execution: an episode places one of them."""
    return np.arange(len(trace[0]))


def times_s(trace: Trace, rows: Rows) -> NDArray[np.float64]:
    """When executions began."""
    return trace[0].time_s[rows]


def scaled(trace: Trace, load: float) -> Trace:
    """Let ``load`` times as much data move: an episode is one workflow alone, so nothing arrives more densely."""
    dags, nodes = trace
    more = [dataclasses.replace(dag, edge_mb=dag.edge_mb * load, input_mb=dag.input_mb * load) for dag in dags]
    return dags.replaced(more), nodes


def resized(trace: Trace, scenario: Scenario, factor: float) -> tuple[Trace, Scenario]:
    """Let there be ``factor`` times as many nodes, with what ran on them; an episode is one workflow as before."""
    dags, nodes = trace
    copies = Copies.of(factor, nodes.domain, nodes.cpu, nodes.mem)
    grown = copied(nodes, copies)
    more = []
    for dag in dags:
        around = dag.around
        if around is not None:
            beside, home = copies.spread(around.there[:, 0], np.ones(len(around.there), np.bool_))
            there = np.column_stack([home, around.there[beside, 1:]])
            mine = int(nodes.domain[np.argmax(around.room.sum(axis=1))])
            at = dataclasses.replace(dag, node=copies.dealt(dag.node, 0))
            around = Surroundings(_with_room(at, around.room[copies.source], grown, mine), there)
        more.append(dataclasses.replace(dag, node=copies.dealt(dag.node, 0), around=around))
    return (dags.replaced(more), grown), scenario


def asked(trace: Trace, _scenario: Scenario, rows: Rows) -> NDArray[np.float64]:
    """Core-seconds that the tasks of a workflow take."""
    return np.array([float(trace[0][row].cpu @ trace[0][row].runtime_s) for row in rows])


def calibrated(trace: Trace, found: Calibration) -> Trace:
    """Give nodes their speed, and tasks the time they would have taken on a core of speed 1."""
    dags, nodes = trace
    by_type = {value.name.removeprefix(SPEED): value.value for value in found.values if value.name.startswith(SPEED)}
    speed = np.array([by_type.get(kind, 1.0) for kind in dags.types])
    if not by_type or (speed == 1.0).all():
        return trace
    at = [np.where(dag.node >= 0, speed[dag.node], 1.0) for dag in dags]
    more = [dataclasses.replace(dag, runtime_s=dag.runtime_s * own) for dag, own in zip(dags, at, strict=True)]
    return dags.replaced(more), dataclasses.replace(nodes, speed=nodes.speed * speed)


DATASET = Dataset(
    load,
    starts,
    times_s,
    scaled,
    origins=origins,
    calibrated=calibrated,
    fit=later("pipeline.calibrate.workflow", "fit"),
    check=later("pipeline.calibrate.workflow", "check"),
    decisive={"dispatch_s": "makespan_s"},
    resized=resized,
    asked=asked,
    asked_in="core-seconds",
)
