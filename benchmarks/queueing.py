"""A day of a cluster played by a queueing model, as its kube-prometheus-stack would have scraped it.

It imports nothing of Loadmaster, so that the simulator can be held against something that is not itself. Each node is
a queue with processor sharing: with ``k`` calls computing on ``c`` cores each gets ``min(1, c / k)`` of one, and busy
neighbours slow everybody down (caches, hyper-threads) by ``INTERFERENCE`` at full load, which is this model's own law.
A call computes for a time of its own kind (exponential, gamma or log-normal) and then waits for something elsewhere.
Services scale by their rate of calls, some to zero, and a call that finds no replica ready waits for one to start.

Arrivals and replicas are drawn once from the seed; a scheduler only says where replicas go. So several schedulers can
play the same day, also one after another: ``play("spread", "pack", at=0.62)``.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import count, pairwise
from typing import ClassVar, NamedTuple

import numpy as np
from kube_stack import F8, WINDOW_S, Machine, Pod, Stack, with_uids
from numpy.typing import NDArray

I8 = NDArray[np.int64]
INTERFERENCE = 0.2
IDLE_CORES = 0.01
"""What a replica uses beside its calls."""
COOLDOWN_S = 300.0
"""How long a node is paid for after its last replica has left."""
PRICES = {"m5.xlarge": 0.192, "m5.2xlarge": 0.384, "m5.4xlarge": 0.768}
BACKGROUND = {"db-0": ("worker-1", 0.5), "db-1": ("worker-4", 0.9)}
SYSTEM_CORES = 0.1
KEPT_CORES, KEPT_GIB = 0.2, 1.0
"""What a node keeps from its pods (``kube_node_status_allocatable`` of the stack)."""


class Service(NamedTuple):
    """A Deployment and its calls."""

    name: str
    cpu: float
    """Requested cores."""
    mem: float
    work_s: float
    """Mean time on a core."""
    wait_s: float
    """Mean time elsewhere."""
    shape: str
    rate: float
    """Calls a second, on average."""
    swing: float
    phase: float
    target: float
    """Calls computing at a time in one replica that the autoscaler wants."""
    least: int
    cold_s: float


SERVICES = (
    Service("web", 0.5, 0.5, 0.25, 0.05, "exponential", 6.0, 0.6, 0.0, 0.35, 2, 3.0),
    Service("search", 1.0, 1.0, 0.8, 0.1, "gamma", 2.2, 0.5, 0.8, 0.6, 1, 6.0),
    Service("resize", 1.0, 0.75, 1.5, 0.0, "lognormal", 1.0, 0.7, 2.0, 0.7, 1, 4.0),
    Service("report", 0.75, 1.5, 3.0, 0.5, "gamma", 0.25, 0.4, 4.0, 0.5, 0, 8.0),
    Service("login", 0.25, 0.25, 0.1, 0.15, "exponential", 4.0, 0.6, 5.5, 0.2, 1, 2.0),
    Service("embed", 1.0, 2.0, 1.2, 0.2, "exponential", 1.0, 0.6, 3.0, 0.8, 1, 10.0),
    Service("notify", 0.25, 0.25, 0.4, 1.0, "lognormal", 0.6, 0.8, 1.2, 0.15, 0, 2.5),
    Service("thumb", 0.5, 0.5, 0.6, 0.0, "gamma", 1.5, 0.9, 2.6, 0.4, 0, 3.0),
)


@dataclass(frozen=True)
class Calls:
    """All calls of a service."""

    arrival_s: F8
    work_s: F8
    wait_s: F8
    replica: I8
    start_s: F8
    """When a replica was ready for it."""


class Played(NamedTuple):
    """What a scheduler made of the day."""

    node: dict[int, list[int]]
    """Node of each replica, service by service."""
    done_s: dict[int, F8]
    """End of each call."""
    response_s: dict[int, F8]
    cpu_s: dict[int, F8]
    """Core-seconds of each call."""


class Replica(NamedTuple):
    """One life."""

    begin_s: float
    end_s: float


class QueueingStack(Stack):
    """A day of eight services on seven machines.

    Args:
        start_s: First second.
        hours: Length.
        scrape_s: Seconds between scrapes.
        seed: Names arrivals, replicas and times of calls.
        load: Times as many calls as usual.
        scheduler: Who places replicas.
    """

    keep_minutes = 8
    """How long a replica that is not needed is kept."""
    prices: ClassVar[dict[str, float]] = PRICES
    """USD an hour by instance type; a node of another type costs 1."""

    def __init__(
        self,
        start_s: int,
        hours: float,
        scrape_s: int = 30,
        seed: int = 11,
        load: float = 1.0,
        scheduler: str = "spread",
    ) -> None:
        self.seed, self.load, self.scheduler = seed, load, scheduler
        self.kinds: tuple[Service, ...] = SERVICES
        super().__init__(start_s, hours, scrape_s, seed)

    def _machines(self) -> list[Machine]:
        kinds = {"m5.xlarge": (4, 16), "m5.2xlarge": (8, 32)}
        types = ["m5.xlarge"] * 4 + ["m5.2xlarge"] * 3
        return [
            Machine(f"worker-{n + 1}", f"10.0.1.{11 + n}", *kinds[kind], kind, nic_bytes_s=1.25e9)
            for n, kind in enumerate(types)
        ]

    def _pods(self) -> list[Pod]:
        self.machines = self._machines()
        before, pods = self.start_s - 200_000.0, []
        for index, machine in enumerate(self.machines):
            made = ("DaemonSet", "kps-prometheus-node-exporter")
            pods.append(Pod("monitoring", f"{made[1]}-x{index}abc", machine.name, made, made, before, cpu=0.02))
        for name, (node, cores) in BACKGROUND.items():
            made = ("StatefulSet", "db")
            pods.append(Pod("shop", name, node, made, made, before, cpu_request=1.0, mem_request_gib=2.0, cpu=cores))
        self._draw()
        self.played = self.play(self.scheduler)
        return with_uids(pods + self._scaled_pods())

    def _scaled_pods(self) -> list[Pod]:
        """Pods of the services, where the scheduler has put them."""
        self.names = [f"shop/{service.name}" for service in SERVICES]
        self.pod_of: dict[tuple[int, int], Pod] = {}
        for index, service in enumerate(SERVICES):
            for number, life in enumerate(self.replicas[index]):
                made = ("ReplicaSet", f"{service.name}-6c8d9f7b54")
                ended = self.start_s + (life.end_s if life.end_s < self.length_s else np.inf)
                self.pod_of[index, number] = Pod(
                    "shop",
                    f"{service.name}-6c8d9f7b54-r{number:04d}",
                    self.machines[self.played.node[index][number]].name,
                    made,
                    ("Deployment", service.name),
                    self.start_s + life.begin_s,
                    ended,
                    ended,
                    service.cpu,
                    service.mem,
                    cpu=IDLE_CORES,
                )
        return list(self.pod_of.values())

    def _draw(self) -> None:
        """Draw arrivals, replicas and times of calls."""
        self.replicas: list[list[Replica]] = []
        self.calls: list[Calls] = []
        minutes = int(self.length_s // 60)
        for index, service in enumerate(self.kinds):
            rng = np.random.default_rng([self.seed, index])
            at = np.arange(minutes) * 60.0
            wander = np.zeros(minutes)
            for minute in range(1, minutes):
                wander[minute] = 0.98 * wander[minute - 1] + rng.normal(0.0, 0.05)
            rate = service.rate * self.load * np.exp(wander - 0.03)
            rate = rate * np.maximum(1.0 + service.swing * np.sin(2 * np.pi * at / 86_400 + service.phase), 0.02)
            if service.least == 0:  # comes and goes
                rate = rate * np.where(np.sin(2 * np.pi * at / 5400 + service.phase) > -0.3, 1.3, 0.0)
            counts = rng.poisson(rate * 60.0)
            arrival = np.sort(np.repeat(at, counts) + rng.uniform(0.0, 60.0, counts.sum()))
            lives = self._lives(index, counts, arrival, rng)
            ready = np.array([life.begin_s + (0.0 if life.begin_s <= 0 else service.cold_s) for life in lives])
            replica, start = _dealt(arrival, ready, np.array([life.end_s for life in lives]), rng)
            work = (
                service.work_s
                * {
                    "exponential": rng.exponential(1.0, arrival.size),
                    "gamma": rng.gamma(3.0, 1 / 3.0, arrival.size),
                    "lognormal": rng.lognormal(-0.18, 0.6, arrival.size),
                }[service.shape]
            )
            wait = service.wait_s * rng.gamma(4.0, 0.25, arrival.size)
            self.replicas.append(lives)
            self.calls.append(Calls(arrival, work, wait, replica, start))

    def _lives(self, index: int, counts: I8, arrival: F8, rng: np.random.Generator) -> list[Replica]:
        """Replicas of a service."""
        return self._scaled(self.kinds[index], counts, arrival, rng)

    def _scaled(self, service: Service, counts: I8, arrival: F8, rng: np.random.Generator) -> list[Replica]:
        """Replicas by the rate of calls, minute by minute; the youngest goes first, and none lives for ever."""
        wanted = np.ceil(counts / 60.0 * service.work_s / service.target).astype(int)
        lives: list[Replica] = []
        alive: list[tuple[float, float]] = []
        """Beginning, and the time at which it is replaced (a node is drained, a version rolled out)."""
        for minute in range(len(counts)):
            now = minute * 60.0
            need = max(int(wanted[max(minute - self.keep_minutes, 0) : minute + 1].max()), service.least)
            for place, (begin, until) in enumerate(alive):
                if until <= now:
                    lives.append(Replica(begin, now))
                    alive[place] = (now, now + rng.uniform(1.0, 4.0) * 3600.0)
            while len(alive) > need:
                lives.append(Replica(alive.pop()[0], now))
            while len(alive) < need:
                first = now
                if not alive and minute:  # the first call starts it
                    first = float(arrival[np.searchsorted(arrival, now)])
                alive.append((first + rng.uniform(0.0, 0.5) if minute else 0.0, now + rng.uniform(0.5, 4.0) * 3600.0))
        lives += [Replica(begin, np.inf) for begin, _ in alive]
        return sorted(lives)

    def play(self, first: str, then: str | None = None, at_s: float = np.inf) -> Played:
        """Play the day under a scheduler, and under another from a moment on."""
        rng = np.random.default_rng([self.seed, 99])
        machines = self.machines
        size = np.array([(m.cores - KEPT_CORES, m.mem_gib - KEPT_GIB) for m in machines], dtype=float)
        used = self._taken()
        order: list[tuple[float, int, int, int]] = []
        for index, lives in enumerate(self.replicas):
            for number, life in enumerate(lives):
                order.append((life.begin_s, 1, index, number))
                if np.isfinite(life.end_s):
                    order.append((life.end_s, 0, index, number))
        node = {index: [-1] * len(lives) for index, lives in enumerate(self.replicas)}
        for time, begins, index, number in sorted(order):
            asks = self._asks(index)
            if not begins:
                used[node[index][number]] -= asks
                continue
            fits = ((used + asks) <= size + 1e-9).all(axis=1) & self._open(index, number, time)
            if not fits.any():
                raise ValueError(f"replica {index}/{number} fits nowhere at {time:.0f} s: fewer calls, more machines")
            after = ((used + asks) / size).mean(axis=1)
            rule = first if then is None or time < at_s else then
            score = {"spread": -after, "pack": after, "random": rng.uniform(size=len(machines))}[rule]
            chosen = int(np.where(fits, score, -np.inf).argmax())
            node[index][number] = chosen
            used[chosen] += asks
        return self._queued(node)

    def _taken(self) -> F8:
        """Room by node that is taken before anything is placed."""
        used = np.tile((0.1, 0.125), (len(self.machines), 1))
        for name, _ in BACKGROUND.values():
            used[[m.name for m in self.machines].index(name)] += (1.0, 2.0)
        return used

    def _asks(self, index: int) -> F8:
        """Room that a replica takes."""
        return np.array([self.kinds[index].cpu, self.kinds[index].mem])

    def _open(self, index: int, number: int, time_s: float) -> NDArray[np.bool_]:  # noqa: ARG002
        """Nodes that a replica may go to."""
        return np.ones(len(self.machines), bool)

    def _others(self, machine: int, node: dict[int, list[int]]) -> list[tuple[float, float]]:  # noqa: ARG002
        """What else computes on a node: cores from a moment on."""
        name = self.machines[machine].name
        return [(-np.inf, SYSTEM_CORES + 0.02 + sum(cores for at, cores in BACKGROUND.values() if at == name))]

    def _queued(self, node: dict[int, list[int]]) -> Played:
        """Let the calls of each node share its cores."""
        sizes = [calls.arrival_s.size for calls in self.calls]
        offset = np.concatenate([[0], np.cumsum(sizes)])
        start = np.concatenate([calls.start_s for calls in self.calls])
        work = np.concatenate([calls.work_s for calls in self.calls])
        place = np.concatenate([np.array(node[i])[calls.replica] for i, calls in enumerate(self.calls)])
        done, cpu = np.empty(start.size), np.empty(start.size)
        for number, machine in enumerate(self.machines):
            mine = np.flatnonzero(place == number)
            mine = mine[np.argsort(start[mine], kind="stable")]
            others = self._others(number, node)
            ends, spent = shared(start[mine].tolist(), work[mine].tolist(), machine.cores, others)
            done[mine], cpu[mine] = ends, spent
        parts = [slice(offset[i], offset[i + 1]) for i in range(len(sizes))]
        answer = {i: done[part] + self.calls[i].wait_s for i, part in enumerate(parts)}
        return Played(
            node, answer, {i: answer[i] - self.calls[i].arrival_s for i in answer},
            {i: cpu[part] for i, part in enumerate(parts)},
        )  # fmt: skip

    def _load(self) -> None:
        """Count the calls in the windows in which they were answered."""
        played, self.services, self.requests, self.response_s = self.played, {}, {}, {}
        self._within: dict[str, tuple[I8, F8]] = {}
        for pod in self.pods:
            pod.use = np.full(self.windows, pod.cpu)
        for index, name in enumerate(self.names):
            window = (played.done_s[index] // WINDOW_S).astype(np.int64)
            whole = window < self.windows
            window, response = window[whole], played.response_s[index][whole]
            counts = np.bincount(window, minlength=self.windows).astype(float)
            self.requests[name] = counts
            self.response_s[name] = np.bincount(window, response, self.windows) / np.maximum(counts, 1.0)
            self.services[name] = (counts / WINDOW_S, self.kinds[index].work_s)
            self._within[name] = (window, response)
            replica, cpu = self.calls[index].replica[whole], played.cpu_s[index][whole]
            lives = len(self.replicas[index])
            spent = np.bincount(replica * self.windows + window, cpu, lives * self.windows).reshape(lives, -1)
            for number in range(lives):
                pod = self.pod_of[index, number]
                there = self._present(pod) * WINDOW_S
                pod.use = pod.use + np.where(there > 1.0, spent[number] / np.maximum(there, 1.0), 0.0)

    def answered_within(self, name: str, bound_s: float) -> F8:
        """Calls of a service by window that took at most so long."""
        window, response = self._within[name]
        return np.bincount(window[response <= bound_s], minlength=self.windows).astype(float)

    def _dcgm(self, add) -> None:  # type: ignore[no-untyped-def]
        """There are no cards."""

    def truth(self, played: Played, begin_s: float, end_s: float, standards: dict[str, float]) -> dict[str, float]:
        """What is true of a stretch: every single call, every core-second, every hour of a node."""
        calls = late = cpu = 0.0
        ratios = []
        for index, name in enumerate(self.names):
            inside = (played.done_s[index] >= begin_s) & (played.done_s[index] < end_s)
            ratio = played.response_s[index][inside] / standards[name]
            ratios.append(ratio)
            calls += ratio.size
            late += float((ratio > 2.0).sum())
            cpu += float(played.cpu_s[index][inside].sum())
        every = np.concatenate(ratios)
        lives = [(i, n, life) for i, replicas in enumerate(self.replicas) for n, life in enumerate(replicas)]
        hours = 0.0
        for number, machine in enumerate(self.machines):
            paid = begin_s
            for begin, end in sorted((life.begin_s, life.end_s) for i, n, life in lives if played.node[i][n] == number):
                low, high = max(begin, paid, begin_s), min(end + COOLDOWN_S, end_s)
                hours += max(high - low, 0.0) / 3600.0 * self.prices.get(machine.instance_type, 1.0)
                paid = max(paid, min(end + COOLDOWN_S, end_s))
        return {
            "sla_violation_rate": late / calls,
            "response_ratio": float(every.mean()),
            "response_ratio_p95": float(np.quantile(every, 0.95)),
            "used_cores": (cpu + self._idle(begin_s, end_s)) / (end_s - begin_s),
            "cost_usd": hours,
        }

    def _idle(self, begin_s: float, end_s: float) -> float:
        """Core-seconds of a stretch that are no call's."""
        lives = [max(min(one.end_s, end_s) - max(one.begin_s, begin_s), 0.0) for each in self.replicas for one in each]
        other = len(self.machines) * (SYSTEM_CORES + 0.02) + sum(cores for _, cores in BACKGROUND.values())
        return IDLE_CORES * sum(lives) + other * (end_s - begin_s)


