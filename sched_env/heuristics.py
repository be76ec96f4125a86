"""Heuristics: hand-written policies, for single decisions on raw state and for whole batches of environments.

A problem's ``heuristics`` module scores single decisions with numpy alone, because the live service falls back on
them; its ``batch`` module runs them compiled on an environment's own float64 state. Both call the same scoring
functions. ``random_feasible`` is the same for every problem: here, and for batches in ``sched_env.random_feasible``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sched_env import problems

if TYPE_CHECKING:
    from sched_env.observation import Columns, Mask, Row, Scores
    from sched_env.problem import BatchRule
    from sched_env.vector import PlacementVectorEnv

RANDOM_FEASIBLE = "random_feasible"


def score(
    problem: str,
    name: str,
    candidates: Columns,
    request: Row,
    mask: Mask,
    rng: np.random.Generator | None = None,
) -> Scores:
    """Score every candidate, higher is better; infeasible ones get -inf, ties go to the lowest index.

    Args:
        problem: The problem.
        name: One of its heuristics.
        candidates: Raw state fields, one column each.
        request: Raw request fields.
        mask: Which candidates are feasible.
        rng: For ``random_feasible``; seeded afresh when left out.
    """
    asked = problems.get(problem)
    if asked.rule(name) == RANDOM_FEASIBLE:
        scores = (rng or np.random.default_rng()).random(mask.size)
    else:
        scores = asked.score(name, candidates, request, mask)
    return np.where(mask, scores, -np.inf)


def batch(name: str, env: PlacementVectorEnv, seed: int = 0) -> BatchRule:
    """Bind a heuristic to a vector environment."""
    if env.problem.rule(name) == RANDOM_FEASIBLE:
        from sched_env.random_feasible import RandomFeasible

        return RandomFeasible(env, seed)
    return env.problem.simulation().batch(name, env, seed)
