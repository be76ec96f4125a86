"""Raw state of the candidates of one decision, as columns; from a request's body, or from a watched cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, itemgetter

import numpy as np
from numpy.typing import NDArray

from placement.errors import PlaceRefusedError
from sched_env import problems
from sched_env.observation import Fields
from wire.contracts.feature_spec import ProblemName
from wire.contracts.place import Candidate, PlacementRequest
from wire.errors import ConfigError, legal

WARM, WARM_PREFIX = "warm", "warm:"
"""A candidate may carry ``warm:<function>`` for many functions; a decision sees that of its own as ``warm``."""

_name, _state = attrgetter("name"), attrgetter("state")


@dataclass(frozen=True)
class State:
    """Candidates of one problem: names and one float64 column for each raw field."""

    problem: ProblemName
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


def known_fields(problem: ProblemName) -> tuple[Fields, Fields]:
    """Return the raw state and request fields of a problem; one that does not exist cannot be served."""
    try:
        known = problems.get(problem)
    except ConfigError as error:
        raise PlaceRefusedError(422, error.found, error.expected) from error
    return known.state_fields, known.request_fields


def from_candidates(problem: ProblemName, candidates: Sequence[Candidate], functions: Iterable[str] = ()) -> State:
    """Turn candidates into columns; unknown fields, duplicate names and numbers that cannot be are refused.

    Args:
        problem: The problem.
        candidates: As they came in the body.
        functions: Whose ``warm:<function>`` fields are wanted; a node may carry hundreds of others.
    """
    fields, _ = known_fields(problem)
    names = list(map(_name, candidates))
    if len(set(names)) != len(names):
        seen: set[str] = set()
        twice = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise PlaceRefusedError(422, f"candidate {twice!r} is listed twice", "each candidate once")
    states = list(map(_state, candidates))
    table = _table(states, skip=WARM_PREFIX if WARM in fields else None)
    unknown = table.keys() - fields.keys()
    if unknown:
        raise PlaceRefusedError(422, f"state fields {sorted(unknown)} are unknown", legal(fields))
    columns: dict[str, NDArray[np.float64]] = {}
    defaulted = 0
    for name, (_, default) in fields.items():
        if name in table:
            column = table[name]
            _refuse_impossible(name, column, default, names)
            missing = np.isnan(column)
            columns[name] = np.where(missing, default, column)
            defaulted += int(np.count_nonzero(missing))
        else:
            columns[name] = np.full(len(names), default)
            defaulted += len(names) if default == default else 0  # noqa: PLR0124 - NaN marks a field one may leave out
    own: dict[str, NDArray[np.float64]] = {}
    for function in functions if WARM in fields else ():
        column = _column(states, WARM_PREFIX + function)
        _refuse_impossible(WARM_PREFIX + function, column, 0.0, names)
        own[function] = np.where(np.isnan(column), columns[WARM], column)
    return State(problem, names, columns, own, defaulted)


def check_request(problem: ProblemName, request: PlacementRequest) -> int:
    """Refuse unknown or impossible request fields; returns how many known ones are missing."""
    _, fields = known_fields(problem)
    unknown = request.fields.keys() - fields.keys()
    if unknown:
        raise PlaceRefusedError(422, f"request {request.id!r} has unknown fields {sorted(unknown)}", legal(fields))
    for name, value in request.fields.items():
        if not _lowest(fields[name][1]) <= value < np.inf:
            raise PlaceRefusedError(422, f"request {request.id!r} has {name} = {value}", "a finite number, 0 or more")
    return len(fields) - len(request.fields)


def _table(states: list[dict[str, float]], skip: str | None) -> dict[str, NDArray[np.float64]]:
    """Return one column for each key that does not start with ``skip``.

    NaN, which JSON cannot carry, stands for what a candidate does not say.
    """
    names, size = list(states[0]), len(states)
    if names and sum(map(len, states)) == size * len(names):
        # The common case: every candidate says the same things. A KeyError is the only way it can be otherwise.
        with contextlib.suppress(KeyError):
            rows = map(itemgetter(*names), states)
            values = rows if len(names) == 1 else chain.from_iterable(rows)
            flat = np.fromiter(values, np.float64, count=size * len(names))
            table = dict(zip(names, np.ascontiguousarray(flat.reshape(size, len(names)).T), strict=True))
            return {name: column for name, column in table.items() if skip is None or not name.startswith(skip)}
    wanted = {name for name in set().union(*states) if skip is None or not name.startswith(skip)}
    return {name: _column(states, name) for name in wanted}


def _column(states: list[dict[str, float]], name: str) -> NDArray[np.float64]:
    return np.fromiter((state.get(name, np.nan) for state in states), np.float64, count=len(states))


def _refuse_impossible(name: str, column: NDArray[np.float64], default: float, names: list[str]) -> None:
    bad = (column < _lowest(default)) | np.isinf(column)
    if bad.any():
        where = int(bad.argmax())
        found = f"candidate {names[where]!r} has {name} = {column[where]}"
        raise PlaceRefusedError(422, found, "a finite number, 0 or more")


def _lowest(default: float) -> float:
    """Every unit starts at 0, but for the few fields whose default says otherwise."""
    return default if default < 0.0 else 0.0