def _dealt(arrival: F8, ready: F8, end: F8, rng: np.random.Generator) -> tuple[I8, F8]:
    """Give each call to one of the replicas that are ready, by chance; where there is none, to the next one."""
    replica, start = np.empty(arrival.size, np.int64), arrival.copy()
    edges = np.unique(np.concatenate([[-1.0], ready, end[np.isfinite(end)], [np.inf]]))
    chance = rng.uniform(size=arrival.size)
    for low, high in pairwise(edges):
        first, last = np.searchsorted(arrival, (low, high))
        if first == last:
            continue
        there = np.flatnonzero((ready <= low) & (end > low))
        if there.size:
            replica[first:last] = there[(chance[first:last] * there.size).astype(np.int64)]
        else:
            soonest = int(np.where(ready > low, ready, np.inf).argmin())
            replica[first:last] = soonest
            start[first:last] = ready[soonest]
    return replica, start


def shared(start: list[float], work: list[float], cores: int, others: list[tuple[float, float]]) -> tuple[F8, F8]:
    """Return when each call is done and how long it held a core; calls come in order.

    Args:
        start: When each call comes.
        work: How long it computes on a core of its own.
        cores: Of the node.
        others: Cores that others take, each from a moment on; the first from before all calls.
    """
    done, spent = np.empty(len(start)), np.empty(len(start))
    now = progress = held = 0.0
    running: list[tuple[float, int, float]] = []
    """What progress each call ends at, its number, and the core time of one call when it came."""
    other = others[0][1]
    turns = [(time, -1, cores_taken) for time, cores_taken in others[1:]]
    calls = zip(start, count(), work, strict=False)
    for time, number, amount in [*heapq.merge(turns, calls), (np.inf, -1, other)]:
        while running:
            k = len(running)
            part = min(1.0, (cores - other) / k)
            speed = part / (1.0 + INTERFERENCE * min(1.0, (k + other) / cores))
            wanted, first, since = running[0]
            end = now + (wanted - progress) / speed
            if end > time:
                progress += (time - now) * speed
                held += (time - now) * part
                break
            held += (end - now) * part
            progress, now = wanted, end
            heapq.heappop(running)
            done[first], spent[first] = now, held - since
        now = time
        if number >= 0:
            heapq.heappush(running, (progress + amount, number, held))
        else:
            other = amount
    return done, spent
