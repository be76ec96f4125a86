"""Executions of workflows from the pods that an engine made for them.

Argo Workflows makes a pod of each task, owned by the Workflow: owner links tell which pods are one execution, and
kube-state-metrics when each was made, began and completed. Nobody tells which task waited for which: the parents of a
task are taken to be those that had ended when it was made, without those that others of them had waited for in turn.
Where two branches happen to end and begin in step that is an edge too many, so such rows are marked ``estimated``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pipeline.contracts.raw import TASKS
from pipeline.sources import Tally
from pipeline.sources.columns import raw_table, times

KIND = "Workflow"
TOLERANCE_S = 1.0
"""Times are told in whole seconds: a task made in the second in which another ended may have waited for it."""
_NUMBER = re.compile(r"-\d+$")


class Ran:
    """One pod of an execution."""

    def __init__(self, row: dict[str, object], ended_s: float | None, started_s: float | None) -> None:
        self.row, self.ended_s = row, ended_s
        self.created_s = float(str(row["at"]))
        self.began_s = self.created_s if started_s is None else max(started_s, self.created_s)
        self.task = str(row["entity"]).rpartition("/")[2]


def parents_of(ran: Sequence[Ran]) -> list[list[str]]:
    """Return whom each task waited for, by their times."""
    found = []
    for own in ran:
        before = [
            other for other in ran
            if other is not own and other.ended_s is not None and other.created_s < own.created_s
            and other.ended_s <= own.created_s + TOLERANCE_S
        ]  # fmt: skip
        latest = max((other.created_s for other in before), default=0.0)
        last = [other for other in before if (other.ended_s or 0.0) > latest or other.created_s == latest]
        found.append([other.task for other in last])
    return found


def tasks_table(ran: Sequence[Ran], span_s: tuple[int, int], tally: Tally) -> pa.Table:
    """Make rows of ``tasks`` of the executions that began in a span; those that still go on are left out."""
    executions: dict[tuple[str, str], list[Ran]] = defaultdict(list)
    for one in ran:
        executions[str(one.row["cluster"]), str(one.row["execution"])].append(one)
    columns: dict[str, list[object]] = defaultdict(list)
    began_us: list[int] = []
    for (cluster, execution), pods in sorted(executions.items()):
        pods.sort(key=lambda one: (one.created_s, one.task))
        first = pods[0].created_s
        if not span_s[0] <= first < span_s[1]:
            continue
        if any(one.ended_s is None for one in pods):
            tally.skipped["pods of executions that went on beyond their day"] += len(pods)
            continue
        short = execution.rpartition("/")[2]
        for one, parents in zip(pods, parents_of(pods), strict=True):
            template = _NUMBER.sub("", one.task.removeprefix(f"{short}-"))
            began_us.append(round(first * 1e3) * 1_000)
            about: dict[str, object] = {
                "cluster": cluster,
                "workflow": execution,
                "task": one.task,
                "function": f"{one.row.get('function') or short}/{template}",
                "node": one.row.get("node"),
                "runtime_s": max(float(one.ended_s or 0.0) - one.began_s, 0.0),
                "cpu_cores": one.row.get("cpu_cores"),
                "mem_bytes": one.row.get("mem_bytes"),
                "parents": " ".join(parents) or None,
                "start_s": one.began_s - first,
                "estimated": True,
            }
            for name in TASKS.names:
                if name != "time":
                    columns[name].append(about.get(name))
    arrays = {name: pa.array(values, TASKS.field(name).type) for name, values in columns.items()}
    if not began_us:
        arrays = {name: pa.array([], TASKS.field(name).type) for name in TASKS.names if name != "time"}
    return raw_table(TASKS, {**arrays, "time": times(np.array(began_us, np.int64))})
