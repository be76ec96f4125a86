"""What the kernels of workflows work on: nodes and tasks as arrays, and the state.

Figures that are read together lie together, as columns of one array; the constants below name the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sched_env.tables import Floats, Ints, NodeTable
from sched_env.workflow.features import HOURS_PER_SECOND, fits
from sched_env.workflow.scenario import Order, WorkflowScenario
from sched_env.workflow.tables import Dag
from wire.errors import ConfigError

CPU, MEM = range(2)
"""First columns of ``Plan.nodes``, ``Plan.tasks`` and, behind the time, of ``State.segments``."""
INVERSE_SPEED, SECONDS_PER_MB, PRICE = range(2, 5)
"""Further columns of ``Plan.nodes``."""
RUNTIME, INPUT, READ, TAIL = range(2, 6)
"""Further columns of ``Plan.tasks``: run time at speed 1, MB from outside and in all, mean way from its end on."""
REFERENCE, INVERSE_REFERENCE, DEADLINE, LEAST_USD, INVERSE_LEAST = range(5)
"""Columns of ``Plan.flows``."""
FLOW, FIRST, SIZE, NEXT, FREE = range(5)
"""Columns of ``State.cursor``: the workflow, its first task and size, the number of the task to be placed, the first
unused segment."""
TIME, USED_CPU, USED_MEM, FOLLOWING = range(4)
"""Columns of ``State.segments``; FOLLOWING is -1 in a node's last segment, which is always empty."""
TASKS, UNTIL = range(2)
"""Columns of ``State.nodes``: tasks placed on the node, and when the last of them ends."""
NODE, START, FINISH = range(3)
"""Columns of ``State.placed``."""
SOURCE_MB, SOURCE_PER_MB = 1, 3
"""Columns of ``State.sources`` beside NODE and FINISH."""
RETURN, MAKESPAN, USD, WAITED, MOVED_MB = range(5)
"""Columns of ``State.totals``."""


class Plan(NamedTuple):
    """What no decision changes. N nodes, W workflows, R tasks, E edges; tasks in the order they are offered in."""

    nodes: Floats
    """[N, 5]"""
    flows: Floats
    """[W, 5]: critical path on the fastest nodes, its inverse, deadline, least cost of the work, its inverse."""
    first: Ints
    """[W + 1]: first task of each workflow."""
    tasks: Floats
    """[R, 6]"""
    parents: Ints
    """[R + 1]: first edge into each task."""
    parent: NDArray[np.int32]
    """[E]: the task it comes from, by its number in the workflow."""
    edge_mb: Floats
    """[E]"""
    home: Ints
    """[R]: the node on which a task was recorded; -1: nobody says."""
    room: Floats
    """[rooms, N, 2]: cores and GiB that a workflow may take of each node; one for all where nothing else is there."""
    room_of: Ints
    """[W]: the room of each workflow."""
    there: Floats
    """[K, 4]: node, end, cores and GiB of what others still run on the nodes when a workflow begins."""
    there_first: Ints
    """[W + 1]: first row of ``there`` of each workflow."""
    dispatch_s: float
    """From the moment at which the data of a task is there to its start on a free node."""


class Rules(NamedTuple):
    """The scenario, as numbers."""

    horizon: int
    start_min: int
    start_max: int
    beta: float


class State(NamedTuple):
    """What changes. B environments, N nodes, T tasks of the largest workflow, P parents of a task at most."""

    cursor: NDArray[np.int64]
    """[B, 5]"""
    segments: Floats
    """[B, N + 2 (T + K), 4]: the calendar of each node, a linked list of spans of equal use, from segment n on."""
    placed: Floats
    """[B, T, 3]: of each task placed."""
    nodes: Floats
    """[B, N, 2]"""
    totals: Floats
    """[B, 5]"""
    sources: Floats
    """[P, 4]: the parents of the task that is looked at (node, MB, end, seconds a MB); a draft, not state."""
    ends: Floats
    """[N]: when it would end on each node; a draft too."""


