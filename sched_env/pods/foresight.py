"""What having a pod adds to the violations that are expected of a node, in the next window and an hour later.

A move lasts: the pod stays where it goes for hours. So what counts is not the window that was, but what the node is
expected to go through with the pod and without it, and how sure that is. Only these differences matter: a move is right
where the sum over all nodes is smallest. Row-wise: scalars inside kernels, columns in the service, the same bits both
ways; numpy alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sched_env.tables import Floats

AHEAD = (
    "cpu_next", "cpu_later", "cpu_next_spread", "cpu_later_spread",
    "mem_next", "mem_later", "mem_next_spread", "mem_later_spread",
)  # fmt: skip
"""What is foreseen of a pod, and by sums of a node: the mean use of the window to come and of the one an hour on, and
the variances of what comes around these; cores and GiB, and their squares."""
UNITS = tuple(("cores" if name.startswith("cpu") else "GiB") + "²" * name.endswith("spread") for name in AHEAD)
STAKES = ("over_next", "over_later", "short_next", "short_later")
"""What is at stake on a node: the chance that it is above the threshold, and what it then lacks."""

STEEP, BLUNT = 1.6, 0.64
"""About pi / 2 and 2 / pi of the variance: roots stand for the normal distribution, right at the limit and with longer
tails (by at most 0.07). They are a few instructions, and what comes has longer tails too."""
TINY = 1e-12
"""Of a share, squared: where nothing varies, a limit is passed or not."""


def above(mean: Any, spread: Any, limit: Any) -> Any:
    """Return about the chance that a normal variable is above a limit."""
    z = mean - limit
    return 0.5 * (1.0 + z / np.sqrt(z * z + STEEP * spread + TINY))


def beyond(mean: Any, spread: Any) -> Any:
    """Return about the mean of what a normal share of a capacity has beyond all of it."""
    y = mean - 1.0
    return 0.5 * (y + np.sqrt(y * y + BLUNT * spread))


def over(cpu: Any, cpu_spread: Any, mem: Any, mem_spread: Any, threshold: Any) -> Any:
    """Return the chance that cpu or memory is above the threshold, from shares of the node."""
    return 1.0 - (1.0 - above(cpu, cpu_spread, threshold)) * (1.0 - above(mem, mem_spread, threshold))


def stakes(
    cpu_next: Any,
    cpu_later: Any,
    cpu_next_spread: Any,
    cpu_later_spread: Any,
    mem_next: Any,
    mem_later: Any,
    mem_next_spread: Any,
    mem_later_spread: Any,
    cpu_inverse: Any,
    mem_inverse: Any,
    threshold: Any,
) -> tuple[Any, Any, Any, Any]:
    """Return what is at stake on a node, as :data:`STAKES`, from sums over its pods and 1 / its capacities."""
    cpu_square, mem_square = cpu_inverse * cpu_inverse, mem_inverse * mem_inverse
    cpu, cpu_spread = cpu_next * cpu_inverse, cpu_next_spread * cpu_square
    mem, mem_spread = mem_next * mem_inverse, mem_next_spread * mem_square
    later, later_spread = cpu_later * cpu_inverse, cpu_later_spread * cpu_square
    mem_then, mem_then_spread = mem_later * mem_inverse, mem_later_spread * mem_square
    return (
        over(cpu, cpu_spread, mem, mem_spread, threshold),
        over(later, later_spread, mem_then, mem_then_spread, threshold),
        beyond(cpu, cpu_spread) + beyond(mem, mem_spread),
        beyond(later, later_spread) + beyond(mem_then, mem_then_spread),
    )


def times(ahead: Floats, cpu: Any, mem: Any) -> Floats:
    """Return [rows, 8] of what is expected where so many times as much is used."""
    found = ahead.copy()
    for column, name in enumerate(AHEAD):
        factor = cpu if name.startswith("cpu") else mem
        found[:, column] *= factor * factor if name.endswith("spread") else factor
    return found


def without(node: Any, pod: Any, here: Any) -> Any:
    """Return a node's sum less the offered pod's where it is there."""
    return np.maximum(node - pod * here, 0.0)
