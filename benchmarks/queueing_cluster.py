"""Days of a whole cluster whose response times come from a queue: what ``kube_stack`` has, played as in ``queueing``.

Daemons, a database, a cordoned node, roll-outs, CronJobs, workflows, cards and restarts of exporters are those of
``kube_stack.Stack``; ten services answer calls, eight of them scaled by their rate. A scheduler places their replicas
and all batch pods, never on a node that is cordoned or tainted. Every call is played on the node on which its replica
sits, where batch pods and the database compute beside it. Nothing of Loadmaster is imported.

``python benchmarks/queueing_cluster.py --days 3 --out stack.om`` writes OpenMetrics text and prints counts.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import ClassVar

import numpy as np
from kube_stack import F8, Machine, Pod, Stack, with_uids
from numpy.typing import NDArray
from queueing import I8, IDLE_CORES, SERVICES, SYSTEM_CORES, QueueingStack, Replica, Service

MORE_MACHINES = ("m5.xlarge", "m5.xlarge", "m5.2xlarge", "m5.2xlarge", "m5.2xlarge", "m5.2xlarge")
SIZES = {"m5.xlarge": (4, 16), "m5.2xlarge": (8, 32)}
CALLED = {
    "shop/api": Service("api", 0.5, 0.5, 0.12, 0.03, "exponential", 4.0, 0.6, 0.0, 1.0, 3, 3.0),
    "staging/api": Service("api", 0.25, 0.25, 0.08, 0.02, "gamma", 0.5, 0.0, 0.0, 1.0, 1, 3.0),
}
"""Deployments of ``kube_stack`` that answer calls: their pods come, go and sit as told there."""
PLACED = ("CronJob", "Workflow")
"""Owners whose pods go where the scheduler says, if they want no card."""


class QueueingCluster(QueueingStack):
    """The cluster, its truth, and its series.

    Args:
        start_s: First second.
        hours: Length.
        scrape_s: Seconds between scrapes.
        seed: Names arrivals, replicas and times of calls.
        load: Times as many calls as usual.
        scheduler: Who places replicas and batch pods.
    """

    keep_minutes = 1
    flow_every_s = 120
    flow_kept_s = 300
    prices: ClassVar[dict[str, float]] = {}

    def __init__(
        self,
        start_s: int,
        hours: float,
        scrape_s: int = 30,
        seed: int = 11,
        load: float = 1.5,
        scheduler: str = "spread",
    ) -> None:
        super().__init__(start_s, hours, scrape_s, seed, load, scheduler)

    def _pods(self) -> list[Pod]:
        for number, kind in enumerate(MORE_MACHINES, start=4):
            ip = f"10.0.1.{10 + number}"
            self.machines.append(Machine(f"worker-{number}", ip, *SIZES[kind], kind, nic_bytes_s=1.25e9))
        self.there = Stack._pods(self)
        self.kinds = SERVICES + tuple(CALLED.values())
        self.called = [[pod for pod in self.there if f"{pod.namespace}/{pod.owner[1]}" == name] for name in CALLED]
        jobs = [pod for pod in self.there if pod.owner[0] in ("Job", *PLACED)]
        names = sorted({pod.owner[1] for pod in jobs})
        self.batch = [[pod for pod in jobs if pod.owner[1] == name] for name in names]
        self._draw()
        self.replicas += [[self._life(pod) for pod in pods] for pods in self.batch]
        self.played = self.play(self.scheduler)
        for index, pods in enumerate(self.batch, start=len(self.kinds)):
            for number, pod in enumerate(pods):
                pod.node = self.machines[self.played.node[index][number]].name
        scaled = self._scaled_pods()
        for pod in scaled:
            pod.created_s = float(np.floor(pod.created_s))  # an API server writes whole seconds
        self.names += list(CALLED)
        for index, pods in enumerate(self.called, start=len(SERVICES)):
            self.pod_of |= {(index, number): pod for number, pod in enumerate(pods)}
        return with_uids(self.there + scaled)

    def _life(self, pod: Pod) -> Replica:
        return Replica(pod.created_s - self.start_s, pod.ended_s - self.start_s)

    def _lives(self, index: int, counts: I8, arrival: F8, rng: np.random.Generator) -> list[Replica]:
        """Replicas of a service: scaled, or as they are told."""
        if index < len(SERVICES):
            return super()._lives(index, counts, arrival, rng)
        return [self._life(pod) for pod in self.called[index - len(SERVICES)]]

    def _told(self, index: int) -> list[Pod]:
        """Pods behind the lives of an index that is no scaled service."""
        return [*self.called, *self.batch][index - len(SERVICES)]

    def _is_placed(self, index: int) -> bool:
        """Whether the scheduler says where pods of an index go."""
        if index < len(SERVICES):
            return True
        first = self._told(index)[0]
        return first.owner[0] in PLACED and not first.cards

    def _taken(self) -> F8:
        """Room of all that is not placed by the scheduler, kept free for it from the beginning."""
        used = np.zeros((len(self.machines), 2))
        names = [machine.name for machine in self.machines]
        batch = {id(pod) for pods in self.batch for pod in pods}  # nobody else goes where those with a card are
        for pod in self.there:
            if id(pod) not in batch:
                used[names.index(pod.node)] += (pod.cpu_request, pod.mem_request_gib)
        return used

    def _asks(self, index: int) -> F8:
        """Room that a pod takes; that of pods with a place of their own is kept already."""
        if not self._is_placed(index):
            return np.zeros(2)
        if index < len(SERVICES):
            return super()._asks(index)
        first = self._told(index)[0]
        return np.array([first.cpu_request, first.mem_request_gib])

    def _open(self, index: int, number: int, time_s: float) -> NDArray[np.bool_]:
        """Nodes that a pod may go to: neither tainted nor cordoned at the time, or its own."""
        if not self._is_placed(index):
            return np.array([machine.name == self._told(index)[number].node for machine in self.machines])
        now = self.start_s + time_s
        return np.array([m.taint is None and not m.cordoned_s[0] <= now < m.cordoned_s[1] for m in self.machines])

    def _others(self, machine: int, node: dict[int, list[int]]) -> list[tuple[float, float]]:
        """What else computes on a node: cores from a moment on."""
        name, turns = self.machines[machine].name, [(0.0, SYSTEM_CORES)]
        where = {
            id(pod): node[index][number]
            for index, pods in enumerate(self.batch, len(self.kinds))
            for number, pod in enumerate(pods)
        }
        for pod in self.there:
            at = where.get(id(pod))
            if (pod.node == name) if at is None else at == machine:
                begin, end = self._life(pod)
                turns += [(max(begin, 0.0), pod.cpu), (max(end, 0.0), -pod.cpu)]
        times, changes = (np.array(column) for column in zip(*sorted(turns), strict=True))
        moments, first = np.unique(times, return_index=True)
        cores = np.cumsum(np.add.reduceat(changes, first))
        return [one for one in zip(moments.tolist(), cores.tolist(), strict=True) if np.isfinite(one[0])]

    def _idle(self, begin_s: float, end_s: float) -> float:
        """Core-seconds of a stretch that are no call's."""

        def within(life: Replica) -> float:
            return max(min(life.end_s, end_s) - max(life.begin_s, begin_s), 0.0)

        beside = sum(pod.cpu * within(self._life(pod)) for pod in self.there)
        scaled = IDLE_CORES * sum(within(life) for lives in self.replicas[: len(SERVICES)] for life in lives)
        return beside + scaled + len(self.machines) * SYSTEM_CORES * (end_s - begin_s)

    def _dcgm(self, add) -> None:  # type: ignore[no-untyped-def]
        Stack._dcgm(self, add)


def main() -> None:
    """Write the text and say how much it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=float, default=3.0)
    parser.add_argument("--start", type=int, default=1767571200, help="second since 1970 (default: 2026-01-05)")
    parser.add_argument("--scrape", type=int, default=30, help="seconds")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    stack = QueueingCluster(options.start, options.days * 24, options.scrape, options.seed)
    samples = stack.write(options.out)
    calls = sum(played.size for played in stack.played.done_s.values())
    print(json.dumps({"samples": samples, "pods": len(stack.pods), "machines": len(stack.machines), "calls": calls}))


if __name__ == "__main__":
    main()
