"""The state of one cluster, kept as columns: what ``decide`` reads is always there, and an event changes one entry.

Amounts are summed up as whole millicores and bytes, so that a thousand pods that come and go leave exactly nothing
behind. A placement that was answered counts at once, until the watch confirms it or its time is over: the watch is some
milliseconds to seconds behind, and a burst would otherwise go to one node.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placement.errors import PlaceRefusedError
from placement.kube.columns import COLUMNS, Kept
from placement.kube.config import node_problems
from placement.kube.eligible import eligible
from placement.kube.objects import GIB, MILLI, Node, Pod
from placement.state import State
from wire.contracts.feature_spec import ProblemName

ASSUMED_S = 30.0
"""How long an answer counts as a placement when the watch says nothing of it."""

RESERVED_S = 60.0
"""How long room that the migrator held stays meant for the pod that comes back, after the placeholder is gone."""

RESERVES = "loadmaster.dev/reserves"
"""Annotation of a placeholder: the workload whose next pod shall have its room."""

PRICE_LABEL = "loadmaster.dev/price-usd-per-hour"
INSTANCE_TYPE_LABEL = "node.kubernetes.io/instance-type"

_CPU_CAPACITY, _MEM_CAPACITY, _CPU, _MEM, _PRICE, _ACTIVE, _INSTANCES, _NET, _DISK = range(len(COLUMNS))


class Use(NamedTuple):
    """What a pod takes of its node."""

    node: str
    milli: int
    bytes: int


def use(pod: Pod, node: str) -> Use:
    """Return what a pod takes, or would take, of a node."""
    return Use(node, round(pod.request("cpu") * MILLI), round(pod.request("memory")))


class Cluster:
    """Nodes and pods of one cluster, as the watch knows them and our own answers run ahead of it.

    Args:
        name: What the cluster is called in the settings.
        prices: Instance type -> USD/hour; a node's own label ``loadmaster.dev/price-usd-per-hour`` goes before it.
        now: A clock that never goes back.
    """

    def __init__(
        self, name: str, prices: Mapping[str, float] | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.name, self._prices, self._now = name, dict(prices or {}), now
        self._lock = threading.Lock()
        self._nodes: dict[str, Node] = {}
        self._index: dict[str, int] = {}
        self._names: list[str] = []
        self._table = np.zeros((len(COLUMNS), 64))
        self._kept: dict[tuple[ProblemName, bool], Kept] = {}
        """By problem, and whether the scheduler offers them; made anew when another node has a row."""
        self._before: dict[int, bytes] = {}
        """Rows that may have changed -> what they were."""
        self._used: dict[str, list[int]] = {}
        """Node -> millicores, bytes and pods, of watched and assumed pods; also of nodes that are not known yet."""
        self._pods: dict[str, Use] = {}
        self._objects: dict[str, Pod] = {}
        """Of the pods that hold something, as the watch said it."""
        self._assumed: dict[str, tuple[Use, float]] = {}
        self._reserved: dict[str, tuple[str, str, float]] = {}
        """Placeholder -> workload, node, until when."""

    # What the watch says -----------------------------------------------------------------------------------------

    def put_node(self, node: Node) -> None:
        """A node appeared or changed."""
        name = node.metadata.name
        with self._lock:
            self._nodes[name] = node
            row = self._index.get(name)
            if row is None:
                row = self._index[name] = len(self._names)
                self._names.append(name)
                self._kept.clear()
                if row == self._table.shape[1]:
                    self._table = np.concatenate([self._table, np.zeros_like(self._table)], axis=1)
                self._table[(_NET, _DISK), row] = np.nan
            column = self._begin(row)
            column[_CPU_CAPACITY] = node.resource("cpu")
            column[_MEM_CAPACITY] = node.resource("memory") / GIB
            column[_ACTIVE] = node.open
            column[_PRICE] = self._price(node)
            self._show(name)
            self._end()

    def drop_node(self, name: str) -> None:
        """A node is gone; what its pods used stays on the books until they are gone too."""
        with self._lock:
            row = self._index.pop(name, None)
            if row is None:
                return
            del self._nodes[name]
            self._kept.clear()
            last = self._names.pop()
            if last != name:
                self._names[row] = last
                self._index[last] = row
                self._table[:, row] = self._table[:, len(self._names)]

    def put_pod(self, pod: Pod) -> None:
        """A pod appeared or changed."""
        uid = pod.metadata.uid
        taken = use(pod, pod.spec.node_name) if pod.holds else None
        with self._lock:
            if pod.spec.node_name or pod.status.phase != "Pending":
                self._forget(uid)
            self._replace(uid, taken)
            if taken is None:
                self._objects.pop(uid, None)
            else:
                if uid not in self._objects:
                    self._settle(pod)
                self._objects[uid] = pod
            self._end()

    def drop_pod(self, uid: str) -> None:
        """A pod is gone."""
        with self._lock:
            self._forget(uid)
            self._replace(uid, None)
            self._objects.pop(uid, None)
            self._end()

    def only_nodes(self, names: Iterable[str]) -> None:
        """A list was made anew: what it does not name was deleted meanwhile."""
        for gone in self._index.keys() - set(names):
            self.drop_node(gone)

    def only_pods(self, uids: Iterable[str]) -> None:
        """As :meth:`only_nodes`."""
        for gone in self._pods.keys() - set(uids):
            self.drop_pod(gone)

    # What is asked -----------------------------------------------------------------------------------------------

    def assume(self, pod: Pod, node: str) -> None:
        """Count an answer as a placement until the watch confirms it, or ``ASSUMED_S`` pass."""
        uid = pod.metadata.uid
        with self._lock:
            if uid in self._pods:
                return
            self._forget(uid)
            taken = use(pod, node)
            self._assumed[uid] = (taken, self._now() + ASSUMED_S)
            self._add(taken, 1)
            self._end()

    def state(self, problem: ProblemName, names: Sequence[str] | None = None, *, offered: bool = False) -> State:
        """Return the candidates of a decision: what happens to the cluster meanwhile does not change them.

        Args:
            problem: Whose fields.
            names: These nodes only, in this order; those that the watch has not seen yet are left out.
            offered: The scheduler offers them: it has looked at taints and tolerations, which is not ours to do again.
        """
        if problem not in node_problems():
            raise PlaceRefusedError(422, f"candidates of {problem} are not the nodes of a cluster", "candidates")
        with self._lock:
            self._expire()
            known, rows = self._rows(names) if names is not None else (self._names, ())
            if not known:
                raise PlaceRefusedError(422, f"cluster {self.name!r} has none of the nodes", "nodes that it has")
            kept = self._kept.get((problem, offered))
            if kept is None:
                table = self._table[:, : len(self._names)]
                kept = self._kept[problem, offered] = Kept(problem, list(self._names), table, offered=offered)
            return kept.state() if names is None else kept.take(known, np.fromiter(rows, np.intp, count=len(known)))

    def used(self, net: Mapping[str, float], disk: Mapping[str, float]) -> None:
        """Take what nodes use of network (MB/s) and disk (IOPS); nodes that are not named are not known any more."""
        with self._lock:
            for name, row in self._index.items():
                self._table[_NET, row] = net.get(name, np.nan)
                self._table[_DISK, row] = disk.get(name, np.nan)
            self._kept.clear()

    def load(self) -> tuple[list[str], dict[str, NDArray[np.float64]]]:
        """Return the nodes, and what each has, what its pods ask for, how many they are and whether it takes more."""
        with self._lock:
            self._expire()
            names, table = list(self._names), self._table[:, : len(self._names)].copy()
        shown = {name: table[COLUMNS.index(name)] for name in COLUMNS[:4]}
        return names, {**shown, "pods": table[_INSTANCES], "open": table[_ACTIVE] > 0}

    def largest(self) -> tuple[float, float]:
        """Return cores and GiB of the largest node."""
        with self._lock:
            table = self._table[:, : len(self._names)]
            return (float(table[_CPU_CAPACITY].max()), float(table[_MEM_CAPACITY].max())) if self._names else (0.0, 0.0)

    def reserved(self, pod: Pod) -> str | None:
        """Return the node on which room is held for the next pod of this one's workload; None when none is."""
        if not self._reserved:
            return None
        now, workload = self._now(), pod.workload
        with self._lock:
            self._reserved = {key: one for key, one in self._reserved.items() if one[2] > now}
            return next((node for whose, node, _ in self._reserved.values() if whose == workload), None)

    def contents(self) -> tuple[list[Node], list[Pod]]:
        """Return the nodes, and the pods that hold something of one, as the watch said them."""
        with self._lock:
            return list(self._nodes.values()), list(self._objects.values())

    def price(self, node: Node) -> float:
        """Return USD/hour of a node: by its label, its instance type, else 1."""
        return self._price(node)

    def eligible(self, pod: Pod) -> list[str]:
        """Return the nodes that are ready and that the pod's own demands and the nodes' taints allow."""
        with self._lock:
            nodes = list(self._nodes.values())
        return [node.metadata.name for node in nodes if node.ready and eligible(pod, node)]

    def size(self) -> tuple[int, int, int]:
        """Return how many nodes, pods and assumed placements there are."""
        with self._lock:
            self._expire()
            return len(self._names), len(self._pods), len(self._assumed)

    # Books, under the lock ---------------------------------------------------------------------------------------

    def _replace(self, uid: str, taken: Use | None) -> None:
        before = self._pods.pop(uid, None)
        if before is not None:
            self._add(before, -1)
        if taken is not None:
            self._pods[uid] = taken
            self._add(taken, 1)

    def _settle(self, pod: Pod) -> None:
        """A pod is on a node: a placeholder makes a reservation, a pod that one was for ends it."""
        workload = (pod.metadata.annotations or {}).get(RESERVES)
        if workload is not None:
            self._reserved[pod.metadata.uid] = (workload, pod.spec.node_name, self._now() + RESERVED_S)
            return
        for key, (whose, node, _) in list(self._reserved.items()):
            if (whose, node) == (pod.workload, pod.spec.node_name):
                del self._reserved[key]
                return

    def _forget(self, uid: str) -> None:
        assumed = self._assumed.pop(uid, None)
        if assumed is not None:
            self._add(assumed[0], -1)

    def _expire(self) -> None:
        now = self._now()
        while self._assumed:
            uid, (_, until) = next(iter(self._assumed.items()))
            if until > now:
                break
            self._forget(uid)
        self._end()

    def _add(self, taken: Use, sign: int) -> None:
        books = self._used.setdefault(taken.node, [0, 0, 0])
        books[0] += sign * taken.milli
        books[1] += sign * taken.bytes
        books[2] += sign
        if not books[2]:
            del self._used[taken.node]
        self._show(taken.node)

    def _show(self, node: str) -> None:
        row = self._index.get(node)
        if row is not None:
            milli, taken, pods = self._used.get(node, (0, 0, 0))
            column = self._begin(row)
            column[_CPU], column[_MEM], column[_INSTANCES] = milli / MILLI, taken / GIB, pods

    def _rows(self, names: Sequence[str]) -> tuple[list[str], Sequence[int]]:
        """Return those of the names that are known, and their rows."""
        known = list(names)
        try:  # the common case, many times as fast as asking one by one
            found = itemgetter(*known)(self._index)
        except (KeyError, TypeError):  # one that is not known, or no name at all
            known = [name for name in known if name in self._index]
            return known, [self._index[name] for name in known]
        return known, found if len(known) > 1 else (found,)

    def _begin(self, row: int) -> NDArray[np.float64]:
        """Return a node's column, which may be changed until :meth:`_end`."""
        column = self._table[:, row]
        if self._kept:
            self._before.setdefault(row, column.tobytes())
        return column

    def _end(self) -> None:
        """Let decisions see what changed; a pod that is where it was assumed to be, or a heartbeat, changed nothing."""
        for row, before in self._before.items() if self._before else ():
            column = self._table[:, row]
            if column.tobytes() != before:
                for kept in self._kept.values():
                    kept.change(row, column)
        self._before.clear()

    def _price(self, node: Node) -> float:
        labels = node.metadata.labels or {}
        try:
            return max(float(labels[PRICE_LABEL]), 0.0)
        except (KeyError, ValueError):
            return self._prices.get(labels.get(INSTANCE_TYPE_LABEL, ""), 1.0)
