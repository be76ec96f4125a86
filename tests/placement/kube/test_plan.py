"""A live window is decided as the simulator decides one, and nobody is moved who must not be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

from placement.kube import plan as planning
from placement.kube.config import MigratorSettings
from placement.kube.movable import why_not
from placement.kube.objects import Node, Pod
from placement.kube.plan import Answer
from placement.kube.spread import Neighbours
from sched_env import heuristics
from sched_env.pods import features
from sched_env.pods.foresight import AHEAD

POSITIONS = 21


def node(name: str, cpu: str = "4", taints: Any = None, **labels: str) -> Node:
    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name} | labels}
    status = {"allocatable": {"cpu": cpu, "memory": "16Gi", "pods": "110"}}
    return msgspec.convert({"metadata": metadata, "spec": {"taints": taints}, "status": status}, Node)


def pod(name: str, where: str, *, owner: str = "ReplicaSet", cpu: str = "500m", app: str = "", **more: Any) -> Pod:
    owners = [{"kind": owner, "name": f"{app or name}-rs", "controller": True}] if owner else []
    metadata = {
        "name": name, "namespace": "shop", "uid": name, "ownerReferences": owners, "labels": {"app": app or name},
    } | more.pop("metadata", {})  # fmt: skip
    container = {"resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}
    spec = {"nodeName": where, "containers": [container]} | more.pop("spec", {})
    return msgspec.convert(
        {"metadata": metadata, "spec": spec, "status": {"phase": "Running"} | more.pop("status", {})}, Pod
    )


class Told:
    """Use as a test has it: constant over the window."""

    positions = POSITIONS

    def __init__(self, pods: Mapping[str, tuple[float, float]], nodes: Mapping[str, tuple[float, float]]) -> None:
        self._pods, self._nodes = pods, nodes

    def get(self, name: str, key: str) -> Any:
        found = (self._nodes if name.startswith("node") else self._pods).get(key)
        return None if found is None else np.full(POSITIONS, found[name.endswith("mem")])

    def keys(self, name: str) -> set[str]:
        return set(self._nodes if name.startswith("node") else self._pods)


def coolest(names: list[str], columns: Mapping[str, Any], request: Any) -> Answer:
    """The heuristic that the service falls back to, on the same fields."""
    built = features.build(columns, request.fields)
    scores = heuristics.score("pods", "hottest_to_coolest", columns, request.fields, built.mask)
    return Answer(names[int(np.where(built.mask, scores, -np.inf).argmax())], None, True, "coolest")


def plan(nodes: list[Node], pods: list[Pod], told: Told, ask: Any = coolest, **settings: Any) -> planning.Plan:
    chosen = MigratorSettings("lab", **{"budget": 1.0} | settings)
    return planning.make(nodes, pods, told, chosen, ask, lambda _: None, lambda _: 1.0)


def used(pods: list[Pod], cpu: float) -> Told:
    each = {one.key: (cpu, 0.5) for one in pods}
    names = {one.spec.node_name for one in pods} | {"a", "b", "c"}
    loads = {name: sum(one.spec.node_name == name for one in pods) for name in names}
    return Told(each, {name: (cpu * count, 0.5 * count) for name, count in loads.items()})


def test_pods_of_the_stressed_node_go_until_it_is_calm() -> None:
    pods = [pod(f"p{index}", "a") for index in range(6)]
    told = used(pods, 0.6)  # 3.6 of 4 cores: above 0.8 until one is gone
    found = plan([node("a"), node("b"), node("c")], pods, told)
    assert (found.stressed, found.offered) == (["a"], 1)
    assert [(move.source, move.target) for move in found.moves] == [("a", "b")]
    told = used(pods, 0.9)
    found = plan([node("a"), node("b"), node("c")], pods, told)
    assert sorted(move.target for move in found.moves) == ["b", "b", "c"], "each sees the moves before it"


def test_a_move_that_would_only_have_heated_another_node_is_not_made_whoever_wants_it() -> None:
    nodes, half = [node("a"), node("b")], POSITIONS // 2
    pods = [pod("hot", "a"), pod("calm", "a"), pod("other", "b")]

    class Uneven(Told):
        def get(self, name: str, key: str) -> Any:
            series = super().get(name, key)
            if name.endswith("cpu") and key in ("shop/hot", "a"):
                series[:half] = 0.1  # busy in the second half of the window only
            return series

    def found(other: float, **settings: Any) -> planning.Plan:
        used = {"shop/hot": (3.0, 0.5), "shop/calm": (0.4, 0.5), "shop/other": (other, 0.5)}
        return plan(nodes, pods, Uneven(used, {"a": (3.4, 1.0), "b": (other, 0.5)}), leave_calm, **settings)

    def leave_calm(names: list[str], _: Any, request: Any) -> Answer:
        return Answer("a" if request.id == "shop/calm" else "b", None, False, "")

    assert [move.target for move in found(0.1).moves] == ["b"], "b takes it and stays cool"
    heated = found(0.5)  # 3.5 of 4 cores: as many positions above the threshold on b as were on a
    assert (heated.moves, heated.skipped["its move would not have helped"]) == ([], 1)
    assert [move.target for move in found(0.5, least_saved=0).moves] == ["b"]


def test_a_node_that_one_move_does_not_cool_gives_pods_to_nodes_that_stay_well_below() -> None:
    pods = [pod(f"p{index}", "a") for index in range(6)]
    told = used(pods, 0.9)  # 5.4 of 4 cores all the time
    assert len(plan([node("a"), node("b"), node("c")], pods, told, budget=0.05).moves) == 1
    warm = Told(told._pods, told._nodes | {"b": (2.0, 0.5), "c": (2.0, 0.5)})
    found = plan([node("a"), node("b"), node("c")], pods, warm)  # 2.9 of 4 cores is below 3.2, but not by far
    assert (found.moves, found.skipped["its move would not have helped"]) == ([], 6)


def test_the_budget_and_the_workload_hold() -> None:
    pods = [pod(f"p{index}", "a", app="web") for index in range(6)]
    nodes = [node("a"), node("b"), node("c")]
    found = plan(nodes, pods, used(pods, 0.9))
    assert (len(found.moves), found.skipped["its workload moved already"]) == (1, 5)
    pods = [pod(f"p{index}", "a") for index in range(6)]
    assert len(plan(nodes, pods, used(pods, 0.9), budget=0.05).moves) == 1
    assert len(plan(nodes, pods, used(pods, 0.9), most_moves=2).moves) == 2


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (pod("p", "a"), None),
        (pod("p", "a", owner="DaemonSet"), "its owner is DaemonSet"),
        (pod("p", "a", owner=""), "its owner is nobody"),
        (pod("p", "a", metadata={"namespace": "kube-system"}), "namespace kube-system is left alone"),
        (pod("p", "a", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), "it is not running"),
        (pod("p", "a", status={"phase": "Pending"}), "it is not running"),
        (pod("p", "a", spec={"priorityClassName": "system-node-critical"}), "it is critical"),
        (pod("p", "a", spec={"volumes": [{"emptyDir": {}}]}), "it keeps data on its node"),
        (pod("p", "a", spec={"volumes": [{"configMap": {"name": "c"}}]}), None),
        (
            pod("p", "a", metadata={"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}}),
            "annotation cluster-autoscaler.kubernetes.io/safe-to-evict",
        ),
        (pod("p", "a", metadata={"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}}), None),
        (pod("p", "a", metadata={"labels": {"loadmaster.dev/placeholder": "true"}}), "it is a placeholder"),
    ],
)
def test_who_may_be_moved(one: Pod, why: str | None) -> None:
    assert why_not(one, MigratorSettings("lab")) == why


def test_what_is_not_known_moves_nobody_and_takes_nobody() -> None:
    pods = [pod(f"p{index}", "a") for index in range(6)]
    nodes = [node("a"), node("b"), node("c")]
    told = used(pods, 0.9)
    blind = Told({key: value for key, value in told._pods.items() if key == "shop/p0"}, told._nodes)
    found = plan(nodes, pods, blind)
    assert [move.pod.metadata.name for move in found.moves] == ["p0"]
    assert found.skipped["its use is not known"] == 5
    nowhere = plan(nodes, pods, Told(told._pods, {"a": told._nodes["a"]}))
    assert nowhere.moves == [], "nothing is known of b and c: they may be hot"
    silent = plan(nodes, pods, told, ask=lambda *_: None)
    assert (silent.moves, silent.skipped["the service has no answer"]) == ([], 1)


def test_targets_keep_selectors_taints_requests_and_limits() -> None:
    def target(nodes: list[Node], **spec: Any) -> list[str]:
        pods = [pod(f"p{index}", "a", spec=dict(spec)) for index in range(6)]
        told = used(pods, 0.6)
        known = Told(told._pods, told._nodes | {one.metadata.name: (0.0, 0.0) for one in nodes[1:]})
        return [move.target for move in plan(nodes, pods, known).moves]

    hot = node("a")
    assert target([hot, node("b", taints=[{"key": "gpu", "effect": "NoSchedule"}])]) == []
    assert target([hot, node("b", cpu="250m")]) == [], "its request of half a core would not fit"
    assert target([hot, node("b"), node("c", disk="ssd")], nodeSelector={"disk": "ssd"}) == ["c"]
    cordoned = msgspec.convert(msgspec.to_builtins(node("b")) | {"spec": {"unschedulable": True}}, Node)
    assert target([hot, cordoned]) == []


def selector(app: str) -> dict[str, Any]:
    return {"matchLabels": {"app": app}}


def test_neighbours_that_must_be_far_or_near_and_even_spread() -> None:
    nodes = [node("a", zone="x"), node("b", zone="x"), node("c", zone="y"), node("d", zone="y"), node("bare")]
    far = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector("web")}]}}  # fmt: skip
    one, two = pod("w1", "a", app="web", spec={"affinity": far}), pod("w2", "c", app="web", spec={"affinity": far})
    assert Neighbours(nodes, [one, two]).refused(one) == {"c"}
    away = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone", "labelSelector": selector("x")}]}
    shy = pod("db", "b", app="db", spec={"affinity": {"podAntiAffinity": away}})
    assert Neighbours(nodes, [shy, pod("x", "c", app="x")]).refused(pod("x", "c", app="x")) == {"a", "b"}, (
        "the other's wish counts as well"
    )
    near = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "zone", "labelSelector": selector("cache")}]}}  # fmt: skip
    friend = pod("f", "a", spec={"affinity": near})
    assert Neighbours(nodes, [friend, pod("cache", "c", app="cache")]).refused(friend) == {"a", "b", "bare"}
    rule = [{"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector("s")}]
    pods = [pod(f"s{k}", where, app="s", spec={"topologySpreadConstraints": rule}) for k, where in enumerate("aabcc")]
    there = Neighbours(nodes, pods)
    assert there.refused(pods[0]) == {"bare"}, "without it x and y have two each: both zones may have a third"
    assert there.refused(pods[4]) == {"a", "b", "bare"}, "x has three, y would be left with one"
    there.move(pods[0], "c")
    assert there.refused(pods[1]) == {"c", "d", "bare"}, "moves count at once"


def test_what_a_node_uses_beside_its_pods_is_expected_to_go_on() -> None:
    """Of the node's 3.8 cores its pods use 2 and are expected to use 1; nobody measures what the rest is."""
    seen: list[dict[str, Any]] = []

    def look(names: list[str], columns: Mapping[str, Any], request: Any) -> Answer:
        seen.append({name: values.copy() for name, values in columns.items()} | {"offered": request.fields})
        return Answer("b", None, False, "")

    pods = [pod(f"p{index}", "a") for index in range(4)]
    usage = Told({one.key: (0.5, 1.0) for one in pods}, {"a": (3.8, 4.0), "b": (0.25, 0.0)})
    said = {one.key: np.array([0.25, 0.125, 0.5, 1.0, 1.0, 1.0, 0.0, 0.0]) for one in pods}
    planning.make(
        [node("a"), node("b")], pods, usage, MigratorSettings("lab", least_saved=0), look,
        lambda _: None, lambda _: 1.0, said,
    )  # fmt: skip
    columns = seen[0]
    assert columns["cpu_next"].tolist() == pytest.approx([1.0 + 1.8, 0.25], abs=1e-5)
    assert columns["cpu_later"].tolist() == pytest.approx([0.5 + 1.8, 0.25], abs=1e-5)
    assert columns["mem_later"].tolist() == [4.0, 0.0]
    assert columns["cpu_later_spread"].tolist() == [4.0, 0.0]
    assert (columns["offered"]["cpu_next"], columns["offered"]["threshold"]) == (0.25, 0.8)


