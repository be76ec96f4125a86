"""Played clusters in virtual time: jobs run as the profiles say, beside which others, and the controller is told.

They keep what a real API server keeps: a Job that is made twice under one name is one Job, and what was made stays
when the controller dies.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from placement.cpn import crash
from placement.cpn.allocation import Allocator
from placement.cpn.config import CpnSettings
from placement.cpn.controller import Controller
from placement.cpn.events import Fetched, Listed, PodSeen
from placement.cpn.gateway import RefusedError
from placement.cpn.link import Command, Link
from placement.cpn.manifests import ATTEMPT, FETCH, HOSTNAME, JOB, VISIBLE
from placement.cpn.records import Job
from placement.cpn.runtimes import FromTable, Tables
from placement.cpn.states import ENDED, Outcome
from placement.cpn.store import JobStore
from placement.cpn.topology import Cluster, Network, Source
from sched_env.jobs.synthetic import MODELS
from sched_env.jobs.tables import RuntimeTable


class Killed(BaseException):
    """The process dies here."""


@dataclass
class PlayedJob:
    name: str
    cluster: str
    job: str
    attempt: int
    node: str
    card: str
    model: str
    left: float
    start_s: float
    fails: tuple[float, Outcome] | None = None
    """Epochs left at which it fails, and how."""
    running: bool = False
    ended: Outcome | None = None
    started_s: float | None = None
    ended_s: float | None = None


class World:
    """Everything outside the controller."""

    def __init__(self, table: RuntimeTable, network: Network, startup_s: float = 0.0) -> None:
        self.table, self.network, self.startup_s = table, network, startup_s
        self.card_types = {card.name: card.type for card in network.cards.values()}
        self.now = 1_000.0
        self.jobs: dict[str, PlayedJob] = {}
        self.created: Counter[str] = Counter()
        self.ran: list[PlayedJob] = []
        self.lost: set[str] = set()
        self.failing: dict[tuple[str, int], tuple[float, Outcome]] = {}
        """(model-independent) job name and attempt -> share of its epochs after which it fails, and how."""
        self.sent_while_running: list[str] = []
        self.news: deque[PodSeen | Fetched] = deque()
        self.fetches: dict[str, tuple[str, float, Fetched]] = {}
        """Job that brings data -> cluster, when they are there, what is told then."""
        self.fetch_s_per_gb = 20.0
        self.failing_fetches: set[str] = set()
        self.told: set[str] = set()

    def create(self, cluster: str, manifest: dict[str, Any]) -> None:
        if cluster in self.lost:
            raise ConnectionError(f"{cluster} is lost")
        crash.point("before create call")
        name, labels = manifest["metadata"]["name"], manifest["metadata"]["labels"]
        if FETCH in labels:
            self._fetch(cluster, name, labels, manifest)
            return
        notes = manifest["metadata"]["annotations"]
        there = self.jobs.get(name)
        if there is not None:
            if (there.job, str(there.attempt)) != (labels[JOB], labels[ATTEMPT]):
                raise RefusedError("not ours")
            crash.point("after create call")
            return
        self.created[name] += 1
        self.sent_while_running += [
            one.name for one in self.jobs.values() if one.job == labels[JOB] and one.ended is None
        ]
        pod = manifest["spec"]["template"]["spec"]
        env = {one["name"]: one["value"] for one in pod["containers"][0]["env"]}
        card = f"{cluster}/{pod['nodeSelector'][HOSTNAME]}/gpu{env[VISIBLE]}" if VISIBLE in env else ""
        start_s = self.now + self.startup_s
        if not card:
            among = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            legal = among["nodeSelectorTerms"][0]["matchExpressions"][0]["values"]
            card = self._found_by_scheduler(cluster, notes["model_name"], legal)
            start_s += float(notes["data_size"]) * 1024.0 / 100.0  # it fetches its data itself, where it is put
        epochs = float(notes["epoch"])
        fails = self.failing.get((manifest["metadata"]["annotations"].get("title", ""), int(labels[ATTEMPT])))
        self.jobs[name] = PlayedJob(
            name,
            cluster,
            labels[JOB],
            int(labels[ATTEMPT]),
            card.split("/")[1],
            card,
            notes["model_name"],
            epochs,
            start_s,
            (epochs * (1.0 - fails[0]), fails[1]) if fails else None,
        )
        self.ran.append(self.jobs[name])
        crash.point("after create call")

    def _fetch(self, cluster: str, name: str, labels: dict[str, str], manifest: dict[str, Any]) -> None:
        """Bring data: what has been brought stays, and is not brought again."""
        self.created[name] += name not in self.fetches
        pod = manifest["spec"]["template"]["spec"]
        env = {one["name"]: one["value"] for one in pod["containers"][0]["env"]}
        done_s = self.now + float(env["DATA_GB"]) * self.fetch_s_per_gb
        came = Fetched(labels[FETCH], int(labels[ATTEMPT]), ok=name not in self.failing_fetches, detail="as played")
        self.fetches.setdefault(name, (cluster, done_s, came))
        crash.point("after create call")

    def _found_by_scheduler(self, cluster: str, model: str, legal: list[str]) -> str:
        """Play the cluster's own scheduler: a whole card, on the node with most left and best balance."""
        about, table = {one.name: one for one in MODELS}, self.network.table
        busy = [one for one in self.jobs.values() if one.ended is None]
        scores = []
        for name, at in self.network.card_index.items():
            node = table.card_node[at]
            if (
                name.split("/")[0] != cluster
                or name.split("/")[1] not in legal
                or any(one.card == name for one in busy)
            ):
                continue
            there = [about[one.model] for one in busy if f"{one.cluster}/{one.node}" == table.nodes[node]]
            there.append(about[model])
            cpu = table.node_cpu_used[node] + sum(one.cpu for one in there) / table.node_cpu[node]
            mem = sum(one.mem for one in there) / table.node_mem[node]
            scores.append((1.0 - 0.5 * (cpu + mem) - abs(cpu - mem), -at, name))
        return max(scores)[2]

    def remove(self, cluster: str, name: str) -> None:
        if cluster in self.lost:
            raise ConnectionError(f"{cluster} is lost")
        crash.point("before remove call")
        self.jobs.pop(name, None)
        self.fetches.pop(name, None)
        crash.point("after remove call")

    def _on(self, card: str) -> list[PlayedJob]:
        return [one for one in self.jobs.values() if one.card == card and one.running and one.ended is None]

    def pace(self, one: PlayedJob) -> float:
        names = self.table.model_names
        others = [names.index(other.model) + 1 for other in self._on(one.card) if other is not one] + [0, 0]
        assert len(others) <= 4, f"four jobs on {one.card}"
        kind = self.table.card_types.index(self.card_types[one.card])
        return float(self.table.seconds[names.index(one.model), kind, others[0], others[1]])

    def next_s(self) -> float:
        times = [math.inf]
        for one in self.jobs.values():
            if one.ended is None:
                if not one.running:
                    times.append(max(one.start_s, self.now))
                else:
                    stop = one.fails[0] if one.fails else 0.0
                    times.append(self.now + max(one.left - stop, 0.0) * self.pace(one))
        times += [max(done_s, self.now) for name, (_, done_s, _) in self.fetches.items() if name not in self.told]
        return min(times)

    def advance(self, to: float) -> None:
        """Let time pass, at most to the next thing that happens."""
        pace = {one.name: self.pace(one) for one in self.jobs.values() if one.running and one.ended is None}
        for name, value in pace.items():
            self.jobs[name].left -= (to - self.now) / value
        self.now = to
        for name, (cluster, done_s, came) in self.fetches.items():
            if done_s <= to and name not in self.told and cluster not in self.lost:
                self.told.add(name)
                self.news.append(came)
        for one in list(self.jobs.values()):
            if one.ended is not None:
                continue
            if one.running:
                stop = one.fails[0] if one.fails else 0.0
                if (one.left - stop) * pace[one.name] <= 1e-6:  # times round
                    one.ended, one.ended_s = (one.fails[1] if one.fails else "finished"), to
                    self._tell(one)
            elif one.start_s <= to:
                one.running, one.started_s = True, to
                self._tell(one)

    def _tell(self, one: PlayedJob) -> None:
        if one.cluster not in self.lost:
            self.news.append(self.seen(one))

    def seen(self, one: PlayedJob) -> PodSeen:
        running = one.running and one.ended is None
        return PodSeen(
            one.cluster,
            one.job,
            one.attempt,
            one.node,
            running,
            one.ended,
            "as played" if one.ended else "",
            None,
            time.time(),
        )


