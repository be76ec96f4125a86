"""Heuristics on whole batches: the loop over environments and candidates, written once for every problem.

A problem brings two compiled parts, ``prepare`` (what is worked out once a decision) and ``value_of`` (the score of one
candidate), and its ``batch`` module binds a heuristic's name to them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sched_env.jit import entry, filled_in, lean_kernel, part
from wire.errors import ConfigError

if TYPE_CHECKING:
    from sched_env.problem import BatchRule
    from sched_env.vector import Buffers, PlacementVectorEnv

NOTHING = np.empty((0, 0))
"""Stands for an array that is not given, or not wanted."""


@part
def nothing_to_prepare(_rule: int, _arguments: Any, _b: int) -> int:
    """Prepare nothing: for problems that work everything out candidate by candidate."""
    return 0


def _choose(
    rule: int,
    first: bool,
    arguments: Any,
    table: NDArray[np.float64],
    out: Buffers,
    actions: NDArray[np.int64],
    scores: NDArray[np.float64],
) -> None:
    """Write each environment's best action and, when ``scores`` has room, the score of every feasible candidate.

    With ``first`` the first feasible candidate is known to be the best.
    """
    for b in range(actions.size):
        actions[b] = 0
        if not out.active[b]:
            continue
        prepared = prepare(rule, arguments, b)  # type: ignore[name-defined]  # noqa: F821 - filled in
        best = -np.inf
        for c in range(out.mask.shape[1]):
            if not out.mask[b, c]:
                continue
            value = value_of(rule, arguments, table, b, c, prepared)  # type: ignore[name-defined]  # noqa: F821
            if scores.size > 0:
                scores[b, c] = value
            if value > best:
                best = value
                actions[b] = c
                if first and scores.size == 0:
                    break


def chooser(owner: str, value_of: Callable[..., Any], prepare: Callable[..., Any] = nothing_to_prepare) -> Any:
    """Compile the loop for a problem.

    Args:
        owner: The ``__name__`` of the problem's module.
        value_of: ``value_of(rule, arguments, table, b, c, prepared)``, compiled: the score of candidate c.
        prepare: ``prepare(rule, arguments, b)``, compiled: anything that is the same for all candidates.
    """
    return lean_kernel(filled_in(_choose, owner, value_of=value_of, prepare=prepare))


def bind(
    choose: Any,
    env: PlacementVectorEnv,
    rule: int,
    *,
    first: bool = False,
    table: NDArray[np.float64] = NOTHING,
) -> BatchRule:
    """Bind a heuristic to a vector environment.

    Args:
        choose: The problem's compiled loop.
        env: The environments; ``env.arguments`` is asked for anew at every call, since it may be replaced.
        rule: The heuristic's number, as the problem's ``value_of`` knows it.
        first: Whether the heuristic takes the first feasible candidate, so that the others need no score.
        table: Numbers the heuristic works with.
    """
    actions, buffers = np.zeros(env.num_envs, np.int64), env.buffers
    kernel = entry(choose, rule, first, env.arguments, table, buffers, actions, NOTHING)

    def choose_all(scores: NDArray[np.float64] | None = None) -> NDArray[np.int64]:
        if scores is None:
            kernel(rule, first, env.arguments, table, buffers, actions, NOTHING)
            return actions
        if scores.dtype != np.float64 or not scores.flags.c_contiguous:  # the machine code would not notice
            raise ConfigError(f"scores are {scores.dtype}, strides {scores.strides}", "a contiguous float64 array")
        scores[:] = -np.inf
        kernel(rule, first, env.arguments, table, buffers, actions, scores)
        return actions

    return choose_all
