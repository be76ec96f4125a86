"""Run times as the kernels take them: one table for the types of card and the models there are.

Whoever predicts (the ``runtime`` model of the live bundle, or measured profiles) is asked for all sets that are new in
one batch, once for each (type of card, set of models), and remembered.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sched_env.jobs.profiles import ProfileFit
from sched_env.jobs.runtime import MOST_ON_A_CARD, UNAVAILABLE, UNKNOWN_S
from sched_env.jobs.tables import RuntimeTable
from sched_env.jobs.trace import profiles

MOST_MODELS = 32
"""Models that a table keeps although none of their jobs is left; sets of three grow with the cube of this."""

Asked = tuple[str, tuple[str, ...]]
"""(type of card, models that share it)."""


class Answer(Protocol):
    """Seconds an iteration of each model of a set takes."""

    @property
    def seconds(self) -> tuple[float, ...]:
        """Expected; infinite: they cannot share the card."""

    @property
    def upper_s(self) -> tuple[float, ...]:
        """Seldom exceeded."""


class RunTimes(Protocol):
    """Who predicts."""

    @property
    def version(self) -> str:
        """Another one when answers may be other ones: all that was remembered is asked anew."""

    def predict(self, asked: Sequence[Asked]) -> Sequence[Answer]:
        """Answer for each set."""

    def must_run_alone(self, model: str) -> bool:
        """Whether nothing is known of a model: it runs alone first."""

    def learn(self, model: str, alone_s: Mapping[str, float]) -> None:
        """Take over what a model took alone (type of card -> seconds an iteration), if that says anything here."""

    def observe(self, model: str, card_type: str, seconds: float) -> None:
        """Hold the prediction to what a run alone took, where somebody keeps track."""


class Known(NamedTuple):
    """An answer."""

    seconds: tuple[float, ...]
    upper_s: tuple[float, ...]


class _Fixed:
    """Answers never change, and a time alone says nothing about company."""

    version = ""

    def learn(self, model: str, alone_s: Mapping[str, float]) -> None:
        """Take nothing over: the model goes on having cards to itself."""

    def observe(self, model: str, card_type: str, seconds: float) -> None:
        """Keep no track: nothing was promised."""


class Nobody(_Fixed):
    """Nobody knows anything yet: every job has a card to itself."""

    def predict(self, asked: Sequence[Asked]) -> list[Known]:
        """Answer for no set."""
        raise LookupError(f"nobody knows run times, as those of {asked[0]}")

    def must_run_alone(self, model: str) -> bool:  # noqa: ARG002 - any of them
        """Every model must."""
        return True


class Profiles(_Fixed):
    """Run times from measured profiles; sets that were not measured by the log-linear fit of the simulator.

    Args:
        path: ``colocation_profiles.csv``.
        card_types: Types of card to answer for.
        caution: Upper end over prediction; profiles say nothing about it, so it is assumed.
    """

    def __init__(self, path: Path, card_types: Sequence[str], caution: float = 1.1) -> None:
        self._measured, self.gpu_mem_gib = profiles(path)
        self._caution = caution
        self._fits = ProfileFit(self._measured, tuple(card_types), tuple(sorted(self.gpu_mem_gib)))

    def predict(self, asked: Sequence[Asked]) -> list[Known]:
        """Answer for each set."""
        found = [tuple(self._fits(kind, models)) for kind, models in asked]
        return [Known(seconds, tuple(value * self._caution for value in seconds)) for seconds in found]

    def must_run_alone(self, model: str) -> bool:
        """Whether no profile has the model."""
        return model not in self.gpu_mem_gib


class FromTable(_Fixed):
    """Run times that are known, as in the simulator."""

    def __init__(self, table: RuntimeTable, caution: float = 1.0) -> None:
        from sched_env.jobs.runtime import from_table

        self._table, self._predict, self._caution = table, from_table(table), caution

    def predict(self, asked: Sequence[Asked]) -> list[Known]:
        """Answer for each set."""
        found = [tuple(self._predict(kind, models)) for kind, models in asked]
        return [Known(seconds, tuple(value * self._caution for value in seconds)) for seconds in found]

    def must_run_alone(self, model: str) -> bool:
        """Whether the table lacks the model."""
        return model not in self._table.model_names


class Tables:
    """Remembers what was predicted, and what was measured of models that nobody could predict.

    Args:
        run_times: Who predicts.
    """

    def __init__(self, run_times: RunTimes) -> None:
        self._run_times = run_times
        self._version = run_times.version
        self._known: dict[Asked, Known] = {}
        self._measured: dict[str, dict[str, float]] = {}
        self.fallbacks = 0
        """Sets for which the predictor had no usable answer: each job of them is taken to share the card evenly."""
        self._table: tuple[RuntimeTable, NDArray[np.float64]] | None = None

    def unseen(self, model: str) -> bool:
        """Whether a model must run alone."""
        return self._run_times.must_run_alone(model)

    def learn(self, model: str, alone_s: Mapping[str, float]) -> None:
        """Remember what a model that nobody could predict took, alone on each type of card."""
        times = {kind: seconds for kind, seconds in alone_s.items() if seconds > 0.0}
        if times and self.unseen(model):
            self._measured.setdefault(model, {}).update(times)
            self._run_times.learn(model, self._measured[model])
            self._known = {key: known for key, known in self._known.items() if model not in key[1]}
            self._table = None

    def observe(self, model: str, card_type: str, seconds: float) -> None:
        """Hold the prediction to what a run alone took."""
        if seconds > 0.0 and not self.unseen(model):
            self._run_times.observe(model, card_type, seconds)

    def _follow(self) -> None:
        """Begin anew where another one answers by now, as after a promotion."""
        if self._run_times.version != self._version:
            self._version = self._run_times.version
            self._known, self._table = {}, None
            for model, alone_s in self._measured.items():
                if self.unseen(model):
                    self._run_times.learn(model, alone_s)

    def table(self, card_types: tuple[str, ...], models: tuple[str, ...]) -> tuple[RuntimeTable, NDArray[np.float64]]:
        """Return a table with all sets of these models, and by how much longer each model of it may take.

        It stays the same while nothing new is asked for: models whose jobs have ended stay in it, in the order of
        their names, until there are far more of them than of those in use.
        """
        self._follow()
        if self._table is None or self._table[0].card_types != card_types:
            self._table = self._build(card_types, tuple(sorted({*models})))
        elif not {*models} <= {*self._table[0].model_names}:
            kept = {*self._table[0].model_names, *models}
            if len(kept) > max(MOST_MODELS, 2 * len({*models})):
                kept = {*models}
            self._table = self._build(card_types, tuple(sorted(kept)))
        return self._table

    def _build(self, card_types: tuple[str, ...], models: tuple[str, ...]) -> tuple[RuntimeTable, NDArray[np.float64]]:
        sets = [
            (kind, chosen)
            for kind in card_types
            for size in range(1, MOST_ON_A_CARD + 1)
            for chosen in itertools.combinations_with_replacement(sorted(models), size)
        ]
        self._ask([key for key in sets if key not in self._known])
        index = {model: k for k, model in enumerate(models)}
        K, T = len(models), len(card_types)
        seconds = np.full((K, T, K + 1, K + 1), np.inf)
        caution = np.ones(K)
        for kind, chosen in sets:
            t, known = card_types.index(kind), self._known[kind, chosen]
            for own, model in enumerate(chosen):
                others = [index[m] + 1 for at, m in enumerate(chosen) if at != own] + [0, 0]
                seconds[index[model], t, others[0], others[1]] = known.seconds[own]
                seconds[index[model], t, others[1], others[0]] = known.seconds[own]
                if np.isfinite(known.upper_s[own]):
                    # In whatever company: a job that may fill in beside a reservation has to be safe in all of it.
                    caution[index[model]] = max(caution[index[model]], known.upper_s[own] / known.seconds[own])
        return RuntimeTable(card_types, models, seconds), caution

    def _ask(self, sets: list[Asked]) -> None:
        predictable = [key for key in sets if not any(self.unseen(model) for model in key[1])]
        answers: Mapping[Asked, Answer] = {}
        if predictable:
            try:
                answers = dict(zip(predictable, self._run_times.predict(predictable), strict=True))
            except UNAVAILABLE:
                answers = {}
        for key in sets:
            self._known[key] = self._usable(key, answers.get(key))

    def _usable(self, key: Asked, answer: Answer | None) -> Known:
        kind, chosen = key
        unseen = [model for model in chosen if self.unseen(model)]
        if unseen:
            if len(chosen) > 1:
                return Known((np.inf,) * len(chosen), (np.inf,) * len(chosen))
            measured = self._measured.get(unseen[0], {})
            guess = measured.get(kind) or float(np.median(list(measured.values()) or [UNKNOWN_S]))
            return Known((guess,), (2.0 * guess,))
        if answer is not None and all(value > 0.0 for value in answer.seconds):  # NaN is not above 0 either
            # Two jobs of one model on one card are interchangeable: both get the mean.
            seconds, upper = (
                tuple(float(np.mean([v for m, v in zip(chosen, values, strict=True) if m == own])) for own in chosen)
                for values in (answer.seconds, answer.upper_s)
            )
            return Known(seconds, upper)
        self.fallbacks += 1
        if len(chosen) == 1:
            return Known((UNKNOWN_S,), (2.0 * UNKNOWN_S,))
        alone = [self._known[kind, (model,)].seconds[0] * len(chosen) for model in chosen]
        return Known(tuple(alone), tuple(2.0 * value for value in alone))
