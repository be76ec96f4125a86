"""Sorting inside kernels, where there is no memory to be had."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from sched_env.jit import part


@part
def sort(values: NDArray[Any], size: int) -> None:
    """Sort the first entries in place (Shell's method: short lists, no memory)."""
    gap = 1
    while gap < size // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, size):
            value = values[i]
            j = i
            while j >= gap and values[j - gap] > value:
                values[j] = values[j - gap]
                j -= gap
            values[j] = value
        gap //= 3
