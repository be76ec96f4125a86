"""How the end of a pod is read: out of memory, no image, node lost, the user's own error, or no end at all."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from placement.cpn.events import JobPod, ended_as


def pod(phase: str, state: dict[str, Any] | None = None, **status: Any) -> JobPod:
    containers = [{"name": "main", "state": state}] if state is not None else []
    about = {"phase": phase, "containerStatuses": containers, **status}
    body = {"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": {"containers": []}, "status": about}
    return msgspec.convert(body, JobPod)


def ended(exit_code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": exit_code, "reason": reason, "message": message}}


def waits(reason: str) -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": "as played"}}


@pytest.mark.parametrize(
    ("seen", "outcome", "said"),
    [
        (pod("Succeeded", ended(0, "Completed")), "finished", ""),
        (pod("Failed", ended(137, "OOMKilled")), "oom", "OOMKilled"),
        (pod("Failed", ended(137, "Error")), "oom", "137"),
        (pod("Failed", ended(1, "Error", "RuntimeError: CUDA out of memory. Tried to allocate")), "oom", "CUDA"),
        (pod("Failed", ended(1)), "user_error", "exit code 1"),
        (pod("Failed", reason="NodeLost", message="the node is gone"), "node_lost", "NodeLost"),
        (pod("Failed", reason="Evicted", message="disk pressure"), "node_lost", "Evicted"),
        (pod("Failed", reason="DeadlineExceeded"), "user_error", "DeadlineExceeded"),
        (pod("Pending", waits("ImagePullBackOff")), "image", "ImagePullBackOff"),
        (pod("Pending", waits("InvalidImageName")), "image", "InvalidImageName"),
        (pod("Pending", waits("CreateContainerConfigError")), "user_error", "CreateContainerConfigError"),
        (pod("Pending", waits("ContainerCreating")), None, ""),
        (pod("Running", {"running": {}}), None, ""),
    ],
)
def test_the_end_of_a_pod_is_classified_and_says_why(seen: JobPod, outcome: str | None, said: str) -> None:
    found, why = ended_as(seen)
    assert found == outcome
    assert said in why
