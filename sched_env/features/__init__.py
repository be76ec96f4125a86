"""Features: from the raw state of candidates and a request to the observation a policy sees.

One module a problem, ``sched_env.features.<problem>``, with

* ``SPEC``: the :class:`~sched_env.contracts.feature_spec.FeatureSpec`;
* ``STATE_FIELDS``, ``REQUEST_FIELDS``: raw field -> (unit, default);
* ``build(candidates, request)``: the observation.

Feature functions are row-wise and written in the numpy that numba compiles: scalars inside kernels, whole columns
here, the same bits both ways. Nothing in this package needs more than numpy at run time.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sched_env.contracts.feature_spec import PROBLEMS, FeatureSpec
from sched_env.errors import ConfigError, legal

Fields = Mapping[str, tuple[str, float]]
FAMILIES: tuple[str, ...] = (*PROBLEMS, "workflow")
"""Who has features and heuristics of its own: the problems, and workflows, which are decided as ``functions`` but seen
otherwise."""


class Observation(NamedTuple):
    """What a policy sees of one decision."""

    candidates: NDArray[np.float32]
    """[C, F]"""
    request: NDArray[np.float32]
    """[R]"""
    mask: NDArray[np.bool_]
    """[C]: which candidates are feasible."""


def module(problem: str) -> ModuleType:
    """Return the feature module of a problem."""
    if problem not in FAMILIES:
        raise ConfigError(f"problem {problem!r} is unknown", legal(FAMILIES))
    return importlib.import_module(f"sched_env.features.{problem}")


def spec(problem: str) -> FeatureSpec:
    """Return what each number of the problem's observation means."""
    result: FeatureSpec = module(problem).SPEC
    return result


def build(problem: str, candidates: Mapping[str, NDArray[Any]], request: Mapping[str, float]) -> Observation:
    """Build the observation from raw state fields, one column a field; fields left out take their default."""
    result: Observation = module(problem).build(candidates, request)
    return result


def columns(fields: Fields, values: Mapping[str, NDArray[Any]]) -> list[NDArray[np.float64]]:
    """Return the named columns in the order of ``fields``, as float64, missing ones filled with their default."""
    count = next((len(column) for column in values.values()), 0)
    return [
        np.asarray(values[name], dtype=np.float64) if name in values else np.full(count, default)
        for name, (_, default) in fields.items()
    ]


def scalars(fields: Fields, values: Mapping[str, float]) -> list[float]:
    """Return the named values in the order of ``fields``, missing ones replaced by their default."""
    return [float(values.get(name, default)) for name, (_, default) in fields.items()]


class _FieldsOf(Mapping[str, Fields]):
    """Raw fields of every problem, read from its module when asked for, so that importing costs nothing."""

    def __init__(self, attribute: str) -> None:
        self._attribute = attribute

    def __getitem__(self, problem: str) -> Fields:
        if problem not in PROBLEMS:
            raise KeyError(problem)
        result: Fields = getattr(module(problem), self._attribute)
        return result

    def __iter__(self) -> Any:
        return iter(PROBLEMS)

    def __len__(self) -> int:
        return len(PROBLEMS)


STATE_FIELDS: Mapping[str, Fields] = _FieldsOf("STATE_FIELDS")
REQUEST_FIELDS: Mapping[str, Fields] = _FieldsOf("REQUEST_FIELDS")
