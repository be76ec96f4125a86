"""Run times of jobs that share a card, from the bundle's ``runtime`` model, before they run.

    predictor = RuntimePredictor.of(policy.models["runtime"])          # wire.models.GraphModel of a jobs bundle
    predictor.predict([("A100", ("glm4", "resnet50")), ("P100", ("vgg11",))])

asks for all sets at once (one run of the graph), answers each distinct (type of card, set of models) once and remembers
it. Nothing that is known only while a job runs goes in. numpy and msgspec only; the session comes from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from sched_env.jobs.catalogue import BENCHMARKS, LONG_S, Catalogue, Demand, decoded
from sched_env.jobs.runtime import MOST_ON_A_CARD, UNKNOWN_S
from wire.contracts.bundle import Column, ModelInput, ModelSpec
from wire.errors import BundleError, TraceError

Asked = tuple[str, tuple[str, ...]]
"""(type of card, models that share it, in any order; one model may be there twice)."""
Source = Literal["model", "transferred", "unknown"]
"""Of a prediction: the model knows all of the set on this type of card; it knows some from other cards, or by their
time alone; it does not know one of them."""
Floats = NDArray[np.float64]

ROWS, SECONDS, CATALOGUE, MEASURED = "rows", "seconds", "catalogue", "measured"
"""Names of the graph's input and output, and of the texts in its metadata: what is known, how large errors were."""
NO_JOB_LOG_S = -8.0
"""Log seconds of a co-runner that is not there: shorter than any."""
NOT_RUN_LOG_S = 10.0
"""Log seconds of a benchmark that does not fit the card: longer than any."""
FURTHER: tuple[str, ...] = ("unseen_model", "beside_unseen_model", "unseen_card")
"""What was never measured in company: a model known by its time alone, those beside it, a card known by benchmarks."""
FURTHER_LOG = float(np.log(2.0))
"""How far off those may be, where the model does not say: twice, as a controller assumes of a job nobody predicts."""


def further(what: str, *, is_long: bool) -> str:
    """Name the figure among the measured ones: log units that hold nine of ten errors of what was left out in turn."""
    return f"{what}_{'long' if is_long else 'short'}_log90"


_AMOUNTS = (
    ("log_s", "log seconds"),
    ("cpu", "share"),
    ("gpu", "share"),
    ("mem_gib", "GiB"),
    ("pressure", "ratio"),
    ("log_flops", "log"),
)
_SUMMED = slice(1, 5)
COLUMNS: tuple[Column, ...] = (
    *(Column(f"own_{name}", unit) for name, unit in _AMOUNTS),
    *(Column(f"{which}_{name}", unit) for name, unit in _AMOUNTS for which in ("more", "less")),
    *(Column(f"{which}_{name}", unit) for name, unit in _AMOUNTS[1:5] for which in ("others", "all")),
    Column("sensitivity", "ratio"),
    Column("crowding", "log"),
    Column("jobs", "count"),
    *(Column(f"card_{name}", "log seconds") for name in BENCHMARKS),
)
"""One row a job: itself, the larger and the smaller of its (at most two) co-runners in each amount, sums, the card.
Sorted amounts instead of places, so that the order of co-runners cannot matter. ``crowding`` is what a card that shares
its time would do: log(1 + sensitivity x pressure of the others); the graph adds what the forest knows beyond it."""
CROWDING = [column.name for column in COLUMNS].index("crowding")
SPEC = ModelSpec(
    inputs=(ModelInput(ROWS, "float32", (None, len(COLUMNS)), COLUMNS),),
    output=SECONDS,
    unit="seconds",
    version=1,
    output_axes=(None, 3),
)
"""Of the ``runtime`` model: expected, lower and upper seconds an iteration."""


class Prediction(NamedTuple):
    """Seconds an iteration of each job of a set, in the order asked; multiply by its iterations."""

    seconds: tuple[float, ...]
    """The expected ones: what makes the relative error smallest."""
    lower_s: tuple[float, ...]
    """What happens lies between ``lower_s`` and ``upper_s`` nine times in ten."""
    upper_s: tuple[float, ...]
    source: Source
    """``unknown``: a model of the set was never measured and must run alone (times in company are infinite)."""


