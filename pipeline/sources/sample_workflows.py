"""The sample's cluster of workflows: executions of chains, fans and layered DAGs of functions, at any time of day."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

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
DISPATCH_S = 2.0
"""Mean of what the engine takes to start a task whose data is there."""
REPEATED, BROKEN = 0.01, 0.01
"""Share of tasks told twice, and of executions of which one task has a run time below zero."""


class WorkflowCluster(MachineCluster):
    """Tasks start when their data is there, on nodes taken in turn among those that have room."""

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

    @cached_property
    def _ran(self) -> tuple[NDArray[np.int64], F8]:
        """Where every task of all executions ran, and when it began."""
        flows, began = self._flows
        delay = iter(self.rng("dispatch").exponential(DISPATCH_S, sum(map(len, flows))).tolist())
        free = np.array([(kind.cpu, kind.mem_gib) for kind in self.kinds], float)
        per_mb = [1.0 / kind.net_mb_s for kind in self.kinds]
        first = np.concatenate([[0], np.cumsum([len(flow) for flow in flows])])
        node, begin, turn = np.full(first[-1], -1), np.zeros(first[-1]), 0
        missing = [np.bincount(flow.edges[:, 1], minlength=len(flow)) for flow in flows]
        running: list[tuple[float, int, int]] = []
        waiting = [
            (began[index] + next(delay), index, task)
            for index, flow in enumerate(flows)
            for task in np.flatnonzero(missing[index] == 0).tolist()
        ]
        heapq.heapify(waiting)
        while waiting:
            now, index, task = heapq.heappop(waiting)
            while running and running[0][0] <= now:
                _, other, ended = heapq.heappop(running)
                free[node[first[other] + ended]] += flows[other].cpu[ended], flows[other].mem[ended]
            flow, row = flows[index], first[index] + task
            need = np.array([flow.cpu[task], flow.mem[task]])
            turns = [(turn + step) % len(NODES) for step in range(len(NODES))]
            chosen = next((n for n in turns if (free[n] >= need).all()), None)
            if chosen is None:  # until somebody has ended
                heapq.heappush(waiting, (running[0][0], index, task))
                continue
            turn = (chosen + 1) % len(NODES)
            moved = [flow.input_mb[task] * per_mb[chosen]]
            for (parent, child), mb in zip(flow.edges.tolist(), flow.edge_mb.tolist(), strict=True):
                if child == task and node[first[index] + parent] != chosen:
                    moved.append(mb * max(per_mb[chosen], per_mb[node[first[index] + parent]]))
            free[chosen] -= need
            # Data comes before a task begins; its place is held meanwhile.
            node[row], begin[row] = chosen, now + max(moved)
            end = begin[row] + flow.runtime_s[task]
            heapq.heappush(running, (end, index, task))
            for child in flow.edges[flow.edges[:, 0] == task, 1].tolist():
                missing[index][child] -= 1
                if not missing[index][child]:
                    parents = first[index] + flow.edges[flow.edges[:, 1] == child, 0]
                    ready = float((begin[parents] + flow.runtime_s[parents - first[index]]).max())
                    heapq.heappush(waiting, (ready + next(delay), index, child))
        return node, begin

    def used(self) -> tuple[F8, F8]:
        """What the tasks on a node hold, and the system's own share."""
        flows, _ = self._flows
        node, begin = self._ran
        run, cpu, mem = (
            np.concatenate([getattr(flow, name) for flow in flows]) for name in ("runtime_s", "cpu", "mem")
        )

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
        node, begin = (values[first[flow] + task] for values in self._ran)
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
                "node": coded(node.astype(np.int32), self.nodes),
                "runtime_s": pa.array(run),
                "cpu_cores": pa.array(column["cpu"]),
                "mem_bytes": pa.array(np.round(column["mem"] * GIB)),
                "parents": pa.array(parents, pa.string()),
                "parent_mb": pa.array(parent_mb, pa.string()),
                "input_mb": pa.array(np.round(column["input_mb"], 3)),
                "start_s": pa.array(np.round(begin - began[flow], 3)),
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
