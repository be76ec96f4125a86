"""Bounds of workflows: a makespan that no placement can beat, and the optimum of small workflows.

The lower bound, for every schedule on the nodes and so for every policy: no task starts before its *head* (the longest
way to it at the fastest speeds, data moving in no time) or ends later than its *tail* (the same, behind it) before the
end. All tasks with a head of at least h and a tail of at least q do their work between h and makespan - q, in which the
nodes that can hold them offer their cores (or memory) x speed a second. So makespan >= h + work / offer + q, for all h,
q and both resources; with a single task on its fastest node in the middle that is the critical path.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from sched_env.tables import Floats, NodeTable
from sched_env.workflow.features import FIT_TOLERANCE, fits
from sched_env.workflow.state import heads, room_of, tails
from sched_env.workflow.tables import Dag
from wire.errors import ConfigError

if TYPE_CHECKING:
    from sched_env.vector import PlacementVectorEnv
    from sched_env.workflow.vector import WorkflowVectorEnv

MOST_LEVELS = 1000
"""Values of h and of q that are tried; leaving some out makes the bound weaker, not wrong."""
MOST_TASKS, MOST_NODES = 8, 3
"""Size up to which :func:`optimum` is solved in seconds."""


def of_starts(env: PlacementVectorEnv, starts: Sequence[int]) -> list[float | None]:
    """Return the least makespan of the workflow of each start; None when episodes are cut before its end."""
    flows = cast("WorkflowVectorEnv", env)
    if flows.scenario.horizon > 0:
        return [None] * len(starts)
    known = {start: lower(flows.dags[start], flows.table) for start in set(starts)}
    return [known[start] for start in starts]


def lower(dag: Dag, table: NodeTable) -> float:
    """Return a makespan that no schedule of the workflow on the nodes can beat; tasks of others only delay it."""
    room = room_of(dag, table)
    holds = fits(room[:, 0], room[:, 1], dag.cpu[:, None], dag.mem[:, None])  # [T, N]
    run_s = np.where(holds, dag.runtime_s[:, None] / table.speed, np.inf).min(axis=1)
    input_s = np.where(holds, dag.input_mb[:, None] / table.net, np.inf).min(axis=1)
    head, tail = heads(dag, run_s, input_s), tails(dag, run_s, np.zeros(len(dag.edges)))
    best = float((head + run_s + tail).max())
    # Tasks that few nodes can hold compete for those alone.
    for group in np.unique(holds, axis=0):
        inside = ~(holds & ~group).any(axis=1)
        for need, free in ((dag.cpu, room[:, 0]), (dag.mem, room[:, 1])):
            offer = float(((free + FIT_TOLERANCE) * table.speed)[group].sum())
            best = max(best, _between(head[inside], tail[inside], (need * dag.runtime_s)[inside] / offer))
    return best


def _between(head: Floats, tail: Floats, seconds: Floats) -> float:
    """Return the most that heads, tails and the work between them add up to."""
    levels = [np.unique(values) for values in (head, tail)]
    levels = [v[np.unique(np.linspace(0, v.size - 1, MOST_LEVELS).astype(int))] for v in levels]
    work = np.zeros((levels[0].size, levels[1].size))
    at = [np.searchsorted(v, values, side="right") - 1 for v, values in zip(levels, (head, tail), strict=True)]
    np.add.at(work, (at[0], at[1]), seconds)
    work = work[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1]
    return float(np.where(work > 0.0, levels[0][:, None] + work + levels[1], 0.0).max())


def optimum(dag: Dag, table: NodeTable) -> float:
    """Return the least makespan of all schedules, by mixed-integer programming.

    A policy of the environment may stay above it: the environment starts each task as early as what was placed before
    allows, in the order of the ranks, while an optimal schedule may leave a node waiting for a task of higher rank.
    Tasks that take no time are not held to a node's room, as they take none from others.

    Raises:
        ConfigError: When the workflow is larger than ``MOST_TASKS`` x ``MOST_NODES``.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    T, N = len(dag), len(table)
    if T > MOST_TASKS or N > MOST_NODES:
        raise ConfigError(f"{T} tasks on {N} nodes", f"at most {MOST_TASKS} on {MOST_NODES}")
    holds = fits(table.cpu, table.mem, dag.cpu[:, None], dag.mem[:, None])
    run_s, input_s = dag.runtime_s[:, None] / table.speed, dag.input_mb[:, None] / table.net
    per_mb = np.maximum(1.0 / table.net[:, None], 1.0 / table.net) * (1.0 - np.eye(N))
    longest = float(run_s.max(axis=1).sum() + input_s.max() + dag.edge_mb.sum() * per_mb.max())
    # Variables: the makespan; the start of each task; task on node; task ends before another begins.
    end, start, on, before = 0, 1, 1 + T, 1 + T + T * N
    rows: list[Floats] = []
    least: list[float] = []

    def demand(limit: float, **terms: list[tuple[int, float]]) -> None:
        row = np.zeros(before + T * T)
        for column, factor in itertools.chain.from_iterable(terms.values()):
            row[column] += factor
        rows.append(row)
        least.append(limit)

    def taken(i: int, values: Floats, sign: float) -> list[tuple[int, float]]:
        return [(on + i * N + n, sign * float(values[n])) for n in range(N)]

    for i in range(T):
        demand(1.0, place=taken(i, np.ones(N), 1.0))
        demand(-1.0, place=taken(i, np.ones(N), -1.0))
        demand(0.0, end=[(end, 1.0), (start + i, -1.0)], run=taken(i, run_s[i], -1.0))
        demand(0.0, start=[(start + i, 1.0)], data=taken(i, input_s[i], -1.0))
        for j in (j for j in range(T) if j != i):
            order = [(start + j, 1.0), (start + i, -1.0), (before + i * T + j, -longest)]
            demand(-longest, order=order, run=taken(i, run_s[i], -1.0))
    for (i, j), mb in zip(dag.edges.tolist(), dag.edge_mb, strict=True):
        for n, m in itertools.product(range(N), repeat=2):
            moving = float(mb * per_mb[n, m])
            both = [(on + i * N + n, -moving), (on + j * N + m, -moving)]
            demand(-moving, order=[(start + j, 1.0), (start + i, -1.0)], run=taken(i, run_s[i], -1.0), both=both)
    for n in range(N):
        for crowd in _crowds(dag, holds[:, n], float(table.cpu[n]), float(table.mem[n])):
            pairs = [(before + i * T + j, 1.0) for i, j in itertools.permutations(crowd, 2)]
            demand(1.0 - len(crowd), pairs=pairs, there=[(on + i * N + n, -1.0) for i in crowd])
    upper = np.concatenate([np.full(1 + T, np.inf), holds.ravel().astype(float), np.ones(T * T)])
    aim = np.zeros(upper.size)
    aim[end] = 1.0
    answer = milp(
        aim,
        constraints=LinearConstraint(np.array(rows), np.array(least), np.inf),
        integrality=np.concatenate([np.zeros(1 + T), np.ones(T * N + T * T)]),
        bounds=Bounds(np.zeros(upper.size), upper),
        options={"mip_rel_gap": 0.0},
    )
    if answer.x is None:
        raise RuntimeError(f"the schedule has no solution: {answer.message}")
    return float(answer.fun)


def _crowds(dag: Dag, holds: NDArray[np.bool_], cpu: float, mem: float) -> list[tuple[int, ...]]:
    """Return the smallest sets of tasks that a node can hold one by one but not all at once."""
    fitting = [int(i) for i in np.flatnonzero(holds & (dag.runtime_s > 0.0))]
    found: list[tuple[int, ...]] = []
    for size in range(2, len(fitting) + 1):
        for crowd in itertools.combinations(fitting, size):
            members = list(crowd)
            if not fits(cpu, mem, dag.cpu[members].sum(), dag.mem[members].sum()) and not any(
                set(smaller) < set(crowd) for smaller in found
            ):
                found.append(crowd)
    return found
