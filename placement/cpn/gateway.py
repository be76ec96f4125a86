"""What is asked of a cluster's API: Jobs are made once, found, removed, and their logs read."""

from __future__ import annotations

from typing import Any, Protocol
from urllib.parse import quote

from kubernetes.client import ApiClient, ApiException
from urllib3.exceptions import HTTPError

from placement.cpn import crash
from placement.cpn.manifests import ATTEMPT, FETCH, JOB
from placement.kube.rest import NOT_FOUND, Rest

LOG_BYTES = 16 * 1024
FOR_GOOD = frozenset({400, 403, 404, 422})
"""Answers that another try will not change."""
REFUSED = frozenset({401, 403, NOT_FOUND})
UNREACHABLE = (ApiException, HTTPError, OSError)


class RefusedError(Exception):
    """Raised when a cluster will not have a Job, whoever asks."""


class Gateway(Protocol):
    """What is asked of a cluster's API; raises one of ``UNREACHABLE`` when there is no answer."""

    def create(self, manifest: dict[str, Any]) -> None:
        """Make a Job; fine when the very same one is there."""

    def find(self, name: str) -> dict[str, Any] | None:
        """Return a Job."""

    def remove(self, name: str) -> None:
        """Remove a Job and its pods; fine when there is none."""

    def log(self, name: str) -> str:
        """Return the end of the log of a Job's pod; empty where there is none."""

    def ping(self) -> dict[str, str]:
        """Say what of its API there is for us; empty: all that is needed."""


class KubeGateway(Rest):
    """A real cluster."""

    def __init__(self, client: ApiClient, namespace: str) -> None:
        super().__init__(client)
        self._namespace = f"/api/v1/namespaces/{namespace}"
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"

    def create(self, manifest: dict[str, Any]) -> None:
        """Make a Job.

        Raises:
            RefusedError: When the server says no for good, or the name belongs to somebody else.
        """
        name = manifest["metadata"]["name"]
        crash.point("before create call")
        try:
            made = self.post(self._jobs, manifest)
        except ApiException as error:
            if error.status in FOR_GOOD:
                raise RefusedError(said(error)) from error
            raise
        crash.point("after create call")
        if made is not None:
            return
        there = self.get(f"{self._jobs}/{name}")
        labels, own = there["metadata"].get("labels", {}), manifest["metadata"]["labels"]
        if any(labels.get(label) != own.get(label) for label in (JOB, FETCH, ATTEMPT)):
            raise RefusedError(f"a Job {name} that is not ours is there already")

    def find(self, name: str) -> dict[str, Any] | None:
        """Return a Job."""
        found: dict[str, Any] | None = self.get(f"{self._jobs}/{name}", missing_ok=True)
        return found

    def remove(self, name: str) -> None:
        """Remove a Job and its pods."""
        crash.point("before remove call")
        self.delete(f"{self._jobs}/{name}", {"propagationPolicy": "Background", "gracePeriodSeconds": 0})
        crash.point("after remove call")

    def log(self, name: str) -> str:
        """Return the end of a log; a pod without one, or a node that does not answer, has none."""
        try:
            selector = quote(f"batch.kubernetes.io/job-name={name}", safe="")
            pod = next(iter(self.get(f"{self._pods}?labelSelector={selector}").get("items") or []), None)
            if pod is None:
                return ""
            path = f"{self._pods}/{pod['metadata']['name']}/log?tailLines=200&limitBytes={LOG_BYTES}"
            answer = self._ask("GET", path, None, "application/json")
            try:
                return bytes(answer.read(LOG_BYTES)).decode(errors="replace")
            finally:
                answer.release_conn()
        except UNREACHABLE as error:
            return f"(no log: {said(error)})"

    def ping(self) -> dict[str, str]:
        """Look for the namespace, Jobs in it and nodes; what is not there, or not for us, is named with the answer."""
        wrong: dict[str, str] = {}
        for what, path in (("jobs", f"{self._jobs}?limit=1"), ("nodes", "/api/v1/nodes?limit=1")):
            try:
                self.get(path)
            except ApiException as error:
                if error.status not in REFUSED:
                    raise
                wrong[what] = said(error)
        try:
            self.get(self._namespace)
        except ApiException as error:
            # Who may not look at namespaces may well work in one; Jobs of one that is missing are listed all the same.
            if error.status == NOT_FOUND:
                wrong["namespace"] = said(error)
            elif error.status not in REFUSED:
                raise
        return wrong


def said(error: Exception) -> str:
    """Say in a line what went wrong."""
    if isinstance(error, ApiException):
        return f"{error.status} {error.reason} {str(error.body or '')[:200]}"
    return str(error).split("\n", maxsplit=1)[0][:200]
