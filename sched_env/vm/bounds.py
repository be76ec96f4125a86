"""Bounds of ``vm``: the most placements before the first misfit, the least waiting, the least cost of placing all.

After k placements every policy holds the same VMs. So an episode ends at the latest where those VMs cannot be packed
into the servers at all, not even if every one of them could still be moved; ``sched_env.vm.packing`` proves that
by prices. With ``wait``, the same packing, first come first served, gives every request a time before which it cannot
start under any policy.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sched_env.vector import PlacementVectorEnv
from sched_env.vm.events import CPU, HALVES, MEM, TIME, creation_of
from sched_env.vm.packing import Floats, Ints, Packing, shapes_of
from sched_env.vm.scenario import VmScenario
from sched_env.vm.vector import VmVectorEnv
from wire.errors import ConfigError

SLACK = 1.0 + 1e-9
"""Sums of prices may exceed the servers by rounding alone."""
PATIENCE = 4
"""Fullest instants that may prove feasible, one after another, before the search for an infeasible one ends."""
SAMPLED_INSTANTS = 32
"""Instants priced for :func:`least_cost`."""
FIRST_SPAN = 4096
"""Rows looked at first; most episodes end within."""


def of_starts(env: PlacementVectorEnv, starts: Sequence[int]) -> list[float | None]:
    """Return the bound of the scenario's own metric, of an episode from each start.

    What is proved holds for a cluster that is empty at first: none is claimed for one that is not.
    """
    log = log_of(env)
    if log.env.params.recorded or len(log.env.events.parts) > 1:
        return [None] * len(starts)
    bounds: Mapping[str, Callable[[Log, int], float | None]] = {
        "placed": lambda log, start: float(most_placed(log, start)),
        "wait_s": least_waiting,
        "cost_usd": least_cost,
    }
    bound = bounds[log.env.scenario.metric]
    return [bound(log, start) for start in starts]


class Log(NamedTuple):
    """A trace made ready for bounds; prices found at one start serve the others."""

    env: VmVectorEnv
    """One environment of our own, so that the caller's is not disturbed."""
    shape: Ints
    """[R]: shape of each row's VM."""
    volume: Floats
    """[2, R]: what a row's VM takes of a server's cores and of its memory; the simplest of valid prices."""
    created_by: Ints
    """[R]: row that created the VM of a deletion; -1 where nothing is freed."""
    packing: Packing


def log_of(env: PlacementVectorEnv) -> Log:
    """Prepare the trace of an environment."""
    if not isinstance(env, VmVectorEnv) or not isinstance(env.scenario, VmScenario):
        raise ConfigError(f"the environment is a {type(env).__name__}", "one of vm")
    rows, scenario = env.events.rows, env.scenario
    shapes, shape = shapes_of(
        rows[:, CPU], rows[:, MEM], rows[:, HALVES], scenario.half_cpu_cores, scenario.half_mem_gib
    )
    created_by = creation_of(env.trace) if scenario.releases else np.full(len(rows), -1, np.int64)
    mix = np.bincount(shape[env.trace.kind == 0], minlength=len(shapes.cpu)).astype(np.float64)
    sizes = np.array([scenario.half_cpu_cores, scenario.half_mem_gib])
    volume = (rows[:, [CPU, MEM]] * rows[:, [HALVES]] / (2.0 * sizes)).T
    return Log(VmVectorEnv(scenario, env.trace, 1), shape, volume, created_by, Packing(shapes, mix))


class Episode(NamedTuple):
    """What every policy sees from a start on, as long as it places everything."""

    rows: Ints
    """Creations, and deletions of VMs created since the start, in order."""
    created: NDArray[np.bool_]
    shape: Ints
    totals: Floats
    """Servers that the VMs after each row would fill if cores and memory were all that counted."""
    servers: Floats
    """Servers there are when a row comes: what grows, grows alike under every policy."""

    @property
    def sign(self) -> Floats:
        """What a row does to the number of VMs."""
        return np.where(self.created, 1.0, -1.0)

    def worth(self, prices: Floats) -> Floats:
        """Return what the VMs after each row are worth, by the prices that make them worth most."""
        best = self.totals.copy()
        for price in prices:
            np.maximum(best, np.cumsum(self.sign * price[self.shape]), out=best)
        return best

    def counts(self, at: int, shapes: int) -> Floats:
        """Return the VMs of each shape after a row."""
        return np.bincount(self.shape[: at + 1], self.sign[: at + 1], minlength=shapes).astype(np.float64)

    def until(self, end: int) -> Episode:
        """Return the episode up to a place."""
        return Episode(self.rows[:end], self.created[:end], self.shape[:end], self.totals[:end], self.servers[:end])


def episode_of(log: Log, start: int, stop: int) -> Episode:
    """Return the episode from a start to a row of the trace."""
    first = int(log.env.events.next_start[start])
    rows = np.arange(first, stop)
    created = log.env.trace.kind[first:stop] == 0
    here = created | (log.created_by[first:stop] >= first)
    rows, created = rows[here], created[here]
    totals = np.cumsum(np.where(created, log.volume[:, rows], -log.volume[:, rows]), axis=1).max(axis=0)
    return Episode(rows, created, log.shape[rows], totals, _servers(log, totals, created))


def _servers(log: Log, totals: Floats, created: NDArray[np.bool_]) -> Floats:
    P = log.env.params
    count = np.full(totals.size, float(P.servers))
    if P.growing:
        wanted = totals / max(P.expand_threshold, 1e-9) * SLACK  # rounding must not lose a server
        bought = np.maximum(np.ceil((wanted - P.servers) / P.growing), 0.0) * created  # after placements only
        # Bought after a placement, for the next one.
        count[1:] = np.minimum(P.servers + P.growing * np.maximum.accumulate(bought), P.max_servers)[:-1]
    return count


