"""One cluster of the network: Jobs are sent and removed in order, pods and nodes are followed.

Calls are made by one thread a cluster, one after another, and repeated until the cluster answers: whatever was asked of
a cluster that is lost for a while happens when it is back, and what comes later waits for it. So a Job is never removed
before it was sent, and nobody has to guess whether a call that broke off had been heard.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from kubernetes.client import ApiClient

from placement.cpn.events import (
    Cleaned,
    Event,
    Fetched,
    Gone,
    JobPod,
    Listed,
    PodSeen,
    Refused,
    Sent,
    read_fetch,
    read_pod,
)
from placement.cpn.gateway import UNREACHABLE, Gateway, KubeGateway, RefusedError, said
from placement.cpn.records import fetch_name, kube_name
from placement.cpn.topology import Cluster
from placement.kube.objects import Node
from placement.kube.watch import Watch

log = logging.getLogger(__name__)

SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0
PING_S = 10.0
"""A quiet cluster is asked so often whether it is there: a watch on which nothing happens says nothing for a minute."""
CLEANED = 256

Kind = Literal["send", "remove", "clean", "check", "fetch", "unfetch"]


@dataclass(frozen=True)
class Command:
    """Something to be done in a cluster."""

    kind: Kind
    job: str
    attempt: int
    manifest: dict[str, Any] | None = None


class Link:
    """Sends commands to one cluster, in order.

    Args:
        name: The cluster's.
        gateway: Its API.
        tell: Told what came of each command.
    """

    def __init__(self, name: str, gateway: Gateway, tell: Callable[[Event], None]) -> None:
        self.name, self._gateway, self._tell = name, gateway, tell
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"cpn {name}", daemon=True)
        self.failures = 0
        self.answered_at = 0.0
        """When the cluster last answered to anything, on the monotonic clock."""
        self.wrong: dict[str, str] = {}
        """What we need of its API and may not have: what -> its answer; such a cluster gets no jobs."""
        self._cleaned: deque[tuple[str, int]] = deque(maxlen=CLEANED)
        """What was removed; the pods of these go, and that is no news."""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; what has not been done will be asked for again after a restart."""
        self._stopped.set()
        self._commands.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=15)

    def ask(self, command: Command) -> None:
        """Have something done."""
        self._commands.put(command)

    @property
    def silent_s(self) -> float:
        """Seconds since the cluster was last heard of."""
        return 0.0

    def node_up(self, _node: str) -> bool:
        """Whether a node takes jobs."""
        return True

    def down_s(self, _node: str) -> float:
        """For how long a node has not been ready; 0 when it is."""
        return 0.0

    def do(self, command: Command) -> Event | None:
        """Do one thing, once; return what came of it, if that is news.

        Raises:
            ApiException, HTTPError, OSError: The cluster does not answer.
        """
        name, who = kube_name(command.job, command.attempt), (command.job, command.attempt)
        if command.kind == "send":
            try:
                self._gateway.create(command.manifest or {})
            except RefusedError as error:
                return Refused(*who, str(error))
            return Sent(*who)
        if command.kind == "fetch":
            try:
                self._gateway.create(command.manifest or {})
            except RefusedError as error:
                return Fetched(*who, ok=False, detail=str(error))
            return None  # its pod says when it is done
        if command.kind == "unfetch":
            self._gateway.remove(fetch_name(*who))
            return None
        if command.kind == "check":
            found = self._gateway.find(name)
            return Gone(*who) if found is None else self._standing(found, *who)
        text = self._gateway.log(name) if command.kind == "clean" else ""
        self._gateway.remove(name)
        self._cleaned.append(who)
        return Cleaned(*who, text) if command.kind == "clean" else Gone(*who)

    def _standing(self, found: dict[str, Any], job: str, attempt: int) -> Event:
        """Read a Job that has no pod any more."""
        for condition in (found.get("status") or {}).get("conditions") or []:
            if condition.get("status") == "True" and condition.get("type") in ("Failed", "Complete"):
                done = condition["type"] == "Complete"
                why = (
                    "" if done else f"its pod was deleted: {condition.get('reason', '')} {condition.get('message', '')}"
                )
                return PodSeen(self.name, job, attempt, "", False, "finished" if done else "vanished", why, None, None)
        return Sent(job, attempt)

    def _next(self) -> Command | None:
        """Wait for something to do; meanwhile look now and then whether the cluster is there."""
        while True:
            try:
                return self._commands.get(timeout=PING_S)
            except queue.Empty:
                self._look()

    def _look(self) -> None:
        try:
            self.wrong = self._gateway.ping()
            self.answered_at = time.monotonic()
        except UNREACHABLE as error:
            self.failures += 1
            log.warning("%s does not answer: %s", self.name, said(error))
        for what, answer in self.wrong.items():
            log.warning("%s gets no jobs, its %s: %s", self.name, what, answer)

    def _run(self) -> None:
        self._look()
        while (command := self._next()) is not None:
            pause = SHORTEST_PAUSE_S
            while not self._stopped.is_set():
                try:
                    came = self.do(command)
                    self.answered_at = time.monotonic()
                    if came is not None:
                        self._tell(came)
                    break
                except UNREACHABLE as error:
                    self.failures += 1
                    why = said(error)
                    log.warning("%s: %s %s: %s; again in %.1f s", self.name, command.kind, command.job, why, pause)
                except Exception:
                    # A fault of ours; without this thread nothing would ever be asked of the cluster again.
                    self.failures += 1
                    log.exception("%s: %s %s", self.name, command.kind, command.job)
                self._stopped.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311 - not all at the same moment
                pause = min(2 * pause, LONGEST_PAUSE_S)


