"""What Kubernetes tells of nodes and pods beside sizes: allocatable, cordons, taints, GPUs, owners, counters."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest


@pytest.fixture(scope="module")
def cleaned(run_clean: Callable[..., Any], healthy: SimpleNamespace) -> Any:
    rows = healthy.rows()
    sample = healthy.sample
    for n in range(60):
        t = 60.0 * n
        rows["samples"] += [
            sample("node_cpu_allocatable_cores", t, 7.5, node="n1"),
            sample("node_mem_allocatable_bytes", t, 30 * healthy.gib, node="n1"),
            sample("node_gpu_capacity_cards", t, 4.0, node="n1"),
            sample("node_gpu_allocatable_cards", t, 4.0, node="n1"),
            sample("node_ready", t, 1.0, node="n1"),
            sample("node_unschedulable", t, float(900 <= t < 1800), node="n1"),
            sample("node_tainted", t, float(2100 <= t < 2400), node="n1"),
            sample("pod_gpu_request_cards", t, 2.0, pod="p1", node="n1"),
            sample("pod_info", t + 1, 1.0, pod="p1", node="n1", function="f", detail="StatefulSet"),
            # Two gateways count the same function; one of them starts again at zero at noon of its hour.
            sample("function_requests", t, 10.0 * n + 1000, function="g", detail="gateway-a"),
            sample("function_requests", t, 20.0 * (n if n < 30 else n - 30), function="g", detail="gateway-b"),
        ]
    rows["requests"] = []
    return run_clean({"c": rows})


def test_nodes_have_what_pods_may_ask_for_beside_capacity(cleaned: Any) -> None:
    nodes = cleaned.table("nodes", "c")
    for column, value in {
        "cpu_capacity_cores": 8.0,
        "cpu_allocatable_cores": 7.5,
        "mem_allocatable_gib": 30.0,
        "gpu_allocatable_cards": 4.0,
        "gpu_requested_cards": 2.0,
    }.items():
        assert nodes[column].tolist()[1:] == pytest.approx([value] * 11), column


def test_cordoned_and_tainted_nodes_are_not_active(cleaned: Any, healthy: SimpleNamespace) -> None:
    nodes = cleaned.table("nodes", "c")
    minutes = (nodes["window_start"] - healthy.at(0)).dt.total_seconds() / 60
    assert minutes[~nodes["active"]].tolist() == [15, 20, 25, 35]


def test_pods_know_their_cards_and_the_kind_of_their_owner(cleaned: Any) -> None:
    pods = cleaned.table("pods", "c")
    assert set(pods.loc[pods["pod"] == "p1", "owner_kind"]) == {"StatefulSet"}
    assert set(pods.loc[pods["pod"] == "p1", "gpu_request_cards"]) == {2.0}
    assert pods.loc[pods["pod"] == "p2", "owner_kind"].isna().all()


def test_counters_of_several_gateways_start_again_one_by_one(cleaned: Any) -> None:
    functions = cleaned.table("functions", "c")
    requests = functions.loc[functions["function"] == "g", "requests"]
    # 30 a minute for 59 minutes, but for the 20 that nobody saw when one gateway fell to zero.
    assert requests.sum() == 59 * 30 - 20


def test_a_log_without_namespaces_means_the_only_workload_of_its_name(
    run_clean: Callable[..., Any], healthy: SimpleNamespace
) -> None:
    rows = healthy.rows()
    owners = {"p1": "shop/api", "p2": "shop/db", "p3": "a/web", "p4": "b/web"}
    for n in range(60):
        rows["samples"] += [
            healthy.sample("pod_info", 60.0 * n, 1.0, pod=pod, node="n1", function=owner)
            for pod, owner in owners.items()
        ]
    rows["samples"] = [row for row in rows["samples"] if row.get("function") != "f"]
    rows["requests"] = [
        {"time": healthy.at(60.0 * n + k), "function": name, "duration_s": 0.5, "cpu_cores": 0.1, "mem_bytes": 1e8}
        for n in range(60)
        for k, name in enumerate(("api", "shop/db", "web", "nobody"))
    ]
    functions = run_clean({"c": rows}).table("functions", "c").groupby("function")["requests"].sum()
    assert functions.to_dict() == {"shop/api": 60, "shop/db": 60, "web": 60, "nobody": 60}, "web may be either"
