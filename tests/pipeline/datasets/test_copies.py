"""A cluster so many times as large is made of copies of what there is, under a load that grew with it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import datasets
from pipeline.datasets.copies import Copies, check, mean_over, numbered
from pipeline.evaluate import EvaluateConfig, on_other_sizes
from pipeline.windows import span
from sched_env import problems, scenarios
from sched_env.rollout import run_episodes
from wire.errors import ConfigError

SCENARIOS: dict[str, tuple[str, dict[str, Any]]] = {
    "functions": ("functions/serverless", {"horizon": 64}),
    "vm": ("vm/recovering", {"horizon": 64}),
    "pods": ("pods/deploy", {"episode_windows": 4, "threshold": 0.5}),
    "workflow": ("workflow/dag", {}),
    "jobs": ("jobs/cpn", {"episode_jobs": 12}),
}
FACTORS = st.sampled_from([1 / 3, 0.5, 1.0, 2.0, 10.0])


@st.composite
def clusters(draw: Any) -> tuple[Any, Any]:
    count = draw(st.integers(1, 20))
    return draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)), draw(
        st.lists(st.sampled_from([4.0, 8.0]), min_size=count, max_size=count)
    )


@given(clusters(), FACTORS)
def test_every_new_place_is_like_one_there_is_and_stays_in_its_domain(cluster: Any, factor: float) -> None:
    domain, size = (np.array(each) for each in cluster)
    copies = Copies.of(factor, domain, size)
    assert (domain[copies.source[copies.twins]] == domain[:, None]).all()
    if factor >= 1.0:
        assert copies.source.size == round(factor) * size.size
        assert sorted(copies.twins.ravel()) == list(range(copies.source.size))
        assert (copies.source[copies.twins] == np.arange(size.size)[:, None]).all()
    else:
        step = round(1 / factor)
        each = [int((domain == one).sum()) for one in np.unique(domain)]
        assert copies.source.size == sum(-(-count // step) for count in each) == copies.kept.sum()
        assert (copies.source[copies.twins[copies.kept, 0]] == np.flatnonzero(copies.kept)).all()
        largest = [size[domain == one].max() for one in np.unique(domain)]
        assert [size[copies.source][domain[copies.source] == one].max() for one in np.unique(domain)] == largest


@given(clusters(), FACTORS, st.data())
def test_what_is_there_is_in_every_copy_and_what_comes_is_dealt_in_turn(
    cluster: Any, factor: float, data: st.DataObject
) -> None:
    copies = Copies.of(factor, *cluster)
    count = len(cluster[0])
    place = np.array(data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=60)))
    there = np.array(data.draw(st.lists(st.booleans(), min_size=place.size, max_size=place.size)))
    rows, home = copies.spread(place, there)
    assert (np.diff(rows) >= 0).all()
    assert np.isin(home, np.arange(copies.source.size)).all()
    stay = there[rows]
    assert (copies.source[home[stay]] == place[rows[stay]]).all()
    for row in np.flatnonzero(there):
        assert sorted(home[rows == row]) == (
            sorted(copies.twins[row_of(place, row)]) if copies.kept[place[row]] else []
        )
    assert rows[~stay].tolist() == np.flatnonzero(~there).tolist(), "each of the others once"
    if factor > 1.0:
        dealt = np.bincount(home[~stay] // count, minlength=round(factor))
        assert dealt.max() - dealt.min() <= 1


def row_of(place: Any, row: int) -> int:
    return int(place[row])


def test_a_thing_of_which_nobody_says_where_it_is_stays_so() -> None:
    assert Copies.of(3.0, [0, 0]).dealt([-1, 1], [4, 4]).tolist() == [-1, 3]


@pytest.mark.parametrize("factor", [1.5, 0.4, 0.0, -1.0, float("inf"), float("nan")])
def test_a_cluster_that_cannot_be_is_refused(factor: float) -> None:
    with pytest.raises(ConfigError, match="a whole number"):
        check(factor)


def test_names_stay_different() -> None:
    assert numbered(["a", "b", "a", "a"]) == ("a", "b", "a~1", "a~2")


def test_the_mean_is_of_what_an_episode_asks_for() -> None:
    values, ours = np.array([1.0, 9.0, 2.0, 6.0]), np.array([True, False, True, True])
    assert mean_over(values, ours, np.array([0, 1, 2, 3]), 2).tolist() == [1.5, 4.0, 4.0, 6.0]
    assert mean_over(values, ours, np.array([0, 3]), 0).tolist() == [3.0, 6.0]


@pytest.fixture
def work(sample_windows: Path, problem: str) -> datasets.Workload:
    days = span(sample_windows)
    end = days.start + timedelta(days=1)
    trace = datasets.get(problem).load(sample_windows, days.start, end)
    name, keys = SCENARIOS[problem]
    scenario = scenarios.load(name, {**datasets.brought(trace, problem), **keys})
    return datasets.Workload(problem, scenario, trace, days.start.isoformat(), end.isoformat())  # type: ignore[arg-type]


def played(work: datasets.Workload, starts: Any) -> list[dict[str, Any]]:
    rule = problems.get(work.problem).fallback
    rows = run_episodes(work.scenario, rule, starts, trace=work.trace)
    return [{name: value for name, value in row.items() if name != "decision_us"} for row in rows]


@pytest.mark.parametrize("problem", SCENARIOS)
def test_one_copy_of_a_cluster_is_the_cluster(work: datasets.Workload, problem: str) -> None:
    same = work.resized(1.0)
    assert same is not None
    starts = work.starts(8)
    assert same.starts(8).tolist() == starts.tolist()
    if problem == "jobs":  # where the load is scaled the record of what ran before is left out
        same, work = (each._replace(trace=datasets.get(problem).scaled(each.trace, 1.0)) for each in (same, work))
    assert played(same, starts) == played(work, starts)


@pytest.mark.parametrize("problem", SCENARIOS)
@pytest.mark.parametrize("factor", [0.5, 2.0, 5.0])
def test_every_problem_plays_on_other_sizes(work: datasets.Workload, problem: str, factor: float) -> None:
    other = work.resized(factor)
    assert other is not None
    rows = played(other, other.starts(8))
    assert all(row["placed"] + row.get("rejected", 0) >= 0 and np.isfinite(row["return"]) for row in rows)
    nodes = {
        "functions": lambda each: len(each.trace[1]),
        "vm": lambda each: each.scenario.servers,
        "pods": lambda each: len(each.trace[1]),
        "workflow": lambda each: len(each.trace[1]),
        "jobs": lambda each: len(each.trace.topology.nodes),
    }[problem]
    assert factor * nodes(work) <= nodes(other) <= factor * nodes(work) + 4, "half of an odd number is rounded up"


@pytest.mark.parametrize("problem", ["functions", "vm"])
def test_twice_the_cluster_under_twice_the_load_begins_as_full(work: datasets.Workload, problem: str) -> None:
    other = work.resized(2.0)
    assert other is not None
    first, again = work.trace, other.trace
    if problem == "functions":
        held = [datasets.functions.there_before(each[0]).sum() for each in (first, again)]
        came = [(~datasets.functions.there_before(each[0])).sum() for each in (first, again)]
        ends = [each[0].arrival_s[-1] for each in (first, again)]
    else:
        held = [each.there_before.sum() for each in (first, again)]
        came = [((each.kind == 0) & ~each.there_before).sum() for each in (first, again)]
        ends = [each.time[each.kind == 0][-1] for each in (first, again)]
    assert held[1] == 2 * held[0]
    assert came[1] == came[0]
    assert ends[1] == pytest.approx(ends[0] / 2)


@pytest.mark.parametrize("problem", ["pods"])
def test_twice_the_pods_are_on_twice_the_nodes_window_by_window(work: datasets.Workload, problem: str) -> None:
    other = work.resized(2.0)
    assert other is not None
    (pods, nodes), (more, grown) = work.trace, other.trace
    assert np.diff(more.window_rows).tolist() == (2 * np.diff(pods.window_rows)).tolist()
    assert more.cpu.sum() == pytest.approx(2 * pods.cpu.sum())
    count = [
        np.bincount(each.node[each.node >= 0], minlength=len(table)) for each, table in ((pods, nodes), (more, grown))
    ]
    assert count[1].tolist() == [*count[0], *count[0]]


@pytest.mark.parametrize("problem", ["functions"])
def test_hours_are_those_at_which_episodes_begin(work: datasets.Workload) -> None:
    starts = work.starts(16)
    times = datasets.get(work.problem).times_s(work.trace, starts)
    assert work.hours(starts).tolist() == pytest.approx((times / 3600.0 % 24).tolist())
    later = work._replace(start="2026-03-02T22:30:00+02:00")
    assert later.hours(starts).tolist() == pytest.approx(((times / 3600.0 + 20.5) % 24).tolist())


@pytest.mark.parametrize("problem", ["functions"])
def test_a_size_that_would_take_too_long_has_fewer_starts_or_is_left_out(
    work: datasets.Workload, caplog: pytest.LogCaptureFixture
) -> None:
    def starts(size_work: float) -> dict[str, int]:
        config = EvaluateConfig(traces=8, sizes={"half": 0.5, "fivefold": 5.0}, size_work=size_work)
        rule = problems.get(work.problem).fallback
        table = on_other_sizes(work, {rule: ("heuristic", rule)}, config, decisions=64.0)
        found = [] if table is None else table["scenario"].to_pylist()
        return {name: found.count(name) for name in config.sizes}

    one = 64.0 * len(work.trace[1])  # of an episode as it is; what ran was recorded, so five times as large is five
    assert starts(1e9) == {"half": 48, "fivefold": 48}
    assert starts(5 * 20 * one) == {"half": 48, "fivefold": 20}
    assert starts(5 * 9 * one) == {"half": 48, "fivefold": 0}
    assert "not shown at 5 times its size" in caplog.text
