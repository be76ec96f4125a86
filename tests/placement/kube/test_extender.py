"""The extender speaks the scheduler's language, and a real kube-scheduler puts pods where the policy says."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.api.extender import levels
from tests.placement.kube.conftest import ScriptedServer
from tests.placement.kube.control_plane import ControlPlane


def node(name: str, cpu: str = "4") -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": name}, "status": {"allocatable": {"cpu": cpu, "memory": "16Gi"}}}


def pod(uid: str = "u1", cpu: str = "500m", memory: str = "1Gi", **metadata: Any) -> dict[str, Any]:
    container = {"name": "main", "resources": {"requests": {"cpu": cpu, "memory": memory}}}
    return {
        "metadata": {"name": uid, "namespace": "default", "uid": uid, **metadata},
        "spec": {"containers": [container]},
    }


def clusters_file(folder: Path, kubeconfig: Path) -> Path:
    path = folder / "clusters.yaml"
    path.write_text(f"clusters: {{lab: {{kubeconfig: {kubeconfig}}}}}\nextender: {{cluster: lab}}\n")
    return path


def ready(client: Any) -> None:
    end = time.monotonic() + 30
    while client.post("/v1/place", json=place_body()).status_code == 503:
        assert time.monotonic() < end
        time.sleep(0.05)


def place_body(**fields: float) -> dict[str, Any]:
    asked = [{"id": "r", "fields": {"cpu": 0.5, "mem": 1.0} | fields}]
    return {"problem": "functions", "requests": asked, "cluster": "lab", "top_k": 1000}


@pytest.fixture
def lab(scripted: ScriptedServer, settings: Any, kit: Any, workshop: Any, tmp_path: Path) -> Iterator[Any]:
    """A service with a policy that watches four nodes: three of 4 cores, one of 1/4."""
    scripted.items["nodes"] = [*(node(f"n{index}") for index in range(3)), node("small", "250m")]
    chosen = msgspec.structs.replace(settings, clusters_file=clusters_file(tmp_path, scripted.kubeconfig(tmp_path)))
    with kit.running(chosen) as client:
        assert kit.push(client, workshop.sample(1), counter=1).status_code == 200
        ready(client)
        yield client


NAMES = ["n0", "n1", "n2", "small"]


def ask(client: Any, verb: str, sent: Any) -> Any:
    content = sent if isinstance(sent, bytes) else json.dumps(sent).encode()
    return client.post(f"/extender/{verb}", content=content)


@pytest.mark.parametrize(
    "sent",
    [
        {"Pod": pod(), "NodeNames": NAMES},
        {"Pod": pod(), "NodeNames": NAMES, "Nodes": None},
        {"Pod": pod(), "Nodes": {"items": [{"metadata": {"name": name}} for name in NAMES]}, "NodeNames": None},
        {"pod": pod(), "nodenames": NAMES},
        {"pod": pod(), "nodeNames": NAMES, "nodes": None},
        {"pod": pod(), "nodes": {"items": [{"metadata": {"name": name}} for name in NAMES]}},
    ],
)
def test_every_form_of_the_question_gets_the_same_answer(lab: Any, sent: Any) -> None:
    found = ask(lab, "filter", sent).json()
    assert (found["NodeNames"], list(found["FailedNodes"]), found["Error"]) == (["n0", "n1", "n2"], ["small"], "")
    scores = {entry["Host"]: entry["Score"] for entry in ask(lab, "prioritize", sent).json()}
    assert set(scores) == {"n0", "n1", "n2"}, "what has no room gets nothing added"
    assert max(scores.values()) == 10


def test_the_best_of_the_scheduler_is_the_best_of_place_and_counts_as_taken(lab: Any) -> None:
    before = lab.post("/v1/place", json=place_body()).json()["placements"][0]
    top = [entry["name"] for entry in before["ranked"] if entry["score"] == before["ranked"][0]["score"]]
    scores = ask(lab, "prioritize", {"Pod": pod(), "NodeNames": NAMES}).json()
    assert [entry["Host"] for entry in scores if entry["Score"] == 10] == sorted(top)
    state = lab.app.state.service.clusters.get("lab").state("functions")
    deployed = dict(zip(state.names, state.columns["cpu_deployed"], strict=True))
    assert sorted(deployed.values()) == [0.0, 0.0, 0.0, 0.5]
    assert deployed[top[0]] == 0.5
    # Asked again for the same pod, as after a failed attempt, it counts once.
    ask(lab, "prioritize", {"Pod": pod(), "NodeNames": NAMES})
    assert lab.app.state.service.clusters.get("lab").state("functions").columns["cpu_deployed"].sum() == 0.5


def test_a_burst_does_not_pile_onto_one_node(lab: Any) -> None:
    for index in range(24):
        assert ask(lab, "prioritize", {"Pod": pod(f"u{index}"), "NodeNames": NAMES}).status_code == 200
    state = lab.app.state.service.clusters.get("lab").state("functions")
    assert dict(zip(state.names, state.columns["cpu_deployed"], strict=True)) == {
        "n0": 4.0, "n1": 4.0, "n2": 4.0, "small": 0.0,
    }  # fmt: skip
    full = ask(lab, "filter", {"Pod": pod("late"), "NodeNames": NAMES}).json()
    assert (full["NodeNames"], len(full["FailedNodes"])) == ([], 4)
    assert ask(lab, "prioritize", {"Pod": pod("late"), "NodeNames": NAMES}).json() == []


def test_five_hundred_pods_at_once_do_not_pile_onto_one_node(lab: Any) -> None:
    """Asked from eight connections before the watch has told of a single binding."""
    pods = [pod(f"burst-{index}", cpu="20m", memory="8Mi") for index in range(500)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda one: ask(lab, "prioritize", {"Pod": one, "NodeNames": NAMES}), pods))
    assert {answer.status_code for answer in answers} == {200}
    cluster = lab.app.state.service.clusters.get("lab")
    state = cluster.state("functions")
    taken = dict(zip(state.names, state.columns["instances"], strict=True))
    assert cluster.size() == (4, 0, 500)
    assert sum(taken.values()) == 500
    room = {"n0": 200, "n1": 200, "n2": 200, "small": 12}
    assert all(taken[name] <= room[name] for name in room), f"nobody has more than it can hold: {taken}"
    assert sum(taken[name] > 0 for name in ("n0", "n1", "n2")) == 3, taken


def test_filter_decides_nothing_unless_one_node_is_left(lab: Any) -> None:
    """Of one node the scheduler asks nothing more: that is the decision, and it counts as taken."""
    cluster = lab.app.state.service.clusters.get("lab")

    def made() -> list[str]:
        return [entry["request"] for entry in lab.get("/v1/decisions").json()["decisions"] if entry["request"] != "r"]

    ask(lab, "filter", {"Pod": pod("many"), "NodeNames": NAMES})
    assert (made(), cluster.size()[2]) == ([], 0)
    assert ask(lab, "filter", {"Pod": pod("one"), "NodeNames": ["n0", "small"]}).json()["NodeNames"] == ["n0"]
    assert (made(), cluster.size()[2]) == (["one"], 1)
    ask(lab, "filter", {"Pod": pod("none", cpu="64"), "NodeNames": NAMES})
    assert (made(), cluster.size()[2]) == (["none", "one"], 1), "nowhere to go is written down too"


def test_nodes_that_the_watch_has_not_seen_are_no_candidates(lab: Any) -> None:
    found = ask(lab, "filter", {"Pod": pod(), "NodeNames": ["ghost", "n1"]}).json()
    assert (found["NodeNames"], found["FailedNodes"]) == (["n1"], {"ghost": "not seen yet by the placement service"})


@pytest.mark.parametrize(
    ("sent", "status", "said"),
    [
        (b"", 400, "JSON"),
        (b"\xff", 400, "JSON"),
        (b'{"Pod":' * 100_000, 400, "JSON"),
        (b"[" * 100_000, 422, "Expected `object`"),
        ({}, 422, "Pod"),
        ({"Pod": pod()}, 422, "0 node names"),
        ({"Pod": pod(), "NodeNames": ["n0", "n0"]}, 422, "2 node names, 1 of them different"),
        ({"Pod": pod(), "NodeNames": "n0"}, 422, "NodeNames"),
        ({"Pod": pod(cpu="lots"), "NodeNames": ["n0"]}, 422, "'lots' is no quantity"),
        ({"Pod": pod(annotations={"loadmaster.dev/duration_s": "long"}), "NodeNames": ["n0"]}, 422, "duration_s"),
        ({"Pod": pod(annotations={"loadmaster.dev/duration_s": "-1"}), "NodeNames": ["n0"]}, 422, "duration_s"),
        ({"Pod": pod(), "NodeNames": [f"n{index}" for index in range(20_001)]}, 422, "20000"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_reason(lab: Any, sent: Any, status: int, said: str) -> None:
    for verb in ("filter", "prioritize"):
        answer = ask(lab, verb, sent)
        assert (answer.status_code, said in answer.json()["error"]) == (status, True), answer.text


def test_without_an_extender_in_the_settings_it_is_off(client: Any) -> None:
    answer = ask(client, "prioritize", {"Pod": pod(), "NodeNames": NAMES})
    assert (answer.status_code, "no extender is set up" in answer.json()["error"]) == (422, True)


def test_levels_keep_ties_and_leave_the_top_to_the_best() -> None:
    scores = np.array([0.5, 0.9, -np.inf, 0.9, 0.8999999, -3.0])
    assert levels(scores).tolist() == [7, 10, 0, 10, 8, 6]
    assert levels(np.full(3, -np.inf)).tolist() == [0, 0, 0]
    assert levels(np.array([7.0, 7.0])).tolist() == [10, 10]
    assert levels(np.empty(0)).tolist() == []
    many = levels(np.arange(500.0))
    assert many[-9:].tolist() == [0, 2, 3, 4, 5, 6, 7, 8, 10]
    assert np.count_nonzero(many) == 8


@given(st.lists(st.sampled_from([-np.inf, 0.0, 1e-30, 0.1, 0.1 + 2**-50, 1.0, -5.0, 7.0, 8.0, 9.0, 10.0, 11.0])))
def test_only_exact_ties_share_a_level_and_levels_never_turn_the_order_round(scores: list[float]) -> None:
    found = levels(np.array(scores))
    for one, level in zip(scores, found, strict=True):
        for other, its in zip(scores, found, strict=True):
            if one > other:
                assert level > its or level == its == 0
            if one == other:
                assert level == its
    if any(np.isfinite(scores)):
        top = max(scores)
        assert all((score == top) == (level == 10) for score, level in zip(scores, found, strict=True))
        assert 9 not in found


# A real kube-scheduler ---------------------------------------------------------------------------------------------


@pytest.fixture
def real(kube: ControlPlane, settings: Any, kit: Any, workshop: Any, tmp_path: Path) -> Iterator[str]:
    """The service on a socket, with a policy, watching a real cluster of 50 nodes; yields its address."""
    for index in range(50):  # all of them different: equal nodes have equal scores, and any of them is right
        kube.add_nodes([f"node-{index:02d}"], memory=f"{16 + index}Gi")
    chosen = msgspec.structs.replace(settings, clusters_file=clusters_file(tmp_path, kube.kubeconfig))
    with kit.listening(chosen) as url, httpx.Client(base_url=url, timeout=60) as client:
        assert kit.push(client, workshop.sample(1), counter=1).status_code == 200
        ready(client)
        yield url


def bound(kube: ControlPlane, count: int) -> dict[str, str]:
    """Wait until so many pods are bound; returns uid -> node."""
    found: dict[str, str] = {}

    def all_bound() -> bool:
        found.update({pod["metadata"]["uid"]: pod["spec"].get("nodeName", "") for pod in kube.pods()})
        return sum(bool(name) for name in found.values()) >= count

    kube.until(all_bound, f"{count} pods to be bound")
    return found


def extender(url: str) -> dict[str, Any]:
    return {
        "urlPrefix": f"{url}/extender", "filterVerb": "filter", "prioritizeVerb": "prioritize", "weight": 100,
        "enableHTTPS": False, "httpTimeout": "5s", "nodeCacheCapable": True, "ignorable": True,
    }  # fmt: skip


def decisions(settings: Any) -> dict[str, list[dict[str, Any]]]:
    """Pod uid -> its lines of the decision log, in order."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in (settings.log_dir / "decisions.jsonl").read_text().splitlines():
        entry = json.loads(line)
        found.setdefault(entry["request"], []).append(entry)
    return found


@pytest.mark.kube
@pytest.mark.timeout(600)
def test_a_real_scheduler_binds_pods_where_the_policy_says(kube: ControlPlane, real: str, settings: Any) -> None:
    kube.start_scheduler(extender(real))
    kube.add_pods([f"pod-{index}" for index in range(200)], cpu="500m", memory="1Gi")
    nodes = bound(kube, 200)
    time.sleep(1)  # the log is written beside
    logged = decisions(settings)
    chosen = {uid: entries[-1]["top"] for uid, entries in logged.items()}
    ties = {uid: {name for name, score in top if score == top[0][1]} for uid, top in chosen.items()}
    right = sum(nodes[uid] in ties[uid] for uid in nodes)
    assert right >= 190, f"{right} of 200 where the policy said"
    assert all(entry["fallback"] is None for entries in logged.values() for entry in entries)
    load = Counter(nodes.values())
    assert max(load.values()) <= 8, "4 cores hold 8 of half a core"
