"""The least bill of small ``functions`` episodes: a mixed-integer program that knows the future.

Variables: an instance lies on a node, or is rejected; a node is billed between two instants at which a bill can begin
or end. What is rejected found every node short: of cores or of memory, by at least the least excess that those alive
can add up to. So the program's solutions are the episodes that policies can have, and its objective is their
``cost_usd``. Other metrics hang on contention, which is not linear in what shares a node; for those
:func:`sched_env.functions.bounds.optimum` tries everything.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from sched_env.functions.bounds import HOURS_PER_SECOND, episode, lower, never_rejected, ways_in
from sched_env.functions.features import FIT_TOLERANCE
from sched_env.functions.state import ROW
from sched_env.functions.tables import FunctionTrace
from sched_env.functions.vector import ServerlessVectorEnv
from sched_env.milp import Columns, Program
from sched_env.tables import Floats, NodeTable
from sched_env.vector import PlacementVectorEnv
from wire.errors import ConfigError

MOST_INSTANCES, MOST_NODES = 200, 20
"""Size up to which the program is built; how much of it is solved in time depends on how crowded the nodes are."""
MOST_SUMS = 100_000
"""Different sums of what is alive up to which the least excess is exact; above, any excess counts (weaker, valid)."""
NOWHERE = -1


class LeastBill(NamedTuple):
    """What the program found."""

    usd: float
    """The bill of the best plan found, as the environment replays it; infinite without a plan."""
    bound: float
    """What every policy is billed at least."""
    place: NDArray[np.int64]
    """[T]: node of each instance, ``NOWHERE`` where it is rejected; empty without a plan."""

    @property
    def proved(self) -> bool:
        """Whether the plan is proved to be the best."""
        return self.usd <= self.bound * (1.0 + 1e-6)


def least_bill(env: PlacementVectorEnv, start: int, time_limit_s: float = 60.0) -> LeastBill:
    """Return the least ``cost_usd`` of an episode; a program that is stopped early still gives a valid bound.

    Raises:
        ConfigError: When the episode is larger than ``MOST_INSTANCES`` on ``MOST_NODES``.
    """
    serverless = cast("ServerlessVectorEnv", env)
    trace, table, cooldown_s = episode(serverless, start), serverless.table, serverless.rules.cooldown_s
    T, N = len(trace), len(table)
    if T > MOST_INSTANCES or N > MOST_NODES:
        raise ConfigError(f"{T} instances on {N} nodes", f"at most {MOST_INSTANCES} on {MOST_NODES}")
    program = Program()
    holds = ways_in(trace, table)
    on = program.variables(T, N, upper=holds, whole=True)
    may = ~never_rejected(trace, table, holds)
    rejected = program.variables(T, upper=may, whole=True)
    for i in range(T):
        program.demand((on[i], 1.0), (rejected[i], 1.0), low=1.0, high=1.0)
    billed, first, unit = _bill(program, on, trace, table, cooldown_s)
    alive = [np.flatnonzero((trace.arrival_s + trace.duration_s)[:i] > trace.arrival_s[i]) for i in range(T)]
    for amount, room in ((trace.cpu, table.cpu), (trace.mem, table.mem)):
        for i, n in np.argwhere(holds):
            there = np.append(alive[i], i)
            program.demand(
                (on[there, n], amount[there]), (billed[first[i], n], -(room[n] + FIT_TOLERANCE)), high=0.0
            )  # fmt: skip
    for late in np.flatnonzero(may).tolist():
        _short_everywhere(program, on, rejected[late], late, alive[late], trace, table, holds[late])
    _in_order(program, on, table)
    found = program.solve(time_limit_s)
    bound = max(found.bound * unit, lower(trace, table, cooldown_s))
    if found.values is None:
        return LeastBill(np.inf, bound, np.empty(0, np.int64))
    chosen = found.values[on].round()
    place = np.where(chosen.any(axis=1), chosen.argmax(axis=1), NOWHERE)
    return LeastBill(_replay(serverless, start, place), bound, place)


def _bill(
    program: Program, on: Columns, trace: FunctionTrace, table: NodeTable, cooldown_s: float
) -> tuple[Columns, NDArray[np.int64], float]:
    """Add the bill; return the variables [slots, nodes], the slot of each arrival, and the USD of one unit of cost."""
    until = trace.arrival_s + trace.duration_s + cooldown_s
    edges = np.unique(np.concatenate([trace.arrival_s, until]))
    first, stop = np.searchsorted(edges, trace.arrival_s), np.searchsorted(edges, until)
    billed = program.variables(edges.size - 1, len(table))
    # In seconds of the dearest node: the solver's tolerances are absolute, and USD would be small.
    dearest = float(table.price_usd_per_hour.max()) or 1.0
    program.cost(billed, np.diff(edges)[:, None] * table.price_usd_per_hour / dearest)
    for i in range(len(trace)):
        for slot in range(first[i], stop[i]):
            for n in range(len(table)):
                program.demand((billed[slot, n], 1.0), (on[i, n], -1.0), low=0.0)
    return billed, first, dearest * HOURS_PER_SECOND


def _short_everywhere(
    program: Program,
    on: Columns,
    rejected: int,
    i: int,
    alive: NDArray[np.int64],
    trace: FunctionTrace,
    table: NodeTable,
    holds: NDArray[np.bool_],
) -> None:
    """Let an instance be rejected only where every node that could hold it is short of cores or of memory."""
    nodes = np.flatnonzero(holds)
    short = program.variables(2, nodes.size, whole=True)
    for k, (amount, room) in enumerate(((trace.cpu, table.cpu), (trace.mem, table.mem))):
        enough = _least_above(amount[alive], room[nodes] + FIT_TOLERANCE - amount[i])
        for column, n, least in zip(short[k], nodes, enough, strict=True):
            if np.isfinite(least):
                program.demand((on[alive, n], amount[alive]), (column, -least), low=0.0)
            else:
                program.demand((column, 1.0), high=0.0)
    for columns in short.T:
        program.demand((columns, 1.0), (rejected, -1.0), low=0.0)


def _least_above(amounts: Floats, limits: Floats) -> Floats:
    """Return the least sum of any of the amounts above each limit; infinite where all together do not reach it."""
    sums = np.zeros(1)
    for amount in amounts:
        sums = np.unique(np.round(np.concatenate([sums, sums + amount]), 12))
        if sums.size > MOST_SUMS:
            return np.where(amounts.sum() > limits, limits, np.inf)
    # A sum that rounding has put at the limit counts as above: the program may allow too much, never too little.
    at = np.searchsorted(sums, limits - 1e-10, side="right")
    return np.append(sums, np.inf)[at]


def _in_order(program: Program, on: Columns, table: NodeTable) -> None:
    """Use nodes that are alike in their order: which of them is which changes no bill."""
    kinds = np.stack([table.cpu, table.mem, table.price_usd_per_hour], axis=1)
    for kind in np.unique(kinds, axis=0):
        nodes = np.flatnonzero((kinds == kind).all(axis=1))
        for before, after in itertools.pairwise(nodes):
            for i in range(len(on)):
                program.demand((on[:i, before], 1.0), (on[i, after], -1.0), low=0.0)


def _replay(env: ServerlessVectorEnv, start: int, place: NDArray[np.int64]) -> float:
    """Return the bill of a plan in the environment; where it does not fit there, the first node that does is taken."""
    one = ServerlessVectorEnv(env.scenario, 1, env.trace, env.table, seed=env.seed)
    one.reset(options={"starts": [start], "park": True})
    while one.buffers.active[0]:
        mask, wanted = one.buffers.mask[0], place[one.state.cursor[0, ROW] - start]
        one.step([wanted if wanted != NOWHERE and mask[wanted] else mask.argmax()])
    return float(one.buffers.metrics[0, one.METRICS.index("cost_usd")])
