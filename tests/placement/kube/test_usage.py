"""What Prometheus says is believed where it can be, kept while it is silent, and unknown after that."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from placement.kube.config import PrometheusSettings
from placement.kube.usage import KEPT_S, Usage
from tests.placement.kube.playing import PlayedPrometheus, playing

GIB = 2.0**30


@pytest.fixture
def played() -> Iterator[PlayedPrometheus]:
    with playing() as prometheus:
        prometheus.series = {
            "node_cpu": {"a": lambda _: 1.0, "b": lambda _: 2.0},
            "node_mem": {"a": lambda _: GIB, "b": lambda _: 2 * GIB},
            "pod_cpu": {"default/p": lambda at: 0.5 + (at % 300) / 300},
            "pod_mem": {"default/p": lambda _: 0.5 * GIB},
        }
        yield prometheus


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def usage(played: PlayedPrometheus, clock: Clock | None = None, **settings: Any) -> Usage:
    given = {"timeout_s": 1.0, "queries": played.QUERIES} | settings
    return Usage(PrometheusSettings(played.url, **given), lambda: (4.0, 16.0), now=clock or time.monotonic)


def test_windows_of_nodes_and_pods_are_known_in_our_units(played: PlayedPrometheus) -> None:
    one = usage(played)
    assert one.get("node_cpu", "a") is None
    assert one.silent_s == float("inf")
    one.ask()
    cpu, mem = one.get("pod_cpu", "default/p"), one.get("pod_mem", "default/p")
    assert cpu is not None
    assert mem is not None
    assert (cpu.shape, float(mem.mean())) == ((21,), 0.5)
    assert 0.5 <= cpu.min() < cpu.max() <= 1.5
    assert one.means("node_mem") == {"a": 1.0, "b": 2.0}
    assert (one.failures, dict(one.rejected), one.silent_s < 5) == (0, {}, True)


@pytest.mark.parametrize("mood", ["dead", "garbage", "error", "slow", "drops", "huge"])
def test_a_prometheus_that_is_unwell_leaves_what_was_known_for_a_while(played: PlayedPrometheus, mood: str) -> None:
    clock = Clock()
    one = usage(played, clock, timeout_s=0.3 if mood in ("slow", "drops") else 5.0)
    one.ask()
    played.mood = mood
    clock.now += KEPT_S - 1
    one._queries = {"node_cpu": "node_cpu"}  # one question is enough to wait for
    began = time.monotonic()
    one.ask()
    assert time.monotonic() - began < 4.0, "a slow one is not waited for"
    assert one.failures == 1
    assert one.means("node_cpu") == {"a": 1.0, "b": 2.0}
    assert one.silent_s == KEPT_S - 1
    clock.now += 2
    assert one.get("node_cpu", "a") is None, "too old to be believed"
    assert one.means("node_cpu") == {}
    one._known["node_mem"].clear()
    played.mood = "well"
    one.ask()
    assert one.means("node_cpu") == {"a": 1.0, "b": 2.0}, "and it is back with the first answer"


def test_lies_are_counted_and_left_out(played: PlayedPrometheus) -> None:
    one = usage(played)
    now = int(time.time())

    def series(node: str, *values: tuple[float, str]) -> dict[str, Any]:
        return {"metric": {"node": node}, "values": [list(value) for value in values]}

    played.raw["node_cpu"] = [
        series("nan", (now, "NaN"), (now - 15, "+Inf")),
        series("negative", (now, "-1")),
        series("future", (now + 86400 * 365, "1")),
        series("past", (now - 86400, "1")),
        series("impossible", (now, "1e12")),
        series("word", (now, "many")),
        series("partly", (now - 300, "NaN"), (now - 150, "1.5"), (now, "-3")),
        {"metric": {"instance": "x"}, "values": [[now, "1"]]},
        {"metric": {"node": "empty"}, "values": []},
    ]
    one.ask()
    assert set(one.means("node_cpu")) == {"partly"}
    known = one.get("node_cpu", "partly")
    assert known is not None
    np.testing.assert_array_equal(known, np.full(21, 1.5))
    assert dict(one.rejected) == {"nan": 4, "negative": 2, "time": 2, "impossible": 1, "labels": 1}
    assert one.means("node_mem") == {"a": 1.0, "b": 2.0}, "the other questions are not touched by it"
    assert one.failures == 0


def test_a_clock_that_jumps_makes_nothing_old_or_new(played: PlayedPrometheus) -> None:
    wall = Clock()
    wall.now = 1.8e9
    clock = Clock()
    one = Usage(
        PrometheusSettings(played.url, queries=played.QUERIES), lambda: (4.0, 16.0), now=clock, wall=wall
    )  # fmt: skip
    one.ask()
    for jump in (-86400.0, 86400.0 * 30):
        wall.now += jump
        assert one.means("node_cpu") == {"a": 1.0, "b": 2.0}
        one.ask()
        assert one.means("node_cpu") == {"a": 1.0, "b": 2.0}
        assert one.silent_s == 0.0


@pytest.mark.prometheus
def test_the_questions_fit_a_cluster_as_kube_prometheus_stack_measures_it(tmp_path: Path) -> None:
    """Exporters of a chart nobody configured, in a real Prometheus: every machine and every running pod is found."""
    sources = _module("sources_conftest", Path(__file__).parents[2] / "pipeline" / "sources" / "conftest.py")
    if not (sources.shutil.which("prometheus") and sources.shutil.which("promtool")):
        pytest.skip("prometheus and promtool are not installed (scripts/install-test-tools.sh)")
    start = int(time.time()) - 3600
    stack = _module("kube_stack", Path(__file__).parents[3] / "benchmarks" / "kube_stack.py").Stack(start, 1.0, 30)
    stack.write(tmp_path / "stack.om")
    with sources.running_prometheus(tmp_path, tmp_path / "stack.om") as url:
        one = Usage(PrometheusSettings(url), lambda: (64.0, 256.0), wall=lambda: start + 3000.0)
        one.ask()
        before = Usage(PrometheusSettings(url), lambda: (64.0, 256.0), wall=lambda: start + 2700.0)
        before.ask()
        days = {query: one.day(query, 6) for query in ("pod_cpu", "pod_mem")}
    all_along = {f"{p.namespace}/{p.name}" for p in stack.pods if p.created_s < start + 2000 < p.ended_s - 700}
    assert len(all_along & before.keys("pod_cpu")) > 5
    # What is asked for a day in one question is what was read window by window.
    for query, day in days.items():
        known = before.means(query)
        assert known.keys() <= day.keys()
        for key in known.keys() & all_along:  # of others the nearest sample stands for where there is none
            assert day[key][-1] == pytest.approx(known[key], rel=0.02), (query, key)
    assert (one.failures, dict(one.rejected)) == (0, {})
    machines = {machine.name for machine in stack.machines}
    for query in ("node_cpu", "node_mem", "node_net"):
        assert one.keys(query) == machines, query
    at = start + 3000
    there = {f"{p.namespace}/{p.name}" for p in stack.pods if p.created_s < at - 400 and p.ended_s > at}
    assert there <= one.keys("pod_cpu")
    assert there <= one.keys("pod_mem")
    for machine in stack.machines:
        played = stack.node_cpu(machine.name)[8:10]  # rates look back two minutes, into the window before
        assert 0.95 * played.min() <= one.means("node_cpu")[machine.name] <= 1.05 * played.max()


def _module(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_settings_are_checked() -> None:
    with pytest.raises(msgspec.ValidationError, match="url"):
        msgspec.convert({"url": "prometheus:9090"}, PrometheusSettings)
