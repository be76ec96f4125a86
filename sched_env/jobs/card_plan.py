"""The best schedule of a few jobs that share one card, as a mixed-integer program.

Time is cut into intervals in which one set of jobs runs. How long each set runs in each interval is a variable, so
progress, length / pace in that set, is linear although speeds change with company. A job waits, then runs in successive
intervals, then is over; its data are on their way for the last part of its wait, in which it holds a place too.

How many intervals are enough: fix the order in which the jobs of an optimal schedule start and end. The lengths between
these 2k events are what is left, a linear program with a row for each job's epochs, for each job that cannot start at
once and for each one whose data need a place; at a vertex no more lengths than rows are positive, and intervals of
length 0 can go. (Data that begin to move within an interval need no event: who waits for them holds on to its place
until it starts, so at the interval's end all of them are there together.)
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from sched_env.jobs.bounds import shortest_remaining_first
from sched_env.jobs.tables import Floats
from sched_env.milp import Program


class OneCard(NamedTuple):
    """k jobs that are to run on one card."""

    release_s: Floats
    """[k]: of their submission."""
    move_s: Floats
    """[k]: from the decision until it computes; it holds its place, but neither runs nor slows anybody down."""
    epochs: Floats
    """[k]"""
    pace: Mapping[tuple[int, ...], tuple[float, ...]]
    """Sets of jobs, numbers rising, that the card can hold: seconds an epoch of each when all of them run."""


class CardPlan(NamedTuple):
    """A schedule of one card."""

    value: float
    """When the last job ends, or the sum of all ends; infinite when there was no time to find a schedule."""
    bound: float
    """What every schedule has at least."""
    begin_s: Floats
    """[k]: when each job is put on the card; empty without a schedule."""


def best_plan(card: OneCard, *, makespan: bool, time_limit_s: float, floor_s: float = 0.0) -> CardPlan:
    """Look for the schedule with the least last end, or the least sum of ends.

    A last end of ``floor_s`` is as good as an earlier one, and then the bound too.
    """
    earliest = card.release_s + card.move_s
    first, k = float(earliest.min()), earliest.size
    alone = card.epochs * [card.pace[j,][0] for j in range(k)]
    unit = float(alone.sum() + np.ptp(earliest)) / 100.0  # the solver's tolerances are absolute
    sets: list[tuple[int, ...]] = [(), *card.pace]
    paces = [dict(zip(chosen, card.pace.get(chosen, ()), strict=True)) for chosen in sets]
    tight = _crowds(card.pace, k)
    moves = card.move_s > 0.0 if tight else np.zeros(k, np.bool_)
    # How long a set can run: until somebody's epochs are done. Nobody runs until the last job could be there, at most:
    # all that follows could otherwise come earlier.
    idle = np.ptp(card.release_s) + card.move_s.max() if moves.any() else np.ptp(earliest)
    most = np.array([min((card.epochs[j] * p for j, p in of.items()), default=idle) for of in paces]) / unit
    K = min(2 * k, k + int((earliest > first).sum()) + int(moves.sum()))
    runs = np.array([[j in of for of in paces] for j in range(k)])
    program = Program()
    chosen = program.variables(K, len(sets), whole=True)
    length = program.variables(K, len(sets), upper=most)
    started, over = (program.variables(K, k) for _ in range(2))
    waiting, ended = (program.variables(K, k, upper=most.max()) for _ in range(2))
    moving = program.variables(K, k, upper=moves, whole=True)
    for i in range(K):
        program.demand((chosen[i], 1.0), low=1.0, high=1.0)
        for s in range(len(sets)):
            program.demand((length[i, s], 1.0), (chosen[i, s], -most[s]), high=0.0)
        for j in range(k):
            program.demand((started[i, j], 1.0), (over[i, j], -1.0), (chosen[i, runs[j]], -1.0), low=0.0, high=0.0)
            # Who does not run waits or has ended.
            program.demand((length[i, ~runs[j]], 1.0), (waiting[i, j], -1.0), (ended[i, j], -1.0), low=0.0, high=0.0)
            program.demand((waiting[i, j], 1.0), (started[i, j], most.max()), high=most.max())
            program.demand((ended[i, j], 1.0), (over[i, j], -most.max()), high=0.0)
            if i:
                for step in (started, over):
                    program.demand((step[i, j], 1.0), (step[i - 1, j], -1.0), low=0.0)
            if moves[j]:
                # Whose data are not yet on their way will wait for as long as they take.
                need = card.move_s[j] / unit
                program.demand(
                    (waiting[i + 1 :, j], 1.0), (moving[i, j], need), (started[i, j], need), low=need
                )  # fmt: skip
        for crowd, room in tight:
            there = runs[list(crowd)].sum(axis=0)
            program.demand((chosen[i], there), (moving[i, list(crowd)], 1.0), high=room)
    for j in range(k):
        rate = np.array([unit / of[j] if j in of else 0.0 for of in paces]) / card.epochs[j]
        program.demand((length, np.tile(rate, (K, 1))), low=1.0, high=1.0)
        for i in range(K):
            # Who has started has waited for it, only who has started makes progress, and who is over has made it all.
            program.demand((waiting[:i, j], 1.0), (started[i, j], -(earliest[j] - first) / unit), low=0.0)
            program.demand((length[: i + 1], np.tile(rate, (i + 1, 1))), (started[i, j], -1.0), high=0.0)
            program.demand((length[:i], np.tile(rate, (i, 1))), (over[i, j], -1.0), low=0.0)
    if makespan:
        last = program.variables(1, upper=np.inf)
        program.cost(last)
        program.demand((last, 1.0), low=max(floor_s - first, 0.0) / unit)
        program.demand((last, 1.0), (length, -1.0), low=0.0)
    else:
        program.cost(length, float(k))
        program.cost(ended, -1.0)
    found = program.solve(time_limit_s)
    bound = first * (1 if makespan else k) + max(found.bound, 0.0) * unit
    if found.values is None:
        return CardPlan(np.inf, bound, np.empty(0))
    exact = program.solve(np.inf, found.values).values
    if exact is None:
        raise RuntimeError("a schedule whose order is known has no times")
    starts = first + unit * exact[waiting].sum(axis=0)
    ends = starts + unit * np.array([exact[length][:, r].sum() for r in runs])
    return CardPlan(float(ends.max() if makespan else ends.sum()), bound, starts - card.move_s)


def least(card: OneCard, *, makespan: bool) -> float:
    """Return what the last end, or the sum of ends, is at least.

    Prices an epoch at which the card, whatever runs there, works off at most 1 a second make every schedule one of a
    single machine, on which shortest-remaining-first ends the k-th job first; nor does a job end before its run in the
    best company (docs/bounds.md).
    """
    from scipy.optimize import linprog

    seconds = np.full((len(card.pace), card.epochs.size), np.inf)  # of each job's run in each set
    for row, (chosen, pace) in zip(seconds, card.pace.items(), strict=True):
        row[list(chosen)] = card.epochs[list(chosen)] * pace
    answer = linprog(-np.ones(card.epochs.size), A_ub=1.0 / seconds, b_ub=np.ones(len(seconds)), method="highs")
    if answer.x is None:
        raise RuntimeError(f"the prices of a card have no solution: {answer.message}")
    sizes = answer.x / (answer.x / seconds).sum(axis=1).max()
    earliest = card.release_s + card.move_s
    fluid = np.sort(shortest_remaining_first(earliest, sizes))
    ends = np.maximum(fluid, np.sort(earliest + seconds.min(axis=0)))
    return float(ends.max() if makespan else ends.sum())


def _crowds(pace: Mapping[tuple[int, ...], tuple[float, ...]], k: int) -> list[tuple[tuple[int, ...], int]]:
    """Return the jobs that the card cannot hold all at once, and how many of them it can."""
    largest = max(len(chosen) for chosen in pace)
    found = [(tuple(range(k)), largest)] if k > largest else []
    for size in range(2, largest + 1):
        found += [
            (crowd, size - 1)
            for crowd in itertools.combinations(range(k), size)
            if crowd not in pace and all(part in pace for part in itertools.combinations(crowd, size - 1))
        ]
    return found
