"""What the ``pods`` policy would move now: a window of the live cluster, decided as a window of the simulator is.

Pods of the hottest stressed node are offered, the largest request first, until it is no longer stressed; then the
next node. Each decision sees the moves before it. What is not known is not moved and moves nobody: a pod whose use
nobody measures is not offered, a node of which nothing is known takes none. A move that would not have helped in the
window just seen is not made, whoever wants it: where most nodes are hot, moving heats another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from placement.kube.config import MigratorSettings
from placement.kube.eligible import eligible
from placement.kube.movable import why_not
from placement.kube.objects import GIB, Node, Pod
from placement.kube.spread import Neighbours
from sched_env.pods.counting import grained
from sched_env.pods.features import FIT_TOLERANCE, STATISTICS
from sched_env.pods.foresight import AHEAD
from wire.contracts.place import PlacementRequest

MOST_OFFERS = 500
"""Pods offered in a cycle: a policy that keeps every pod where it is must not be asked for ever."""
DEFAULT_POD_LIMIT = 110.0
ABOVE = 1.0 + 1e-9
"""A limit is passed only by more than a billionth of it, as in the simulator: sums are rounded."""

WELL_BELOW = 0.75
"""Of the threshold: where a target stays that takes pods of a node which one move does not cool. Chosen, as
``least_saved``, on loads of which none is in the reported ones (docs/results/migrator.md)."""

Series = NDArray[np.float64]


class Measured(Protocol):
    """What is asked of :class:`placement.kube.usage.Usage`."""

    @property
    def positions(self) -> int:
        """How many samples a window has."""

    def get(self, name: str, key: str) -> Series | None:
        """Return a window."""

    def keys(self, name: str) -> set[str]:
        """Return of what a query is known."""


class Answer(NamedTuple):
    """What the service said of one pod."""

    node: str
    digest: str | None
    fallback: bool
    reason: str


Ask = Callable[[list[str], Mapping[str, NDArray[np.float64]], PlacementRequest], Answer | None]
"""Names of the nodes, their state fields, the pod; None when the service has no answer."""


class Move(NamedTuple):
    """A pod that shall go elsewhere."""

    pod: Pod
    source: str
    target: str
    answer: Answer


@dataclass
class Plan:
    """What a cycle decided."""

    stressed: list[str]
    """Nodes above the threshold when it began, hottest first."""
    moves: list[Move] = field(default_factory=list)
    offered: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """Why pods of stressed nodes were not offered."""
    fallbacks: int = 0


def make(
    nodes: list[Node],
    pods: list[Pod],
    usage: Measured,
    settings: MigratorSettings,
    ask: Ask,
    stays: Callable[[Pod], str | None],
    prices: Callable[[Node], float],
    foreseen: Mapping[str, Series] | None = None,
) -> Plan:
    """Decide one window.

    Args:
        nodes: Of the cluster.
        pods: Those that hold something of a node.
        usage: What they used in the window.
        settings: Thresholds, budget, whom to leave alone.
        ask: The policy.
        stays: Says why a pod stays, beside what :func:`~placement.kube.movable.why_not` says: age, cool-down.
        prices: USD/hour of a node.
        foreseen: What is expected of each pod, as ``foresight.AHEAD``; without it the policy takes the last window for
            all that comes.
    """
    window = _Window(nodes, pods, usage, prices, foreseen or {})
    plan = Plan(window.stressed(settings.threshold))
    budget = min(max(1, int(settings.budget * len(pods))), settings.most_moves)
    neighbours = Neighbours(nodes, pods)
    offered: set[str] = set()
    by_workload: Counter[str] = Counter()
    while plan.offered < MOST_OFFERS and len(plan.moves) < budget:
        pod = window.next(settings.threshold, offered)
        if pod is None:
            break
        offered.add(pod.metadata.uid)
        why = why_not(pod, settings) or stays(pod) or window.unknown(pod)
        if why is None and by_workload[pod.workload] >= settings.per_workload:
            why = "its workload moved already"
        if why is not None:
            plan.skipped[why] += 1
            continue
        plan.offered += 1
        columns = window.columns(pod, neighbours.refused(pod))
        answer = ask(window.names, columns, window.request(pod, budget - len(plan.moves), settings))
        if answer is None:
            plan.skipped["the service has no answer"] += 1
            break  # it will not have one for the next pod either
        plan.fallbacks += answer.fallback
        source = window.where(pod)
        if answer.node == source:
            continue
        if window.helps(pod, answer.node, settings.threshold, settings.least_saved):
            plan.moves.append(Move(pod, source, answer.node, answer))
            by_workload[pod.workload] += 1
            window.move(pod, answer.node)
            neighbours.move(pod, answer.node)
        else:
            plan.skipped["its move would not have helped"] += 1
    return plan


class _Window:
    """Nodes as rows: capacity, use at each position, requests."""

    def __init__(
        self,
        nodes: list[Node],
        pods: list[Pod],
        usage: Measured,
        prices: Callable[[Node], float],
        foreseen: Mapping[str, Series],
    ) -> None:
        self._nodes = [node for node in nodes if node.resource("cpu") > 0.0 and node.resource("memory") > 0.0]
        self.names = [node.metadata.name for node in self._nodes]
        self._row = {name: row for row, name in enumerate(self.names)}
        size, positions = len(self.names), usage.positions
        self._capacity = np.array(
            [[node.resource("cpu"), node.resource("memory") / GIB] for node in self._nodes]
        ).reshape(size, 2)
        self._limit = np.array([node.resource("pods") or DEFAULT_POD_LIMIT for node in self._nodes])
        self._price = np.array([prices(node) for node in self._nodes])
        self._used = np.zeros((size, 2, positions))
        self._requested, self._count = np.zeros((size, 2)), np.zeros(size)
        self._pods: dict[str, tuple[Pod, int]] = {}
        self._series: dict[str, NDArray[np.float64] | None] = {}
        self._foreseen = bool(foreseen)
        self._ahead: dict[str, Series] = {}
        self._all_ahead = np.zeros((size, len(AHEAD)))
        nothing = np.zeros(len(AHEAD))
        for pod in pods:
            row = self._row.get(pod.spec.node_name)
            if row is None:
                continue
            uid = pod.metadata.uid
            self._pods[uid] = (pod, row)
            cpu, mem = usage.get("pod_cpu", pod.key), usage.get("pod_mem", pod.key)
            self._series[uid] = None if cpu is None or mem is None else np.stack([cpu, mem])
            # In whole grains, as in the simulator: sums are exact in any order.
            self._ahead[uid] = grained(foreseen.get(pod.key, nothing))
            self._add(row, uid, 1.0)
        self._known = self._measure(usage)
        self._begun = ""

    def _measure(self, usage: Measured) -> NDArray[np.bool_]:
        """Take the node's own figures where they are higher than its pods'; say which nodes are known."""
        told = bool(usage.keys("node_cpu"))
        known = np.full(len(self.names), not told)
        for row, name in enumerate(self.names):
            cpu, mem = usage.get("node_cpu", name), usage.get("node_mem", name)
            if told and cpu is not None and mem is not None:
                used = np.maximum(self._used[row], np.stack([cpu, mem]))
                # What no pod is known to use goes on as it is.
                beside = grained((used - self._used[row]).mean(axis=1))
                self._all_ahead[row] += [
                    0.0 if name.endswith("spread") else beside[int(name[:3] == "mem")] for name in AHEAD
                ]
                self._used[row], known[row] = used, True
        return known

    def _add(self, row: int, uid: str, sign: float) -> None:
        pod, series = self._pods[uid][0], self._series[uid]
        if series is not None:
            self._used[row] = np.maximum(self._used[row] + sign * series, 0.0)
        self._all_ahead[row] += sign * self._ahead[uid]
        self._requested[row] += sign * _requests(pod)
        self._count[row] += sign

    def _heat(self) -> NDArray[np.float64]:
        """Return the highest share of cpu or memory at any position; 0 where nothing is known."""
        heat = (self._used.max(axis=2) / self._capacity).max(axis=1) if self.names else np.empty(0)
        return np.where(self._known, heat, 0.0)

    def stressed(self, threshold: float) -> list[str]:
        heat = self._heat()
        return [self.names[row] for row in np.argsort(-heat, kind="stable") if heat[row] > threshold * ABOVE]

    def next(self, threshold: float, offered: set[str]) -> Pod | None:
        """Return the largest pod of the hottest stressed node that was not offered yet; one node after another."""
        hot = self.stressed(threshold)
        if self._begun in hot:
            hot = [self._begun, *hot]
        for name in hot:
            row = self._row[name]
            left = [pod for uid, (pod, where) in self._pods.items() if where == row and uid not in offered]
            if left:
                self._begun = name
                return max(left, key=lambda pod: (float((_requests(pod) / self._capacity[row]).sum()), pod.key))
        return None

    def helps(self, pod: Pod, target: str, threshold: float, least: int) -> bool:
        """Say whether a move would have helped in this window; with ``least`` 0 nobody looks.

        Both nodes together would have been above the threshold at ``least`` positions fewer. Or the node is above it
        all the time, so that several pods must go before anything is saved, and the target stays well below.
        """
        if not least:
            return True
        uid = pod.metadata.uid
        series, rows = self._series[uid], [self._pods[uid][1], self._row[target]]
        assert series is not None  # noqa: S101  (looked at before it was offered)
        limit = threshold * ABOVE * self._capacity[rows][:, :, np.newaxis]
        before = self._used[rows] / limit
        after = np.maximum(self._used[rows] + np.stack([-series, series]), 0.0) / limit
        hot, still = before.max(axis=1) > 1.0, after.max(axis=1) > 1.0  # [source and target, positions]
        saved = int(hot.sum()) - int(still.sum())
        return saved >= least or (saved == 0 and bool(hot[0].all()) and float(after[1].max()) <= WELL_BELOW)

    def unknown(self, pod: Pod) -> str | None:
        return "its use is not known" if self._series[pod.metadata.uid] is None else None

    def where(self, pod: Pod) -> str:
        return self.names[self._pods[pod.metadata.uid][1]]

    def move(self, pod: Pod, target: str) -> None:
        uid, row = pod.metadata.uid, self._row[target]
        self._add(self._pods[uid][1], uid, -1.0)
        self._pods[uid] = (pod, row)
        self._add(row, uid, 1.0)

    def columns(self, pod: Pod, refused: set[str]) -> dict[str, NDArray[np.float64]]:
        """Return the state fields of ``pods``; a node that may not take the pod is not active."""
        here = np.zeros(len(self.names))
        here[self._pods[pod.metadata.uid][1]] = 1.0
        request = _requests(pod)
        # Training shares cpu without limit; kube-scheduler wants the request to fit.
        room = (self._requested + request <= self._capacity + FIT_TOLERANCE).all(axis=1)
        room &= (self._count + 1.0 <= self._limit) & self._known
        open_to = np.array(
            [
                bool(room[row]) and name not in refused and node.ready and eligible(pod, node)
                for row, (name, node) in enumerate(zip(self.names, self._nodes, strict=True))
            ]
        )
        found = {
            "cpu_capacity": self._capacity[:, 0],
            "mem_capacity": self._capacity[:, 1],
            "price": self._price,
            "here": here,
            "cpu_shares": self._requested[:, 0],
            "mem_deployed": self._requested[:, 1],
            "pods": self._count,
            "active": (open_to | (here > 0.0)).astype(np.float64),
        }
        for place, resource in enumerate(("cpu", "mem")):
            found |= {f"{resource}_{name}": value for name, value in _statistics(self._used[:, place]).items()}
        return found | (dict(zip(AHEAD, self._all_ahead.T, strict=True)) if self._foreseen else {})

    def request(self, pod: Pod, moves_left: int, settings: MigratorSettings) -> PlacementRequest:
        series = self._series[pod.metadata.uid]
        assert series is not None  # noqa: S101  (looked at before it was offered)
        cpu, mem = _requests(pod).tolist()
        fields = {
            "cpu": cpu,
            "mem": mem,
            "moves_left": float(moves_left),
            "pod_limit": float(self._limit.max()),
            "price_per_move": settings.price_per_move_usd,
            "threshold": settings.threshold,
        }
        for place, resource in enumerate(("cpu", "mem")):
            for name, value in _statistics(series[place][np.newaxis]).items():
                fields[f"{resource}_{name}"] = float(value[0])
        if self._foreseen:
            fields |= dict(zip(AHEAD, self._ahead[pod.metadata.uid].tolist(), strict=True))
        return PlacementRequest(pod.key[:253], fields)


def _requests(pod: Pod) -> NDArray[np.float64]:
    return np.array([pod.request("cpu"), pod.request("memory") / GIB])


def _statistics(series: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Return mean, p95, max, first and last of each row, as ``sched_env.pods.features`` names them."""
    positions = series.shape[1]
    ranked = np.sort(series, axis=1)
    values = (
        series.mean(axis=1),
        ranked[:, -(-positions * 19 // 20) - 1],  # the lowest value that at most 5 % of the positions exceed
        ranked[:, -1],
        series[:, 0],
        series[:, -1],
    )
    return dict(zip(STATISTICS, values, strict=True))