class Model(Protocol):
    """What is asked of ``wire.models.GraphModel``."""

    spec: ModelSpec

    @property
    def metadata(self) -> Mapping[str, str]:
        """Texts that travel in the graph."""

    def __call__(self, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Answer for rows."""


class RuntimePredictor:
    """Predicts run times of sets of jobs; also a ``sched_env.jobs.runtime.Predictor`` (call it with one set).

    Args:
        graph: Rows of features (``COLUMNS``) -> [rows, 3]: expected, lower and upper seconds.
        catalogue: What is known of cards and models.
        measured: Errors on sets that were held out when the model was made: ``mape``, ``median_ape`` and others, in
            per cent; ``fitted_until_s``: its newest measurement, seconds since the epoch.
    """

    def __init__(
        self,
        graph: Callable[[NDArray[np.float32]], NDArray[np.float32]],
        catalogue: Catalogue,
        measured: Mapping[str, float] | None = None,
    ) -> None:
        self._graph, self._catalogue, self.measured = graph, catalogue, dict(measured or {})
        self._remembered: dict[Asked, Prediction] = {}
        self._learned: set[str] = set()
        """Models known by their time alone."""

    @classmethod
    def of(cls, model: Model) -> RuntimePredictor:
        """Open the ``runtime`` model of a bundle."""
        if model.spec != SPEC:
            raise BundleError(
                f"the runtime model has version {model.spec.version} and {len(model.spec.inputs[0].columns)} columns",
                f"version {SPEC.version} with {len(COLUMNS)} columns",
                "fit it again with this release",
            )
        text = model.metadata.get(CATALOGUE)
        if text is None:
            raise BundleError("the runtime model carries no catalogue", f"metadata {CATALOGUE!r} in its graph")
        try:
            measured = msgspec.json.decode(model.metadata.get(MEASURED, "{}"), type=dict[str, float])
        except msgspec.DecodeError as error:
            raise BundleError(f"{MEASURED!r} of the runtime model: {error}", "names and numbers") from error
        return cls(lambda asked: model({ROWS: asked}), decoded(text, "catalogue of the runtime model"), measured)

    @property
    def catalogue(self) -> Catalogue:
        """What is known of cards and models, the learned included."""
        return self._catalogue

    def predict(self, asked: Sequence[Asked]) -> list[Prediction]:
        """Answer for each set; those not remembered go through the graph in one batch.

        Args:
            asked: (type of card, models); the same set may come repeatedly and in any order.
        """
        keys = [(card_type, tuple(sorted(models))) for card_type, models in asked]
        new = [key for key in dict.fromkeys(keys) if key not in self._remembered]
        self._remembered |= zip(new, self._ask(new), strict=True)
        return [_ordered(self._remembered[key], key[1], models) for key, (_, models) in zip(keys, asked, strict=True)]

    def __call__(self, card_type: str, models: tuple[str, ...]) -> list[float]:
        """Return the expected seconds of one set."""
        return list(self.predict([(card_type, models)])[0].seconds)

    def must_run_alone(self, model: str) -> bool:
        """Whether nothing has been measured of a model on any card: it runs alone first, then :meth:`learn`."""
        return model not in self._catalogue.demands

    def learn(self, card_type: str, model: str, demand: Demand) -> None:
        """Remember what a model took when it ran alone (only ``seconds`` must be known), and forget what it changes."""
        if self.must_run_alone(model):
            self._learned.add(model)
        self._catalogue = self._catalogue.with_demand(card_type, model, demand)
        self._remembered = {key: kept for key, kept in self._remembered.items() if model not in key[1]}

    def set_card(self, card_type: str, fingerprint_s: dict[str, float]) -> None:
        """Set the fingerprint of a type of card, configured or measured, and forget what it changes."""
        self._catalogue = self._catalogue.with_card(card_type, fingerprint_s)
        # A new fingerprint changes what is carried over to and from this card.
        self._remembered = {
            key: kept for key, kept in self._remembered.items() if key[0] != card_type and kept.source == "model"
        }

    def _ask(self, sets: Sequence[Asked]) -> list[Prediction]:
        known = [key for key in sets if not any(map(self.must_run_alone, key[1]))]
        answers: dict[Asked, Prediction] = {}
        if known:
            times = np.asarray(self._graph(rows(self._catalogue, known)), np.float64)
            if times.shape != (sum(len(models) for _, models in known), 3) or not (times > 0).all():
                raise ArithmeticError(f"the runtime model answered shape {times.shape}, or times that are not positive")
            at = 0
            for card_type, models in known:
                mine = np.maximum.accumulate(times[at : at + len(models)][:, [1, 0, 2]], axis=1).T
                at += len(models)
                off = np.exp(self._further(card_type, models))
                mine[0], mine[2] = np.minimum(mine[0], mine[1] / off), np.maximum(mine[2], mine[1] * off)
                lower, seconds, upper = (tuple(line) for line in mine.tolist())
                source: Source = "transferred" if off.max() > 1.0 else "model"
                answers[card_type, models] = Prediction(seconds, lower, upper, source)
        return [answers.get(key) or self._unknown(key) for key in sets]

    def _further(self, card_type: str, models: Sequence[str]) -> Floats:
        """Return for each job of a set how far off it may be for what nobody measured, in log units; 0: nothing."""
        there = all(card_type in self._catalogue.demands[model] for model in models)
        company = len(models) > 1 and any(model in self._learned for model in models)
        found = np.zeros(len(models))
        for at, model in enumerate(models):
            demand = self._catalogue.demand(card_type, model)
            is_long = demand is not None and demand.seconds > LONG_S
            what = [FURTHER[0] if model in self._learned else FURTHER[1]] if company else []
            what += [] if there else [FURTHER[2]]
            found[at] = sum(self.measured.get(further(one, is_long=is_long), FURTHER_LOG) for one in what)
        return found

    def _unknown(self, key: Asked) -> Prediction:
        """Alone, an unmeasured model is taken to be like the median of all on this card; company it may not have."""
        card_type, models = key
        if len(models) > 1:
            never = (np.inf,) * len(models)
            return Prediction(never, never, never, "unknown")
        here = [one[card_type].seconds for one in self._catalogue.demands.values() if card_type in one]
        return Prediction((float(np.median(here)) if here else UNKNOWN_S,), (0.0,), (np.inf,), "unknown")


def _ordered(kept: Prediction, models: Sequence[str], asked: Sequence[str]) -> Prediction:
    """Put the times, which are in the order of sorted models, into the order asked."""
    at = [models.index(model) for model in asked]
    seconds, lower, upper = (tuple(line[k] for k in at) for line in kept[:3])
    return Prediction(seconds, lower, upper, kept.source)


def rows(catalogue: Catalogue, sets: Iterable[Asked]) -> NDArray[np.float32]:
    """Return [jobs of all sets, columns]: a row for each job, set by set, in the order given."""
    made: list[Floats] = []
    amounts: dict[tuple[str, str], _Amounts] = {}
    for card_type, models in sets:
        if not 1 <= len(models) <= MOST_ON_A_CARD:
            raise TraceError(f"{len(models)} jobs on a card", f"1 to {MOST_ON_A_CARD}")
        for model in models:
            if (card_type, model) not in amounts:
                amounts[card_type, model] = _amounts(catalogue, card_type, model)
        mine = [amounts[card_type, model] for model in models]
        card = _fingerprint(catalogue, card_type)
        for own, one in enumerate(mine):
            felt = np.array([other.on_long if one.is_long else other.on_short for other in mine])
            made.append(_row(felt[own], one.sensitivity, np.delete(felt, own, axis=0), card))
    return np.array(made, np.float32).reshape(len(made), len(COLUMNS))


class _Amounts(NamedTuple):
    """A model on a card, as jobs of short and of long iterations feel it."""

    on_short: Floats
    on_long: Floats
    sensitivity: float
    is_long: bool


def _amounts(catalogue: Catalogue, card_type: str, model: str) -> _Amounts:
    demand = catalogue.demand(card_type, model)
    if demand is None:
        raise LookupError(f"nothing is known of {model}: it has to run alone first")
    flops = np.log(catalogue.flops[model]) if catalogue.flops.get(model, 0.0) > 0 else 0.0
    first = [np.log(demand.seconds), *(getattr(demand, name) for name in ("cpu", "gpu", "mem_gib"))]
    short, long = (np.array([*first, value, flops]) for value in (demand.pressure, demand.pressure_on_long))
    return _Amounts(short, long, float(demand.sensitivity or 0.0), demand.seconds > LONG_S)


def _fingerprint(catalogue: Catalogue, card_type: str) -> Floats:
    known = catalogue.cards[card_type].fingerprint_s if card_type in catalogue.cards else {}
    return np.array([np.log(known[name]) if name in known else NOT_RUN_LOG_S for name in BENCHMARKS])


def _row(own: Floats, sensitivity: float, others: Floats, card: Floats) -> Floats:
    nobody = np.array([NO_JOB_LOG_S, 0.0, 0.0, 0.0, 0.0, 0.0])
    pair = np.vstack([others, np.tile(nobody, (2 - len(others), 1))])
    beside = np.stack([pair.max(axis=0), pair.min(axis=0)], axis=1).ravel()
    sums = pair[:, _SUMMED].sum(axis=0)
    totals = np.stack([sums, own[_SUMMED] + sums], axis=1).ravel()
    crowding = np.log1p(sensitivity * sums[-1])
    return np.concatenate([own, beside, totals, [sensitivity, crowding, 1.0 + len(others)], card])
