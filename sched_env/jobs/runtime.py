"""Runtime models: how long an iteration takes on a card, given which jobs share it; asked once, then remembered."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from sched_env.jobs.tables import RuntimeTable
from wire.errors import TraceError

Predictor = Callable[[str, tuple[str, ...]], Sequence[float]]
"""(type of card, models that share it, sorted) -> seconds an iteration of each; infinite: they cannot share it."""

MOST_ON_A_CARD = 3
"""Measured profiles go up to three jobs a card; so do tables and kernels."""
UNKNOWN_S = 1.0
"""Seconds an iteration of a model of which nothing at all is known."""
UNAVAILABLE = (OSError, ArithmeticError, LookupError, ValueError)
"""What a predictor raises when it is down or does not know: the estimate is then a fallback, and flagged."""


class RuntimeModel:
    """A predictor that is asked once for each distinct (type of card, set of models).

    When the predictor is down or answers nonsense, jobs are taken to share the card's time evenly: the time alone, as
    known from another answer, times the number of jobs. Such sets are listed in ``fallbacks``.
    """

    def __init__(self, predict: Predictor) -> None:
        self._predict = predict
        self._known: dict[tuple[str, tuple[str, ...]], tuple[float, ...]] = {}
        self.fallbacks: dict[tuple[str, tuple[str, ...]], str] = {}
        """Sets whose times are estimates, with the reason."""

    @property
    def asked(self) -> int:
        """How many sets the predictor has been asked for."""
        return len(self._known)

    def seconds(self, card_type: str, models: Sequence[str]) -> tuple[float, ...]:
        """Return the seconds an iteration of each model takes, in the order given."""
        if not 1 <= len(models) <= MOST_ON_A_CARD:
            raise TraceError(f"{len(models)} jobs on a card", f"1 to {MOST_ON_A_CARD}")
        key = card_type, tuple(sorted(models))
        if key not in self._known:
            self._known[key] = self._ask(*key)
        times = dict(zip(key[1], self._known[key], strict=True))
        return tuple(times[model] for model in models)

    def _ask(self, card_type: str, models: tuple[str, ...]) -> tuple[float, ...]:
        try:
            times = tuple(float(value) for value in self._predict(card_type, models))
            bad = len(times) != len(models) or any(np.isnan(value) or value <= 0 for value in times)
            reason = f"answered {times}" if bad else ""
        except UNAVAILABLE as error:
            reason = f"{type(error).__name__}: {error}"
        if not reason:
            # Two jobs of one model on one card are interchangeable: both get the mean.
            return tuple(float(np.mean([t for m, t in zip(models, times, strict=True) if m == own])) for own in models)
        self.fallbacks[card_type, models] = reason
        if len(models) > 1:
            return tuple(self.seconds(card_type, (model,))[0] * len(models) for model in models)
        elsewhere = [
            known[0]
            for (kind, alone), known in self._known.items()
            if alone == models and (kind, alone) not in self.fallbacks
        ]
        return (float(np.median(elsewhere)) if elsewhere else UNKNOWN_S,)

    def table(self, card_types: Sequence[str], model_names: Sequence[str]) -> RuntimeTable:
        """Ask for every set of up to three models on every type of card, and return the answers as a table."""
        K, T = len(model_names), len(card_types)
        seconds = np.full((K, T, K + 1, K + 1), np.inf)
        for t, card_type in enumerate(card_types):
            for size in range(1, MOST_ON_A_CARD + 1):
                for chosen in itertools.combinations_with_replacement(range(K), size):
                    times = self.seconds(card_type, [model_names[k] for k in chosen])
                    for own, time in enumerate(times):
                        others = [k + 1 for at, k in enumerate(chosen) if at != own] + [0] * (MOST_ON_A_CARD - size)
                        seconds[chosen[own], t, others[0], others[1]] = time
                        seconds[chosen[own], t, others[1], others[0]] = time
        return RuntimeTable(tuple(card_types), tuple(model_names), seconds)


def from_table(table: RuntimeTable) -> Predictor:
    """Return a predictor that reads a table."""

    def predict(card_type: str, models: tuple[str, ...]) -> list[float]:
        t = table.card_types.index(card_type)
        at = [table.model_names.index(model) for model in models]
        times = []
        for own, k in enumerate(at):
            others = [other + 1 for slot, other in enumerate(at) if slot != own] + [0, 0]
            times.append(float(table.seconds[k, t, others[0], others[1]]))
        return times

    return predict