def test_an_offer_looks_to_the_policy_as_it_does_in_training() -> None:
    """Fields are those of the problem, all of them but the exact penalty and what nobody has foreseen."""
    seen: list[tuple[dict[str, Any], dict[str, float]]] = []

    def look(names: list[str], columns: Mapping[str, Any], request: Any) -> Answer:
        seen.append((dict(columns), request.fields))
        return Answer("a", None, False, "")

    pods = [pod(f"p{index}", "a") for index in range(6)]
    rising = np.linspace(0.0, 1.0, POSITIONS)

    class Rising(Told):
        def get(self, name: str, key: str) -> Any:
            found = super().get(name, key)
            return found if found is None or name != "pod_cpu" else rising

    plan([node("a"), node("b"), node("c")], pods, Rising(used(pods, 0.9)._pods, used(pods, 0.9)._nodes), look)
    columns, fields = seen[0]
    assert columns.keys() == features.STATE_FIELDS.keys() - {"penalty"} - set(AHEAD)
    assert fields.keys() == features.REQUEST_FIELDS.keys() - set(AHEAD)
    assert (fields["cpu_mean"], fields["cpu_max"], fields["cpu_first"], fields["cpu_last"]) == (0.5, 1.0, 0.0, 1.0)
    assert fields["cpu_p95"] == rising[-2], "one position of 21 is above it: at most 5 %"
    assert columns["here"].tolist() == [1.0, 0.0, 0.0]
