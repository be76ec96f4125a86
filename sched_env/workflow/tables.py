"""The table of workflows: one DAG of tasks each, checked once when it is built, so that kernels need no checks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sched_env.tables import Floats, Ints
from wire.errors import TraceError


def _none() -> Floats:
    return np.empty(0)


def _nowhere() -> Ints:
    return np.empty(0, np.int64)


@dataclass(frozen=True)
class Surroundings:
    """What a workflow finds on the nodes when it begins; left out: all of them are empty."""

    room: Floats
    """[N, 2]: cores and GiB that it may take of each node; 0: the node is down, or of another cluster."""
    there: Floats
    """[K, 4]: node, seconds until it ends, cores and GiB of each task of others that still runs."""

    def __post_init__(self) -> None:
        """Coerce the columns and refuse what cannot be."""
        for name, columns in (("room", 2), ("there", 4)):
            values = np.ascontiguousarray(getattr(self, name), np.float64).reshape(-1, columns)
            if not (np.isfinite(values) & (values >= 0.0)).all():
                raise TraceError(f"{name} of a workflow's surroundings has {values.min()}", "numbers, at least 0")
            object.__setattr__(self, name, values)


@dataclass(frozen=True)
class Dag:
    """One workflow: tasks, and the data that goes from one to another."""

    name: str
    runtime_s: Floats
    """Seconds on a core of speed 1; 0 is allowed for a task, not for all of them."""
    cpu: Floats
    """Cores a task holds while it runs."""
    mem: Floats
    """GiB it holds."""
    edges: Ints
    """[E, 2]: from task, to task."""
    edge_mb: Floats
    """[E]: what the later task reads of what the earlier one wrote."""
    input_mb: Floats = field(default_factory=_none)
    """What a task reads that no task wrote, from storage outside; left out: nothing."""
    deadline_s: float = float("nan")
    """From the start of the workflow; NaN: the scenario's slack x the critical path."""
    node: Ints = field(default_factory=_nowhere)
    """Node on which each task was recorded, -1 where nobody says; left out: nowhere."""
    around: Surroundings | None = None
    order: Ints = field(init=False)
    """The tasks sorted so that parents come first, in their own order where that leaves a choice."""

    def __post_init__(self) -> None:
        """Coerce the columns, sort the tasks, and refuse what cannot be run: cycles, unknown tasks, bad amounts."""
        rows = int(np.size(self.runtime_s))
        if rows == 0:
            raise TraceError(f"workflow {self.name!r} has no task", "at least one")
        if np.size(self.input_mb) == 0:
            object.__setattr__(self, "input_mb", np.zeros(rows))
        node = np.ascontiguousarray(self.node if np.size(self.node) else np.full(rows, -1), np.int64)
        if node.shape != (rows,):
            raise TraceError(f"workflow {self.name!r}: node has shape {node.shape}", f"({rows},)")
        object.__setattr__(self, "node", node)
        for name in ("runtime_s", "cpu", "mem", "input_mb"):
            self._keep(name, rows, strictly=name in {"cpu", "mem"})
        if not self.runtime_s.any():
            raise TraceError(f"workflow {self.name!r}: all run times are 0", "a task that takes time")
        if self.deadline_s <= 0:
            raise TraceError(
                f"workflow {self.name!r} has the deadline {self.deadline_s} s", "a positive number, or NaN"
            )
        edges = np.ascontiguousarray(self.edges, np.int64).reshape(-1, 2)
        unknown = edges[((edges < 0) | (edges >= rows)).any(axis=1)]
        if len(unknown):
            raise TraceError(f"workflow {self.name!r} has the edge {unknown[0].tolist()}", f"tasks 0 to {rows - 1}")
        if len(np.unique(edges, axis=0)) < len(edges):
            raise TraceError(f"workflow {self.name!r} has an edge twice", "one edge from a task to another", "add them")
        object.__setattr__(self, "edges", edges)
        self._keep("edge_mb", len(edges), strictly=False)
        object.__setattr__(self, "order", self._sorted())

    def __len__(self) -> int:
        return int(self.runtime_s.size)

    def _keep(self, name: str, rows: int, *, strictly: bool) -> None:
        try:
            values: Floats = np.ascontiguousarray(getattr(self, name), np.float64)
        except (TypeError, ValueError) as error:
            raise TraceError(f"workflow {self.name!r}, {name}: {error}", "numbers") from error
        if values.shape != (rows,):
            raise TraceError(f"workflow {self.name!r}: {name} has shape {values.shape}", f"({rows},)")
        bad = np.flatnonzero(~(np.isfinite(values) & (values > 0 if strictly else values >= 0)))
        if bad.size:
            expected = "a positive number" if strictly else "a number, at least 0"
            raise TraceError(f"workflow {self.name!r}: {name} of task {bad[0]} is {values[bad[0]]}", expected)
        object.__setattr__(self, name, values)

    def _sorted(self) -> Ints:
        if (self.edges[:, 0] < self.edges[:, 1]).all():
            return np.arange(len(self))
        children: dict[int, list[int]] = defaultdict(list)
        waiting = np.bincount(self.edges[:, 1], minlength=len(self))
        for parent, child in self.edges.tolist():
            children[parent].append(child)
        ready: list[Any] = np.flatnonzero(waiting == 0).tolist()
        for task in ready:  # grows while it is walked
            for child in children[task]:
                waiting[child] -= 1
                if not waiting[child]:
                    ready.append(child)
        if len(ready) < len(self):
            stuck = int(np.flatnonzero(waiting)[0])
            raise TraceError(f"workflow {self.name!r}: the tasks form a cycle through {stuck}", "an acyclic workflow")
        return np.array(ready, np.int64)
