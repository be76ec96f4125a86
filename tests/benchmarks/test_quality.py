"""What the quality benchmark computes beside training: pages, fronts, and what is foreseen of pods."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield
    for name in [name for name in sys.modules if name.startswith("quality")]:
        del sys.modules[name]


def test_pages_are_what_the_benchmark_makes_of_the_results():
    import quality

    folder = ROOT / "docs" / "results"
    for name, text in quality.pages(json.loads((folder / "quality.json").read_text())).items():
        assert (folder / name).read_text() == text, f"{name}: python benchmarks/quality.py --only --out docs/results"


def test_a_front_is_the_area_up_to_the_worst_rule():
    from quality_parts import fronts, hypervolume

    assert hypervolume(np.array([[1.0, 3.0], [2.0, 1.0], [5.0, 5.0]]), np.array([4.0, 4.0])) == 3.0 + 4.0

    def points(*found):
        return np.repeat(np.array(found)[..., None], 6, axis=2)

    rules = {"good": points([1.0, 3.0]), "bad": points([4.0, 4.0]), "random_feasible": points([9.0, 9.0])}
    found = fronts(rules, {"ours": points([1.0, 3.0], [2.0, 2.0])}, np.arange(6))
    assert found["hypervolume"] == pytest.approx(
        {"ours": 5 / 6, "good": 3 / 6, "bad": 0.0, "random_feasible": 0.0, "all rules": 3 / 6}
    )
    assert found["best_rule"] == "good"
    assert found["above"]["good"]["difference"] == pytest.approx(2 / 6)


def test_pods_are_foreseen_by_what_came_before_and_the_control_by_what_others_did():
    import quality_pods

    (_, trace, _), (_, other, _) = quality_pods.generated(0.58, range(2))
    early = [(pods.windows(0, 250), nodes) for pods, nodes in (trace, other)]
    model = quality_pods.fitted(early[:1], early[1:])
    known = quality_pods.foreseen(early[0], model)[0].forecast
    longer, _ = quality_pods.foreseen((trace[0].windows(0, 300), trace[1]), model)
    assert longer.forecast[: len(known)].tobytes() == known.tobytes()
    shuffled = quality_pods.foreseen(early[0], model, shuffled=0)[0].forecast
    first, second = early[0][0].window_rows[[100, 101]]
    assert sorted(map(tuple, shuffled[first:second])) == sorted(map(tuple, known[first:second]))
    assert (shuffled[first:second] != known[first:second]).any()
