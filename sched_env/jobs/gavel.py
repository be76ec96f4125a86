"""``gavel_lp``: how much of each model's work should go to which type of card, by a linear program (after Gavel).

The program spreads the work of the jobs submitted so far over the types of cards so that a fluid, one job a card,
would be done first: minimise Z subject to sum_k work_k x_kt alone_kt <= Z cards_t and sum_t x_kt = 1. A job then goes
to the feasible type that is furthest behind its share of the model's work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sched_env.jobs.state import ARRIVED, EPOCHS, FIRST, MODEL, OFFERED
from sched_env.jobs.tables import Floats

if TYPE_CHECKING:
    from sched_env.jobs.vector import CpnVectorEnv

SOLVE_EVERY = 16
"""Decisions between two solutions: the mix of a queue changes slowly, and a solution takes milliseconds."""


def spread(work: Floats, alone: Floats, cards: Floats) -> Floats:
    """Solve the program.

    Args:
        work: [K] epochs of each model.
        alone: [K, T] seconds an epoch takes; infinite where the model cannot run.
        cards: [T] cards of each type.

    Returns:
        [K, T]: shares of each model's work; 0 for a model without work.
    """
    from scipy.optimize import linprog

    K, T = alone.shape
    present = np.flatnonzero((work > 0) & np.isfinite(alone).any(axis=1))
    shares = np.zeros((K, T))
    if not present.size:
        return shares
    P = present.size
    load = np.where(np.isfinite(alone[present]), alone[present], 0.0) * work[present, None]
    scale = load.max()
    capacity = np.zeros((T, P * T + 1))
    whole = np.zeros((P, P * T + 1))
    for p in range(P):
        whole[p, p * T : (p + 1) * T] = 1.0
        for t in range(T):
            capacity[t, p * T + t] = load[p, t] / scale
    capacity[:, -1] = -cards
    limits = [(0.0, 1.0 if np.isfinite(alone[k, t]) else 0.0) for k in present for t in range(T)] + [(0.0, None)]
    aim = np.zeros(P * T + 1)
    aim[-1] = 1.0
    answer = linprog(aim, A_ub=capacity, b_ub=np.zeros(T), A_eq=whole, b_eq=np.ones(P), bounds=limits)
    if answer.x is None:
        raise RuntimeError(f"the program of gavel_lp has no solution: {answer.message}")
    shares[present] = answer.x[:-1].reshape(P, T)
    return shares


class Planner:
    """Keeps, for every environment, the shares and the work placed so far."""

    def __init__(self, env: CpnVectorEnv) -> None:
        self._env = env
        B, K, T = env.num_envs, len(env.trace.model_names), len(env.topology.card_types)
        self._cards = np.bincount(env.cards.type, minlength=T).astype(np.float64)
        self._alone = np.where(self._can_run(), env.runtimes.belief[:, :, 0, 0], np.inf)
        self._shares, self._given = np.zeros((B, K, T)), np.zeros((B, K, T))
        self._age = np.zeros(B, np.int64)
        self._episode = np.full(B, -1, np.int64)

    def _can_run(self) -> NDArray[np.bool_]:
        """Return [K, T]: whether some job of the model fits an empty card of the type."""
        env = self._env
        K, T = len(env.trace.model_names), len(env.topology.card_types)
        need = np.array([env.trace.gpu_mem[env.trace.model == k].min(initial=np.inf) for k in range(K)])
        size = np.array([env.cards.mem[env.cards.type == t].max() for t in range(T)])
        fits: NDArray[np.bool_] = size[None, :] - env.scenario.gpu_mem_margin_gib >= need[:, None]
        return fits

    def behind(self, shares: Floats) -> None:
        """Write [B, T]: by how much each type is behind its share of the offered job's model."""
        env = self._env
        for b in np.flatnonzero(env.buffers.active):
            if self._episode[b] != env.buffers.episode[b]:
                self._episode[b] = env.buffers.episode[b]
                self._given[b], self._age[b] = 0.0, 0
            if self._age[b] % SOLVE_EVERY == 0:
                first = int(env.state.tally[b, FIRST])
                rows = slice(first, first + int(env.state.tally[b, ARRIVED]))
                work = np.bincount(
                    env.queue.links[rows, MODEL], env.queue.rows[rows, EPOCHS], minlength=self._alone.shape[0]
                )
                self._shares[b] = spread(work.astype(np.float64), self._alone, self._cards)
            self._age[b] += 1
            k = env.queue.links[env.state.tally[b, OFFERED], MODEL]
            given = self._given[b, k]
            shares[b] = self._shares[b, k] - given / max(given.sum(), 1.0)

    def placed(self, actions: NDArray[np.int64]) -> None:
        """Note where the offered jobs go."""
        env = self._env
        for b in np.flatnonzero(env.buffers.active):
            row = env.state.tally[b, OFFERED]
            t = env.cards.type[actions[b]]
            self._given[b, env.queue.links[row, MODEL], t] += env.queue.rows[row, EPOCHS]