def _over(log: Log, episode: Episode, worth: Floats) -> int:
    """Return the first creation that no policy can place, or the end."""
    misfit = episode.created & ((worth > episode.servers * SLACK) | ~log.packing.fits[episode.shape])
    return int(misfit.argmax()) if misfit.any() else misfit.size


def prefix(log: Log, start: int) -> int:
    """Return how many requests come before cores or memory of the whole cluster run out (section 6 of problems.md)."""
    return int(_within_totals(log, start).created.sum())


def _within_totals(log: Log, start: int) -> Episode:
    """Return the episode up to the first request that the cluster's cores or memory do not suffice for."""
    first, rows = int(log.env.events.next_start[start]), log.env.events.slot.size
    span = FIRST_SPAN
    while True:
        episode = episode_of(log, start, min(first + span, rows))
        end = _over(log, episode, episode.totals)
        if end < episode.rows.size or first + span >= rows:
            return episode.until(end)
        span *= 4


def most_placed(log: Log, start: int) -> int:
    """Return how many requests any policy can place from a start before the first that fits nowhere."""
    episode = _within_totals(log, start)
    packing = log.packing
    worth = episode.worth(packing.prices)
    episode = episode.until(_over(log, episode, worth))
    untried = episode.created.copy()
    patience = PATIENCE
    while patience and untried[: episode.rows.size].any():
        end = episode.rows.size
        # The fullest instant is the likeliest to be infeasible; its prices then tell where it first is.
        at = int(np.where(untried[:end], worth[:end] / episode.servers, -np.inf).argmax())
        untried[at] = False
        known = len(packing.prices)
        packing.need(episode.counts(at, packing.fits.size))
        np.maximum(worth[:end], episode.worth(packing.prices[known:]), out=worth[:end])
        episode = episode.until(_over(log, episode, worth[:end]))
        patience = PATIENCE if episode.rows.size < end else patience - 1
    placed = int(episode.created.sum())
    return min(placed, log.env.params.horizon) if log.env.params.horizon else placed


def least_waiting(log: Log, start: int) -> float | None:
    """Return the least seconds that the queue from a start waits under any policy; None when no bound is known.

    Without one: clusters that grow (a delay changes when they do), queues with VMs that never leave or fit nowhere
    (an episode may then end early, with less waiting), and horizons that cut the queue.
    """
    env, P, packing = log.env, log.env.params, log.packing
    env.reset(options={"starts": [start]})
    first, end = int(env.events.next_start[start]), int(env.state.env.queue_end[0])
    rows = first + np.flatnonzero(env.trace.kind[first:end] == 0)
    arrival, life, shape = env.events.rows[rows, TIME], env.events.life_s[rows], log.shape[rows]
    if P.growing or not np.isfinite(life).all() or not packing.fits[shape].all() or 0 < P.horizon < rows.size:
        return None
    untried = np.ones(rows.size, np.bool_)
    patience = PATIENCE

    def earliest() -> tuple[Floats, Floats]:
        prices = np.vstack([log.volume[:, rows], packing.prices[:, shape]])
        return earliest_starts(arrival, life, np.ascontiguousarray(prices.T), P.servers)

    began, worth = earliest()
    while patience and untried.any():
        at = int(np.where(untried, worth, -np.inf).argmax())
        untried[at] = False
        there = began[: at + 1] + life[: at + 1] > began[at]
        patience -= 1
        held = np.bincount(shape[: at + 1][there], minlength=packing.fits.size).astype(np.float64)
        if packing.need(held) > P.servers * SLACK:
            began, worth = earliest()
            patience = PATIENCE
    return float((began - arrival).sum())


def earliest_starts(arrival: Floats, life: Floats, worth: Floats, servers: int) -> tuple[Floats, Floats]:
    """Return when each request of a queue can start at the earliest, first come first served, and what is then held.

    Whoever starts later holds on for longer: in every schedule each request finds at least as much held as here, so
    no request of any schedule starts earlier than here.

    Args:
        arrival: [Q] in order.
        life: [Q]
        worth: [Q, P] of each request, by each price.
        servers: What all that is held may be worth at most, by every price.
    """
    began, fullest = np.empty(arrival.size), np.empty(arrival.size)
    leaving: list[tuple[float, int]] = []
    held = np.zeros(worth.shape[1])
    now = -np.inf
    for request in range(arrival.size):
        now = max(now, float(arrival[request]))
        while leaving and (leaving[0][0] <= now or (held + worth[request]).max() > servers * SLACK):
            now = max(now, leaving[0][0])
            held -= worth[heapq.heappop(leaving)[1]]
        held += worth[request]
        heapq.heappush(leaving, (now + float(life[request]), request))
        began[request], fullest[request] = now, held.max()
    return began, fullest


def least_cost(log: Log, start: int) -> float:
    """Return the least ``cost_usd`` of an episode that runs to its horizon, or to the end of the trace, all placed."""
    episode = episode_of(log, start, log.env.events.slot.size)
    horizon, packing = log.env.params.horizon, log.packing
    if horizon:
        # Time runs at least until the last decision of the horizon.
        episode = episode.until(int(np.searchsorted(np.cumsum(episode.created), horizon)) + 1)
    for at in np.linspace(0, episode.rows.size - 1, SAMPLED_INSTANTS).astype(int):
        packing.need(episode.counts(at, packing.fits.size))
    time_s = np.maximum.accumulate(log.env.events.rows[episode.rows, TIME])
    busy = np.ceil(episode.worth(packing.prices) / SLACK)
    return float((busy[:-1] * np.diff(time_s)).sum() * log.env.params.price_usd_per_s)
