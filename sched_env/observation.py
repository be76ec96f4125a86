"""The observation that every problem shares, and how raw fields become columns.

A problem's ``features`` module builds it; its functions are row-wise and written in the numpy that numba compiles:
scalars inside kernels, whole columns in the service, the same bits both ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Fields = Mapping[str, tuple[str, float]]
"""Raw field -> (unit, default when the live source has none)."""
NODE_CPU_CORES, NODE_MEM_GIB = 4.0, 16.0
"""What a node is taken to have when its live source does not say: the most common size of public clouds."""
Columns = Mapping[str, NDArray[Any]]
"""Raw state: a column a field, a row a candidate."""
Row = Mapping[str, float]
"""Raw request."""
Mask = NDArray[np.bool_]
Scores = NDArray[np.float64]


class Observation(NamedTuple):
    """What a policy sees of one decision."""

    candidates: NDArray[np.float32]
    """[C, F]"""
    request: NDArray[np.float32]
    """[R]"""
    mask: NDArray[np.bool_]
    """[C]: which candidates are feasible."""


def columns(fields: Fields, values: Columns) -> list[NDArray[np.float64]]:
    """Return the named columns in the order of ``fields``, as float64, missing ones filled with their default."""
    count = next((len(column) for column in values.values()), 0)
    return [
        np.asarray(values[name], dtype=np.float64) if name in values else np.full(count, default)
        for name, (_, default) in fields.items()
    ]


def scalars(fields: Fields, values: Row) -> list[float]:
    """Return the named values in the order of ``fields``, missing ones replaced by their default."""
    return [float(values.get(name, default)) for name, (_, default) in fields.items()]
