"""Run times from a bundle's own runtime model: asked in one batch, changed by a promotion, taught by what ran alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.runtime_model import profiles, store
from placement.cpn.allocation import Allocator, Moment, OnCard
from placement.cpn.bundled import Bundled
from placement.cpn.config import CpnSettings
from placement.cpn.records import Attempt, Job
from placement.cpn.runtimes import FromTable, Nobody, Tables
from sched_env.jobs import finished, synthetic
from sched_env.jobs.predictor import RuntimePredictor
from sched_env.jobs.tables import RuntimeTable
from tests.placement.cpn.played import Rehearsal
from wire import graph, models
from wire.contracts.bundle import model_file, model_golden_file

NAMES = {"resnet50": 0.02, "yolov8m": 0.05, "llama3": 20.0, "cnn-small": 0.01}
CARDS = {"P100": 2.0, "RTX4090": 1.0}


def measured() -> list[finished.Ended]:
    """Sets of up to three models on two cards: each of them adds a tenth to what the others take, with noise."""
    noise = np.random.default_rng(0)
    found = []
    for (card, factor), size in itertools.product(CARDS.items(), (1, 2, 3)):
        for names in itertools.combinations_with_replacement(sorted(NAMES), size):
            times = [NAMES[one] * factor * (1.0 + 0.1 * (size - 1)) * np.exp(noise.normal(0.0, 0.02)) for one in names]
            found.append(
                finished.Ended(1.7e9 + 60 * len(found), card, names, tuple(times), 0.1 * size, 0.5, 1.0 * size)
            )
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runtime")
    (path / "sets.csv").write_text(finished.write_profiles(measured()))
    read = profiles.read([path / "sets.csv"])
    store.write(path / "model", read, *store.made(read))
    return path / "model"


class Counted:
    """A runtime model that says how often it ran."""

    def __init__(self, model: Any) -> None:
        self._model, self.spec, self.metadata, self.runs = model, model.spec, model.metadata, 0

    def __call__(self, inputs: Any) -> Any:
        self.runs += 1
        return self._model(inputs)


def policy(folder: Path, digest: str = "sha256:one") -> SimpleNamespace:
    """A live policy whose bundle carries the model, opened and checked as the service does."""
    names = (model_file("runtime"), model_golden_file("runtime"))
    checked = models.check("runtime", store.SPEC, {name: (folder / name).read_bytes() for name in names}, graph.OPSET)
    return SimpleNamespace(digest=digest, models={"runtime": Counted(models.open_all([checked])["runtime"])})


def test_all_sets_go_through_the_graph_in_one_batch_and_are_remembered(folder: Path) -> None:
    live = policy(folder)
    tables = Tables(Bundled(lambda: live, Nobody()))  # type: ignore[arg-type]
    table, caution = tables.table(("P100", "RTX4090"), ("cnn-small", "resnet50"))
    tables.table(("P100", "RTX4090"), ("resnet50",))
    assert live.models["runtime"].runs == 1
    alone = table.select(("P100",), ("resnet50",)).seconds[0, 0, 0, 0]
    assert alone == pytest.approx(0.04, rel=0.1)
    together = table.select(("P100",), ("resnet50", "cnn-small")).seconds[0, 0, 2, 0]
    assert together == pytest.approx(0.044, rel=0.1)
    assert (caution > 1.0).all()  # the model's own interval, not the setting


def test_a_promotion_changes_who_answers_and_a_bundle_without_the_model_leaves_it_to_the_profiles(folder: Path) -> None:
    live: list[Any] = [None]
    otherwise = FromTable(synthetic.runtime(("P100",)))
    bundled = Bundled(lambda: live[0], otherwise)
    tables = Tables(bundled)
    before = tables.table(("P100",), ("cnn-small",))[0]
    assert (
        before.seconds[0, 0, 0, 0] == synthetic.runtime(("P100",)).select(("P100",), ("cnn-small",)).seconds[0, 0, 0, 0]
    )
    live[0] = policy(folder)
    assert tables.table(("P100",), ("cnn-small",))[0].seconds[0, 0, 0, 0] == pytest.approx(0.02, rel=0.1)
    assert bundled.gpu_memory_mb()["resnet50"] > 0.0
    live[0] = SimpleNamespace(digest="sha256:two", models={})
    assert tables.table(("P100",), ("cnn-small",))[0].seconds[0, 0, 0, 0] == before.seconds[0, 0, 0, 0]
    live[0] = SimpleNamespace(digest="sha256:bad", models={"runtime": SimpleNamespace(spec=None, metadata={})})
    live[0].models["runtime"].spec = store.SPEC  # right shape, but no catalogue in its graph
    assert tables.table(("P100",), ("cnn-small",))[0].seconds[0, 0, 0, 0] == before.seconds[0, 0, 0, 0]


def test_a_model_that_ran_alone_may_have_company_afterwards_also_after_a_promotion(folder: Path) -> None:
    live = [policy(folder)]
    tables = Tables(Bundled(lambda: live[0], Nobody()))  # type: ignore[arg-type]
    assert tables.unseen("new")
    table, _ = tables.table(("P100",), ("new", "resnet50"))
    new, known = table.model_names.index("new"), table.model_names.index("resnet50")
    assert np.isinf(table.seconds[new, 0, known + 1, 0])
    tables.learn("new", {"P100": 0.5})
    for digest in ("sha256:one", "sha256:two"):
        live[0] = policy(folder, digest)
        table, _ = tables.table(("P100",), ("new", "resnet50"))
        assert not tables.unseen("new")
        assert table.seconds[new, 0, 0, 0] == pytest.approx(0.5, rel=0.15)
        assert np.isfinite(table.seconds[new, 0, known + 1, 0])


def test_the_drift_of_its_error_is_the_median_over_what_was_promised(folder: Path) -> None:
    live = policy(folder)
    bundled = Bundled(lambda: live, Nobody())  # type: ignore[arg-type]
    tables = Tables(bundled)
    expected = tables.table(("P100",), ("resnet50",))[0].seconds[0, 0, 0, 0]
    assert np.isnan(bundled.errors()["drift"])
    for _ in range(25):
        tables.observe("resnet50", "P100", 2.0 * expected)
    found = bundled.errors()
    assert found["median_ape"] == pytest.approx(50.0, rel=1e-3)
    promised = RuntimePredictor.of(live.models["runtime"]).measured["median_ape"]
    assert found["drift"] == pytest.approx(50.0 / promised, rel=1e-3)


def test_a_card_that_was_never_seen_is_predicted_by_its_fingerprint(folder: Path) -> None:
    live = policy(folder)
    slow = {"resnet50": 0.08, "yolov8m": 0.2, "llama3": 80.0}  # four times the RTX4090
    tables = Tables(Bundled(lambda: live, Nobody(), {"T4": slow}))  # type: ignore[arg-type]
    table, _ = tables.table(("T4",), ("cnn-small",))
    assert table.seconds[0, 0, 0, 0] == pytest.approx(0.04, rel=0.5)


@pytest.mark.parametrize(("upper", "fills"), [(1.0, True), (1.2, False)])
def test_a_job_whose_upper_bound_breaks_a_reservation_does_not_back_fill(
    rehearse: Callable[..., Rehearsal], submit: Callable[..., Job], upper: float, fills: bool
) -> None:
    """A card is taken until 100, then a large job has it: what should end at 90 fills in, unless it may take 108."""
    rehearsal = rehearse({"RTX4090": 1}, strategy="easy_backfill")
    network = rehearsal.controller.network
    table = RuntimeTable(("RTX4090",), ("cnn-small", "llm-9b"), np.ones((2, 1, 3, 3)))  # nobody slows anybody down
    running, large, small = (
        submit(rehearsal, "running", epochs=100),
        submit(rehearsal, "large", "llm-9b", epochs=10),
        submit(rehearsal, "small", epochs=90),
    )
    large.gpu_mem_gib = 22.9  # the whole card
    card = next(iter(network.cards.values()))
    attempt = Attempt(running.id, 1, running.model, card.cluster, card.node, card.name, "", 0.0, 0.0, None, "")
    moment = Moment(
        0.0, [OnCard(running, attempt, 100.0, 0.0, True)], [large, small], dict.fromkeys(network.table.nodes, True)
    )
    settings = CpnSettings(topology="", strategy="easy_backfill")
    decided = Allocator(settings, Tables(FromTable(table, upper))).round(network, moment)
    assert decided.held == {large.id: (card.name, 100.0)}
    assert [one.job.id for one in decided.decisions] == ([small.id] if fills else [])
