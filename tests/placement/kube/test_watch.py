"""A watch follows: through cut connections, forgotten versions, restarts and objects that nobody can read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from placement.errors import PlaceRefusedError
from placement.kube.clusters import Clusters
from placement.kube.config import ClusterSettings, ClustersFile, ExtenderSettings, load
from placement.metrics import Metrics
from tests.placement.kube.conftest import CUT, ScriptedServer
from wire.errors import ConfigError


def node(name: str, version: int = 1, cpu: str = "4") -> dict[str, Any]:
    status = {"allocatable": {"cpu": cpu, "memory": "8Gi"}}
    return {"metadata": {"name": name, "uid": name, "resourceVersion": str(version)}, "status": status}


def until(true: Callable[[], bool], timeout_s: float = 20.0) -> None:
    end = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


@pytest.fixture
def watched(scripted: ScriptedServer, tmp_path: Path) -> Iterator[Callable[[], Clusters]]:
    made: list[Clusters] = []

    def start() -> Clusters:
        settings = ClusterSettings(kubeconfig=str(scripted.kubeconfig(tmp_path)))
        made.append(Clusters(ClustersFile({"lab": settings}), Metrics()))
        return made[-1]

    yield start
    for one in made:
        one.close()


def sizes(clusters: Clusters) -> tuple[int, int, int]:
    return clusters._watched["lab"].cluster.size()


def watch(clusters: Clusters) -> Any:
    return clusters._watched["lab"].watches[0]


def test_pages_events_and_bookmarks_are_followed(scripted, watched) -> None:
    scripted.items["nodes"] = [node(f"n{index}") for index in range(1203)]
    clusters = watched()
    until(lambda: sizes(clusters)[0] == 1203)
    scripted.events["nodes"].put({"type": "ADDED", "object": node("new", 101)})
    scripted.events["nodes"].put({"type": "DELETED", "object": node("n0", 102)})
    scripted.events["nodes"].put({"type": "MODIFIED", "object": node("new", 103, cpu="32")})
    scripted.events["nodes"].put({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "777"}}})
    until(lambda: watch(clusters)._version == "777")
    assert sizes(clusters)[0] == 1203
    assert clusters.get("lab").state("functions", ["new"]).columns["cpu_capacity"] == [32.0]
    assert watch(clusters).lists == 1
    assert watch(clusters).silent_s < 20


def test_a_cut_watch_goes_on_where_it_was_without_a_new_list(scripted, watched) -> None:
    clusters = watched()
    scripted.events["nodes"].put({"type": "ADDED", "object": node("a", 150)})
    scripted.events["nodes"].put(CUT)
    scripted.events["nodes"].put({"type": "ADDED", "object": node("b", 151)})
    until(lambda: sizes(clusters)[0] == 2)
    assert watch(clusters).lists == 1
    assert [asked["resourceVersion"] for kind, asked in scripted.asked if kind == "nodes" and "watch" in asked] == [
        "100",
        "150",
    ]


@pytest.mark.parametrize("how", ["event", "status"])
def test_a_version_that_the_server_forgot_leads_to_a_new_list_and_deleted_objects_go(scripted, watched, how) -> None:
    scripted.items["nodes"] = [node("old"), node("stays")]
    clusters = watched()
    until(lambda: sizes(clusters)[0] == 2)
    scripted.items["nodes"] = [node("stays"), node("young")]
    scripted.version = 900
    if how == "event":
        gone = {"kind": "Status", "code": 410, "message": "too old resource version"}
        scripted.events["nodes"].put({"type": "ERROR", "object": gone})
    else:
        scripted.refuse = 410
        scripted.events["nodes"].put(CUT)
        until(lambda: watch(clusters).failures >= 2)
        scripted.refuse = None
    until(lambda: watch(clusters).lists >= 2)
    assert set(clusters.get("lab").state("functions").names) == {"stays", "young"}


def test_objects_that_cannot_be_read_are_counted_and_passed_over(scripted, watched) -> None:
    clusters = watched()
    strange = [
        {"type": "ADDED", "object": {"metadata": {"name": 7}}},
        {"type": "ADDED", "object": node("odd", 102, cpu="four")},
        {"type": "ADDED", "object": {"metadata": "none"}},
    ]
    for event in [*strange, {"type": "ADDED", "object": node("good", 105)}]:
        scripted.events["nodes"].put(event)
    until(lambda: "good" in clusters._watched["lab"].cluster._index)
    assert watch(clusters).unreadable == 3
    assert watch(clusters).failures == 0


def test_lines_that_are_no_json_end_the_watch_and_it_comes_back(scripted, watched) -> None:
    clusters = watched()
    scripted.events["nodes"].put(b"<html>502</html>")
    scripted.events["nodes"].put(None)  # for the server's side of the watch that the client ends
    scripted.events["nodes"].put({"type": "ADDED", "object": node("a", 101)})
    until(lambda: sizes(clusters)[0] == 1)
    assert watch(clusters).failures == 1


def test_before_the_first_list_nobody_is_answered_and_the_silence_is_said(scripted, watched) -> None:
    scripted.refuse = 503
    clusters = watched()
    with pytest.raises(PlaceRefusedError, match="has not answered yet"):
        clusters.get("lab")
    assert clusters._watched["lab"].silent_s() == float("inf")
    with pytest.raises(PlaceRefusedError, match="'moon' is not watched"):
        clusters.get("moon")
    scripted.refuse = None
    until(clusters._watched["lab"].whole)
    assert clusters.get("lab") is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("clusters: {lab: {kubeconfg: x}}", "kubeconfg"),
        ("extender: {cluster: moon}", "extender.cluster is 'moon'"),
        ("clusters: {lab: {}}\nextender: {cluster: lab, problem: jobs}", "whose candidates are no nodes"),
        ("clusters: [", "clusters file"),
        ("clusters: {lab: {prices: {m5: -1}}}", "prices"),
    ],
)
def test_a_clusters_file_with_a_mistake_names_it(tmp_path, text, said) -> None:
    path = tmp_path / "clusters.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load(path)


def test_a_clusters_file_is_read(tmp_path) -> None:
    path = tmp_path / "clusters.yaml"
    path.write_text("clusters: {lab: {context: lab}}\nextender: {cluster: lab}\n")
    assert load(path).extender == ExtenderSettings("lab", "functions")
    assert load(None) == ClustersFile()


def test_a_kubeconfig_that_is_not_there_is_named(tmp_path) -> None:
    settings = ClustersFile({"lab": ClusterSettings(kubeconfig=str(tmp_path / "none"))})
    with pytest.raises(ConfigError, match="cluster 'lab'"):
        Clusters(settings, Metrics())
