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

from sched_env.errors import ConfigError
from sched_env.features.pods import FIT_TOLERANCE
from sched_env.pods.counting import SLACK
from sched_env.pods.vector import DeployVectorEnv
from sched_env.traces.tables import Floats
from sched_env.vector import PlacementVectorEnv

PRIMARY = ("resource_violations", -1.0)

SECONDS, BRANCHES = 20.0, 500
"""Limits of each program; most need a tenth of a second. Branches come first, so that a bound does not depend on how
busy the machine is."""
MOST_NODES = 30
"""Clusters up to this size are solved; larger ones have the bound that always holds, 0."""
OPTIMAL, OUT_OF_TIME = 0, 1
"""Of scipy's ``milp``; it has no code for a program that stops after so many branches."""
TOLERANCE = 1e-6
FREE = -1
"""A pod that may be anywhere, or nowhere: it came later, or may have been displaced."""


class Window(NamedTuple):
    """A window to place: P pods, N nodes, K positions."""

    cpu: Floats
    """[P, K]: of the k-th request of each pod; 0 where there is none."""
    mem: Floats
    mem_request: Floats
    """[P]"""
    begun_on: NDArray[np.int64]
    """[P]: the pod's node at the start of the episode, or ``FREE``."""
    moves: int
    """How many of the others may be elsewhere by now."""


def of_starts(env: PlacementVectorEnv, starts: Sequence[int]) -> list[float | None]:
    """Return the fewest resource violations of an episode from each start.

    None where requests meet as they come (``arrival: parallel``): what is counted then depends on who shares a node;
    and with a ``horizon``: an episode that is cut by decisions may leave windows out.
    """
    if not isinstance(env, DeployVectorEnv):
        raise ConfigError(f"the environment is a {type(env).__name__}", "one of pods")
    if env.rules.parallel or env.rules.horizon:
        return [None] * len(starts)
    if len(env.table) > MOST_NODES:
        return [0.0] * len(starts)
    own = DeployVectorEnv(env.scenario, 1, env.trace, env.table)
    return [float(sum(plan(own, window).bound for window in windows(own, start))) for start in starts]


def windows(env: DeployVectorEnv, start: int) -> list[Window]:
    """Return the windows that an episode from a start counts."""
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
        cpu, mem = _positions(env, window)
        on = np.array([begun.get(p, FREE) for p in pods], np.int64)
        found.append(Window(cpu, mem, trace.mem_request[rows], on, moves))
    return found


def _positions(env: DeployVectorEnv, window: int) -> tuple[Floats, Floats]:
    trace = env.trace
    first, stop = int(trace.window_rows[window]), int(trace.window_rows[window + 1])
    counts = np.diff(trace.row_requests[first : stop + 1])
    cpu, mem = np.zeros((2, stop - first, int(counts.max(initial=0))))
    for row in range(stop - first):
        there = slice(int(trace.row_requests[first + row]), int(trace.row_requests[first + row + 1]))
        cpu[row, : counts[row]], mem[row, : counts[row]] = trace.cpu[there], trace.mem[there]
    return cpu, mem


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
    from scipy.sparse import coo_array, csr_array, eye_array, hstack, kron

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
    for demand, capacity in ((window.cpu, env.table.cpu), (window.mem, env.table.mem)):
        room = env.rules.threshold * capacity * SLACK
        most = np.maximum(demand.sum(axis=0)[:, None] - room[None, :], 0.0).ravel()
        above = coo_array((-most, (np.arange(K * N), np.arange(K * N))), shape=(K * N, K * N))
        load = hstack([kron(demand.T, eye_array(N)), above])
        limits.append(LinearConstraint(load.tocsr(), -np.inf, np.tile(room, K)))
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
