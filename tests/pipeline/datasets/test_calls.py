"""Every call that windows count is dealt to a pod, whatever lives, counts and counters are."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.datasets.calls import deal

START = datetime(2026, 3, 2, tzinfo=UTC)
WINDOWS = 6
life = st.tuples(
    st.sampled_from(["f", "g", None]), st.floats(0, 1700), st.floats(1, 1500), st.one_of(st.none(), st.integers(0, 9))
)
count = st.tuples(st.sampled_from(["f", "g", "h"]), st.integers(0, WINDOWS - 1), st.integers(0, 50))


def frame(found):
    rows = [
        {"cluster": "c", "entity": f"p{n}", "function": function, "begin_s": begin, "end_s": min(begin + long, 1800.0)}
        for n, (function, begin, long, _) in enumerate(found)
    ]
    return pd.DataFrame(rows, columns=["cluster", "entity", "function", "begin_s", "end_s"]).sort_values(
        "begin_s", ignore_index=True
    )


def test_counts_of_functions_that_no_pod_has_are_homeless(tmp_path, write, at):
    folder = tmp_path / "windows"
    write(folder, "functions", [{"window_start": at(300), "cluster": "c", "function": "f", "requests": 3}])
    write(folder, "pods", [{"window_start": START, "cluster": "c", "pod": "nobody"}])
    assert deal(folder, START, at(1800), frame([(None, 0.0, 1.0, 0)])).homeless == 3


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(life, min_size=1, max_size=12), st.lists(count, max_size=12, unique_by=lambda c: c[:2]))
def test_no_call_is_lost_and_none_is_made_up(tmp_path, write, at, found, counts):
    folder = tmp_path / "windows"
    rows = [{"window_start": at(300 * w), "cluster": "c", "function": f, "requests": n} for f, w, n in counts]
    write(folder, "functions", rows or [{"window_start": START, "cluster": "c", "function": "z", "requests": 0}])
    handled = [
        {"window_start": at(begin - begin % 300), "cluster": "c", "pod": f"p{n}", "requests_handled": calls}
        for n, (function, begin, _, calls) in enumerate(found)
        if calls is not None and function is not None
    ]
    write(folder, "pods", handled or [{"window_start": START, "cluster": "c", "pod": "nobody"}])
    lives = frame(found)
    dealt = deal(folder, START, at(1800), lives)
    assert dealt.calls.sum() == dealt.measured + dealt.dealt
    assert dealt.measured == sum(row["requests_handled"] for row in handled)
    told = {}
    for function, begin, _, calls in found:
        if calls is not None and function is not None:
            told[function, int(begin // 300)] = told.get((function, int(begin // 300)), 0) + calls
    want = sum(max(n - told.get((f, w), 0), 0) for f, w, n in counts)
    assert dealt.dealt + dealt.homeless == want
    have = {function for function, *_ in found}
    assert dealt.homeless == sum(n for f, _, n in counts if f not in have)
    assert (dealt.calls[lives["function"].isna().to_numpy()] == 0).all()


def test_a_pod_that_comes_gets_a_call_first_and_the_rest_goes_by_time(tmp_path, write, at):
    folder = tmp_path / "windows"
    write(folder, "functions", [{"window_start": at(300), "cluster": "c", "function": "f", "requests": 11}])
    write(folder, "pods", [{"window_start": START, "cluster": "c", "pod": "nobody"}])
    lives = frame([("f", 0.0, 900.0, None), ("f", 450.0, 900.0, None)])
    assert deal(folder, START, at(1800), lives).calls.tolist() == [7, 1 + 3]


AZURE = Path(__file__).parents[4] / "shared" / "data" / "azure-functions-2019"


@pytest.mark.shared
@pytest.mark.skipif(not AZURE.exists(), reason="public traces are not in ../shared")
def test_all_calls_of_azure_arrive_and_rules_rank_as_on_the_trace_itself(tmp_path):
    from pipeline import windows
    from pipeline.clean.command import clean
    from pipeline.clean.config import CleanConfig
    from pipeline.datasets import functions
    from pipeline.ingest import IngestConfig, Range, ingest
    from pipeline.sources.traces import TracesConfig
    from sched_env import scenarios
    from sched_env.functions import azure
    from sched_env.rollout import run_episodes

    config = TracesConfig(format="azure_functions", paths=[str(AZURE / "*.csv.gz")])
    ingest(IngestConfig(source="traces", traces=config), Range(), tmp_path / "raw")
    clean(tmp_path / "raw", tmp_path / "windows", CleanConfig())
    days = windows.span(tmp_path / "windows")
    trace, nodes = functions.load(tmp_path / "windows", days.start, days.end)
    assert trace.requests.sum() == 731_771
    direct, _ = azure.read(AZURE)
    scenario = scenarios.load("functions/serverless", {"horizon": 128})
    starts = np.linspace(0, len(trace) - 129, 64).astype(int)
    rules = ("oracle_greedy", "warm_first", "least_allocated", "best_fit")
    means = {}
    for name, workload in (("windows", trace), ("direct", direct)):
        for rule in rules:
            episodes = run_episodes(scenario, rule, starts, trace=(workload, nodes))
            means[name, rule] = np.mean([episode["return"] for episode in episodes])
    ranked = {name: sorted(rules, key=lambda rule: -means[name, rule]) for name in ("windows", "direct")}
    assert ranked["windows"] == ranked["direct"]
    for rule in rules:
        assert means["windows", rule] == pytest.approx(means["direct", rule], rel=0.01)
