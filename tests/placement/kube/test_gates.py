"""Gated pods are placed where the policy says, within what their owner demands, by one replica at a time."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from placement.kube.clusters import connect
from placement.kube.config import ClusterSettings
from placement.kube.eligible import eligible, pinned
from placement.kube.gates import GATE
from placement.kube.lease import LEASE_S, RENEW_S, Lease
from placement.kube.objects import Node, NodeSelector, Pod
from tests.placement.kube.control_plane import ControlPlane


def node(name: str = "a", taints: Any = None, **labels: str) -> Node:
    return msgspec.convert({"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}}, Node)


def pod(**spec: Any) -> Pod:
    return msgspec.convert({"metadata": {"name": "p", "uid": "p"}, "spec": spec}, Pod)


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


GPU = [{"key": "gpu", "effect": "NoSchedule", "value": "yes"}]


@pytest.mark.parametrize(
    ("spec", "there", "fits"),
    [
        ({}, node(), True),
        ({"nodeSelector": {"disk": "ssd"}}, node(disk="ssd"), True),
        ({"nodeSelector": {"disk": "ssd"}}, node(disk="hdd"), False),
        ({"affinity": required(expression("zone", "In", "a", "b"))}, node(zone="b"), True),
        ({"affinity": required(expression("zone", "In", "a"))}, node(), False),
        ({"affinity": required(expression("zone", "NotIn", "a"))}, node(), True),
        ({"affinity": required(expression("zone", "Exists"))}, node(), False),
        ({"affinity": required(expression("zone", "DoesNotExist"))}, node(), True),
        ({"affinity": required(expression("cores", "Gt", "8"))}, node(cores="16"), True),
        ({"affinity": required(expression("cores", "Lt", "8"))}, node(cores="16"), False),
        ({"affinity": required(expression("cores", "Gt", "8"))}, node(cores="many"), False),
        ({"affinity": required(expression("zone", "Resembles", "a"))}, node(zone="a"), False),
        ({"affinity": required(expression("zone", "In", "x"), expression("zone", "In", "a"))}, node(zone="a"), True),
        ({"affinity": required({})}, node(), False),
        ({}, node(taints=GPU), False),
        ({"tolerations": [{"key": "gpu", "value": "yes"}]}, node(taints=GPU), True),
        ({"tolerations": [{"key": "gpu", "value": "no"}]}, node(taints=GPU), False),
        ({"tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]}, node(taints=GPU), True),
        ({"tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}]}, node(taints=GPU), False),
        ({"tolerations": [{"operator": "Exists"}]}, node(taints=GPU), True),
        ({}, node(taints=[{"key": "busy", "effect": "PreferNoSchedule"}]), True),
    ],
)
def test_a_node_may_take_a_pod_or_not(spec: Any, there: Node, fits: bool) -> None:
    assert eligible(pod(**spec), there) is fits


def test_affinity_is_only_tightened() -> None:
    before = msgspec.convert(
        {"nodeSelectorTerms": [expression("zone", "In", "a"), expression("disk", "Exists")]}, NodeSelector
    )
    after = pinned(before, ["n1"])["nodeSelectorTerms"]
    only = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    assert [term["matchFields"] for term in after] == [[only], [only]]
    assert [term["matchExpressions"][0]["key"] for term in after] == ["zone", "disk"]
    assert pinned(None, ["n1"])["nodeSelectorTerms"] == [{"matchExpressions": [], "matchFields": [only]}]


# A real API server -------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.kube
@pytest.mark.timeout(300)
def test_one_replica_leads_and_another_takes_over_only_after_the_lease_has_run_out(kube: ControlPlane) -> None:
    client = connect("test", ClusterSettings(kubeconfig=str(kube.kubeconfig)))
    clock, other_clock = Clock(), Clock()
    first = Lease(client, "default", "loadmaster-test", "first", clock)
    second = Lease(client, "default", "loadmaster-test", "second", other_clock)
    first.attempt()
    second.attempt()
    assert (first.leading, second.leading) == (True, False)
    # The second's clock leaps, but it sees renewals: nothing changes.
    for _ in range(3):
        clock.now += 2.0
        other_clock.now += LEASE_S - 1.0
        first.attempt()
        second.attempt()
        assert (first.leading, second.leading) == (True, False)
    # The first is gone. It stops leading by itself before the second may begin.
    clock.now += RENEW_S
    assert not first.leading
    other_clock.now += LEASE_S
    second.attempt()
    assert second.leading
    first.attempt()
    assert not first.leading, "it sees who leads now"
    lease = kube.call("GET", "/apis/coordination.k8s.io/v1/namespaces/default/leases/loadmaster-test")
    assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseTransitions"]) == ("second", 1)
    # Both try at once with what they read before: one write wins.
    second.stop()
    first.attempt()
    assert (first.leading, second.leading) == (True, False)


@pytest.mark.kube
@pytest.mark.timeout(600)
def test_gated_pods_land_on_the_chosen_node_and_keep_what_their_owner_demands(
    kube: ControlPlane, settings: Any, kit: Any, workshop: Any, tmp_path: Any
) -> None:
    kube.add_nodes([f"fast-{index}" for index in range(4)], disk="ssd")
    kube.add_nodes([f"slow-{index}" for index in range(4)], disk="hdd")
    path = tmp_path / "clusters.yaml"
    path.write_text(f"clusters: {{lab: {{kubeconfig: {kube.kubeconfig}}}}}\ngates: {{cluster: lab}}\n")
    chosen = msgspec.structs.replace(settings, clusters_file=path)
    kube.start_scheduler()
    gates = [{"name": GATE}]
    kube.add_pods([f"free-{index}" for index in range(12)], cpu="1", schedulingGates=gates)
    kube.add_pods(["bound-to-ssd"], cpu="1", schedulingGates=gates, nodeSelector={"disk": "ssd"})
    kube.add_pods(["nowhere"], cpu="64", schedulingGates=gates)
    kube.add_pods(["others"], cpu="1", schedulingGates=[{"name": "example.com/other"}, *gates])
    with kit.listening(chosen) as url, httpx.Client(base_url=url, timeout=60) as client:
        assert kit.push(client, workshop.sample(1), counter=1).status_code == 200
        found: dict[str, Any] = {}

        def placed() -> bool:
            found.update({one["metadata"]["name"]: one for one in kube.pods()})
            return sum(bool(one["spec"].get("nodeName")) for one in found.values()) == 13

        kube.until(placed, "13 pods to be bound")
    for name, one in found.items():
        terms = (one["spec"].get("affinity") or {}).get("nodeAffinity", {})
        if name == "nowhere":
            assert one["spec"]["schedulingGates"] == gates, "it fits nowhere: the gate stays"
            continue
        pinned_to = terms["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0]["matchFields"]
        if name == "others":
            assert one["spec"]["schedulingGates"] == [{"name": "example.com/other"}], "another's gate is another's"
            continue
        assert [one["spec"]["nodeName"]] == pinned_to[0]["values"]
    assert found["bound-to-ssd"]["spec"]["nodeName"].startswith("fast-")
