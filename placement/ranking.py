"""From scores to an order, and from raw state to what was seen: the plain parts of a decision."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from placement.errors import PlaceRefusedError
from placement.state import State
from sched_env import heuristics, problems
from sched_env.observation import Observation
from sched_env.problem import Build
from wire.contracts.place import PlacementRequest, Ranked

SOUGHT_ONE_BY_ONE = 8
"""Up to so many of the best are sought one after another, which costs less than sorting what nobody asked for."""


def observe(state: State, request: PlacementRequest, build: Build) -> Observation:
    """Build what a policy sees of a request; refused where that is not finite."""
    where = "the request"
    try:
        with np.errstate(all="ignore"):
            known = problems.get(state.problem) if state.prepared is not None else None
            if known is not None and build is known.build and known.steps and request.function not in state.warm:
                seen = known.steps.finish(state.prepared, request.fields)
            else:
                seen = build(state.columns_for(request), request.fields)
            if all_finite(seen.candidates) and all_finite(seen.request):
                return seen
    except ZeroDivisionError:
        pass  # a request's own fields are plain numbers: they raise where a column would hold infinity
    else:
        rows = np.isfinite(seen.candidates).all(axis=1)
        if rows.all() and np.isfinite(seen.request).all():
            return seen
        if not rows.all():
            where = f"candidate {state.names[int(rows.argmin())]!r}"
    found = f"features of {where} for request {request.id!r} are not finite"
    raise PlaceRefusedError(422, found, "capacities and times above 0")


def all_finite(array: NDArray[np.floating]) -> bool:
    """Say whether no number is NaN or infinite: NaN is where both extremes are, and each infinity where one is.

    A third of the time of a sum of a hundred, and no sum overflows.
    """
    return math.isfinite(array.item(array.argmax())) and math.isfinite(array.item(array.argmin()))


def feature_hash(observation: Observation) -> str:
    """Name an observation, so that a logged decision can be matched with a rebuilt one."""
    digest = hashlib.sha256()
    for array in observation:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:32]


def stack(
    observations: list[Observation],
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]]:
    """Make one batch of observations of the same candidates."""
    candidates, request, mask = zip(*observations, strict=True)
    return np.stack(candidates), np.stack(request), np.stack(mask)


def fallback_scores(name: str, state: State, request: PlacementRequest, mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Score by heuristic; what it cannot compare (a capacity of 0) comes last, because nobody else will answer."""
    with np.errstate(all="ignore"):
        scores = heuristics.score(state.problem, name, state.columns_for(request), request.fields, mask)
    return np.nan_to_num(scores, nan=np.finfo(np.float64).min)


def best(names: Sequence[str], scores: NDArray[np.floating], count: int) -> list[Ranked]:
    """Return the best ``count`` candidates; equal scores keep the order of the candidates."""
    if count <= SOUGHT_ONE_BY_ONE:
        left, ranked = scores.copy(), []
        for _ in range(count):
            index = int(left.argmax())  # the first of equal ones
            ranked.append(Ranked(names[index], left.item(index)))
            left[index] = -np.inf
        if ranked and ranked[-1].score > -np.inf:  # otherwise fewer than so many could be told from those taken
            return ranked
    if count >= len(scores) // 4:
        order = (-scores).argsort(kind="stable")[:count]
    else:
        least = np.partition(scores, len(scores) - count)[len(scores) - count]
        rows = np.flatnonzero(scores >= least)  # those that equal the last one too, to keep the order among them
        order = rows[(-scores[rows]).argsort(kind="stable")[:count]]
    return [Ranked(names[index], score) for index, score in zip(order.tolist(), scores[order].tolist(), strict=True)]


def ruled_out(state: State, request: PlacementRequest) -> str:
    """Say how many candidates each reason rules out."""
    counts = problems.get(state.problem).ruled_out(state.columns_for(request), request.fields)
    said = [f"{count} {what}" for what, count in counts.items() if count]
    return ", ".join(said) or f"the mask of {state.problem} rules out all {len(state.names)}"
