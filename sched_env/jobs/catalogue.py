"""What is known of cards and models before a job runs: fingerprints, and what a model takes of a card when it runs.

The catalogue travels inside the runtime model (metadata of its graph, so the bundle's digest covers it), and the
controller adds what it measures itself: a new type of card, a model that has run alone. numpy and msgspec only.
"""

from __future__ import annotations

import msgspec
import numpy as np

from wire.contracts import decode
from wire.errors import ConfigError, legal

BENCHMARKS = ("resnet50", "yolov8m", "llama3")
"""Models whose step times alone are a card's fingerprint."""
AMOUNTS = ("cpu", "gpu", "mem_gib", "pressure", "pressure_on_long", "sensitivity")
NEUTRAL = {"cpu": 0.0, "gpu": 0.5, "mem_gib": 1.0, "pressure": 0.1, "pressure_on_long": 0.1, "sensitivity": 1.0}
"""What an amount is taken to be when nobody measured it for anything."""
LONG_S = 1.0
"""Iterations that take longer are long: language models take seconds, all others milliseconds."""
UNLIKE = 0.05
"""Log units by which even a model that moves exactly like a benchmark is taken to differ from it."""
LENGTH_SAYS = 0.05
"""How much a log unit of length apart counts beside one of movement: with one known card it is all there is."""


class Demand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one job of a model takes on one type of card."""

    seconds: float
    """An iteration, undisturbed."""
    cpu: float | None = None
    """Share of the node's cores, 0 to 1. Null, here and below: not measured; the mean of other models then."""
    gpu: float | None = None
    """Share of the card's time, 0 to 1."""
    mem_gib: float | None = None
    """GPU memory."""
    pressure: float | None = None
    """How much longer, as a share, it makes others take whose iterations are short (vision models)."""
    pressure_on_long: float | None = None
    """The same of those whose iterations are long (language models), which other things slow down."""
    sensitivity: float | None = None
    """How much of others' pressure it feels; 1 is the mean of the models of its kind on the card."""

    @property
    def whole(self) -> bool:
        """Whether everything is known."""
        return None not in [getattr(self, name) for name in AMOUNTS]


class Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A type of card."""

    fingerprint_s: dict[str, float]
    """Benchmark model -> seconds a step alone; one that is missing does not fit the card."""


class Catalogue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything known before a run."""

    cards: dict[str, Card]
    demands: dict[str, dict[str, Demand]]
    """Model -> type of card -> what it takes there."""
    flops: dict[str, float] = {}
    """Model -> floating-point operations an iteration, where known."""

    def with_card(self, card_type: str, fingerprint_s: dict[str, float]) -> Catalogue:
        """Add a type of card, or replace its fingerprint."""
        bad = {name: value for name, value in fingerprint_s.items() if not (np.isfinite(value) and value > 0)}
        if bad or not set(fingerprint_s) <= set(BENCHMARKS) or not fingerprint_s:
            found = f"the fingerprint of {card_type} is {fingerprint_s}"
            raise ConfigError(found, f"seconds a step, above 0, of {legal(BENCHMARKS)}")
        return msgspec.structs.replace(self, cards={**self.cards, card_type: Card(dict(fingerprint_s))})

    def with_demand(self, card_type: str, model: str, demand: Demand) -> Catalogue:
        """Add what a model was measured to take on a type of card."""
        if not (np.isfinite(demand.seconds) and demand.seconds > 0):
            raise ConfigError(f"{model} on {card_type} takes {demand.seconds} s an iteration", "a number above 0")
        mine = {**self.demands.get(model, {}), card_type: demand}
        return msgspec.structs.replace(self, demands={**self.demands, model: mine})

    def demand(self, card_type: str, model: str) -> Demand | None:
        """Return what a model takes on a type of card: measured there, or carried over from other cards; None: unknown.

        Carried over by fingerprints: seconds change from card to card as those of the benchmarks do, the more like a
        benchmark the model has behaved on the cards where both are known, the more as that one.
        """
        mine = self.demands.get(model, {})
        if not mine:
            return None
        found = mine.get(card_type)
        if found is not None and found.whole:
            return found
        if found is not None:
            seconds = found.seconds
        else:
            logs = [np.log(one.seconds) + self._moved(model, other, card_type) for other, one in mine.items()]
            seconds = float(np.exp(np.mean(logs)))
        here = [one[card_type] for one in self.demands.values() if card_type in one]
        told = [found] if found is not None else list(mine.values())
        amounts = {name: _mean(name, told, here) for name in AMOUNTS}
        return Demand(seconds, **amounts)

    def _moved(self, model: str, source: str, target: str) -> float:
        """Log of how much longer the model takes on one card than on another; 0 without fingerprints of both."""
        before, after = (self.cards[one].fingerprint_s if one in self.cards else {} for one in (source, target))
        shared = [name for name in BENCHMARKS if name in before and name in after]
        if not shared:
            return 0.0
        changes = np.log([after[name] / before[name] for name in shared])
        weights = np.array([1.0 / (UNLIKE + self._unlike(model, name)) ** 2 for name in shared])
        return float(changes @ weights / weights.sum())

    def _unlike(self, model: str, benchmark: str) -> float:
        """How differently a model and a benchmark move between the cards where both are known (log units)."""
        apart = [
            np.log(demand.seconds / self.cards[card].fingerprint_s[benchmark])
            for card, demand in self.demands[model].items()
            if card in self.cards and benchmark in self.cards[card].fingerprint_s
        ]
        # Nothing to compare: as far from it as its length is, so that a long job follows the long benchmark.
        return float(np.std(apart)) + LENGTH_SAYS * abs(float(np.mean(apart))) if apart else 1.0

    def encode(self) -> str:
        """Write it as the text that travels in the graph."""
        return msgspec.json.encode(self, order="sorted").decode()


def _mean(name: str, told: list[Demand], here: list[Demand]) -> float:
    """Return an amount as the model itself told it, else as the models of this card have it, else nothing."""
    for those in (told, here):
        values = [value for one in those if (value := getattr(one, name)) is not None]
        if values:
            return float(np.mean(values))
    return NEUTRAL[name]


def decoded(text: str, source: str) -> Catalogue:
    """Read what :meth:`Catalogue.encode` wrote."""
    return decode(text.encode(), Catalogue, source=source)
