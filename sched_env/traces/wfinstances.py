"""WfInstances: real executions of scientific workflows (WfFormat 1.5), as tasks in topological order and edges."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sched_env.traces.reader import Floats, read_text
from wire.errors import TraceError

MB = 1e6
GIB = 2.0**30


@dataclass(frozen=True)
class Workflow:
    """One execution. Tasks are sorted so that every edge goes forward."""

    name: str
    task: tuple[str, ...]
    runtime_s: Floats
    cpu: Floats
    """Cores busy on average; NaN where not recorded."""
    mem: Floats
    """GiB at most; NaN where not recorded."""
    machine: tuple[str | None, ...]
    edges: NDArray[np.int64]
    """[E, 2]: from, to."""
    edge_mb: Floats
    """Bytes that the later task reads of what the earlier wrote, in MB."""
    input_mb: Floats
    """What a task reads that no task wrote."""
    makespan_s: float
    executed_s: float
    """When it ran, seconds since 1970; NaN when not recorded."""

    def __len__(self) -> int:
        return len(self.task)

    def earliest_start_s(self) -> Floats:
        """When each task could start if machines were no limit; starts are not recorded."""
        start = np.zeros(len(self))
        for parent, child in self.edges[np.argsort(self.edges[:, 1], kind="stable")]:
            start[child] = max(start[child], start[parent] + self.runtime_s[parent])
        return start


def read_workflow(path: Path) -> Workflow:
    """Read one instance.

    Raises:
        TraceError: When the document is not WfFormat, a task has no run time, or the tasks form a cycle.
    """
    try:
        document = json.loads(read_text(path))
        workflow = document["workflow"]
        tasks, execution = workflow["specification"]["tasks"], workflow["execution"]
        size = {file["id"]: float(file["sizeInBytes"]) for file in workflow["specification"].get("files", [])}
        measured = {task["id"]: task for task in execution["tasks"]}
        makespan = float(execution["makespanInSeconds"])
        executed = _moment(execution.get("executedAt"))
        order = _sorted({task["id"]: task for task in tasks}, path)
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"{path} is not a WfFormat document: {type(error).__name__} {error}") from error
    at = {task["id"]: position for position, task in enumerate(order)}
    writer = {file: at[task["id"]] for task in order for file in task.get("outputFiles", [])}
    moved: dict[tuple[int, int], float] = {(at[p], at[t["id"]]): 0.0 for t in order for p in t.get("parents", [])}
    outside = np.zeros(len(order))
    for position, task in enumerate(order):
        for file in task.get("inputFiles", []):
            source = writer.get(file)
            if source is None:
                outside[position] += size.get(file, 0.0)
            elif (source, position) in moved:
                moved[source, position] += size.get(file, 0.0)
    runs = [_run(measured.get(task["id"]), task["id"], path) for task in order]
    return Workflow(
        name=path.name.partition(".json")[0],
        task=tuple(task["id"] for task in order),
        runtime_s=np.array([run[0] for run in runs]),
        cpu=np.array([run[1] for run in runs]),
        mem=np.array([run[2] for run in runs]),
        machine=tuple(run[3] for run in runs),
        edges=np.array(list(moved), dtype=np.int64).reshape(-1, 2),
        edge_mb=np.array(list(moved.values())) / MB,
        input_mb=outside / MB,
        makespan_s=makespan,
        executed_s=executed,
    )


def _sorted(tasks: dict[str, Any], path: Path) -> list[Any]:
    """Sort tasks so that parents come first, in the document's order where that leaves a choice."""
    children: dict[str, list[str]] = defaultdict(list)
    waiting = {name: len(set(task.get("parents", []))) for name, task in tasks.items()}
    for name, task in tasks.items():
        for parent in set(task.get("parents", [])):
            if parent not in tasks:
                raise TraceError(f"{path}: task {name!r} has the parent {parent!r}", "a task of the workflow")
            children[parent].append(name)
    ready = [name for name, count in waiting.items() if not count]
    for name in ready:  # grows while it is walked
        for child in children[name]:
            waiting[child] -= 1
            if not waiting[child]:
                ready.append(child)
    if len(ready) < len(tasks):
        stuck = next(name for name, count in waiting.items() if count)
        raise TraceError(f"{path}: the tasks form a cycle through {stuck!r}", "an acyclic workflow")
    return [tasks[name] for name in ready]


def _run(task: Any, name: str, path: Path) -> tuple[float, float, float, str | None]:
    runtime = float(task["runtimeInSeconds"]) if task and "runtimeInSeconds" in task else math.nan
    if not (math.isfinite(runtime) and runtime >= 0):
        raise TraceError(f"{path}: task {name!r} has the run time {runtime}", "a measured run time of at least 0 s")
    cpu = float(task["avgCPU"]) / 100.0 if task.get("avgCPU") is not None else float(task.get("coreCount", math.nan))
    mem = float(task["memoryInBytes"]) / GIB if task.get("memoryInBytes") is not None else math.nan
    machines = task.get("machines") or [None]
    return runtime, cpu, mem, machines[0]


def _moment(text: str | None) -> float:
    """Read a time in ISO 8601, or as some Makeflow documents write it: month-day-year."""
    if text is None:
        return math.nan
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        when = datetime.strptime(text, "%m-%d-%yT%H:%M:%SZ").replace(tzinfo=UTC)
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
