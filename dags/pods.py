"""Stages as pods of a Kubernetes cluster: read only when LOADMASTER_RUNNER=kubernetes, for the provider takes seconds.

The pod's status is not believed. A stage has ended when what it published is there and whole (``pipeline.pods check``):
a pod that was lost after its work was done is no failure, and one that ended well without publishing is no success.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk import get_current_context
from kubernetes.client import models as k8s

from dags.calls import call, lineage
from pipeline import workspace
from pipeline.pods import settings

PODS = settings.load(workspace.repository())

HOME = "/var/lib/loadmaster"
FOLDERS = {"work": HOME, "tmp": "/tmp"}  # noqa: S108
"""Where the image works: empty folders of the node, so that the image itself can be read-only."""


class PodStage(KubernetesPodOperator):
    """Runs a DVC stage in a pod of its own.

    Args:
        stage: Name of the stage in ``dvc.yaml``.
        instance: Which of its instances: what stands behind the ``@``, or the whole name; None: there is but one.
        **kwargs: More arguments of the operator.
    """

    template_fields: Sequence[str] = (*KubernetesPodOperator.template_fields, "instance")

    def __init__(self, *, stage: str, instance: Any = None, **kwargs: Any) -> None:
        asked = PODS.stage(stage)
        # Airflow tells a mapped task every default by name, this one too.
        kwargs["execution_timeout"] = timedelta(minutes=asked.timeout_minutes)
        super().__init__(
            name=f"loadmaster-{stage.replace('_', '-')}",
            namespace=PODS.namespace,
            image=PODS.image,
            cmds=["python", "-m", "pipeline.pods", "run"],
            service_account_name=PODS.service_account,
            automount_service_account_token=False,
            labels={"loadmaster/role": "stage", "loadmaster/stage": stage},
            env_vars={"LOADMASTER_VAR": HOME, "OMP_NUM_THREADS": "1", **PODS.environment},
            env_from=[k8s.V1EnvFromSource(secret_ref=k8s.V1SecretEnvSource(name=name)) for name in PODS.secrets],
            container_resources=k8s.V1ResourceRequirements(**asked.resources()),
            node_selector=asked.node_selector,
            tolerations=[one.written() for one in asked.tolerations],
            priority_class_name=PODS.priority_class,
            security_context={"runAsNonRoot": True, "runAsUser": 10001, "fsGroup": 10001,
                              "seccompProfile": {"type": "RuntimeDefault"}},
            container_security_context={"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                        "capabilities": {"drop": ["ALL"]}},
            volumes=[k8s.V1Volume(name=name, empty_dir={}) for name in FOLDERS],
            volume_mounts=[k8s.V1VolumeMount(name=name, mount_path=path) for name, path in FOLDERS.items()],
            startup_timeout_seconds=PODS.startup_seconds,
            startup_check_interval_seconds=max(1, round(PODS.poll_seconds)),
            base_container_status_polling_interval=PODS.poll_seconds,
            on_finish_action="delete_pod",
            do_xcom_push=False,
            **kwargs,
        )  # fmt: skip
        self.stage, self.instance = stage, instance

    @property
    def stage_name(self) -> str:
        """Name of the stage as DVC knows it."""
        if self.instance is None:
            return self.stage
        return self.instance if "@" in str(self.instance) else f"{self.stage}@{self.instance}"

    def execute(self, context: Any) -> Any:
        """Run the pod, then look at what it published, whatever became of the pod."""
        run_id = context["run_id"]
        self.arguments = [f"--run-id={run_id}", f"--stage={self.stage_name}"]
        lost: Exception | None = None
        try:
            super().execute(context)
        except Exception as error:  # noqa: BLE001  (whatever became of the pod: what it published decides)
            lost = error
        try:
            published = call("pipeline.pods", "check", *self.arguments)
        except RuntimeError:
            if lost is not None:
                raise lost from None
            raise
        if lost is not None:
            self.log.warning("the pod was lost after its work was done: %s", lost)
        for outlet in self.outlets:
            context["outlet_events"][outlet].extra = lineage(run_id, fragment=published)

    def find_pod(self, namespace: str, context: Any, *, exclude_checked: bool = True) -> Any:
        """Find the pod of an earlier try; one that is on its way out only if there is no other."""
        selector = self._build_find_pod_label_selector(context, exclude_checked=exclude_checked)
        pods = self.client.list_namespaced_pod(namespace=namespace, label_selector=selector).items
        alive = [pod for pod in pods if pod.metadata.deletion_timestamp is None]
        return max(alive or pods, key=lambda pod: pod.metadata.creation_timestamp, default=None)

    def get_or_create_pod(self, pod_request_obj: Any, context: Any) -> Any:
        """Go on with a pod that runs already (the worker was lost, not the pod); else start one."""
        pod = self.find_pod(self.namespace, context)
        if pod is not None and pod.metadata.deletion_timestamp is None and pod.status.phase in ("Pending", "Running"):
            self.log.info("pod %s of an earlier try still runs", pod.metadata.name)
            return pod
        self.pod_manager.create_pod(pod=pod_request_obj)
        return pod_request_obj


def stage(name: str, **kwargs: Any) -> PodStage:
    """Make the task of a stage that exists once."""
    return PodStage(task_id=name, stage=name, **kwargs)


def problem_stage(name: str, problem: Any, **kwargs: Any) -> PodStage:
    """Make the task of a stage that exists once a problem, inside a mapped task group."""
    return PodStage(task_id=name, stage=name, instance=problem, map_index_template="{{ task.stage_name }}", **kwargs)


def mapped_stage(name: str, instances: Any, **kwargs: Any) -> Any:
    """Make the mapped task of a stage with many instances."""
    kwargs = {"map_index_template": "{{ task.stage_name }}", **kwargs}
    return PodStage.partial(task_id=name, stage=name, **kwargs).expand(instance=instances)


def published() -> list[str]:
    """List what the stages of this run have published: paths."""
    paths: list[str] = json.loads(call("pipeline.pods", "list", f"--run-id={get_current_context()['run_id']}"))
    return paths
