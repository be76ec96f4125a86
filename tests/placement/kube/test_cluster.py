"""The books of a watched cluster are those of its pods and answers, whatever happens in whatever order."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.errors import PlaceRefusedError
from placement.kube.cluster import ASSUMED_S, PRICE_LABEL, Cluster
from placement.kube.config import ClusterSettings
from placement.kube.objects import GIB, Node, Pod, quantity
from sched_env import problems
from wire.errors import ConfigError


def node(name: str, **status: object) -> Node:
    said = {"metadata": {"name": name}, "status": {"allocatable": {"cpu": "4", "memory": "16Gi"}}} | status
    return msgspec.convert(said, Node)


def pod(uid: str, where: str = "", *, cpu: str = "100m", memory: str = "1Gi", phase: str = "Running") -> Pod:
    container = {"resources": {"requests": {"cpu": cpu, "memory": memory}}}
    spec = {"nodeName": where, "containers": [container]}
    return msgspec.convert({"metadata": {"name": uid, "uid": uid}, "spec": spec, "status": {"phase": phase}}, Pod)


def check_that_what_is_kept_is_what_would_be_built(cluster: Cluster, rng: random.Random) -> None:
    """Hold rows that were changed one by one to a build from the columns, to the bit."""
    problem = problems.get("functions")
    request = {"cpu": rng.choice([0.5, 1.0]), "net": rng.choice([0.0, 10.0])}
    names = rng.sample([f"n{index}" for index in range(6)], 4)
    for asked, offered in ((None, False), (None, True), (names, True)):
        try:
            seen = cluster.state("functions", asked, offered=offered)
        except PlaceRefusedError:
            continue
        assert problem.steps is not None
        kept, built = problem.steps.finish(seen.prepared, request), problem.build(seen.columns, request)
        for one, other in zip(kept, built, strict=True):
            np.testing.assert_array_equal(one, other)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_the_columns_equal_a_rebuild_from_what_is_there(seed: int) -> None:
    rng, clock = random.Random(seed), Clock()
    cluster = Cluster("test", now=clock)
    nodes: set[str] = set()
    pods: dict[str, tuple[str, int]] = {}
    assumed: dict[str, tuple[str, int, float]] = {}
    for _ in range(300):
        name, uid, milli = f"n{rng.randrange(6)}", f"p{rng.randrange(30)}", rng.randrange(1, 1000)
        match rng.randrange(6):
            case 0:
                cluster.put_node(node(name))
                nodes.add(name)
            case 1:
                cluster.drop_node(name)
                nodes.discard(name)
            case 2:
                cluster.put_pod(pod(uid, name, cpu=f"{milli}m"))
                assumed.pop(uid, None)
                pods[uid] = (name, milli)
            case 3:
                cluster.drop_pod(uid) if rng.random() < 0.5 else cluster.put_pod(pod(uid, name, phase="Succeeded"))
                pods.pop(uid, None)
                assumed.pop(uid, None)
            case 4:
                cluster.assume(pod(uid, cpu=f"{milli}m"), name)
                if uid not in pods:
                    assumed.pop(uid, None)
                    assumed[uid] = (name, milli, clock.now + ASSUMED_S)
            case 5:
                clock.now += rng.choice([0.5, 20.0])
        assumed = {key: value for key, value in assumed.items() if value[2] > clock.now}
        assert cluster.size() == (len(nodes), len(pods), len(assumed))
        if not nodes:
            continue
        check_that_what_is_kept_is_what_would_be_built(cluster, rng)
        state = cluster.state("functions")
        assert set(state.names) == nodes
        for row, where in enumerate(state.names):
            there = [m for n, m in pods.values() if n == where] + [m for n, m, _ in assumed.values() if n == where]
            assert state.columns["cpu_deployed"][row] == sum(there) / 1000
            assert state.columns["mem_deployed"][row] == len(there)
            assert state.columns["instances"][row] == len(there)
            assert state.columns["cpu_capacity"][row] == 4.0


def test_a_decision_about_all_nodes_keeps_what_it_saw_and_the_next_sees_the_change() -> None:
    cluster = Cluster("test")
    for name in ("a", "b"):
        cluster.put_node(node(name))
    problem, request = problems.get("functions"), {"cpu": 0.5, "mem": 1.0}
    states, expected = [], []
    for index in range(3):
        states.append(cluster.state("functions"))
        expected.append(problem.build({name: one.copy() for name, one in states[-1].columns.items()}, request))
        cluster.put_pod(pod(f"p{index}", "a"))
    for state, before in zip(states, expected, strict=True):
        assert problem.steps is not None
        assert state.prepared is not None
        for found in (problem.build(state.columns, request), problem.steps.finish(state.prepared, request)):
            for one, other in zip(found, before, strict=True):
                np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose([state.columns["cpu_deployed"][0] for state in states], [0.0, 0.1, 0.2])
    assert cluster.state("functions") is cluster.state("functions")  # nothing happened in between


def test_a_decision_keeps_its_state_while_the_cluster_changes() -> None:
    cluster = Cluster("test")
    for name in ("a", "b"):
        cluster.put_node(node(name))
    state = cluster.state("functions", ["b", "a"])
    cluster.put_pod(pod("p", "a"))
    assert state.names == ["b", "a"]
    np.testing.assert_array_equal(state.columns["cpu_deployed"], [0.0, 0.0])
    np.testing.assert_array_equal(cluster.state("functions", ["b", "a"]).columns["cpu_deployed"], [0.0, 0.1])


def test_nodes_that_are_not_ready_cordoned_or_tainted_are_no_candidates_unless_the_scheduler_offers_them() -> None:
    cluster = Cluster("test")
    cluster.put_node(node("fine"))
    cluster.put_node(node("cordoned", spec={"unschedulable": True}))
    cluster.put_node(node("tainted", spec={"taints": [{"key": "gpu", "effect": "NoSchedule"}]}))
    cluster.put_node(node("shy", spec={"taints": [{"key": "gpu", "effect": "PreferNoSchedule"}]}))
    dead = {"allocatable": {"cpu": "4", "memory": "1Gi"}, "conditions": [{"type": "Ready", "status": "Unknown"}]}
    cluster.put_node(node("dead", status=dead))
    state = cluster.state("functions")
    active = dict(zip(state.names, state.columns["active"], strict=True))
    assert active == {"fine": 1.0, "cordoned": 0.0, "tainted": 0.0, "shy": 1.0, "dead": 0.0}
    assert cluster.state("functions", ["tainted"], offered=True).columns["active"] == [1.0]


def test_prices_come_from_the_nodes_label_then_from_its_type() -> None:
    cluster = Cluster("test", {"m5.large": 0.096})
    kind = {"node.kubernetes.io/instance-type": "m5.large"}
    cluster.put_node(node("own", metadata={"name": "own", "labels": {**kind, PRICE_LABEL: "0.5"}}))
    cluster.put_node(node("type", metadata={"name": "type", "labels": kind}))
    cluster.put_node(node("unknown", metadata={"name": "unknown", "labels": {PRICE_LABEL: "cheap"}}))
    state = cluster.state("functions", ["own", "type", "unknown"])
    assert state.columns["price"].tolist() == [0.5, 0.096, 1.0]


def test_prices_can_be_a_table_and_the_settings_go_before_it(tmp_path: Path) -> None:
    table = tmp_path / "prices.csv"
    table.write_text("instance_type,usd_per_hour\nm5.large,0.096\nc5.large,0.085\n")
    found = ClusterSettings(prices={"c5.large": 0.05}, prices_file=str(table)).price_table()
    assert found == {"m5.large": 0.096, "c5.large": 0.05}
    for wrong in ("type,price\na,1\n", "instance_type,usd_per_hour\na,-1\n", "instance_type,usd_per_hour\na,nan\n"):
        table.write_text(wrong)
        with pytest.raises(ConfigError, match=r"prices\.csv"):
            ClusterSettings(prices_file=str(table)).price_table()


def test_what_prometheus_does_not_tell_takes_its_default_and_is_counted() -> None:
    cluster = Cluster("test")
    for name in ("a", "b"):
        cluster.put_node(node(name))
    nobody = cluster.state("functions").defaulted
    cluster.used({"a": 12.5, "ghost": 1.0}, {"a": 300.0, "b": 100.0})
    state = cluster.state("functions", ["a", "b"])
    assert state.columns["net_used"].tolist() == [12.5, 0.0]
    assert state.columns["disk_used"].tolist() == [300.0, 100.0]
    assert state.defaulted == nobody - 3
    cluster.put_node(node("c"))
    assert cluster.state("functions", ["c"]).columns["net_used"].tolist() == [0.0]


def test_unknown_nodes_are_left_out_and_problems_without_nodes_refused() -> None:
    cluster = Cluster("test")
    with pytest.raises(PlaceRefusedError, match="none of the nodes"):
        cluster.state("functions", ["ghost"])
    cluster.put_node(node("a"))
    assert cluster.state("functions", ["ghost", "a"]).names == ["a"]
    with pytest.raises(PlaceRefusedError, match="candidates of jobs are not the nodes"):
        cluster.state("jobs")


def test_a_pod_asks_for_its_containers_sidecars_largest_step_and_overhead() -> None:
    def container(cpu: str, **more: object) -> dict[str, object]:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    spec = {
        "containers": [container("1"), container("500m")],
        "initContainers": [container("250m", restartPolicy="Always"), container("3")],
        "overhead": {"cpu": "100m"},
    }
    one = msgspec.convert({"metadata": {"uid": "u"}, "spec": spec}, Pod)
    assert one.request("cpu") == pytest.approx(3.35)  # the step of 3 beside the sidecar, and the overhead
    assert one.request("memory") == 0.0


def test_the_workload_is_the_deployment_not_its_replica_set() -> None:
    owner = {"kind": "ReplicaSet", "name": "web-7d4b9", "controller": True}
    metadata = {"name": "web-7d4b9-x", "namespace": "shop", "ownerReferences": [owner]}
    metadata["labels"] = {"pod-template-hash": "7d4b9"}
    assert msgspec.convert({"metadata": metadata}, Pod).workload == "shop/web"


@pytest.mark.parametrize(("text", "value"), [("250m", 0.25), ("2Gi", 2 * GIB), ("1e3", 1000.0), (3, 3.0), ("1k", 1e3)])
def test_quantities(text: str, value: float) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize("text", ["", "two", "-1", "1Xi", "NaN", "1e400"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        quantity(text)
