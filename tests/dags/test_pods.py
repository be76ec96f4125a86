"""The DAG with LOADMASTER_RUNNER=kubernetes, without a cluster: the same graph, and what each pod would ask for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytestmark = [pytest.mark.airflow]
ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, os
import dags.nightly_retrain as night
dag = night.nightly_retrain()
said = {"graph": {task.task_id: sorted(task.downstream_task_ids) for task in dag.tasks}}
if os.environ["LOADMASTER_RUNNER"] == "kubernetes":
    from dags.pods import PodStage
    said["kinds"] = sorted(task.task_id for task in dag.tasks
                           if isinstance(task, PodStage) or getattr(task, "operator_class", None) is PodStage)
    one = PodStage(task_id="t", stage="train", instance="train@vm-ppo-0")
    one.arguments = ["--run-id=r", f"--stage={one.stage_name}"]
    said["train"] = one.hook.core_v1_client.api_client.sanitize_for_serialization(one.build_pod_request_obj())
    said["names"] = [one.stage_name, PodStage(task_id="c", stage="calibrate", instance="vm").stage_name,
                     PodStage(task_id="i", stage="ingest").stage_name]
    # As a worker makes it out of the mapped task, with every default of the operator told by name.
    asked = {"train": "train@vm-ppo-0", "calibrate": "vm"}
    mapped = [dag.get_task(name).unmap({"instance": one}) for name, one in asked.items()]
    said["mapped"] = [[task.stage_name, task.execution_timeout.total_seconds()] for task in mapped]
print("SAID " + json.dumps(said))
"""


def said(folder, runner):
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }))  # fmt: skip
    connection = {"conn_type": "kubernetes", "extra": {"kube_config_path": str(kubeconfig)}}
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(folder),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "LOADMASTER_RUNNER": runner,
        "AIRFLOW_CONN_KUBERNETES_DEFAULT": json.dumps(connection),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("SAID ")]
    assert found, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(found[0].removeprefix("SAID "))


def test_the_graph_is_the_same_and_every_stage_is_a_pod_with_its_own_resources(tmp_path):
    here, there = said(tmp_path, "local"), said(tmp_path, "kubernetes")
    assert here["graph"] == there["graph"]
    assert set(there["kinds"]) == set(yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"])
    assert there["names"] == ["train@vm-ppo-0", "calibrate@vm", "ingest"]
    assert there["mapped"] == [["train@vm-ppo-0", 240 * 60], ["calibrate@vm", 60 * 60]]
    spec = there["train"]["spec"]
    (container,) = spec["containers"]
    assert container["resources"]["limits"] == {"memory": "8Gi", "nvidia.com/gpu": "1"}
    assert container["args"] == ["--run-id=r", "--stage=train@vm-ppo-0"]
    assert container["envFrom"] == [{"secretRef": {"name": "loadmaster-stage"}}]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]
    assert spec["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("loadmaster-stage", False)
    assert spec["securityContext"]["runAsNonRoot"] is True
