"""Why this candidate and not the next: their features, and the least change that would let the other one win.

The policy is asked, not guessed at: one feature of the runner-up at a time is moved in steps towards the winner's
value, everything else stays, and the scores say when the order turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from sched_env.observation import Observation
from wire.contracts.feature_spec import FeatureSpec
from wire.contracts.place import Change, Explained, Explanation

STEPS = 16
"""Parts of the way from the runner-up's value to the winner's."""

Score = Callable[[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]], NDArray[np.float32]]


def explain(
    spec: FeatureSpec,
    names: Sequence[str],
    observation: Observation,
    scores: NDArray[np.floating],
    score: Score | None,
    most_rows: int,
) -> Explanation | None:
    """Compare the best two candidates; None where there are not two.

    Args:
        spec: Names and units of the features.
        names: Of the candidates.
        observation: What was seen.
        scores: What they were given; minus infinity where the request cannot go.
        score: Asks the policy again; None when a heuristic answered, which has no features to move.
        most_rows: Candidate rows that may be scored in one run.
    """
    order = np.argsort(-scores, kind="stable")[:2]
    if len(order) < 2 or not np.isfinite(scores[order]).all():
        return None
    winner, other = int(order[0]), int(order[1])
    changes = [] if score is None else _changes(spec, observation, winner, other, score, most_rows)
    return Explanation(
        winner=_explained(spec, names, observation, scores, winner),
        runner_up=_explained(spec, names, observation, scores, other),
        runner_up_wins_if=changes,
    )


def _explained(
    spec: FeatureSpec, names: Sequence[str], observation: Observation, scores: NDArray[np.floating], row: int
) -> Explained:
    values = {
        feature.name: float(value) for feature, value in zip(spec.candidate, observation.candidates[row], strict=True)
    }
    return Explained(names[row], float(scores[row]), values)


def _changes(
    spec: FeatureSpec, observation: Observation, winner: int, other: int, score: Score, most_rows: int
) -> list[Change]:
    candidates, size = observation.candidates, len(observation.candidates)
    differ = np.flatnonzero(candidates[winner] != candidates[other])
    steps = min(STEPS, max(1, most_rows // max(size * len(differ), 1)))
    parts = np.arange(1, steps + 1, dtype=np.float32) / steps
    tried = np.repeat(candidates[np.newaxis], len(differ) * steps, axis=0)
    for place, feature in enumerate(differ):
        start, end = candidates[other, feature], candidates[winner, feature]
        tried[place * steps : (place + 1) * steps, other, feature] = start + (end - start) * parts
    turned = np.zeros(len(tried), np.bool_)
    batch = max(1, most_rows // size)
    for first in range(0, len(tried), batch):
        part = tried[first : first + batch]
        request = np.repeat(observation.request[np.newaxis], len(part), axis=0)
        mask = np.repeat(observation.mask[np.newaxis], len(part), axis=0)
        found = score(part, request, mask)
        turned[first : first + batch] = found[:, other] > found[:, winner]
    changes = []
    for place, feature in enumerate(differ):
        turns = turned[place * steps : (place + 1) * steps]
        if turns.any():
            named, when = spec.candidate[feature], int(turns.argmax())
            value = float(tried[place * steps + when, other, feature])
            changes.append(Change(named.name, named.unit, float(candidates[other, feature]), value))
    # The smallest change first, in the feature's own scale.
    scales = {feature.name: feature.scale for feature in spec.candidate}
    return sorted(changes, key=lambda change: abs(change.instead - change.now) / scales[change.feature])
