"""Bounds of ``pods``: resource violations that no policy avoids, and the plan that leaves the fewest in a window.

A policy that knew every window would still have to get there: it may move no more pods than the budgets of the windows
so far allow, and every pod that has been there from the start and was not moved is where it began. Under that limit
alone, window by window, a mixed-integer program looks for the placement with the fewest violations. Its own lower
bound counts, so that a program that is stopped early is still valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sched_env.pods.counting import SLACK, Requests, loads, requests_of
from sched_env.pods.features import FIT_TOLERANCE
from sched_env.pods.vector import DeployVectorEnv
from sched_env.tables import Floats
from sched_env.vector import PlacementVectorEnv
from wire.errors import ConfigError

SECONDS, BRANCHES = 20.0, 500
"""Limits of each program; most need a tenth of a second. Branches come first, so that a bound does not depend on how
busy the machine is."""
MOST_NODES = 30
"""Clusters up to this size are solved; larger ones have the bound that always holds, 0."""
MOST_INSTANTS = 40
"""Of a window with ``arrival: parallel``; leaving some out makes the bound lower, not wrong."""
OPTIMAL, OUT_OF_TIME = 0, 1
"""Of scipy's ``milp``; it has no code for a program that stops after so many branches."""
TOLERANCE = 1e-6
FREE = -1
"""A pod that may be anywhere, or nowhere: it came later, or may have been displaced."""


Positions = tuple[Floats, Floats, NDArray[np.bool_]]
"""Of a window: ``cpu``, ``mem`` and ``arrives`` of :class:`Window`."""


class Window(NamedTuple):
    """A window to place: P pods, N nodes, K positions."""

    cpu: Floats
    """[P, K]: of each pod at each position; 0 where it has no request."""
    mem: Floats
    arrives: NDArray[np.bool_]
    """[P, K]: whether a request of the pod makes it a position of its node."""
    mem_request: Floats
    """[P]"""
    begun_on: NDArray[np.int64]
    """[P]: the pod's node at the start of the episode, or ``FREE``."""
    moves: int
    """How many of the others may be elsewhere by now."""


def of_starts(env: PlacementVectorEnv, starts: Sequence[int]) -> list[float | None]:
    """Return the fewest resource violations of an episode from each start.

    None with a ``horizon``: an episode that is cut by decisions may leave windows out.
    """
    if not isinstance(env, DeployVectorEnv):
        raise ConfigError(f"the environment is a {type(env).__name__}", "one of pods")
    if env.rules.horizon:
        return [None] * len(starts)
    if len(env.table) > MOST_NODES:
        return [0.0] * len(starts)
    own, seen = DeployVectorEnv(env.scenario, 1, env.trace, env.table), dict[int, Positions]()
    return [float(sum(_least(own, window) for window in windows(own, start, seen))) for start in starts]


def _least(env: DeployVectorEnv, window: Window) -> int:
    """Return the violations that nobody avoids; of most windows that is seen without a program."""
    return 0 if avoidable(env, window) else plan(env, window).bound


def avoidable(env: DeployVectorEnv, window: Window) -> bool:
    """Say whether a window has no violation if nobody moves and who may be nowhere is nowhere."""
    there = np.flatnonzero(window.begun_on != FREE)
    on = window.begun_on[there]
    for demand, capacity in ((window.cpu, env.table.cpu), (window.mem, env.table.mem)):
        load = np.zeros((len(env.table), demand.shape[1]))
        np.add.at(load, on, demand[there])
        if (load > env.rules.threshold * capacity[:, None] * SLACK).any():
            return False
    asked = np.bincount(on, window.mem_request[there], len(env.table))
    return bool((asked <= env.table.mem + FIT_TOLERANCE).all())


def windows(env: DeployVectorEnv, start: int, seen: dict[int, Positions] | None = None) -> list[Window]:
    """Return the windows that an episode from a start counts.

    Args:
        env: The cluster and its trace.
        start: The first window.
        seen: Keeps what was worked out of windows, for episodes that share them.
    """
    seen = {} if seen is None else seen
    env.reset(options={"starts": [start]})
    first, place = env.placement(0)
    trace = env.trace
    rows = slice(int(trace.window_rows[first]), int(trace.window_rows[first + 1]))
    begun = {int(p): int(n) for p, n in zip(trace.pod[rows], place, strict=True) if n >= 0}
    memory = dict(zip(trace.pod[rows].tolist(), trace.mem_request[rows].tolist(), strict=True))
    moves, found = 0, []
    for window in range(first + 1, min(first + 1 + env.rules.episode_windows, len(trace))):
        moves += max(int(env.rules.budget * (rows.stop - rows.start)), 1)
        rows = slice(int(trace.window_rows[window]), int(trace.window_rows[window + 1]))
        pods = trace.pod[rows].tolist()
        asked = dict(zip(pods, trace.mem_request[rows].tolist(), strict=True))
        if any(asked[p] > memory.get(p, np.inf) for p in pods):
            begun = {}  # a pod that grows may displace others from its node, wherever that is
        begun = {p: n for p, n in begun.items() if p in asked}
        memory = asked
        if window not in seen:
            seen[window] = (_instants if env.rules.parallel else _positions)(env, window)
        on = np.array([begun.get(p, FREE) for p in pods], np.int64)
        found.append(Window(*seen[window], trace.mem_request[rows], on, moves))
    return found


