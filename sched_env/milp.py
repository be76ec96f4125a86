"""Mixed-integer programs, written row by row and solved by HiGHS."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sched_env.tables import Floats

Columns = NDArray[np.int64]

OPTIMAL, OUT_OF_TIME = 0, 1
"""Of scipy's ``milp``."""


class Solution(NamedTuple):
    """What the solver found."""

    values: Floats | None
    """Of all variables; None when there was no time to find any."""
    bound: float
    """The least the objective can be, proved; equal to the objective at ``values`` when they are optimal."""


class Program:
    """Least ``cost`` x variables, subject to rows ``low <= sum of factor x variable <= high``."""

    def __init__(self) -> None:
        self._upper: list[Floats] = []
        self._whole: list[Floats] = []
        self._cost: dict[int, float] = {}
        self._size = 0
        self._entries: list[tuple[Columns, Columns, Floats]] = []
        self._low: list[float] = []
        self._high: list[float] = []

    def variables(self, *shape: int, upper: ArrayLike = 1.0, whole: bool = False) -> Columns:
        """Add variables from 0 to ``upper`` and return their numbers."""
        columns = np.arange(self._size, self._size + int(np.prod(shape)), dtype=np.int64).reshape(shape)
        self._size += columns.size
        self._upper.append(np.broadcast_to(np.asarray(upper, np.float64), shape).ravel())
        self._whole.append(np.full(columns.size, float(whole)))
        return columns

    def cost(self, columns: ArrayLike, factors: ArrayLike = 1.0) -> None:
        """Add to the objective."""
        for column, factor in np.broadcast(columns, factors):
            self._cost[int(column)] = self._cost.get(int(column), 0.0) + float(factor)

    def demand(self, *terms: tuple[ArrayLike, ArrayLike], low: float = -np.inf, high: float = np.inf) -> None:
        """Add a row; each term is variables and their factors, a variable being in one of them only."""
        for columns, factors in terms:
            flat = np.atleast_1d(np.asarray(columns, np.int64)).ravel()
            values = np.broadcast_to(np.asarray(factors, np.float64), np.shape(columns)).ravel()
            self._entries.append((np.full(flat.size, len(self._low)), flat, values))
        self._low.append(low)
        self._high.append(high)

    def solve(self, time_limit_s: float, fixed: Floats | None = None) -> Solution:
        """Look for the optimum.

        Args:
            time_limit_s: When to stop.
            fixed: Whole variables take these values, rounded: what is left is a linear program without their slack.

        Raises:
            RuntimeError: When the program has no solution at all.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array

        rows, columns, factors = (np.concatenate(part) for part in zip(*self._entries, strict=True))
        matrix = coo_array((factors, (rows, columns)), shape=(len(self._low), self._size)).tocsr()
        aim = np.zeros(self._size)
        aim[list(self._cost)] = list(self._cost.values())
        lower, upper, whole = np.zeros(self._size), np.concatenate(self._upper), np.concatenate(self._whole)
        if fixed is not None:
            lower, upper = (np.where(whole > 0.0, fixed.round(), limit) for limit in (lower, upper))
        answer = milp(
            aim,
            constraints=LinearConstraint(matrix, self._low, self._high),
            integrality=whole,
            bounds=Bounds(lower, upper),
            options={"time_limit": max(time_limit_s, 0.0), "mip_rel_gap": 0.0},
        )
        if answer.status not in (OPTIMAL, OUT_OF_TIME):
            raise RuntimeError(f"the program has no solution: {answer.message}")
        bound = -np.inf if answer.mip_dual_bound is None else float(answer.mip_dual_bound)
        return Solution(answer.x, bound)
