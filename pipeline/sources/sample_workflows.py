"""The sample's cluster of workflows: executions of chains, fans and layered DAGs of functions, at any time of day."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.contracts.raw import TASKS
from pipeline.sources.columns import coded, raw_table, times
from pipeline.sources.sample_cluster import GIB, NODE_TYPES, NodeType
from pipeline.sources.sample_machines import DAY_S, F8, MachineCluster, Use
from sched_env.workflow import synthetic
from sched_env.workflow.tables import Dag

NODES = (2, 1, 2, 1, 0)
"""Types of the nodes, as indices into ``NODE_TYPES``; all cores are equally fast."""
SIZES = (10, 30, 40)
"""Mean numbers of tasks, in turn; a workflow has half to one and a half times as many."""
DATA_SHARE = 0.5
STEPS = ("fetch", "split", "align", "filter", "merge", "report")
REPEATED, BROKEN = 0.01, 0.01
"""Share of tasks told twice, and of executions of which one task has a run time below zero."""


class WorkflowCluster(MachineCluster):
    """Tasks start as soon as their parents have ended, on nodes taken in turn."""

    def __init__(self, name: str, workflows_per_day: int, **given: Any) -> None:
        super().__init__(name, **given)
        self._count = workflows_per_day * len(self._days)

    @property
    def kinds(self) -> Sequence[NodeType]:
        """The nodes."""
        return [NODE_TYPES[kind] for kind in NODES]

    @cached_property
    def _flows(self) -> tuple[list[Dag], F8]:
        """The executions in order of time, and when each began."""
        rng = self.rng("workflows")
        flows: list[Dag] = []
        for part, size in enumerate(SIZES):
            count = len(range(part, self._count, len(SIZES)))
            net = min(kind.net_mb_s for kind in self.kinds)
            flows += synthetic.workflows(count, "mixed", size, DATA_SHARE, net, int(rng.integers(2**31)))
        order = rng.permutation(len(flows))
        return [flows[index] for index in order], np.sort(rng.uniform(0.0, len(self._days) * DAY_S, len(flows)))

    def used(self) -> tuple[F8, F8]:
        """What the tasks on a node hold, and the system's own share."""
        flows, began = self._flows
        begin = np.concatenate([at + _starts(flow) for flow, at in zip(flows, began, strict=True)])
        run, cpu, mem = (
            np.concatenate([getattr(flow, name) for flow in flows]) for name in ("runtime_s", "cpu", "mem")
        )
        node = np.arange(len(run)) % len(NODES)

        def held(amount: F8) -> F8:
            return self.summed(Use(node, begin, begin + run, amount), len(NODES))

        return 0.3 + held(cpu), 1.5 * GIB + held(mem * GIB)

    def other_tables(self, day: int) -> Iterator[tuple[str, pa.Table]]:
        """Tasks of the executions that began on a day."""
        flows, began = self._flows
        first = np.concatenate([[0], np.cumsum([len(flow) for flow in flows])])
        of_day = np.flatnonzero((began >= day * DAY_S) & (began < (day + 1) * DAY_S)).tolist()
        if not of_day:
            return
        flow = np.concatenate([np.full(len(flows[index]), index) for index in of_day])
        task = np.concatenate([np.arange(len(flows[index])) for index in of_day])
        column = {
            name: np.concatenate([getattr(flows[index], name) for index in of_day])
            for name in ("runtime_s", "cpu", "mem", "input_mb")
        }
        parents, parent_mb = zip(*(pair for index in of_day for pair in _links(flows[index])), strict=True)
        run = np.round(column["runtime_s"], 3)
        rows = np.arange(len(run))
        if self._dirt:
            rng = self.rng("tasks", day)
            run = np.where(np.isin(flow, rng.choice(of_day, round(BROKEN * len(of_day)))) & (task == 0), -run, run)
            rows = np.concatenate([rows, rows[rng.random(len(rows)) < REPEATED]])
        table = raw_table(
            TASKS,
            {
                "time": times(self.us(began[flow])),
                "cluster": coded(np.zeros(len(run), np.int32), [self.name]),
                "workflow": pa.array([f"{flows[index].name.split('-')[0]}-{index:05d}" for index in flow]),
                "task": pa.array([_name(index) for index in task.tolist()]),
                "function": pa.array([STEPS[index % len(STEPS)] for index in task.tolist()]),
                "node": coded(((first[flow] + task) % len(NODES)).astype(np.int32), self.nodes),
                "runtime_s": pa.array(run),
                "cpu_cores": pa.array(column["cpu"]),
                "mem_bytes": pa.array(np.round(column["mem"] * GIB)),
                "parents": pa.array(parents, pa.string()),
                "parent_mb": pa.array(parent_mb, pa.string()),
                "input_mb": pa.array(np.round(column["input_mb"], 3)),
            },
        )
        yield "tasks", table.take(rows)


def _name(task: int) -> str:
    return f"{STEPS[task % len(STEPS)]}-{task:02d}"


def _links(flow: Dag) -> list[tuple[str | None, str | None]]:
    """Parents of each task and what they hand over, as text."""
    names: list[list[str]] = [[] for _ in range(len(flow))]
    amounts: list[list[str]] = [[] for _ in range(len(flow))]
    for (parent, child), mb in zip(flow.edges.tolist(), flow.edge_mb.tolist(), strict=True):
        names[child].append(_name(parent))
        amounts[child].append(f"{mb:.3f}")
    return [(" ".join(some) or None, " ".join(mb) or None) for some, mb in zip(names, amounts, strict=True)]


def _starts(flow: Dag) -> F8:
    """When each task begins if nodes are no limit; generated edges go forward."""
    start = np.zeros(len(flow))
    for parent, child in flow.edges[np.argsort(flow.edges[:, 1], kind="stable")].tolist():
        start[child] = max(start[child], start[parent] + flow.runtime_s[parent])
    return start
