"""Submissions: what is legal, and refusals that name the field; and the Kubernetes Job that becomes of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from placement.cpn import manifests
from placement.cpn.generate import Kind, queue
from placement.cpn.records import Attempt, Job
from placement.cpn.submission import parse, read
from placement.cpn.topology import Network
from placement.cpn.topology import read as read_topology
from placement.errors import PlaceRefusedError
from tests.placement.cpn.conftest import known, manifest, topology_text


@pytest.fixture(scope="module")
def network() -> Network:
    return read_topology(topology_text({"A100": 1, "P100": 2}), "test")


def taken(body: dict[str, Any], network: Network) -> Job:
    return read(body, known(network), now=100.0, tenant=None, key=None)[0]


def test_numbers_in_annotations_are_accepted_and_become_texts(network: Network) -> None:
    text = """
apiVersion: batch/v1
kind: Job
metadata:
  name: train
  annotations: {model_name: cnn-small, data_size: 20, epoch: 100, priority: 3, deadline: 3600.5, team: 7}
spec:
  backoffLimit: 4
  template: {spec: {containers: [{name: main, image: x, resources: {requests: {cpu: 500m, memory: 2Gi}}}]}}
"""
    job, kept = read(parse(text), known(network), now=100.0, tenant="team-a", key=None)
    assert (job.data_gb, job.epochs, job.priority, job.deadline_s) == (20.0, 100.0, 3, 3600.5)
    assert (job.cpu_cores, job.mem_gib, job.gpu_mem_gib) == (0.5, 2.0, 1.0)
    assert job.max_attempts == 5
    assert job.tenant == "team-a"
    notes = yaml.safe_load(kept)["metadata"]["annotations"]
    assert notes == {
        "model_name": "cnn-small", "data_size": "20", "epoch": "100", "priority": "3", "deadline": "3600.5", "team": "7"
    }  # fmt: skip


def _set(*path: Any) -> Callable[[dict[str, Any]], None]:
    *keys, last, value = path

    def change(body: dict[str, Any]) -> None:
        for key in keys:
            body = body[key]
        if value is None:
            body.pop(last, None)
        else:
            body[last] = value

    return change


NOTES = ("metadata", "annotations")
CONTAINER = ("spec", "template", "spec", "containers", 0)


@pytest.mark.parametrize(
    ("change", "field", "expected"),
    [
        (_set("kind", "Pod"), "kind", "Job"),
        (_set("apiVersion", None), "apiVersion", "batch/v1"),
        (_set("metadata", "name", None), "metadata.name", "1 to 253"),
        (_set(*NOTES, "model_name", "gpt"), "model_name", "cnn-small"),
        (_set(*NOTES, "model_name", None), "model_name", "cnn-small"),
        (_set(*NOTES, "epoch", "many"), "epoch", "a number above 0"),
        (_set(*NOTES, "epoch", 0), "epoch", "a number above 0"),
        (_set(*NOTES, "data_size", -1), "data_size", "at least 0"),
        (_set(*NOTES, "data_size", None), "data_size", "a number"),
        (_set(*NOTES, "gpu_memory_mb", 500_000), "gpu_memory_mb", "at most 39.0 GiB"),
        (_set(*NOTES, "priority", 1.5), "priority", "a whole number"),
        (_set(*NOTES, "deadline", "nan"), "deadline", "a number above 0"),
        (_set(*NOTES, "data_center", "moon"), "data_center", "one of store, dc-0"),
        (_set(*NOTES, "model_name", ["x"]), "model_name", "a text or a number"),
        (_set("spec", "parallelism", 2), "spec.parallelism", "1"),
        (_set("spec", "backoffLimit", -1), "spec.backoffLimit", "at least 0"),
        (_set("spec", "template", None), "spec.template", "a mapping"),
        (_set("spec", "template", "spec", "containers", []), "containers", "at least one"),
        (_set(*CONTAINER, "resources", {"requests": {"memory": "lots"}}), "requests.memory", "a quantity"),
        (_set(*CONTAINER, "resources", {"requests": {"memory": "2Ti"}}), "requests.memory", "at most"),
    ],
)
def test_a_refusal_names_the_field_and_what_is_legal(
    network: Network, change: Callable[[dict[str, Any]], None], field: str, expected: str
) -> None:
    body = manifest("one")
    change(body)
    with pytest.raises(PlaceRefusedError) as refused:
        taken(body, network)
    assert refused.value.status == 422
    assert field in refused.value.found
    assert expected in refused.value.expected


def test_bad_yaml_is_refused() -> None:
    with pytest.raises(PlaceRefusedError, match="no YAML") as refused:
        parse(b"a: [1")
    assert refused.value.status == 400
    with pytest.raises(PlaceRefusedError, match="a mapping"):
        parse(b"- 1")


def test_a_model_that_is_not_known_needs_its_memory_said(network: Network) -> None:
    assert taken(manifest("one", "brand-new", gpu_memory_mb=2048), network).gpu_mem_gib == 2.0


def sent(network: Network, mode: str = "direct", *, among: list[str] | None = None) -> dict[str, Any]:
    body = manifest("one")
    body["spec"]["backoffLimit"] = 4
    body["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": 4}
    job = taken(body, network)
    card = network.cards["cluster-1/node-0001/gpu1"]
    attempt = Attempt(job.id, 2, job.model, card.cluster, card.node, card.name, "fifo", 1.0, 1.0, None, "")
    spec = network.clusters["cluster-1"]
    import msgspec

    cluster = msgspec.structs.replace(spec, gpu_mode=mode, hami_pool="poc")
    return manifests.build(body, job, attempt, card, cluster, "cpn", among=among)


def test_a_job_is_sent_pinned_with_a_name_that_follows_from_the_attempt(network: Network) -> None:
    made = sent(network)
    pod = made["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert made["metadata"]["name"].startswith("lm-")
    assert made["metadata"]["name"].endswith("-2")
    assert made["spec"]["backoffLimit"] == 0
    assert pod["restartPolicy"] == "Never"
    assert pod["nodeSelector"] == {"kubernetes.io/hostname": "node-0001"}
    assert {"name": "CUDA_VISIBLE_DEVICES", "value": "1"} in container["env"]
    assert "limits" not in container["resources"]
    assert container["resources"]["requests"] == {"cpu": "1.0", "memory": "2.0Gi"}
    labels = made["spec"]["template"]["metadata"]["labels"]
    assert labels["loadmaster.dev/attempt"] == "2"


def test_hami_gets_its_pool_and_physical_cards(network: Network) -> None:
    made = sent(network, "hami")
    container = made["spec"]["template"]["spec"]["containers"][0]
    assert made["spec"]["template"]["metadata"]["annotations"]["hami.io/resource-pool"] == "poc"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1024"}
    assert not container["env"]


def test_kube_default_leaves_the_node_to_the_cluster(network: Network) -> None:
    made = sent(network, among=["n1", "n2"])
    pod = made["spec"]["template"]["spec"]
    assert "nodeSelector" not in pod
    terms = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1", "n2"]}]}
    ]
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}


def test_a_generated_queue_is_legal_and_named_by_its_seed(network: Network) -> None:
    kinds = [Kind("cnn-small", 100.0), Kind("brand-new", 10.0, 2048.0)]
    one, again = (list(queue(50, kinds, seed=3, urgent=0.2)) for _ in range(2))
    assert one == again
    assert one != list(queue(50, kinds, seed=4, urgent=0.2))
    jobs = [taken(body, network) for body in one]
    assert {job.model for job in jobs} == {"cnn-small", "brand-new"}
    assert {job.priority for job in jobs} == {0, 1}
