"""Counterfactual advantages: what each candidate of a visited state is worth, by trying all of them.

At a state every candidate is forced in a copy of its own; all copies go on by the base rule on the same recorded
future. The difference of their returns from the mean of the state is an unbiased sample of the advantage.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sched_env import heuristics, planning
from sched_env.vector import PlacementVectorEnv


class Visited(NamedTuple):
    """States, as observed, and the worth of their candidates."""

    candidates: NDArray[np.float32]
    """[S, C, F]"""
    request: NDArray[np.float32]
    """[S, R]"""
    mask: NDArray[np.bool_]
    """[S, C]"""
    advantages: NDArray[np.float64]
    """[S, C]: return of K decisions less the mean over the feasible candidates; 0 where infeasible."""


def advantages(env: PlacementVectorEnv, rule: str, decisions: int, seed: int = 0) -> Visited:
    """Try every candidate of the present state of every row; the environment itself stays as it is.

    Args:
        env: The visited states; rows that rest are left out.
        rule: The heuristic that goes on after the forced decision.
        decisions: How many are taken, the forced one included.
        seed: Of the rule, where it draws.
    """
    states = np.flatnonzero(env.buffers.active)
    rows, actions = planning.forced(env, states)
    fork = env.fork(rows)
    runs = planning.run(fork, heuristics.batch(rule, fork, seed), decisions, actions)
    at = np.searchsorted(states, rows)
    mean = np.bincount(at, runs.returns, states.size) / np.bincount(at, minlength=states.size)
    worth = np.zeros((states.size, env.buffers.mask.shape[1]))
    worth[at, actions] = runs.returns - mean[at]
    b = env.buffers
    return Visited(b.candidates[states], b.request[states], b.mask[states], worth)
