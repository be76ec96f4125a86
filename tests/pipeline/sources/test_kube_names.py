"""Which machine an exporter speaks of, and whose pod a pod is."""

import numpy as np
import pytest

from pipeline.sources.kube_names import Names, host_of
from pipeline.sources.prometheus import _by_owner_of_address
from pipeline.sources.prometheus_http import Series


def cluster():
    names = Names()
    names.learn("kube_node_info", {"node": "w1.example", "internal_ip": "10.0.0.1"}, [0.0, 300.0, 600.0])
    names.learn("kube_node_info", {"node": "w2.example", "internal_ip": "10.0.0.2"}, [0.0, 300.0])
    names.learn("kube_node_info", {"node": "w3.example", "internal_ip": "10.0.0.2"}, [600.0, 900.0])
    names.learn("kube_node_status_addresses", {"node": "w1.example", "address": "fd00::1"}, [0.0])
    names.learn("node_uname_info", {"instance": "192.168.7.9:9100", "nodename": "w3"})
    names.learn("node_uname_info", {"instance": "192.168.7.8:9100", "nodename": "bastion"})
    return names.settled()


@pytest.mark.parametrize(
    ("labels", "at_s", "node"),
    [
        ({"instance": "10.0.0.1:9100"}, 0.0, "w1.example"),
        ({"instance": "[fd00::1]:9100"}, 0.0, "w1.example"),
        ({"instance": "10.0.0.2:9100"}, 100.0, "w2.example"),
        ({"instance": "10.0.0.2:9100"}, 700.0, "w3.example"),
        ({"instance": "w2:9100"}, 0.0, "w2.example"),
        ({"instance": "w2.example"}, 0.0, "w2.example"),
        ({"instance": "192.168.7.9:9100"}, 0.0, "w3.example"),
        ({"instance": "192.168.7.8:9100"}, 0.0, "bastion"),
        ({"instance": "172.16.0.1:9100"}, 0.0, "172.16.0.1"),
        ({"instance": "10.244.0.9:9400", "Hostname": "w1"}, 0.0, "w1.example"),
    ],
)
def test_machines_are_joined_by_address_then_by_name(labels, at_s, node):
    assert cluster().machine(labels, at_s) == node


def test_an_address_that_goes_to_another_node_parts_its_series():
    times = np.arange(0.0, 1200.0, 300.0)
    parts = _by_owner_of_address([Series({"instance": "10.0.0.2:9100"}, times, times)], cluster())
    found = [(cluster().machine(part.labels, part.time_s[0]), part.time_s.tolist()) for part in parts]
    assert found == [("w2.example", [0.0, 300.0]), ("w3.example", [600.0, 900.0])]


def test_ports_are_dropped_and_addresses_are_not_cut():
    assert [host_of(one) for one in ("a:1", "a", "[fe80::1]:9100", "fe80::1", "10.0.0.1:9100")] == [
        "a", "a", "fe80::1", "fe80::1", "10.0.0.1",
    ]  # fmt: skip


OWNERS = [
    ("ReplicaSet", "api-6c8d9f7b54", ("Deployment", "api")),
    ("ReplicaSet", "canary-1", ("Rollout", "canary")),
    ("Job", "report-29451870", ("CronJob", "report")),
    ("Job", "train", ("Job", "train")),
    ("Job", "step-x", ("Workflow", "flow")),
    ("StatefulSet", "db", ("StatefulSet", "db")),
    ("DaemonSet", "exporter", ("DaemonSet", "exporter")),
    ("<none>", "<none>", ("", "")),
]


@pytest.mark.parametrize(("kind", "name", "top"), OWNERS)
def test_the_owner_is_the_top_one(kind, name, top):
    names = Names()
    names.learn("kube_replicaset_owner", {"namespace": "n", "replicaset": "canary-1", "owner_kind": "Rollout",
                                          "owner_name": "canary", "owner_is_controller": "true"})  # fmt: skip
    names.learn(
        "kube_job_owner", {"namespace": "n", "job_name": "step-x", "owner_kind": "Workflow", "owner_name": "flow"}
    )
    names.learn(
        "kube_job_owner", {"namespace": "n", "job_name": "train", "owner_kind": "<none>", "owner_name": "<none>"}
    )
    labels = {"namespace": "n", "pod": "p", "created_by_kind": kind, "created_by_name": name}
    assert names.owner(labels) == top
    assert names.workload(labels) == f"n/{top[1] or 'p'}"


def test_a_static_pod_belongs_to_all_nodes_alike_and_labels_name_workloads_best():
    names = Names()
    names.learn("kube_pod_labels", {"namespace": "n", "pod": "a", "label_serving_knative_dev_service": "hello"})
    static = {"namespace": "n", "pod": "etcd-w1", "node": "w1", "created_by_kind": "Node", "created_by_name": "w1"}
    assert names.workload(static) == "n/etcd"
    known = {
        "namespace": "n",
        "pod": "a",
        "created_by_kind": "ReplicaSet",
        "created_by_name": "hello-00001-deployment-abc",
    }
    assert names.workload(known) == "n/hello"
