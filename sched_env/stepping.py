"""The outer loop of every problem's dynamics, written once: check all actions, step, end, restart or rest.

A problem brings four compiled parts; reset and step are one kernel, because compiling the dynamics twice would double
the wait for the first step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sched_env.draws import below
from sched_env.jit import filled_in, lean_kernel, part

if TYPE_CHECKING:
    from sched_env.vector import Buffers

RUNNING = -1
"""The episode goes on (otherwise a code of ``sched_env.vector.ENDED``)."""
RESTART, PARK, HOLD = range(3)
"""What to do at an episode's end: begin the next one; rest; or leave everything as it is, for ``close_all``."""
SKIP = -1
"""The action of an environment that is left alone, where actions are not checked."""
NO_ROWS = np.empty(0, np.int64)


@part
def keep_final(out: Buffers, b: int) -> None:
    """Keep the observation with which an episode ends."""
    for c in range(out.mask.shape[1]):
        out.final_mask[b, c] = out.mask[b, c]
        for feature in range(out.candidates.shape[2]):
            out.final_candidates[b, c, feature] = out.candidates[b, c, feature]
    for feature in range(out.request.shape[1]):
        out.final_request[b, feature] = out.request[b, feature]
    out.final_start[b] = out.start[b]


@part
def rest(out: Buffers, b: int) -> None:
    """Take an environment whose episode is over out of the steps to come."""
    out.active[b] = False
    out.mask[b] = False
    out.feasible[b] = 0


def _advance(
    arguments: Any,
    out: Buffers,
    actions: NDArray[np.int64],
    starts: NDArray[np.int64],
    seed: int,
    at_end: int,
    checked: bool,
) -> int:
    """Step every active environment and, at an episode's end, do as ``at_end`` says.

    With ``starts`` (not empty) an episode begins in every environment instead; a start of -1 is drawn, and drawn again
    while nothing of its episode can be decided. Without ``checked`` actions need not be candidates: ``SKIP`` leaves an
    environment alone, others mean what the problem says.

    Returns:
        How many episodes ended; or ``-1 - b`` when the action of environment b is infeasible: nothing has changed.
    """
    B, C = out.mask.shape
    fresh = starts.size > 0
    if checked and not fresh:
        for b in range(B):
            if out.active[b] and not (0 <= actions[b] < C and out.mask[b, actions[b]]):
                return -1 - b
    finished = 0
    for b in range(B):
        out.reward[b] = 0.0
        out.terminated[b] = out.truncated[b] = False
        if not out.active[b] or (not fresh and actions[b] == SKIP):
            out.wait_s[b] = 0.0
            continue
        if not fresh:
            ended = step(arguments, out, b, actions[b], seed)  # type: ignore[name-defined]  # noqa: F821 - filled in
            if ended == RUNNING:
                continue
            finished += 1
            out.ended[b] = ended
            out.truncated[b] = not out.terminated[b]
            if at_end == HOLD:
                continue
            keep_final(out, b)
            close(arguments, out, b)  # type: ignore[name-defined]  # noqa: F821
            if at_end == PARK:
                rest(out, b)
                continue
        asked = starts[b] if fresh else np.int64(-1)
        while True:
            start = asked
            if asked < 0:
                first, stop = start_range(arguments)  # type: ignore[name-defined]  # noqa: F821
                start = first + below(stop - first, seed, out.stream[b], out.episode[b])
            out.start[b] = start
            out.episode[b] += 1
            if begin(arguments, out, b, start, fresh) or asked >= 0:  # type: ignore[name-defined]  # noqa: F821
                break
    return finished


def _close_all(arguments: Any, out: Buffers) -> None:
    """Close the accounts of every environment, wherever its episode stands."""
    for b in range(out.start.size):
        keep_final(out, b)
        close(arguments, out, b)  # type: ignore[name-defined]  # noqa: F821 - filled in


class Dynamics(NamedTuple):
    """A problem's compiled loops."""

    advance: Callable[..., int]
    close_all: Callable[..., None]


def dynamics(
    owner: str,
    *,
    start_range: Callable[..., Any],
    begin: Callable[..., Any],
    step: Callable[..., Any],
    close: Callable[..., Any],
) -> Dynamics:
    """Compile the loops for a problem.

    Args:
        owner: The ``__name__`` of the problem's module.
        start_range: ``start_range(arguments)``: the first start that may be drawn, and the one after the last.
        begin: ``begin(arguments, out, b, start, fresh)``: begin an episode and observe; whether there is anything to
            decide. ``fresh``: a reset, not the end of another episode.
        step: ``step(arguments, out, b, action, seed)``: place, go to the next decision, write ``reward`` and, when the
            episode ends for good, ``terminated``; how it ended, or ``RUNNING``.
        close: ``close(arguments, out, b)``: write the metrics of an episode that ended as ``out.ended`` says.
    """
    parts = {"start_range": start_range, "begin": begin, "step": step, "close": close}
    return Dynamics(
        lean_kernel(filled_in(_advance, owner, **parts)), lean_kernel(filled_in(_close_all, owner, close=close))
    )
