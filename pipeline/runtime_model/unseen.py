"""How far off predictions are of what nothing was fitted on: a model known by its time alone, a card by its benchmarks.

Every model, and every type of card, is left out in turn with all sets that it is in, put back as a controller would
know it, and predicted. An interval that is calibrated on known models is far too narrow for such a one; these errors,
which travel with the model, make it as wide as it has to be (``RuntimePredictor``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.runtime_model import facts
from pipeline.runtime_model.model import COVERED, FEWEST_SETS, expected, grown
from pipeline.runtime_model.profiles import Profiles
from sched_env.jobs.catalogue import LONG_S, Catalogue, Demand
from sched_env.jobs.predictor import FURTHER, further

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
TREES_A_TURN = 8
"""Expected times hardly change with more, and there are as many fits as models and cards."""
ENOUGH_GROUPS = 10
"""Models from which a quantile over all their errors says something about the next; below, the worst of them does."""


class Left(NamedTuple):
    """Jobs of the sets that a model, or a card, was left out with."""

    off: Floats
    """Log units between prediction and truth."""
    own: Bools
    """Whether the job is of the model that was left out."""
    is_long: Bools


def without_model(profiles: Profiles, model: str) -> tuple[Profiles, Profiles, dict[str, float]]:
    """Return sets without a model, those in which it had company, and its time alone on each card.

    That is the shortest in company on a card where it never was alone.
    """
    there = np.array([model in names for _, names in profiles.sets])
    train, test = profiles.only(~there), profiles.only(there)
    alone: dict[str, float] = {}
    for card in test.cards():
        times = [
            (len(names) > 1, float(seconds[names.index(model)]))
            for (where, names), seconds in zip(test.sets, test.seconds, strict=True)
            if where == card
        ]
        alone[card] = min(times)[1]
    known = {*train.models(), model}
    return train, test.only(np.array([len(names) > 1 and {*names} <= known for _, names in test.sets], bool)), alone


def without_card(profiles: Profiles, card: str) -> tuple[Profiles, Profiles, dict[str, float]]:
    """Return sets without a type of card, those on it, and its benchmark times."""
    of = np.array([where for where, _ in profiles.sets])
    train, test = profiles.only(of != card), profiles.only(of == card)
    known = {*train.models()}
    fingerprint = facts.catalogue(test).cards[card].fingerprint_s
    return train, test.only(np.array([{*names} <= known for _, names in test.sets], bool)), fingerprint


def margins(profiles: Profiles, *, seed: int = 0) -> dict[str, float]:
    """Return how far off, in log units, nine of ten are: of unseen models, those beside them, and unseen cards.

    What cannot be left out, for want of other sets, has no figure.
    """
    models, cards = list(_models(profiles, seed)), list(_cards(profiles, seed))
    of: dict[str, tuple[list[Left], Callable[[Left], Bools]]] = dict(
        zip(FURTHER, ((models, _own), (models, lambda left: ~left.own), (cards, _own)), strict=True)
    )
    found: dict[str, float] = {}
    for what, (groups, whose) in of.items():
        for is_long in (False, True):
            errors = [left.off[whose(left) & (left.is_long == is_long)] for left in groups]
            errors = [each for each in errors if each.size]
            if errors:
                found[further(what, is_long=is_long)] = _covering(errors)
    return found


def _own(left: Left) -> Bools:
    return left.own


def _covering(errors: list[Floats]) -> float:
    """Return what holds nine of ten errors of a group like these, each group counting alike."""
    if len(errors) < ENOUGH_GROUPS:
        return max(float(np.quantile(each, COVERED)) for each in errors)
    share = min(1.0, COVERED * (1.0 + 1.0 / len(errors)))
    weights = np.concatenate([np.full(each.size, 1.0 / each.size) for each in errors])
    values = np.concatenate(errors)
    order = np.argsort(values)
    below = np.cumsum(weights[order]) / len(errors)
    return float(values[order][min(int(np.searchsorted(below, share)), values.size - 1)])


def _models(profiles: Profiles, seed: int) -> Iterator[Left]:
    for model in profiles.models():
        train, test, alone = without_model(profiles, model)
        if len(train) < FEWEST_SETS or not len(test):
            continue
        known = facts.catalogue(train)
        with_it = known
        for card, seconds in alone.items():
            with_it = with_it.with_demand(card, model, Demand(seconds))
        own = np.array([name == model for _, names in test.sets for name in names])
        yield _left(known, with_it, train, test, own, seed)


def _cards(profiles: Profiles, seed: int) -> Iterator[Left]:
    for card in profiles.cards():
        train, test, fingerprint = without_card(profiles, card)
        if len(train) < FEWEST_SETS or not len(test) or not fingerprint:
            continue
        known = facts.catalogue(train)
        own = np.ones(len(test.of_set()), bool)
        yield _left(known, known.with_card(card, fingerprint), train, test, own, seed)


def _left(known: Catalogue, with_it: Catalogue, train: Profiles, test: Profiles, own: Bools, seed: int) -> Left:
    forest = grown(known, train, seed, TREES_A_TURN)
    truth, asked = test.logs(), test.asked()
    long = {
        key: demand is not None and demand.seconds > LONG_S
        for key in {(card, name) for card, names in asked for name in names}
        for demand in [with_it.demand(*key)]
    }
    is_long = np.array([long[card, name] for card, names in asked for name in names])
    return Left(np.abs(expected(forest, with_it, asked) - truth), own, is_long)
