"""The optimum of small ``vm`` episodes: a mixed-integer program that knows the future and may not move a VM."""

from __future__ import annotations

import numpy as np

from sched_env.vm.bounds import Log, episode_of, most_placed
from sched_env.vm.events import CPU, HALVES, MEM
from wire.errors import ConfigError

MOST_REQUESTS, MOST_SERVERS = 60, 6
"""Size up to which it takes seconds."""


def optimum(log: Log, start: int, time_limit_s: float = 60.0) -> int:
    """Return how many requests the best of all policies places from a start before the first misfit.

    Raises:
        ConfigError: When the episode is larger than ``MOST_REQUESTS`` on ``MOST_SERVERS``, grows or waits.
        TimeoutError: When the optimum is not proved in time.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import lil_array

    P = log.env.params
    count = most_placed(log, start)
    if P.growing or P.waits:
        raise ConfigError("the cluster grows or requests wait", "ending terminate on a fixed number of servers")
    if count > MOST_REQUESTS or P.servers > MOST_SERVERS:
        raise ConfigError(
            f"up to {count} requests on {P.servers} servers", f"at most {MOST_REQUESTS} on {MOST_SERVERS}"
        )
    if count == 0:
        return 0
    stop = log.env.events.slot.size
    episode = episode_of(log, start, stop)
    created = np.flatnonzero(episode.created)[:count]
    rows = episode.rows[created]
    need = log.env.events.rows[rows]
    leaves = _leaves(log, rows)
    H = 2 * P.servers
    # Variables: request i lies on half h (a split one: on both halves of h's server, counted at its even half), and
    # request i is placed. Requests are placed in order, without a gap.
    place = np.arange(count * H).reshape(count, H)
    upper = np.ones(count * H + count)
    for i in range(count):
        if need[i, HALVES] == 2.0:
            upper[place[i, 1::2]] = 0.0
        upper[place[i, 2 * (i + 1) :]] = 0.0  # servers are alike: the i-th request opens at most the i-th of them
    once = lil_array((count, upper.size))
    ordered = lil_array((max(count - 1, 0), upper.size))
    loads = lil_array((2 * H * count, upper.size))
    for i in range(count):
        once[i, place[i]] = 1.0
        once[i, count * H + i] = -1.0
        if i:
            ordered[i - 1, [count * H + i, count * H + i - 1]] = [1.0, -1.0]
        for h in range(H):
            for j in np.flatnonzero((np.arange(count) <= i) & (leaves > rows[i])):
                column = place[j, h - h % 2 if need[j, HALVES] == 2.0 else h]
                loads[2 * (i * H + h), column] = need[j, CPU]
                loads[2 * (i * H + h) + 1, column] = need[j, MEM]
    room = np.tile([P.half_cpu, P.half_mem], H * count) + 1e-9
    constraints = [LinearConstraint(once.tocsr(), 0.0, 0.0), LinearConstraint(loads.tocsr(), -np.inf, room)]
    if count > 1:
        constraints.append(LinearConstraint(ordered.tocsr(), -np.inf, 0.0))
    aim = np.zeros(upper.size)
    aim[count * H :] = -1.0
    answer = milp(
        aim,
        constraints=constraints,
        integrality=np.ones(upper.size),
        bounds=Bounds(np.zeros(upper.size), upper),
        options={"time_limit": time_limit_s, "mip_rel_gap": 0.0},
    )
    if answer.status != 0:
        raise TimeoutError(f"the optimum was not proved within {time_limit_s:g} s: {answer.message}")
    return int(answer.x[count * H :].round().sum())


def _leaves(log: Log, rows: np.ndarray) -> np.ndarray:
    """Return the row that deletes the VM of each creation; beyond the trace when none does."""
    leaves = np.full(log.env.events.slot.size, log.env.events.slot.size)
    deletions = np.flatnonzero(log.created_by >= 0)
    leaves[log.created_by[deletions]] = deletions
    chosen: np.ndarray = leaves[rows]
    return chosen
