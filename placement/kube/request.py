"""A pod as a request: what its containers ask for, and what its annotations say beside."""

from __future__ import annotations

from placement.errors import PlaceRefusedError
from placement.kube.objects import GIB, Pod
from sched_env import problems
from wire.contracts.feature_spec import ProblemName
from wire.contracts.place import PlacementRequest

ANNOTATION = "loadmaster.dev/"
"""Before a request field, in a pod's annotations: ``loadmaster.dev/duration_s: "120"``."""


def request_of(pod: Pod, problem: ProblemName) -> PlacementRequest:
    """Return the placement request of a pod; raises :class:`PlaceRefusedError` when its amounts are none."""
    known, named = problems.get(problem).request_fields, pod.metadata.name
    try:
        found = {"cpu": pod.request("cpu"), "mem": pod.request("memory") / GIB}
    except ValueError as error:
        raise PlaceRefusedError(422, f"pod {named!r}: {error}", "amounts as Kubernetes writes them") from error
    for key, text in (pod.metadata.annotations or {}).items():
        name = key.removeprefix(ANNOTATION)
        if name != key and name in known:
            try:
                found[name] = float(text)
            except ValueError as error:
                raise PlaceRefusedError(422, f"annotation {key} is {text[:40]!r}", "a number") from error
    return PlacementRequest(pod.metadata.uid or named or "pod", found, pod.workload)
