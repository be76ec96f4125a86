"""Counterfactual advantages: what each candidate of a visited state is worth, by trying all of them.

At a state every candidate is forced in a copy of its own; all copies go on by the base rule, or by a student, on the
same recorded future. The difference of their returns from the mean of the state is an unbiased sample of the advantage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sched_env import heuristics, planning
from sched_env.vector import PlacementVectorEnv

COPIES = 2048
"""Copies that run side by side: enough to hide Python's overhead, few enough to stay in cache."""


Score = Callable[[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]], NDArray[Any]]
"""From batched observations to scores."""


class Visited(NamedTuple):
    """States, as observed, and the worth of their candidates."""

    candidates: NDArray[np.float32]
    """[S, C, F]"""
    request: NDArray[np.float32]
    """[S, R]"""
    mask: NDArray[np.bool_]
    """[S, C]"""
    advantages: NDArray[np.float32]
    """[S, C]: return of K decisions less the mean over the feasible candidates; 0 where infeasible."""

    @property
    def nbytes(self) -> int:
        """Memory they take."""
        return sum(array.nbytes for array in self)


def feasible_first(mask: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the order that moves each row's feasible candidates to the front, as wide as the widest, and its mask."""
    order = np.argsort(~mask, axis=1, kind="stable")[:, : int(mask.sum(axis=1).max(initial=0))]
    return order, np.take_along_axis(mask, order, axis=1)


def packed(parts: Sequence[Visited]) -> Visited:
    """Put parts one after another with the feasible candidates alone, those of each state moved to the front.

    A scorer sees nothing of an infeasible candidate, and has no order: nothing is lost but memory and time.
    """
    width = max(int(part.mask.sum(axis=1).max()) for part in parts)

    def front(part: Visited) -> Visited:
        order, mask = feasible_first(part.mask)
        missing = ((0, 0), (0, width - order.shape[1]))
        return Visited(
            np.pad(np.take_along_axis(part.candidates, order[..., None], axis=1), (*missing, (0, 0))),
            part.request,
            np.pad(mask, missing),
            np.pad(np.take_along_axis(part.advantages, order, axis=1), missing),
        )

    return Visited(*(np.concatenate(column) for column in zip(*map(front, parts), strict=True)))


class Trials:
    """Tries candidates of an environment's states; the memory of the copies is used again.

    Args:
        env: The environment, which itself stays as it is.
        policy: What goes on after the forced decision: a heuristic's name, or a function that scores observations.
        decisions: How many are taken, the forced one included.
        seed: Of the rule, where it draws.
    """

    def __init__(self, env: PlacementVectorEnv, policy: str | Score, decisions: int, seed: int = 0) -> None:
        self.env, self.decisions = env, decisions
        self.taken = 0
        """Decisions simulated so far."""
        room = max(COPIES, env.buffers.mask.shape[1])
        self._fork = env.fork(np.zeros(min(room, env.buffers.mask.size), np.int64))
        self._choose = heuristics.batch(policy, self._fork, seed) if isinstance(policy, str) else self._by(policy)

    def of(self, rows: ArrayLike) -> Visited:
        """Try every candidate of the present state of these rows, which are in order."""
        states = planning.rows_of(self.env, rows)
        b = self.env.buffers
        worth = np.zeros((states.size, b.mask.shape[1]))
        for part in self._parts(states):
            at, actions = np.nonzero(b.mask[states[part]])
            self.env.fork(states[part][at], into=self._fork)
            runs = planning.run(self._fork, self._choose, self.decisions, actions)
            self.taken += int(runs.decisions.sum())
            returns = runs.returns[: at.size]
            mean = np.bincount(at, returns, part.stop - part.start) / np.bincount(at, minlength=part.stop - part.start)
            worth[part][at, actions] = returns - mean[at]
        return Visited(b.candidates[states], b.request[states], b.mask[states], worth.astype(np.float32))

    def _by(self, score: Score) -> Callable[[], NDArray[np.int64]]:
        """Choose by scores, asked for the copies that go on and their feasible candidates alone.

        Most of the room is often empty, and of pairs of a job and a card three quarters are infeasible.
        """
        b, actions = self._fork.buffers, np.zeros(self._fork.num_envs, np.int64)

        def choose() -> NDArray[np.int64]:
            rows = np.flatnonzero(b.active)
            order, mask = feasible_first(b.mask[rows])
            scores = score(b.candidates[rows[:, None], order], b.request[rows], mask)
            best = np.where(mask, scores, -np.inf).argmax(axis=1)
            actions[rows] = order[np.arange(rows.size), best]
            return actions

        return choose

    def _parts(self, states: NDArray[np.int64]) -> list[slice]:
        """Cut the states so that the copies of each part find room."""
        ends = np.cumsum(self.env.buffers.mask[states].sum(axis=1))
        parts, begin, before = [], 0, 0
        while begin < states.size:
            end = max(int(np.searchsorted(ends, before + self._fork.num_envs, side="right")), begin + 1)
            parts.append(slice(begin, end))
            begin, before = end, int(ends[end - 1])
        return parts


def advantages(env: PlacementVectorEnv, rule: str, decisions: int, seed: int = 0) -> Visited:
    """Try every candidate of the present state of every row that does not rest."""
    return Trials(env, rule, decisions, seed).of(np.flatnonzero(env.buffers.active))
