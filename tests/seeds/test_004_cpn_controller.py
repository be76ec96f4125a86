"""004, "cpn controller": what the simulator has of it; the controller itself has tests of its own."""

from __future__ import annotations

import json

import yaml

from sched_env.jobs.env import CpnEnv
from sched_env.traces.cpn import read_queue
from tests.placement.cpn.test_submission import network, sent

__all__ = ["network"]  # a fixture

ANNOTATIONS = """
annotations:
    model_name: "densenet121"
    data_size: 20
    epoch: 100
"""

RESOURCE_POOL = """
spec:
    backoffLimit: 4
    template:
        metadata:
            creationTimestamp: null
            annotations:
                hami.io/resource-pool: "poc"
"""
"""Without the asterisks of the note, and with the template's metadata as one mapping."""
LIMITS = """
resources:
    limits:
        nvidia.com/gpu: 1
"""


def test_注意_2_yaml_annotations(tmp_path):
    """Numbers are taken as numbers, and as the texts that Kubernetes wants."""
    given = yaml.safe_load(ANNOTATIONS)["annotations"]
    for k, job in enumerate([given, {name: str(value) for name, value in given.items()}]):
        path = tmp_path / f"{k}.json"
        path.write_text(json.dumps([{"name": "one", **job}]))
        queue = read_queue(path)
        assert (queue.model, queue.data_gb.tolist(), queue.iterations.tolist()) == (("densenet121",), [20.0], [100.0])


def test_目前进度_cpu阈值():
    """0.7, and the values of the ablation; the name that upstream uses."""
    for value in (0.7, 0.8, 0.9):
        assert CpnEnv(cards=3, episode_jobs=4, trace_rows=40, cpu_thr=value).many.rules.cpu_threshold == value


def test_注意_5_hami_scheduler(network):
    """In a cluster of ``gpu_mode: hami`` a Job is sent with its pool and so many physical cards, which MPS needs."""
    template = sent(network, "hami")["spec"]["template"]
    asked = yaml.safe_load(RESOURCE_POOL)["spec"]["template"]["metadata"]["annotations"]
    assert asked.items() <= template["metadata"]["annotations"].items()
    (card,) = yaml.safe_load(LIMITS)["resources"]["limits"].items()
    limits = template["spec"]["containers"][0]["resources"]["limits"]
    assert (card[0], int(limits[card[0]])) == card


def test_注意_5_no_hami_scheduler(network):
    """What the note does at present, and our default: no nvidia.com/gpu, whatever the Job says; a pinned card."""
    template = sent(network, "direct")["spec"]["template"]
    container = template["spec"]["containers"][0]
    assert "limits" not in container["resources"]
    assert "hami.io/resource-pool" not in template["metadata"].get("annotations", {})
    assert [entry["name"] for entry in container["env"]] == ["CUDA_VISIBLE_DEVICES"]
