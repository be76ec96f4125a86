"""Heuristics of ``vm`` on whole batches, compiled, on the environments' own float64 state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sched_env.jit import entry, inline, lean_kernel
from sched_env.vector import Buffers
from sched_env.vm import heuristics
from sched_env.vm.events import CPU, HALVES, MEM, Events
from sched_env.vm.heuristics import FIRST_FIT, NAMES, TYPICAL_REQUESTS
from sched_env.vm.state import Params, State

if TYPE_CHECKING:
    from sched_env.problem import BatchRule
    from sched_env.vm.vector import VmVectorEnv

half_score = inline(heuristics.half_score)


@lean_kernel
def choose(
    rule: int,
    S: State,
    P: Params,
    E: Events,
    out: Buffers,
    shapes: NDArray[np.float64],
    actions: NDArray[np.int64],
    scores: NDArray[np.float64],
) -> None:
    """Write each environment's best action and, when ``scores`` has room, the score of every feasible half."""
    for b in range(actions.size):
        actions[b] = 0
        if not out.active[b]:
            continue
        need = E.rows[S.env[b].row]
        width = 2 * S.env[b].servers
        best = -np.inf
        for half in range(width):
            if not out.mask[b, half]:
                continue
            other = half ^ 1
            value = half_score(
                rule, half, S.cpu[b, half], S.mem[b, half], S.cpu[b, other], S.mem[b, other],
                P.half_cpu, P.half_mem, need[CPU], need[MEM], need[HALVES] - 1.0, shapes,
            )  # fmt: skip
            if scores.size > 0:
                scores[b, half] = value
            if value > best:
                best = value
                actions[b] = half
                if rule == FIRST_FIT and scores.size == 0:
                    break


def batch(name: str, env: VmVectorEnv, _seed: int) -> BatchRule:
    """Bind a heuristic to a vector environment."""
    rule, actions, unwanted = NAMES.index(name), np.zeros(env.num_envs, np.int64), np.empty((0, 0))
    arguments = (rule, env.state, env.params, env.events, env.buffers, TYPICAL_REQUESTS, actions)
    kernel = entry(choose, *arguments, unwanted)

    def choose_all(scores: NDArray[np.float64] | None = None) -> NDArray[np.int64]:
        if scores is not None:
            scores[:] = -np.inf
        kernel(*arguments, unwanted if scores is None else scores)
        return actions

    return choose_all
