"""Raw state of the candidates of one decision, as columns; from a request's body, or from a watched cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence
from heapq import nsmallest
from itertools import chain
from operator import attrgetter, itemgetter

import msgspec
import numpy as np
from numpy.typing import NDArray

from placement.errors import PlaceRefusedError
from sched_env import problems
from sched_env.observation import Fields
from sched_env.problem import Prepared
from wire.contracts.feature_spec import ProblemName
from wire.contracts.place import Candidate, PlacementRequest
from wire.errors import ConfigError, legal

WARM, WARM_PREFIX = "warm", "warm:"
"""A candidate may carry ``warm:<function>`` for many functions; a decision sees that of its own as ``warm``."""

SHOWN_NAMES, SHOWN_CHARACTERS = 3, 60
FARTHEST = float(np.finfo(np.float64).min)
"""Below 0 as far as finite numbers go: for the few fields that have a sign."""

_name, _state = attrgetter("name"), attrgetter("state")


class State(msgspec.Struct, frozen=True, eq=False):
    """Candidates of one problem: names and one float64 column for each raw field."""

    problem: ProblemName
    names: Sequence[str]
    columns: dict[str, NDArray[np.float64]]
    warm: dict[str, NDArray[np.float64]]
    """Function -> its column."""
    defaulted: int
    """Values that were missing and took their default."""
    prepared: Prepared | None = None
    """What of an observation is theirs alone, where somebody keeps it; nothing that is warm is in it."""

    def columns_for(self, request: PlacementRequest) -> dict[str, NDArray[np.float64]]:
        """Return the columns as this request sees them."""
        own = self.warm.get(request.function) if request.function is not None else None
        return self.columns if own is None else {**self.columns, WARM: own}

    def take(self, rows: NDArray[np.intp]) -> State:
        """Return these candidates alone."""
        return State(
            self.problem,
            [self.names[row] for row in rows.tolist()],
            {name: column[rows] for name, column in self.columns.items()},
            {name: column[rows] for name, column in self.warm.items()},
            self.defaulted,
            None if self.prepared is None else self.prepared.take(rows),
        )


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
    names, states = list(map(_name, candidates)), list(map(_state, candidates))
    _refuse_doubles(names)
    table, whole = _table(states, fields)
    state = _stated(problem, names, table, whole)
    own: dict[str, NDArray[np.float64]] = {}
    for key, column in _warm(states, table, functions).items() if WARM in fields else ():
        if not whole:
            _refuse_impossible(key, column, 0.0, names)
        own[key.removeprefix(WARM_PREFIX)] = np.where(np.isnan(column), state.columns[WARM], column)
    state.warm.update(own)
    return state


def from_rows(problem: ProblemName, names: list[str], rows: NDArray[np.float64]) -> State:
    """As :func:`from_candidates`, from the values of all fields, [C, fields]; NaN is what a candidate does not say."""
    fields, _ = known_fields(problem)
    _refuse_doubles(names)
    whole = bool(rows.min() >= 0.0) and bool(rows.max() < np.inf)  # false for NaN too
    table = dict(zip(fields, np.ascontiguousarray(rows.T), strict=True))
    if not whole:
        table = {name: column for name, column in table.items() if not np.isnan(column).all()}
    return _stated(problem, names, table, whole)


def _refuse_doubles(names: list[str]) -> None:
    if len(set(names)) != len(names):
        seen: set[str] = set()
        twice = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise PlaceRefusedError(422, f"candidate {twice!r} is listed twice", "each candidate once")


def _stated(problem: ProblemName, names: list[str], table: dict[str, NDArray[np.float64]], whole: bool) -> State:
    """Check the columns that somebody says, and fill in the others."""
    columns: dict[str, NDArray[np.float64]] = {}
    defaulted = 0
    for name, (_, default) in problems.get(problem).state_fields.items():
        if name in table and whole:
            columns[name] = table[name]
        elif name in table:
            column = table[name]
            _refuse_impossible(name, column, default, names)
            missing = np.isnan(column)
            columns[name] = np.where(missing, default, column)
            defaulted += int(np.count_nonzero(missing))
        else:
            columns[name] = np.full(len(names), default)
            defaulted += len(names) if default == default else 0  # noqa: PLR0124 - NaN marks a field one may leave out
    return State(problem, names, columns, {}, defaulted)


def check_request(problem: ProblemName, request: PlacementRequest) -> int:
    """Refuse unknown or impossible request fields; returns how many known ones are missing."""
    _, fields = known_fields(problem)
    if not request.fields.keys() <= fields.keys():
        unknown = request.fields.keys() - fields.keys()
        raise PlaceRefusedError(422, f"request {request.id!r} has unknown fields {_shown(unknown)}", legal(fields))
    signed = problems.get(problem).signed
    for name, value in request.fields.items():
        if not (FARTHEST if name in signed else _lowest(fields[name][1])) <= value < np.inf:
            raise PlaceRefusedError(422, f"request {request.id!r} has {name} = {value}", "a finite number, 0 or more")
    return len(fields) - len(request.fields)


def _table(states: list[dict[str, float]], fields: Fields) -> tuple[dict[str, NDArray[np.float64]], bool]:
    """Return a column for each field that some candidate says; what is no field is refused before any work on it.

    NaN, which JSON cannot carry, stands for what a candidate does not say. The second is true when nothing is missing
    and nothing is impossible: then nobody need look at the columns one by one.
    """
    names, size = list(states[0]), len(states)
    _refuse_unknown(names, fields)
    if names and sum(map(len, states)) == size * len(names):
        # The common case: every candidate says the same things. A KeyError is the only way it can be otherwise.
        with contextlib.suppress(KeyError):
            rows = map(itemgetter(*names), states)
            values = rows if len(names) == 1 else chain.from_iterable(rows)
            flat = np.fromiter(values, np.float64, count=size * len(names))
            whole = bool(flat.min() >= 0.0) and bool(flat.max() < np.inf)  # false for NaN too
            return dict(zip(names, np.ascontiguousarray(flat.reshape(size, len(names)).T), strict=True)), whole
    said: set[str] = set().union(*states)
    _refuse_unknown(said, fields)
    return {name: _column(states, name) for name in fields if name in said}, False


def _refuse_unknown(names: Collection[str], fields: Fields) -> None:
    warm = WARM in fields
    unknown = [name for name in names if name not in fields and not (warm and name.startswith(WARM_PREFIX))]
    if unknown:
        raise PlaceRefusedError(422, f"state fields {_shown(unknown)} are unknown", legal(fields))


def _shown(names: Collection[str]) -> str:
    """Name the first of these, cut: enough to find a typo, and not a body that comes back as its own refusal."""
    first = [name[:SHOWN_CHARACTERS] for name in nsmallest(SHOWN_NAMES, names)]
    return f"{first} and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else f"{first}"


def _warm(
    states: list[dict[str, float]], table: dict[str, NDArray[np.float64]], functions: Iterable[str]
) -> dict[str, NDArray[np.float64]]:
    """Return the ``warm:<function>`` columns of these functions, of those that some candidate says.

    The work is that of the values there are, never functions x candidates: a small body can name a thousand of both.
    """
    wanted = dict.fromkeys(WARM_PREFIX + function for function in functions)
    found = {key: table[key] for key in wanted if key in table}
    if found or not wanted:
        return found  # the table holds them only when every candidate says the same things
    for index, state in enumerate(states):
        for key in wanted.keys() & state.keys():
            if key not in found:
                found[key] = np.full(len(states), np.nan)
            found[key][index] = state[key]
    return found


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
