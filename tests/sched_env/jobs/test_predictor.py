"""Predictions of sets: one batch, each set once, in any order; what is not known is said, never guessed in company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sched_env.jobs.catalogue import Card, Catalogue, Demand, decoded
from sched_env.jobs.predictor import COLUMNS, RuntimePredictor, further, rows
from sched_env.jobs.runtime import RuntimeModel
from wire.errors import ConfigError, ContractError, TraceError

NAMES = [column.name for column in COLUMNS]
KNOWN = Catalogue(
    cards={
        "A100": Card({"resnet50": 0.02, "yolov8m": 0.05, "llama3": 20.0}),
        "P100": Card({"resnet50": 0.04, "yolov8m": 0.10}),
    },
    demands={
        "small": {
            "A100": Demand(0.01, 0.1, 0.2, 1.0, 0.1, 0.1, 1.0),
            "P100": Demand(0.02, 0.1, 0.3, 1.0, 0.1, 0.1, 1.0),
        },
        "large": {"A100": Demand(10.0, 0.2, 0.8, 16.0, 0.4, 0.4, 2.0)},
    },
    flops={"small": 1e9},
)


class Graph:
    """Slows each job down by the others' share of the card; counts how often it is asked."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def __call__(self, asked: Any) -> Any:
        self.batches.append(len(asked))
        expected = np.exp(asked[:, NAMES.index("own_log_s")]) * (1.0 + asked[:, NAMES.index("others_gpu")])
        return np.stack([expected, 0.9 * expected, 1.2 * expected], axis=1).astype(np.float32)


@pytest.fixture
def graph() -> Graph:
    return Graph()


@pytest.fixture
def predictor(graph: Graph) -> RuntimePredictor:
    return RuntimePredictor(graph, KNOWN)


def test_all_sets_go_through_the_graph_at_once_and_each_only_once(predictor: RuntimePredictor, graph: Graph) -> None:
    first, second, third = predictor.predict(
        [("A100", ("small", "large")), ("A100", ("large", "small")), ("P100", ("small",))]
    )
    assert graph.batches == [3]  # two jobs and one, in one batch
    assert first.seconds == second.seconds[::-1]
    assert first.seconds == pytest.approx((0.018, 12.0), rel=1e-5)
    assert third.lower_s < third.seconds < third.upper_s
    predictor.predict([("A100", ("small", "large"))])
    assert graph.batches == [3]


def test_the_order_of_co_runners_does_not_matter() -> None:
    one = rows(KNOWN, [("A100", ("small", "large", "small"))])
    other = rows(KNOWN, [("A100", ("small", "small", "large"))])
    assert (one[0] == other[0]).all()
    assert one.shape == (3, len(COLUMNS))


def test_an_unseen_model_runs_alone_first_and_is_known_once_it_has(predictor: RuntimePredictor) -> None:
    assert predictor.must_run_alone("new")
    alone, company = predictor.predict([("A100", ("new",)), ("A100", ("new", "small"))])
    assert (alone.source, company.source) == ("unknown", "unknown")
    assert alone.upper_s == (np.inf,)
    assert company.seconds == (np.inf, np.inf)
    predictor.learn("A100", "new", Demand(0.5))
    assert not predictor.must_run_alone("new")
    alone, company = predictor.predict([("A100", ("new",)), ("A100", ("new", "small"))])
    assert (alone.source, company.source) == ("model", "transferred")
    assert alone.seconds == pytest.approx((0.5,))
    assert company.seconds[0] == pytest.approx(0.6)


def test_what_was_never_measured_in_company_has_the_wide_interval_that_the_model_brings(graph: Graph) -> None:
    known = {
        further("unseen_model", is_long=False): np.log(3.0),
        further("beside_unseen_model", is_long=True): np.log(1.5),
    }
    predictor = RuntimePredictor(graph, KNOWN, known)
    (before,) = predictor.predict([("A100", ("small", "large"))])
    predictor.learn("A100", "new", Demand(0.5))
    company, alone, others = predictor.predict(
        [("A100", ("new", "large")), ("A100", ("new",)), ("A100", ("small", "large"))]
    )
    assert others == before
    for at, factor in enumerate((3.0, 1.5)):
        assert company.upper_s[at] >= factor * company.seconds[at] * 0.999
        assert company.lower_s[at] <= company.seconds[at] / factor * 1.001
    assert alone.upper_s[0] < 1.5 * alone.seconds[0]
    predictor.set_card("slow", {"resnet50": 0.2, "yolov8m": 0.5, "llama3": 200.0})
    (moved,) = predictor.predict([("slow", ("large",))])
    assert moved.upper_s[0] >= 2.0 * moved.seconds[0] * 0.999, "nobody said how far off: twice"


def test_times_are_carried_over_to_other_cards_by_fingerprints(predictor: RuntimePredictor) -> None:
    predictor.set_card("slow", {"resnet50": 0.2, "yolov8m": 0.5, "llama3": 200.0})
    assert predictor.predict([("slow", ("large",))])[0].source == "transferred"
    assert predictor("slow", ("large",))[0] == pytest.approx(100.0, rel=1e-4)
    predictor.set_card("slow", {"resnet50": 0.02, "yolov8m": 0.05, "llama3": 20.0})
    assert predictor("slow", ("large",))[0] == pytest.approx(10.0, rel=1e-4)


def test_it_serves_as_the_predictor_of_a_runtime_table(predictor: RuntimePredictor) -> None:
    table = RuntimeModel(predictor).table(["A100"], ["small", "large"])
    assert table.seconds[0, 0, 2, 0] == pytest.approx(0.018, rel=1e-5)
    assert np.isfinite(table.seconds).all()


def test_a_model_that_answers_nonsense_is_an_error_that_the_fallback_takes(graph: Graph) -> None:
    broken = RuntimePredictor(lambda asked: -graph(asked), KNOWN)
    with pytest.raises(ArithmeticError, match="not positive"):
        broken.predict([("A100", ("small",))])
    model = RuntimeModel(broken)
    assert model.seconds("A100", ["small", "large"]) == (2.0, 2.0)
    assert len(model.fallbacks) == 3


def test_bad_facts_are_refused() -> None:
    with pytest.raises(ConfigError, match="above 0, of one of resnet50"):
        KNOWN.with_card("x", {"resnet50": -1.0})
    with pytest.raises(ConfigError, match="one of resnet50"):
        KNOWN.with_card("x", {"bert": 1.0})
    with pytest.raises(ConfigError, match="a number above 0"):
        KNOWN.with_demand("A100", "m", Demand(float("nan")))
    with pytest.raises(TraceError, match="1 to 3"):
        rows(KNOWN, [("A100", ("small",) * 4)])
    with pytest.raises(ContractError, match="here"):
        decoded("{}", "here")
    assert decoded(KNOWN.encode(), "here") == KNOWN
