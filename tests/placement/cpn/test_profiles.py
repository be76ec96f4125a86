"""Finished jobs as measured sets: only times whose company did not change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from placement.cpn.profiles import measured
from placement.cpn.records import Attempt
from sched_env.jobs.finished import write_profiles

TYPES = {"c/n/gpu0": "T4", "c/n/gpu1": "A100"}


def attempt(job: str, start: float | None, end: float | None, card: str = "c/n/gpu0", **values: Any) -> Attempt:
    made: dict[str, Any] = {"outcome": "finished", "strategy": "fifo", "model": job} | values
    return Attempt(
        job=job, number=1, cluster="c", node="n", card=card, decided_at=0.0, arrives_at=0.0, predicted_end=None,
        waited_for="", started_at=start, ended_at=end, **made,
    )  # fmt: skip


def sets(*attempts: Attempt, iterations: int = 100) -> list[tuple[str, tuple[str, ...], tuple[float, ...]]]:
    jobs: Any = [SimpleNamespace(id=one.job, epochs=iterations) for one in attempts]
    return [(found.card_type, found.models, found.seconds) for found in measured(jobs, attempts, TYPES)]


def test_a_job_alone_on_its_card_is_a_set_of_one() -> None:
    assert sets(attempt("a", 0.0, 50.0), attempt("b", 60.0, 90.0, "c/n/gpu1")) == [
        ("T4", ("a",), (0.5,)),
        ("A100", ("b",), (0.3,)),
    ]


def test_two_that_were_together_from_begin_to_end_are_a_set_of_two() -> None:
    assert sets(attempt("b", 1.0, 100.0), attempt("a", 0.0, 99.0)) == [("T4", ("a", "b"), (0.99, 0.99))]


def test_company_that_came_or_went_is_no_measurement() -> None:
    assert sets(attempt("a", 0.0, 100.0), attempt("b", 40.0, 140.0)) == []


def test_a_moment_at_the_border_does_not_count() -> None:
    assert len(sets(attempt("a", 0.0, 100.0), attempt("b", 98.0, 200.0))) == 2


def test_a_failed_attempt_is_company_and_no_measurement() -> None:
    assert sets(attempt("a", 0.0, 100.0), attempt("b", 0.0, 100.0, outcome="failed")) == []


def test_four_at_once_and_a_chain_are_no_set() -> None:
    assert sets(*(attempt(name, 0.0, 100.0) for name in "abcd")) == []
    assert sets(attempt("a", 0.0, 100.0), attempt("b", 1.0, 300.0), attempt("c", 200.0, 300.0)) == []


@pytest.mark.parametrize(
    "left_out",
    [
        attempt("a", None, 10.0),
        attempt("a", 0.0, None),
        attempt("a", 0.0, 10.0, "gone"),
        attempt("a", 0.0, 10.0, strategy="kube_default"),
    ],
    ids=["never began", "still runs", "its card is gone", "nobody knows its card"],
)
def test_what_nobody_measured_is_left_out(left_out: Attempt) -> None:
    assert sets(left_out) == []


def test_the_file_is_what_the_runtime_model_reads(tmp_path: Any) -> None:
    profiles = pytest.importorskip("pipeline.runtime_model.profiles")
    jobs: Any = [SimpleNamespace(id=name, epochs=10) for name in "ab"]
    (tmp_path / "finished.csv").write_text(
        write_profiles(measured(jobs, [attempt("a", 0.0, 50.0), attempt("b", 0.0, 50.0)], TYPES))
    )
    found = profiles.read([tmp_path / "finished.csv"])
    assert found.asked() == [("T4", ("a", "b"))]
    assert found.seconds[0].tolist() == [5.0, 5.0]