class PlayedLink(Link):
    """A cluster of the world; commands are done at once, or when the cluster is back."""

    def __init__(self, cluster: Cluster, world: World, tell: Any) -> None:
        self._world, self._waiting = world, []
        gateway = _Gateway(cluster.name, world)
        super().__init__(cluster.name, gateway, tell)

    def start(self) -> None:
        """A watch begins with a list, and tells of all that is there."""
        if not self.is_lost:
            self.list()

    def list(self) -> None:
        ours = [one for one in self._world.jobs.values() if one.cluster == self.name]
        for one in ours:
            if one.running:
                self._tell(self._world.seen(one))
        for cluster, done_s, came in self._world.fetches.values():
            if cluster == self.name and done_s <= self._world.now:
                self._tell(came)
        self._tell(Listed(self.name, frozenset((one.job, one.attempt) for one in ours)))

    def stop(self) -> None:
        pass

    @property
    def is_lost(self) -> bool:
        return self.name in self._world.lost

    @property
    def silent_s(self) -> float:
        return 1e9 if self.is_lost else 0.0

    def ask(self, command: Command) -> None:
        self._waiting.append(command)
        self.work()

    def work(self) -> None:
        while self._waiting and not self.is_lost:
            came = self.do(self._waiting[0])
            if came is not None:
                self._tell(came)
            self._waiting.pop(0)


