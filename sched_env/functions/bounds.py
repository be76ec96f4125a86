"""Bounds of ``functions``: a bill that no policy can beat, and optima of small instances by trying everything.

The lower bound, for every policy. A node is billed while it holds an instance and for the cool-down after. So at any
time the nodes that are billed have held, at each moment of the last cool-down, the cores and memory of everything
alive then; and they cost at least what the cheapest set of nodes of that size does (a cover: exact where nodes come in
few types, otherwise its linear relaxation).

An instance that a policy manages to reject costs nothing, which such a bound must survive. Some cannot be rejected:
that needs every node to be short of cores or of memory, and what is alive is too little for it. Any other, if all nodes
could hold it, is rejected at a price: every node holds something at that moment, so all are billed for a cool-down from
there. The bound is the least bill over all choices of blocks of time in which a policy rejects, found by dynamic
programming: in a block the bound before it goes on to hold (up to a rejection nothing is missing, after it everything
is billed), then everything is billed for a cool-down, and after that only what came later is sure to run.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from sched_env.functions.features import FIT_TOLERANCE
from sched_env.functions.tables import FunctionTrace
from sched_env.tables import Floats, Ints, NodeTable
from wire.errors import ConfigError

if TYPE_CHECKING:
    from sched_env.functions.vector import ServerlessVectorEnv
    from sched_env.vector import PlacementVectorEnv

MOST_SETS = 5000
"""Sets of nodes (by how many of each type) up to which covers are exact."""
MOST_TYPES = 40
"""Types whose pairs give prices of a core and of a GiB for the relaxation; fewer make it weaker, not wrong."""
BLOCKS_A_COOLDOWN, MOST_BLOCKS = 8, 200
"""How finely the times of rejections are told apart; coarser is weaker, not wrong, up to a cool-down."""
MOST_SEQUENCES = 20_000
"""Ways to place everything up to which :func:`optimum` tries them all."""
HOURS_PER_SECOND = 1.0 / 3600.0
WEIGHTS = np.linspace(0.05, 0.95, 19)


def of_starts(env: PlacementVectorEnv, starts: Sequence[int]) -> list[float | None]:
    """Return the least bill of the episode from each start, for every policy.

    Not known where episodes begin with instances on the nodes, nodes go down or there are several domains: what is
    proved here holds for one cluster that is empty and whole.
    """
    serverless = cast("ServerlessVectorEnv", env)
    trace, domains = serverless.trace, serverless.table.domain
    if (trace.node >= 0).any() or not trace.up.all() or np.ptp(domains) > 0:
        return [None] * len(starts)
    cooldown_s = serverless.rules.cooldown_s
    known = {start: lower(episode(serverless, start), serverless.table, cooldown_s) for start in set(starts)}
    return [known[start] for start in starts]


def episode(env: ServerlessVectorEnv, start: int) -> FunctionTrace:
    """Return the arrivals of an episode."""
    rules, trace = env.rules, env.trace
    stop = min(start + rules.horizon, len(trace)) if rules.horizon > 0 else len(trace)
    if rules.episode_s > 0.0:
        stop = min(stop, int(np.searchsorted(trace.arrival_s - trace.arrival_s[start], rules.episode_s)))
    return trace.rows(start, stop)


def lower(trace: FunctionTrace, table: NodeTable, cooldown_s: float) -> float:
    """Return a bill in USD that no policy can beat when all of the trace arrives at an empty cluster."""
    holds = ways_in(trace, table)
    certain = never_rejected(trace, table, holds)
    # What not all nodes can hold may be rejected while the others are free: it counts only if it is certain.
    counts = certain | (holds.all(axis=1) & (cooldown_s > 0.0))
    first, last = trace.arrival_s[0], trace.arrival_s[-1]
    over = float((trace.arrival_s + trace.duration_s).max()) + 2.0 * cooldown_s  # nothing is billed any more
    whole = _accrued(trace, table, cooldown_s, counts, first, over)
    if certain[counts].all():
        return float(whole.usd[-1])
    block_s = min(max(cooldown_s / BLOCKS_A_COOLDOWN, (last - first) / MOST_BLOCKS), cooldown_s)
    # The last block ends after the last arrival.
    edges = np.append(np.arange(first, last + 1.5 * block_s, block_s), over)
    # Long after a block nothing that came before it is left, and the bill grows as if nothing had been rejected.
    memory_s = float(trace.duration_s[counts & ~certain].max()) + cooldown_s
    full = float(table.price_usd_per_hour.sum()) * HOURS_PER_SECOND
    blocks = edges.size - 2
    least = np.empty(blocks)  # from the end of a block, when the policy has rejected something in it
    for k in range(blocks - 1, -1, -1):
        since, billed_until, forgotten = edges[k + 1], edges[k] + cooldown_s, edges[k + 1] + memory_s
        later = counts & (certain | (trace.arrival_s >= since))
        own = _accrued(trace, table, cooldown_s, later, since, forgotten)
        until = edges[k + 1 :]
        bill = full * (np.minimum(until, billed_until) - since)
        bill += own.at(np.clip(until, billed_until, forgotten)) - own.at(billed_until)
        bill += whole.at(np.maximum(until, forgotten)) - whole.at(forgotten)
        least[k] = min(bill[-1], (bill[1:-1] + least[k + 1 :]).min(initial=np.inf))
    return float(min(whole.usd[-1], (whole.at(edges[1:-1]) + least).min()))


def _alive(come: Ints, times: Floats, ends: Floats, amounts: Floats) -> Floats:
    """Return how much of an amount is alive at each time, when so many rows have come; what ends then is not."""
    order = np.argsort(ends, kind="stable")
    arrived = np.concatenate([[0.0], np.cumsum(amounts)])
    left = np.concatenate([[0.0], np.cumsum(amounts[order])])
    gone = np.searchsorted(ends[order], times, side="right")
    # The difference of two long sums: what rounding leaves must not look like load.
    alive: Floats = np.maximum(arrived[come] - left[gone] - 1e-12 * arrived[-1], 0.0)
    return alive


def ways_in(trace: FunctionTrace, table: NodeTable) -> NDArray[np.bool_]:
    """Return which instances [T, N] an empty node can hold."""
    fits: NDArray[np.bool_] = trace.cpu[:, None] <= table.cpu + FIT_TOLERANCE
    fits &= trace.mem[:, None] <= table.mem + FIT_TOLERANCE
    return fits


def never_rejected(trace: FunctionTrace, table: NodeTable, holds: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Say which instances find a node with room whatever the policy does.

    To block a node takes more than its cores less the request's, or the same of memory. If all that is alive is too
    little for one of the nodes, or if, with any weights w and 1 - w, the cheaper ways to block each node add up to all
    that is alive, nobody can block them all.
    """
    ends = trace.arrival_s + trace.duration_s
    # Everything that came before and has not left: a superset of what runs.
    before = np.arange(len(trace))
    load = [np.maximum(_alive(before, trace.arrival_s, ends, a), 1e-9) for a in (trace.cpu, trace.mem)]
    result = np.zeros(len(trace), np.bool_)
    kinds, count = np.unique(np.stack([table.cpu, table.mem], axis=1), axis=0, return_counts=True)
    for weight in WEIGHTS:
        total = np.zeros(len(trace))
        for (cpu, mem), nodes in zip(kinds, count, strict=True):
            fits = (trace.cpu <= cpu + FIT_TOLERANCE) & (trace.mem <= mem + FIT_TOLERANCE)
            by_cpu = weight * np.maximum(cpu - trace.cpu, 0.0) / load[0]
            by_mem = (1.0 - weight) * np.maximum(mem - trace.mem, 0.0) / load[1]
            total += nodes * np.where(fits, np.minimum(by_cpu, by_mem), 0.0)
            result |= fits & (trace.cpu + load[0] <= cpu) & (trace.mem + load[1] <= mem)
        result |= total >= 1.0 + 1e-9
    return result & holds.any(axis=1)


