"""A complete runtime table from measured profiles: measured sets as measured, the others from a log-linear fit.

log seconds of a job = model on this type of card + what each co-runner adds, which depends on the co-runner, on the
type of card and on how sensitive the model is to company. Ridge regression keeps effects that were seldom seen small.
Company never helps: a fitted time alone is no longer than any measured with others, a fitted time with others no
shorter than alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from sched_env.jobs.runtime import MOST_ON_A_CARD, RuntimeModel
from sched_env.jobs.tables import Floats, RuntimeTable
from wire.errors import TraceError

RIDGE = 0.05
"""Weight of the penalty; a model measured once on a card already outweighs it twenty times."""


class Measured(NamedTuple):
    """Jobs that shared a card, and the seconds an iteration of each took."""

    card_type: str
    models: tuple[str, ...]
    seconds: tuple[float, ...]


class ProfileFit:
    """Predicts run times of sets that were not measured.

    Args:
        measured: The measurements; sets may repeat.
        card_types: Types to predict for.
        model_names: Models to predict for; one never measured is taken to be as the mean of all.
    """

    def __init__(self, measured: Iterable[Measured], card_types: Sequence[str], model_names: Sequence[str]) -> None:
        self._types = {name: index for index, name in enumerate(card_types)}
        self._models = {name: index for index, name in enumerate(model_names)}
        rows: list[Floats] = []
        logs: list[float] = []
        known: dict[tuple[str, tuple[str, ...]], list[dict[str, float]]] = {}
        for each in measured:
            if each.card_type not in self._types or not set(each.models) <= set(self._models):
                continue
            for own, seconds in enumerate(each.seconds):
                others = each.models[:own] + each.models[own + 1 :]
                rows.append(self._describe(each.card_type, each.models[own], others))
                logs.append(float(np.log(seconds)))
            key = each.card_type, tuple(sorted(each.models))
            times = dict(zip(each.models, each.seconds, strict=True))
            known.setdefault(key, []).append(times)
        if not rows:
            raise TraceError("no measurement is of these cards and models", "at least one")
        x, y = np.array(rows), np.array(logs)
        self._mean = float(y.mean())
        self._weights = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ (y - self._mean))
        self._shortest: dict[tuple[str, str], float] = {}
        for (card_type, _), seen in known.items():
            for times in seen:
                for model, seconds in times.items():
                    at = card_type, model
                    self._shortest[at] = min(self._shortest.get(at, np.inf), seconds)
        self._known = {
            key: {model: float(np.exp(np.mean(np.log([row[model] for row in seen])))) for model in seen[0]}
            for key, seen in known.items()
        }

    def _describe(self, card_type: str, model: str, others: Sequence[str]) -> Floats:
        T, K = len(self._types), len(self._models)
        t, k = self._types[card_type], self._models[model]
        row = np.zeros(T + K + T * K + T + K + K)
        row[t] = row[T + k] = row[T + K + t * K + k] = 1.0
        row[T + K + T * K + t] = row[2 * T + K + T * K + k] = len(others)
        for other in others:
            row[2 * T + 2 * K + T * K + self._models[other]] += 1.0
        return row

    def __call__(self, card_type: str, models: tuple[str, ...]) -> list[float]:
        """Return the seconds of each model of a set: measured if it was, fitted otherwise."""
        seen = self._known.get((card_type, tuple(sorted(models))))
        if seen is not None:
            return [seen[model] for model in models]
        if len(models) == 1:
            return [min(self._fitted(card_type, models, 0), self._shortest.get((card_type, models[0]), np.inf))]
        return [
            max(self._fitted(card_type, models, own), self(card_type, (models[own],))[0]) for own in range(len(models))
        ]

    def _fitted(self, card_type: str, models: tuple[str, ...], own: int) -> float:
        row = self._describe(card_type, models[own], models[:own] + models[own + 1 :])
        return float(np.exp(self._mean + row @ self._weights))


def complete(measured: Iterable[Measured], card_types: Sequence[str], model_names: Sequence[str]) -> RuntimeTable:
    """Return the table of all sets of up to three models on every type of card."""
    usable = [each for each in measured if 1 <= len(each.models) <= MOST_ON_A_CARD]
    return RuntimeModel(ProfileFit(usable, card_types, model_names)).table(card_types, model_names)