def _positions(env: DeployVectorEnv, window: int) -> Positions:
    """Return the demands of a window's pods where their k-th requests meet."""
    rows = range(int(env.trace.window_rows[window]), int(env.trace.window_rows[window + 1]))
    each = [requests_of(env.trace, row) for row in rows]
    cpu, mem = np.zeros((2, len(each), max((pod.cpu.size for pod in each), default=0)))
    for pod, own_cpu, own_mem in zip(each, cpu, mem, strict=True):
        own_cpu[: pod.cpu.size], own_mem[: pod.mem.size] = pod.cpu, pod.mem
    return cpu, mem, np.ones(cpu.shape, np.bool_)


def _instants(env: DeployVectorEnv, window: int) -> Positions:
    """Return the demands of a window's pods at the most loaded instants at which requests arrive."""
    rows = range(int(env.trace.window_rows[window]), int(env.trace.window_rows[window + 1]))
    each = [requests_of(env.trace, row) for row in rows]
    instants = np.unique(np.concatenate([np.empty(0), *(pod.arrival_s for pod in each)]))
    always = Requests(instants, *np.zeros((3, instants.size)))  # asks for nothing, but makes all of them positions
    cpu, mem = np.zeros((2, len(each), instants.size))
    arrives = np.zeros(cpu.shape, np.bool_)
    for own, pod in enumerate(each):
        cpu[own], mem[own] = loads([pod, always], "parallel")
        arrives[own] = np.isin(instants, pod.arrival_s)
    load = np.maximum(cpu.sum(axis=0) / env.table.cpu.sum(), mem.sum(axis=0) / env.table.mem.sum())
    kept = np.sort(np.argsort(-load, kind="stable")[:MOST_INSTANTS])
    return cpu[:, kept], mem[:, kept], arrives[:, kept]


class Plan(NamedTuple):
    """A placement of a window's pods."""

    place: NDArray[np.int64]
    """[P]: node of each pod, or ``FREE`` where it is of no use; empty when there was no time to find one."""
    violations: float
    """What it leaves; infinite when there was no time to find one."""
    bound: int
    """What every placement leaves at least; equal to ``violations`` when the plan is proved to be the best."""


def plan(env: DeployVectorEnv, window: Window, seconds: float = SECONDS) -> Plan:
    """Look for the placement of a window with the fewest violations, within the moves it allows."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array, csr_array, diags_array, eye_array, hstack, kron

    (P, K), N = window.cpu.shape, len(env.table)
    # Variables: pod p is on node n [P, N]; then, the k-th position of node n is above the threshold [K, N].
    begun = np.flatnonzero(window.begun_on != FREE)
    once = hstack([kron(eye_array(P), np.ones((1, N))), csr_array((P, K * N))])
    stays = coo_array(
        (np.ones(begun.size), (np.zeros(begun.size, np.int64), begun * N + window.begun_on[begun])),
        shape=(1, P * N + K * N),
    )
    held = hstack([kron(window.mem_request[None, :], eye_array(N)), csr_array((N, K * N))])
    limits = [
        LinearConstraint(once.tocsr(), (window.begun_on != FREE).astype(np.float64), 1.0),
        LinearConstraint(stays.tocsr(), begun.size - window.moves, np.inf),
        LinearConstraint(held.tocsr(), -np.inf, env.table.mem + FIT_TOLERANCE),
    ]
    # A position counts where somebody arrives. If all who are there do, it counts wherever there is load; otherwise,
    # for each of those who arrive, on its node.
    asks = (window.cpu > 0.0) | (window.mem > 0.0)
    everywhere = ~(asks & ~window.arrives).any(axis=0)
    who, where = np.nonzero(window.arrives & ~everywhere)
    position = np.concatenate([np.flatnonzero(everywhere), where])
    R = position.size
    comes = coo_array((np.ones(who.size), (np.arange(R - who.size, R), who)), shape=(R, P))
    counts = coo_array((np.ones(R), (np.arange(R), position)), shape=(R, K))
    on_its_node = np.repeat(np.arange(R) >= R - who.size, N)
    for demand, capacity in ((window.cpu, env.table.cpu), (window.mem, env.table.mem)):
        room = np.tile(env.rules.threshold * capacity * SLACK, R)
        most = diags_array(np.maximum(np.repeat(demand.sum(axis=0)[position], N) - room, 0.0))
        load = kron(demand.T[position], eye_array(N)) + most @ kron(comes, eye_array(N))
        rows = hstack([load, -(most @ kron(counts, eye_array(N)))])
        limits.append(LinearConstraint(rows.tocsr(), -np.inf, room + np.where(on_its_node, most.diagonal(), 0.0)))
    answer = milp(
        np.concatenate([np.zeros(P * N), np.ones(K * N)]),
        constraints=limits,
        integrality=np.ones(P * N + K * N),
        bounds=Bounds(0.0, 1.0),
        options={"time_limit": seconds, "node_limit": BRANCHES},
    )
    if answer.status not in (OPTIMAL, OUT_OF_TIME) and (answer.mip_node_count or 0) < BRANCHES:
        raise RuntimeError(f"the program of a window failed: {answer.message}")
    bound = max(int(np.ceil((answer.mip_dual_bound or 0.0) - TOLERANCE)), 0)
    if answer.x is None:
        return Plan(np.empty(0, np.int64), np.inf, bound)
    there = answer.x[: P * N].reshape(P, N).round()
    return Plan(np.where(there.any(axis=1), there.argmax(axis=1), FREE), float(answer.x[P * N :].round().sum()), bound)