class _Bill(NamedTuple):
    """How a bill grows: straight between the times."""

    times: Floats
    usd: Floats

    def at(self, times: Any) -> Any:
        """Return the bill at times; before the first it is 0, after the last it has its final value."""
        return np.interp(times, self.times, self.usd)


def _accrued(
    trace: FunctionTrace, table: NodeTable, cooldown_s: float, counts: NDArray[np.bool_], since: float, stop: float
) -> _Bill:
    """Return the least bill from a time on, when the instances that count are all placed."""
    arrival_s, ends = trace.arrival_s[counts], (trace.arrival_s + trace.duration_s)[counts]
    times = np.unique(np.concatenate([[since], arrival_s, ends, [stop]]))
    times = times[(times >= since) & (times <= stop)]
    come = np.searchsorted(arrival_s, times, side="right")
    cpu, mem = (_alive(come, times, ends, amounts[counts]) for amounts in (trace.cpu, trace.mem))
    moments, heights = _highest(times, cover(table, cpu, mem), cooldown_s)
    return _Bill(moments, np.concatenate([[0.0], np.cumsum(heights * np.diff(moments))]) * HOURS_PER_SECOND)


def cover(table: NodeTable, cpu: Floats, mem: Floats) -> Floats:
    """Return the least hourly price of nodes with so many cores and GiB; more than there are count as all nodes."""
    full = float(table.price_usd_per_hour.sum())
    types = np.stack([table.cpu, table.mem, table.price_usd_per_hour], axis=1)
    kinds, count = np.unique(types, axis=0, return_counts=True)
    slack = FIT_TOLERANCE * len(table)
    if np.prod(count + 1.0) <= MOST_SETS:
        sets = np.array(list(itertools.product(*(range(n + 1) for n in count))), np.float64) @ kinds
        sets = sets[np.argsort(sets[:, 2], kind="stable")]
        enough = (sets[:, 0] + slack >= cpu[:, None]) & (sets[:, 1] + slack >= mem[:, None])
        return np.where(enough.any(axis=1), sets[enough.argmax(axis=1), 2], full)
    result: Floats = np.zeros(cpu.size)
    for core, gib in _prices(kinds[np.argsort(kinds[:, 2] / kinds[:, 0])[:MOST_TYPES]]):
        gained = np.maximum(core * kinds[:, 0] + gib * kinds[:, 1] - kinds[:, 2], 0.0) @ count
        result = np.maximum(result, core * np.maximum(cpu - slack, 0.0) + gib * np.maximum(mem - slack, 0.0) - gained)
    return np.minimum(result, full)