def rules_of(scenario: WorkflowScenario, workflows: int) -> Rules:
    """Turn a scenario into numbers."""
    stop = min(scenario.start_max, workflows) if scenario.start_max else workflows
    if scenario.start_min >= stop:
        raise ConfigError(f"start_min is {scenario.start_min}", f"less than {stop}, where starts end")
    return Rules(scenario.horizon, scenario.start_min, stop, float(scenario.beta))


def empty_state(B: int, N: int, T: int, P: int, K: int) -> State:
    """Allocate the state; the kernel fills it when an episode begins. K: most tasks of others that are there."""
    return State(
        cursor=np.zeros((B, 5), np.int64),
        segments=np.zeros((B, N + 2 * (T + K), 4)),
        placed=np.zeros((B, T, 3)),
        nodes=np.zeros((B, N, 2)),
        totals=np.zeros((B, 5)),
        sources=np.zeros((P, 4)),
        ends=np.zeros(N),
    )


def plan_of(
    dags: Sequence[Dag], table: NodeTable, order: Order, deadline_slack: float, dispatch_s: float = 0.0
) -> Plan:
    """Prepare workflows and nodes for the kernels.

    Raises:
        ConfigError: When a task fits no node.
    """
    nodes = np.stack([table.cpu, table.mem, 1.0 / table.speed, 1.0 / table.net, table.price_usd_per_hour], axis=1)
    rooms = np.stack([room_of(dag, table) for dag in dags])
    room, which = np.unique(rooms, axis=0, return_inverse=True)
    best = [_fastest_and_cheapest(dag, table, free) for dag, free in zip(dags, rooms, strict=True)]
    flows, tasks, parents, parent, edge_mb, home = [], [], [np.zeros(1, np.int64)], [], [], []
    there = [dag.around.there if dag.around else np.empty((0, 4)) for dag in dags]
    slowness, per_mb = float(nodes[:, INVERSE_SPEED].mean()), float(nodes[:, SECONDS_PER_MB].mean())
    for dag, (fastest_s, usd) in zip(dags, best, strict=True):
        tail = tails(dag, dag.runtime_s * slowness, dag.edge_mb * per_mb)
        reference = critical_path(dag, fastest_s, dag.input_mb * nodes[:, SECONDS_PER_MB].min())
        deadline = dag.deadline_s if np.isfinite(dag.deadline_s) else deadline_slack * reference
        least = float(usd.sum())
        flows.append((reference, 1.0 / reference, deadline, least, 1.0 / least if least > 0.0 else 0.0))
        offered = dag.order
        if order == "rank":  # stable: where ranks are equal parents still come first
            rank = tail + dag.runtime_s * slowness
            offered = dag.order[np.argsort(-rank[dag.order], kind="stable")]
        number = np.empty(len(dag), np.int64)
        number[offered] = np.arange(len(dag))
        into = np.lexsort((number[dag.edges[:, 0]], number[dag.edges[:, 1]]))
        count = np.bincount(number[dag.edges[:, 1]], minlength=len(dag))
        read = dag.input_mb + np.bincount(dag.edges[:, 1], dag.edge_mb, minlength=len(dag))
        tasks.append(np.stack([dag.cpu, dag.mem, dag.runtime_s, dag.input_mb, read, tail], axis=1)[offered])
        parents.append(np.cumsum(count) + parents[-1][-1])
        parent.append(number[dag.edges[into, 0]])
        edge_mb.append(dag.edge_mb[into])
        home.append(dag.node[offered])
    return Plan(
        nodes=nodes,
        flows=np.array(flows),
        first=np.concatenate([[0], np.cumsum([len(dag) for dag in dags])]).astype(np.int64),
        tasks=np.concatenate(tasks),
        parents=np.concatenate(parents),
        parent=np.concatenate(parent).astype(np.int32),
        edge_mb=np.concatenate(edge_mb),
        home=np.concatenate(home),
        room=room,
        room_of=which.reshape(-1).astype(np.int64),
        there=np.concatenate(there),
        there_first=np.concatenate([[0], np.cumsum([len(rows) for rows in there])]).astype(np.int64),
        dispatch_s=dispatch_s,
    )


