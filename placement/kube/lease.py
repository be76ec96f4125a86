"""Leader election by a Lease: of several replicas one acts, and another takes over when it is gone.

A replica counts others' silence by its own clock from the moment it saw a lease renewed, as Kubernetes' own components
do: clocks that disagree cannot make two leaders. It stops leading well before anybody else may begin.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from kubernetes.client import ApiClient, ApiException
from urllib3.exceptions import HTTPError

from placement.kube.rest import Rest

log = logging.getLogger(__name__)

LEASE_S, RENEW_S, RETRY_S = 15.0, 10.0, 2.0
"""Kubernetes' own defaults: others wait the first, the leader gives up after the second, all try every third."""


class Lease(threading.Thread):
    """Tries to hold a lease for as long as it runs.

    Args:
        client: Knows the server.
        namespace: Where the lease is.
        name: Its name: replicas of one adapter share it.
        identity: Who we are; no two replicas may say the same.
        now: A clock that never goes back.
    """

    def __init__(
        self, client: ApiClient, namespace: str, name: str, identity: str, now: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(name=f"lease {name}", daemon=True)
        self._rest, self._now, self.identity = Rest(client), now, identity
        self._all, self._path = (
            f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases",
            f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}",
        )
        self._lease_name = name
        self._renewed: float | None = None
        self._seen: tuple[str, float] | None = None
        self._stopped = threading.Event()

    @property
    def leading(self) -> bool:
        """Whether we may act now."""
        return self._renewed is not None and self._now() - self._renewed < RENEW_S

    def run(self) -> None:
        """Try for ever."""
        while not self._stopped.is_set():
            before = self.leading
            try:
                self.attempt()
            except (ApiException, HTTPError, OSError, ValueError) as error:
                log.warning("%s: %s", self.name, str(error).split("\n")[0][:200])
            if self.leading != before:
                log.warning("%s: %s is %s", self.name, self.identity, "leading" if self.leading else "not leading")
            self._stopped.wait(RETRY_S)

    def stop(self) -> None:
        """Let go: the next one may begin at once."""
        self._stopped.set()
        if self.is_alive():
            self.join(timeout=10)
        if self.leading:
            self._renewed = None
            try:
                lease = self._rest.get(self._path)
                if lease["spec"].get("holderIdentity") == self.identity:
                    lease["spec"]["holderIdentity"] = ""
                    self._rest.put(self._path, lease)
            except (ApiException, HTTPError, OSError) as error:
                log.warning("%s: not given back: %s", self.name, str(error).split("\n")[0][:200])

    def attempt(self) -> None:
        """Take or renew the lease if it is ours to have; a lost race is found out at the next attempt."""
        began = self._now()
        lease = self._rest.get(self._path, missing_ok=True)
        if lease is None:
            lease = {"metadata": {"name": self._lease_name}, "spec": {}}
            if self._rest.post(self._all, self._held(lease)) is not None:
                self._renewed = began
            return
        spec = lease.setdefault("spec", {})
        holder, version = spec.get("holderIdentity") or "", str(lease["metadata"]["resourceVersion"])
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, began)
        if holder not in ("", self.identity):
            self._renewed = None
            if began - self._seen[1] < LEASE_S:
                return
            log.warning("%s: %s has not been heard of for %g s", self.name, holder, LEASE_S)
        if self._rest.put(self._path, self._held(lease)) is not None:
            self._renewed = began

    def _held(self, lease: dict[str, Any]) -> dict[str, Any]:
        spec, at = lease["spec"], datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        if spec.get("holderIdentity") != self.identity:
            spec["leaseTransitions"] = spec.get("leaseTransitions", -1) + 1
            spec["acquireTime"] = at
        spec |= {"holderIdentity": self.identity, "renewTime": at, "leaseDurationSeconds": int(LEASE_S)}
        return lease