def _prices(kinds: Floats) -> list[tuple[float, float]]:
    """Return the prices of a core and of a GiB at which the relaxation's dual can have its optimum.

    Where the nodes of two types, or of one type valued by one resource alone, are worth exactly what they cost.
    """
    cpu, mem, price = kinds.T
    found = [(value, 0.0) for value in price / cpu] + [(0.0, value) for value in price / mem]
    for one, other in itertools.combinations(range(len(kinds)), 2):
        matrix = np.array([[cpu[one], mem[one]], [cpu[other], mem[other]]])
        if abs(np.linalg.det(matrix)) > 1e-9:
            core, gib = np.linalg.solve(matrix, price[[one, other]])
            if core >= 0.0 and gib >= 0.0:
                found.append((float(core), float(gib)))
    return found


def _highest(times: Floats, values: Floats, look_back_s: float) -> tuple[Floats, Floats]:
    """Return the highest value of the last ``look_back_s`` as steps; ``values[k]`` holds from ``times[k]`` on."""
    ends = np.append(times[1:], np.inf) + look_back_s
    moments = np.unique(np.concatenate([times, ends[:-1]]))
    heights = np.zeros(moments.size - 1)
    window: deque[int] = deque()  # values that are still highest at some time to come, falling
    following = 0
    for step, moment in enumerate(moments[:-1].tolist()):
        while following < times.size and times[following] <= moment:
            while window and values[window[-1]] <= values[following]:
                window.pop()
            window.append(following)
            following += 1
        while ends[window[0]] <= moment:
            window.popleft()
        heights[step] = values[window[0]]
    return moments, heights


def optimum(env: PlacementVectorEnv, start: int, metric: str = "cost_usd", sign: float = -1.0) -> float:
    """Return the best an episode can reach on a metric, trying every sequence of feasible decisions.

    Raises:
        ConfigError: When there are more than ``MOST_SEQUENCES``.
    """
    from sched_env.functions.vector import ServerlessVectorEnv

    few = cast("ServerlessVectorEnv", env)
    N, T = len(few.table), len(episode(few, start))
    if N**T > MOST_SEQUENCES:
        raise ConfigError(f"{T} instances on {N} nodes", f"at most {MOST_SEQUENCES} ways to place them")
    many = ServerlessVectorEnv(few.scenario, N**T, few.trace, few.table, seed=few.seed)
    many.reset(options={"starts": np.full(N**T, start), "park": True})
    sequences = np.array(list(itertools.product(range(N), repeat=T)), np.int64)
    for step in range(T):
        if not many.buffers.active.any():
            break
        # An infeasible choice becomes the first feasible one: then the sequence is one that is tried elsewhere too.
        mask, wanted = many.buffers.mask, sequences[:, step]
        many.step(np.where(mask[np.arange(N**T), wanted], wanted, mask.argmax(axis=1)))
    values = many.buffers.metrics[:, many.METRICS.index(metric)]
    return float(sign * (sign * values).max())
