"""What the quality benchmark computes beside training: pages, fronts, and counts of windows before."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from sched_env import heuristics
from sched_env.pods import counting
from sched_env.pods.state import PREVIOUS, ROW, WINDOW

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


def test_windows_before_are_counted_with_the_pods_where_they_are():
    import quality_pods

    episodes = quality_pods.generated(0.58, range(1))[0]
    env = episodes.env
    env.reset(options={"starts": episodes.part.starts, "park": True})
    rule = heuristics.batch(quality_pods.RULE, env)
    for _ in range(60):
        env.step(rule())
    quality_pods.counted_before(env.arguments, env.buffers.active, *episodes.room, episodes.before)
    cluster, rules, state, _ = env.arguments
    for b in (0, 3, 7):
        window, offered = int(state.cursor[b, WINDOW]), int(state.cursor[b, ROW])
        rows = np.arange(cluster.window_rows[window], cluster.window_rows[window + 1])
        place = state.place[b, window & 1, : rows.size]
        for back in range(quality_pods.WINDOWS):
            previous = cluster.pods[rows, PREVIOUS]
            rows = np.where(previous >= 0, cluster.window_rows[window - back - 1] + previous, rows)
            for n in range(len(cluster.nodes)):
                others = [k for k in np.flatnonzero(place == n) if k != offered]
                without, with_pod = (_weighed(cluster, rules, n, rows[ks]) for ks in (others, [*others, offered]))
                assert episodes.before[b, back, n] == pytest.approx(with_pod - without)


def _weighed(cluster, rules, n, rows):
    pods = []
    for r in rows:
        begin, end = cluster.row_requests[r], cluster.row_requests[r + 1]
        asked = cluster.demands[2 * begin : 2 * end].reshape(-1, 2)
        pods.append(counting.Requests(np.zeros(end - begin), np.zeros(end - begin), asked[:, 0], asked[:, 1]))
    load, (cpu, mem) = counting.loads(pods, "serial"), cluster.nodes[n, :2]
    above = counting.above(load, cpu, mem, rules.threshold)
    return rules.weight_over * above + rules.weight_under * counting.below(load, cpu, mem, rules.under_threshold)
