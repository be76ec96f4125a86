"""Heuristics: hand-written policies, for single decisions on raw state and for whole batches of environments.

Single decisions need numpy alone, because the live service falls back on them: ``sched_env.heuristics.<problem>``
holds ``NAMES`` and ``score(name, candidates, request, mask)``. Batches run compiled on an environment's own float64
state: ``sched_env.<problem>.rules`` holds ``batch(name, env, seed)``. Both call the same scoring functions.
``random_feasible`` is the same for every problem: here, and for batches in ``sched_env.random_feasible``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sched_env.errors import ConfigError, legal
from sched_env.features import FAMILIES

if TYPE_CHECKING:
    from sched_env.vector import PlacementVectorEnv


class BatchRule(Protocol):
    """A heuristic bound to a vector environment."""

    def __call__(self, scores: NDArray[np.float64] | None = None) -> NDArray[np.int64]:
        """Choose an action for each environment's present request; fill ``scores`` [B, C] too when it is given."""


def names(problem: str) -> tuple[str, ...]:
    """Return the heuristics of a problem, or of a family of scenarios that has its own (``Scenario.family``)."""
    if problem not in FAMILIES:
        raise ConfigError(f"problem {problem!r} is unknown", legal(FAMILIES))
    result: tuple[str, ...] = importlib.import_module(f"sched_env.heuristics.{problem}").NAMES
    return result


def check(problem: str, name: str) -> str:
    """Return the name if the problem has such a heuristic; otherwise raise an error that lists those it has."""
    if name not in names(problem):
        raise ConfigError(f"{problem} has no heuristic {name!r}", legal(names(problem)))
    return name


def score(
    problem: str,
    name: str,
    candidates: Mapping[str, NDArray[Any]],
    request: Mapping[str, float],
    mask: NDArray[np.bool_],
    rng: np.random.Generator | None = None,
) -> NDArray[np.float64]:
    """Score every candidate, higher is better; infeasible ones get -inf, ties go to the lowest index.

    Args:
        problem: The problem.
        name: One of ``names(problem)``.
        candidates: Raw state fields (``features.STATE_FIELDS``), one column each.
        request: Raw request fields (``features.REQUEST_FIELDS``).
        mask: Which candidates are feasible.
        rng: For ``random_feasible``; seeded afresh when left out.
    """
    scores: NDArray[np.float64]
    if check(problem, name) == "random_feasible":
        scores = (rng or np.random.default_rng()).random(mask.size)
    else:
        module = importlib.import_module(f"sched_env.heuristics.{problem}")
        scores = module.score(name, candidates, request, mask)
    return np.where(mask, scores, -np.inf)


def batch(name: str, env: PlacementVectorEnv, seed: int = 0) -> BatchRule:
    """Bind a heuristic to a vector environment."""
    family = env.scenario.family
    if check(family, name) == "random_feasible":
        from sched_env.random_feasible import RandomFeasible

        return RandomFeasible(env, seed)
    rule: BatchRule = importlib.import_module(f"sched_env.{family}.rules").batch(name, env, seed)
    return rule
