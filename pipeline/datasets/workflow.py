"""``workflow`` from windows: recorded executions as DAGs to place, and the nodes of the clusters they ran in."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline import windows
from pipeline.datasets.dataset import Dataset, Rows
from pipeline.errors import DataError
from sched_env.scenarios import Scenario
from sched_env.tables import NodeTable
from sched_env.traces.wfinstances import Workflow
from sched_env.workflow.tables import Dag
from sched_env.workflow.trace import dag_of
from wire.errors import TraceError

_AMOUNTS = ["runtime_s", "cpu_cores", "mem_gib", "input_mb"]
_EXECUTION = ["time", "cluster", "workflow"]


class Executions(tuple[Dag, ...]):
    """Workflows in order of time, as environments take them, with the time that each began."""

    time_s: NDArray[np.float64]
    """From the start of the span."""

    @classmethod
    def of(cls, dags: list[Dag], time_s: list[float]) -> Executions:
        """Put workflows and their times together."""
        executions = cls(dags)
        executions.time_s = np.array(time_s)
        return executions


Trace = tuple[Executions, NodeTable]


def load(folder: Path, start: datetime, end: datetime) -> Trace:
    """Load the executions that began in ``[start, end)`` and can have ended in it: later ones are not known by then."""
    columns = ["cluster", "workflow", "time", "task", *_AMOUNTS, "parents", "parent_mb"]
    tasks = windows.read(folder, "tasks", start, end, columns).to_pandas()
    dags, began = [], []
    for (time, cluster, workflow), rows in tasks.groupby(_EXECUTION, sort=True):
        dag = _dag(f"{cluster}/{workflow}", rows, folder)
        if time + pd.Timedelta(seconds=_shortest_s(dag)) <= pd.Timestamp(end):
            dags.append(dag)
            began.append((time - pd.Timestamp(start)).total_seconds())
    if not dags:
        raise DataError(
            f"{folder} has no workflow that began and can have ended between {start} and {end}",
            "tasks of at least one execution",
            "check the range, and that the source lands tasks (docs/sources.md)",
        )
    clusters = sorted(set(tasks["cluster"]))
    return Executions.of(dags, began), windows.node_table(folder, start, end, clusters)


def _dag(name: str, tasks: pd.DataFrame, folder: Path) -> Dag:
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
    runtime, cpu, mem, outside = (tasks[column].to_numpy(np.float64) for column in _AMOUNTS)
    recorded = Workflow(
        name=name,
        task=tuple(at),
        runtime_s=runtime,
        cpu=cpu,
        mem=mem,
        machine=(None,) * len(at),
        edges=np.array(edges, np.int64).reshape(-1, 2),
        edge_mb=np.array(moved),
        input_mb=np.nan_to_num(outside),
        makespan_s=np.nan,
        executed_s=np.nan,
    )
    try:
        return dag_of(recorded)
    except TraceError as error:
        raise DataError(
            f"{folder}: {error}", fix="mend the execution where it comes from, or leave it out, and clean the day again"
        ) from error


def _shortest_s(dag: Dag) -> float:
    """Return how long a workflow takes at least: its critical path, with nothing to move."""
    parents: list[list[int]] = [[] for _ in range(len(dag))]
    for parent, child in dag.edges.tolist():
        parents[child].append(parent)
    end = dag.runtime_s.copy()
    for task in dag.order.tolist():
        end[task] += max((end[parent] for parent in parents[task]), default=0.0)
    return float(end.max())


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
    return Executions.of(more, dags.time_s.tolist()), nodes


DATASET = Dataset(load, starts, times_s, scaled)