class KubeLink(Link):
    """A real cluster, whose pods and nodes are watched."""

    def __init__(self, cluster: Cluster, client: ApiClient, owner: str, tell: Callable[[Event], None]) -> None:
        super().__init__(cluster.name, KubeGateway(client, cluster.namespace), tell)
        self.wrong = {"api": "not asked yet"}
        self._owner = owner
        self._nodes: dict[str, tuple[bool, float]] = {}
        self._watches: tuple[Watch[JobPod], Watch[Node]] = (
            Watch(
                client,
                f"/api/v1/namespaces/{cluster.namespace}/pods",
                JobPod,
                put=self._pod,
                drop=self._dropped,
                only=self._listed,
            ),
            Watch(client, "/api/v1/nodes", Node, put=self._node, drop=self._lost, only=lambda _: None),
        )

    def start(self) -> None:
        """Begin, and follow."""
        super().start()
        for watch in self._watches:
            watch.start()

    def stop(self) -> None:
        """End."""
        for watch in self._watches:
            watch.stop()
        super().stop()

    @property
    def silent_s(self) -> float:
        """How long nothing has been heard of the cluster; infinite until its pods and nodes are known."""
        watches = [watch.silent_s for watch in self._watches]
        return max(watches) if float("inf") in watches else min(*watches, time.monotonic() - self.answered_at)

    def node_up(self, _node: str) -> bool:
        """Whether a node is there, ready and not cordoned."""
        return self._nodes.get(_node, (False, 0.0))[0]

    def down_s(self, _node: str) -> float:
        """For how long a node has not been ready."""
        up, since = self._nodes.get(_node, (True, 0.0))
        return 0.0 if up else time.monotonic() - since

    def _pod(self, pod: JobPod) -> None:
        seen = read_pod(pod, self._owner, self.name) or read_fetch(pod, self._owner)
        if seen is not None:
            self._tell(seen)

    def _dropped(self, pod: JobPod) -> None:
        """Look whether a Job whose pod went is still there; one that had ended is in the books by now."""
        whose = pod.attempt_of(self._owner)
        if whose is not None and whose not in self._cleaned:
            self._pod(pod)
            self.ask(Command("check", *whose))

    def _listed(self, pods: list[JobPod]) -> None:
        whose = (pod.attempt_of(self._owner) for pod in pods)
        self._tell(Listed(self.name, frozenset(one for one in whose if one is not None)))

    def _node(self, node: Node) -> None:
        before = self._nodes.get(node.metadata.name)
        if before is None or before[0] != node.ready:
            self._nodes[node.metadata.name] = (node.ready, time.monotonic())

    def _lost(self, node: Node) -> None:
        self._nodes[node.metadata.name] = (False, time.monotonic())
