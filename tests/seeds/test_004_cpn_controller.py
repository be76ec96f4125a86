"""004, "cpn controller": what the simulator has of it; the controller itself has tests of its own."""

from __future__ import annotations

import json

import yaml

from sched_env.jobs.env import CpnEnv
from sched_env.traces.cpn import read_queue

ANNOTATIONS = """
annotations:
    model_name: "densenet121"
    data_size: 20
    epoch: 100
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