@dataclass
class _Gateway:
    name: str
    world: World

    def create(self, manifest: dict[str, Any]) -> None:
        self.world.create(self.name, manifest)

    def find(self, name: str) -> dict[str, Any] | None:
        return {} if name in self.world.jobs else None

    def remove(self, name: str) -> None:
        self.world.remove(self.name, name)

    def log(self, name: str) -> str:
        return f"log of {name}"

    def ping(self) -> dict[str, str]:
        if self.name in self.world.lost:
            raise ConnectionError(f"{self.name} is lost")
        return {}


@dataclass
class Rehearsal:
    """A controller in a played world, in virtual time."""

    settings: CpnSettings
    world: World
    url: str
    topology: str
    store: JobStore = field(init=False)
    controller: Controller = field(init=False)
    deaths: int = 0

    def __post_init__(self) -> None:
        self.boot()

    def boot(self) -> None:
        """Start a controller; of the one before nothing is left but the store."""
        self.world.news.clear()
        self.store = JobStore(self.url)
        tables = Tables(FromTable(self.world.table))
        clock = lambda: self.world.now  # noqa: E731
        clock.scale, clock.wall_s, clock.at = 1.0, lambda s: s, lambda s: s  # type: ignore[attr-defined]
        self.controller = Controller(
            self.settings,
            self.store,
            tables,
            Source(self.topology),
            lambda cluster, tell: PlayedLink(cluster, self.world, tell),
            clock=clock,  # type: ignore[arg-type]
            allocator=Allocator(self.settings, tables),
        )

    def die(self) -> None:
        self.store.close()
        self.deaths += 1

    def submit(self, job: Job, manifest: str) -> tuple[Job, bool] | None:
        return self.store.accept(job, manifest, None)

    def tick(self) -> float:
        """Let the controller do all it can, until it has nothing to say any more."""
        for link in self.controller.links.values():
            link.work()  # type: ignore[attr-defined]
        self._deliver()
        pause = self.controller.tick()
        for _ in range(10_000):
            if self.controller.inbox.empty() and not self.world.news and not self.controller._news:
                return pause
            self._deliver()
            pause = self.controller.tick()
        raise AssertionError("the controller and the world talk without end")

    def _deliver(self) -> None:
        while self.world.news:
            self.controller.inbox.put(self.world.news.popleft())
        while not self.controller.inbox.empty():
            event = self.controller.inbox.get()
            if event is not None:
                self.controller._news.append(event)

    def run(self, until_s: float = math.inf, most: int = 100_000) -> None:
        """Run until all jobs have ended, or until a time."""
        for _ in range(most):
            try:
                pause = self.tick()
                self.controller.books.check()
            except Killed:
                self.die()
                self.boot()
                continue
            if not self.controller.books.jobs or self.world.now >= until_s:
                return
            self.world.advance(min(self.world.next_s(), self.world.now + max(pause, 1e-3), until_s))
        raise AssertionError(f"jobs left after {most} rounds: {self.store.counts()}")

    def ended(self) -> dict[str, str]:
        return {job.name: job.state for job in self.store.jobs(states=ENDED, most=10_000)}
