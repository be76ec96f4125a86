"""Raw state of the candidates of one decision, as columns; from a request's body, or from a watched cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, itemgetter

import numpy as np
from numpy.typing import NDArray

from placement.errors import PlaceRefusedError
from sched_env import features
from sched_env.contracts.feature_spec import Problem
from sched_env.contracts.place import Candidate, PlacementRequest
from sched_env.errors import legal

WARM, WARM_PREFIX = "warm", "warm:"
"""A candidate may carry ``warm:<function>`` for many functions; a decision sees that of its own as ``warm``."""

_name, _state = attrgetter("name"), attrgetter("state")


@dataclass(frozen=True)
class State:
    """Candidates of one problem: names and one float64 column for each raw field."""

    problem: Problem
    names: list[str]
    columns: dict[str, NDArray[np.float64]]
    warm: dict[str, NDArray[np.float64]]
    """Function -> its column."""
    defaulted: int
    """Values that were missing and took their default."""

    def columns_for(self, request: PlacementRequest) -> dict[str, NDArray[np.float64]]:
        """Return the columns as this request sees them."""
        own = self.warm.get(request.function) if request.function is not None else None
        return self.columns if own is None else {**self.columns, WARM: own}


def known_fields(problem: Problem) -> tuple[features.Fields, features.Fields]:
    """Return the raw state and request fields of a problem, or say that it cannot be served."""
    try:
        return features.STATE_FIELDS[problem], features.REQUEST_FIELDS[problem]
    except ModuleNotFoundError as error:
        raise PlaceRefusedError(422, f"problem {problem} has no live features in this release") from error


def from_candidates(problem: Problem, candidates: Sequence[Candidate]) -> State:
    """Turn candidates into columns; unknown fields, duplicate names and numbers that cannot be are refused."""
    fields, _ = known_fields(problem)
    names = list(map(_name, candidates))
    if len(set(names)) != len(names):
        seen: set[str] = set()
        twice = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise PlaceRefusedError(422, f"candidate {twice!r} is listed twice", "each candidate once")
    states = list(map(_state, candidates))
    present = set().union(*states)
    warm = sorted(name for name in present if name.startswith(WARM_PREFIX)) if WARM in fields else []
    unknown = present.difference(fields, warm)
    if unknown:
        raise PlaceRefusedError(422, f"state fields {sorted(unknown)} are unknown", legal(fields))
    columns = _complete(states, [name for name in fields if name in present])
    defaulted = 0
    for name, (_, default) in fields.items():
        if name not in columns:
            column, missing = _with_default(states, name, default)
            columns[name] = column
            defaulted += missing
    own = {name: _with_default(states, name, 0.0)[0] for name in warm}
    for name, column in chain(columns.items(), own.items()):
        _refuse_impossible(name, column, names)
    if warm and WARM not in present:
        defaulted -= len(names)  # warm:<function> is there instead
    return State(problem, names, columns, {name.removeprefix(WARM_PREFIX): own[name] for name in warm}, defaulted)


def check_request(problem: Problem, request: PlacementRequest) -> int:
    """Refuse unknown or impossible request fields; returns how many known ones are missing."""
    _, fields = known_fields(problem)
    unknown = request.fields.keys() - fields.keys()
    if unknown:
        raise PlaceRefusedError(422, f"request {request.id!r} has unknown fields {sorted(unknown)}", legal(fields))
    for name, value in request.fields.items():
        if not 0.0 <= value < np.inf:
            raise PlaceRefusedError(422, f"request {request.id!r} has {name} = {value}", "a finite number, 0 or more")
    return len(fields) - len(request.fields)


def _complete(states: list[dict[str, float]], names: list[str]) -> dict[str, NDArray[np.float64]]:
    """Return the columns of ``names`` if every candidate has them all, the common case and a fast one; else none."""
    if not names:
        return {}
    get = itemgetter(*names)
    try:
        flat = map(get, states) if len(names) == 1 else chain.from_iterable(map(get, states))
        table = np.fromiter(flat, np.float64, count=len(states) * len(names)).reshape(len(states), len(names))
    except KeyError:
        return {}
    return dict(zip(names, np.ascontiguousarray(table.T), strict=True))


def _with_default(states: list[dict[str, float]], name: str, default: float) -> tuple[NDArray[np.float64], int]:
    column = np.fromiter((state.get(name, np.nan) for state in states), np.float64, count=len(states))
    missing = np.isnan(column)
    column[missing] = default
    return column, int(missing.sum())


def _refuse_impossible(name: str, column: NDArray[np.float64], names: list[str]) -> None:
    bad = ~((column >= 0.0) & (column < np.inf))
    if bad.any():
        where = int(bad.argmax())
        found = f"candidate {names[where]!r} has {name} = {column[where]}"
        raise PlaceRefusedError(422, found, "a finite number, 0 or more")