def room_of(dag: Dag, table: NodeTable) -> Floats:
    """Return [N, 2]: what a workflow may take of each node.

    Raises:
        ConfigError: When its surroundings are those of other nodes.
    """
    whole = np.stack([table.cpu, table.mem], axis=1)
    if dag.around is None:
        return whole
    nodes = dag.around.there[:, 0]
    if dag.around.room.shape != whole.shape or (nodes >= len(table)).any():
        raise ConfigError(
            f"workflow {dag.name!r} begins among {len(dag.around.room)} nodes", f"the {len(table)} of the table"
        )
    return np.minimum(dag.around.room, whole)


def _fastest_and_cheapest(dag: Dag, table: NodeTable, room: Floats) -> tuple[Floats, Floats]:
    """Return each task's run time on the fastest node that can hold it, and its least share of a node's cost.

    The share of a node that a task takes is that of its scarcer resource: a node costs its price for as long as it is
    in use, and what runs on it together never has more than the whole of any resource.
    """
    fastest, usd = np.full(len(dag), np.inf), np.full(len(dag), np.inf)
    columns = [table.cpu, table.mem, room[:, CPU], room[:, MEM], table.speed, table.price_usd_per_hour]
    for cpu, mem, free_cpu, free_mem, speed, price in np.unique(np.stack(columns, axis=1), axis=0):
        holds = fits(free_cpu, free_mem, dag.cpu, dag.mem)
        run_s = dag.runtime_s / speed
        share = np.maximum(dag.cpu / cpu, dag.mem / mem)
        fastest = np.where(holds, np.minimum(fastest, run_s), fastest)
        usd = np.where(holds, np.minimum(usd, price * HOURS_PER_SECOND * run_s * np.minimum(share, 1.0)), usd)
    lost = np.flatnonzero(np.isinf(fastest))
    if lost.size:
        raise ConfigError(
            f"workflow {dag.name!r}: task {lost[0]} needs {dag.cpu[lost[0]]:g} cores and {dag.mem[lost[0]]:g} GiB",
            "what one of the nodes has",
            "add a larger node",
        )
    return fastest, usd


def critical_path(dag: Dag, run_s: Floats, input_s: Floats) -> float:
    """Return the longest way through the workflow: run times alone, and the data from outside before them."""
    return float((heads(dag, run_s, input_s) + run_s).max())


def heads(dag: Dag, run_s: Floats, input_s: Floats) -> Floats:
    """Return when each task can start at the earliest if nodes are no limit and data moves in no time."""
    start, run = input_s.tolist(), run_s.tolist()
    position = np.empty(len(dag), np.int64)
    position[dag.order] = np.arange(len(dag))
    for parent, child in dag.edges[np.argsort(position[dag.edges[:, 0]], kind="stable")].tolist():
        start[child] = max(start[child], start[parent] + run[parent])
    return np.array(start)


def tails(dag: Dag, run_s: Floats, edge_s: Floats) -> Floats:
    """Return the longest way from each task's end to the end of the workflow (its upward rank without itself)."""
    tail, run = [0.0] * len(dag), run_s.tolist()
    position = np.empty(len(dag), np.int64)
    position[dag.order] = np.arange(len(dag))
    back = np.argsort(-position[dag.edges[:, 1]], kind="stable")
    for (parent, child), moving in zip(dag.edges[back].tolist(), edge_s[back].tolist(), strict=True):
        tail[parent] = max(tail[parent], moving + run[child] + tail[child])
    return np.array(tail)
