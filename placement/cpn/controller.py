"""The controller: reads what users and clusters say, lets the kernels decide, and brings every job to its end once.

One thread takes every step, and each step is one transaction. A call to a cluster is announced in the store before it
is made and may be repeated, because the name of a Job follows from the attempt; what it brought is a step of its own.
So whenever the process dies, what the store says is what has to be done next.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from placement.cpn import manifests
from placement.cpn.allocation import Allocator, Decision, Moment, Round
from placement.cpn.books import Books
from placement.cpn.clock import Clock
from placement.cpn.config import CpnSettings
from placement.cpn.events import Cleaned, Event, Gone, Listed, PodSeen, Refused, Sent
from placement.cpn.link import Command, Kind, Link
from placement.cpn.records import Attempt, Job
from placement.cpn.runtimes import Tables
from placement.cpn.states import ENDED, IN_LINE, ON_A_CARD, RETRIED, Outcome
from placement.cpn.store import DeposedError, JobStore
from placement.cpn.topology import Card, Cluster, Network, Source
from wire.errors import ConfigError

log = logging.getLogger(__name__)

LONGEST_BACKOFF_S = 600.0
AGAIN_S = 5.0
"""On the wall's clock: how often waiting jobs are tried although nothing was heard."""
OOM_GROWTH = 1.25
"""A job that ran out of memory is booked with so much more the next time."""
LATE_NEWS_S = 5.0
"""On the wall's clock: for what is older than this, as after a restart, a cluster's own times (whole seconds) count."""
SMOOTHING = 0.2
KUBE_DEFAULT = "kube_default"

ANSWERS: dict[type, tuple[Kind, ...]] = {
    Sent: ("send", "check"),
    Refused: ("send",),
    Gone: ("remove", "check"),
    Cleaned: ("clean",),
    PodSeen: ("check",),
}
"""What was told -> the commands it may be the answer to."""

MakeLink = Callable[[Cluster, Callable[[Event], None]], Link]


class Controller:
    """Runs the queue.

    Args:
        settings: The file.
        store: The durable state.
        tables: Run times.
        source: Where the topology comes from.
        make_link: Connects a cluster.
        allocator: Decides.
        clock: Tells the time.
        others: Returns what others use of nodes and cards (collection); none: as described.
        leading: Whether this replica may act.
        heard: Told of every attempt that ended, for metrics.
    """

    def __init__(
        self,
        settings: CpnSettings,
        store: JobStore,
        tables: Tables,
        source: Source,
        make_link: MakeLink,
        *,
        allocator: Allocator | None = None,
        clock: Clock | None = None,
        others: Callable[[Network, Books, float], Mapping[str, Mapping[str, float]]] | None = None,
        leading: Callable[[], bool] = lambda: True,
        heard: Callable[[Attempt, Job], None] | None = None,
    ) -> None:
        self.settings, self.store, self.tables = settings, store, tables
        self._source, self._make_link, self._leading, self._heard = source, make_link, leading, heard
        self._others = others
        self.clock = clock or Clock(settings.time_scale)
        self._allocator = allocator or Allocator(settings, tables)
        self.inbox: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self.books = Books()
        self.links: dict[str, Link] = {}
        network = source.changed()
        if network is None:
            raise ConfigError(f"topology {source.where} was read before", "a new source")
        self.network: Network = network
        self.topology_error = ""
        self._specs: dict[str, Cluster] = {}
        self._cards: dict[str, Card] = {}
        self.round: Round = Round([], {}, {}, {})
        self._asked: set[tuple[Kind, str, int]] = set()
        """Commands on their way; a restart forgets them, and asks again."""
        self._aborts: dict[str, tuple[Outcome, str]] = {}
        """Job -> how its attempt ends once its Job is gone."""
        self._news: list[Event] = []
        self._led = False
        self._dirty = True
        self._tried_at = self._reloaded_at = time.monotonic()
        self._why: dict[str, Counter[str]] = {}
        self.startup_s = 0.0
        self.rounds = 0
        self.round_s = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cpn controller", daemon=True)

    # Running

    def start(self) -> None:
        """Run in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; everything goes on from the store."""
        self._stopped.set()
        self.inbox.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=30)
        for link in self.links.values():
            link.stop()

    def nudge(self) -> None:
        """Say that a user did something."""
        self.inbox.put(None)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                pause = self.tick()
            except DeposedError as error:
                log.warning("not leading any more: %s", error)
                self._led, pause = False, 1.0
            except Exception:
                # Whatever it was, the store is whole: begin again from it rather than go on with books in doubt.
                log.exception("a round failed; reading the books anew")
                self._led, pause = False, 1.0
            self._wait(pause)

    def _wait(self, pause_s: float) -> None:
        """Wait for news, and take all there is."""
        try:
            event = self.inbox.get(timeout=max(pause_s, 0.001))
        except queue.Empty:
            return
        while True:
            if event is not None:
                self._news.append(event)
            try:
                event = self.inbox.get_nowait()
            except queue.Empty:
                return

    def tick(self) -> float:
        """Do all that can be done now; return how long nothing needs to be done, in seconds of the wall's clock."""
        if not self._leading():
            self._led = False
            return 1.0
        if not self._led:
            self._take_over()
        self._reload()
        now = self.clock()
        self._read_users()
        news, self._news = self._news, []
        for event in news:
            self._hear(event, now)
        self._withdraw(now)
        self._abandon(now)
        self._advance(now)
        self._allocate(now)
        self._advance(now)
        return self._pause(self.clock())

    def _take_over(self) -> None:
        """Begin to lead: from the store alone."""
        self.store.lead()
        self.books = Books.read(self.store)
        self._asked, self._aborts, self._news = set(), {}, []
        self._led = self._dirty = True
        self._apply_network(self.network)
        for job in self.books.jobs.values():
            self._learn_unseen(job)
        for attempt in self.books.attempts.values():
            if attempt.submitted_at is not None:
                self._ask("check", attempt)

    # Topology

    def _reload(self) -> None:
        if time.monotonic() - self._reloaded_at < self.settings.topology_reload_s:
            return
        self._reloaded_at = time.monotonic()
        try:
            network = self._source.changed()
        except ConfigError as error:
            self.topology_error = str(error)
            log.warning("the topology stays as it was: %s", error)
            return
        if network is not None:
            self.topology_error = ""
            self._apply_network(network)

    def _apply_network(self, network: Network) -> None:
        """Take a network up: clusters join; those that left are followed until their jobs have ended."""
        self.network = network
        self._cards |= network.cards
        for name, cluster in network.clusters.items():
            if name in self.links and self._specs[name] != cluster and not _same_address(self._specs[name], cluster):
                self.links.pop(name).stop()
            self._specs[name] = cluster
            if name not in self.links:
                self.links[name] = link = self._make_link(cluster, self.inbox.put)
                link.start()
        busy = {attempt.cluster for attempt in self.books.attempts.values()}
        for name in [name for name in self.links if name not in network.clusters and name not in busy]:
            self.links.pop(name).stop()
        self._dirty = True

    def up(self) -> dict[str, bool]:
        """Say which nodes take jobs: their cluster is heard of, and they are ready."""
        found: dict[str, bool] = {}
        for name, cluster in self.network.clusters.items():
            link = self.links.get(name)
            heard = link is not None and link.silent_s <= self.settings.cluster_silent_s
            for node in cluster.nodes:
                found[f"{name}/{node.name}"] = bool(link and heard and link.node_up(node.name))
        return found

    # What users did

    def _read_users(self) -> None:
        for job in self.store.touched_since(self.books.seq):
            self.books.seq = max(self.books.seq, job.touched)
            if job.state in ENDED:
                continue
            known = self.books.jobs.get(job.id)
            if known is None:
                self.books.jobs[job.id] = job
                self._learn_unseen(job)
            else:
                known.cancel_at = job.cancel_at
            self._dirty = True

    def _learn_unseen(self, job: Job) -> None:
        """Look up what runs of a model brought that nobody can predict: they were alone on their cards."""
        if self.tables.unseen(job.model):
            for card, seconds in self.store.measured(job.model):
                if card in self._cards:
                    self.tables.learn(job.model, self._cards[card].type, seconds)

    def _withdraw(self, now: float) -> None:
        """Bring withdrawn jobs to their end, once nothing of them is left in a cluster."""
        for job in [one for one in self.books.jobs.values() if one.cancel_at is not None]:
            attempt = self.books.attempts.get(job.id)
            if attempt is None or attempt.tried_at is None:
                self._end(job, attempt, "cancelled", "withdrawn by its user", now)
            else:
                self._ask("remove", attempt)

    def _abandon(self, now: float) -> None:
        """Give up attempts on nodes that are gone, once their Job is; and wait for those already given up."""
        for job_id, attempt in list(self.books.attempts.items()):
            link = self.links.get(attempt.cluster)
            if job_id in self._aborts:
                self._ask("remove", attempt)
            elif (
                link is not None
                and attempt.submitted_at is not None
                and link.silent_s <= self.settings.cluster_silent_s
                and link.down_s(attempt.node) > self.settings.node_lost_s
            ):
                self._aborts[job_id] = (
                    "node_lost",
                    f"node {attempt.node} was not ready for {self.settings.node_lost_s:g} s",
                )
                self._ask("remove", attempt)
            elif attempt.tried_at is None and attempt.cluster not in self.network.clusters:
                self._requeue_unsent(self.books.jobs[job_id], attempt, "its cluster left", now)

    # What clusters say

    def _hear(self, event: Event, now: float) -> None:
        if isinstance(event, Listed):
            self._compare(event)
            self._dirty = True  # a cluster that is heard of, again or at last, may take what waits
            return
        for kind in ANSWERS[type(event)]:
            self._asked.discard((kind, event.job, event.attempt))
        job, attempt = self.books.jobs.get(event.job), self.books.attempts.get(event.job)
        if isinstance(event, Cleaned):
            self._keep_log(event)
            return
        if job is None or attempt is None or attempt.number != event.attempt:
            # Of an attempt that has ended: what is left of it goes.
            if isinstance(event, PodSeen | Sent):
                self._ask_of(event.cluster if isinstance(event, PodSeen) else None, "clean", event.job, event.attempt)
            return
        self._dirty = True
        if isinstance(event, Sent):
            self._submitted(job, attempt, now)
        elif isinstance(event, Refused):
            self._end(job, attempt, "user_error", f"the cluster refused the Job: {event.detail}", now)
        elif isinstance(event, Gone):
            outcome, detail = self._aborts.pop(job.id, ("vanished", "its Job was deleted"))
            if job.cancel_at is not None:
                outcome, detail = "cancelled", "withdrawn by its user"
            if attempt.submitted_at is not None or outcome == "cancelled":
                self._end(job, attempt, outcome, detail, now)
        else:
            self._pod(event, job, attempt, now)

    def _pod(self, event: PodSeen, job: Job, attempt: Attempt, now: float) -> None:
        self._submitted(job, attempt, now)
        if event.node and event.node != attempt.node:
            self._found_elsewhere(job, attempt, event.node)
        if event.outcome in ("image",) or (
            event.outcome == "user_error" and event.ended_at is None and not event.running
        ):
            # It may still start: what has been given up must be gone before another attempt is made.
            self._aborts.setdefault(job.id, (event.outcome, event.detail))
            self._ask("remove", attempt)
            return
        if attempt.started_at is None and (event.running or event.outcome is not None):
            started = self._when(event.started_at, now)
            with self.store.step("run") as step:
                if job.state == "submitted":
                    step.move(job, "running", started)
                step.change_attempt(attempt, started_at=started)
            job.state, attempt.started_at = "running", started
            took = max(started - attempt.arrives_at, 0.0)
            self.startup_s = took if self.startup_s == 0.0 else self.startup_s + SMOOTHING * (took - self.startup_s)
        if event.outcome is not None:
            self._end(job, attempt, event.outcome, event.detail, self._when(event.ended_at, now))
            self._ask_of(attempt.cluster, "clean", attempt.job, attempt.number)

    def _when(self, said_s: float | None, now: float) -> float:
        """Take the cluster's own time for old news, and ours, which is finer, for what is fresh."""
        if said_s is None or time.time() - said_s < LATE_NEWS_S:
            return now
        return min(self.clock.at(said_s), now)

    def _found_elsewhere(self, job: Job, attempt: Attempt, node: str) -> None:
        """Note where the cluster's own scheduler put a job: on a free card of that node, as far as the books know."""
        cards = [card for card in self.network.cards.values() if (card.cluster, card.node) == (attempt.cluster, node)]
        if not cards:
            return
        taken = Counter(one.card for one in self.books.attempts.values())
        card = min(cards, key=lambda one: (taken[one.name], one.number))
        with self.store.step("relocate") as step:
            step.change_attempt(attempt, node=node, card=card.name)
            step.update(job, card=card.name)
        attempt.node, attempt.card, job.card = node, card.name, card.name

    def _compare(self, event: Listed) -> None:
        """Look for those that should be in a cluster and have no pod there."""
        for attempt in self.books.attempts.values():
            missing = (attempt.job, attempt.number) not in event.attempts
            if missing and attempt.cluster == event.cluster and attempt.submitted_at is not None:
                self._ask("check", attempt)
        for job, number in event.attempts:
            known = self.books.attempts.get(job)
            if known is None or known.number != number:
                self._ask_of(event.cluster, "clean", job, number)

    def _keep_log(self, event: Cleaned) -> None:
        if event.log:
            found = [one for one in self.store.attempts([event.job]) if one.number == event.attempt]
            if found:
                with self.store.step("log") as step:
                    step.change_attempt(found[0], log=event.log)

    # Steps

    def _submitted(self, job: Job, attempt: Attempt, now: float) -> None:
        if attempt.submitted_at is None:
            with self.store.step("submit") as step:
                step.move(job, "submitted", now)
                step.change_attempt(attempt, submitted_at=now)
            job.state, attempt.submitted_at = "submitted", now

    def _end(self, job: Job, attempt: Attempt | None, outcome: Outcome, detail: str, at: float) -> None:
        """End an attempt: the job has finished, failed, been cancelled, or waits for the next."""
        failures = job.failures + (outcome in RETRIED)
        again = outcome in RETRIED and failures < job.max_attempts and job.cancel_at is None
        values: dict[str, Any] = {"failures": failures, "card": None, "promised_at": None, "reason": detail}
        if again:
            backoff = min(self.settings.retry_backoff_s * 2.0 ** (failures - 1), LONGEST_BACKOFF_S)
            values |= {"queued_at": at, "not_before": at + backoff}
            if outcome == "oom":
                values["gpu_mem_gib"] = min(job.gpu_mem_gib * OOM_GROWTH, self._largest_gib())
        else:
            values["ended_at"] = at
            if job.cancel_at is not None and outcome != "finished":
                outcome = "cancelled"
        target = "waiting" if again else outcome if outcome in ("finished", "cancelled") else "failed"
        with self.store.step(f"end {target}") as step:
            step.move(job, target, at, f"{outcome}: {detail}" if detail else outcome, **values)
            if attempt is not None:
                step.change_attempt(attempt, ended_at=at, outcome=outcome, detail=detail)
        job.state = target
        for name, value in values.items():
            setattr(job, name, value)
        self._aborts.pop(job.id, None)
        if attempt is not None:
            attempt.ended_at, attempt.outcome, attempt.detail = at, outcome, detail
            self.books.end(attempt)
            if outcome in RETRIED:
                self.books.note_failure(attempt)
            if outcome == "finished" and attempt.started_at is not None and attempt.card in self._cards:
                self.tables.learn(job.model, self._cards[attempt.card].type, (at - attempt.started_at) / job.epochs)
            if self._heard is not None:
                self._heard(attempt, job)
        if not again:
            self.books.forget(job)
            self._why.pop(job.id, None)
        self._dirty = True

    def _requeue_unsent(self, job: Job, attempt: Attempt, why: str, now: float) -> None:
        """Take back a decision that was never sent; it counts for nothing."""
        with self.store.step("requeue") as step:
            step.move(job, "waiting", now, why, card=None, promised_at=None)
            step.change_attempt(attempt, ended_at=now, outcome="not_submitted", detail=why)
        job.state, job.card, job.promised_at = "waiting", None, None
        attempt.ended_at, attempt.outcome, attempt.detail = now, "not_submitted", why
        self.books.end(attempt)
        self._dirty = True

    def _advance(self, now: float) -> None:
        """Let transfers begin and end, and send what is due."""
        for job_id, attempt in list(self.books.attempts.items()):
            job = self.books.jobs[job_id]
            if job.state not in ("scheduled", "transferring") or job.cancel_at is not None or job_id in self._aborts:
                continue
            if attempt.tried_at is None:
                link = self.links.get(attempt.cluster)
                if link is None or link.silent_s > self.settings.cluster_silent_s:
                    self._requeue_unsent(job, attempt, f"cluster {attempt.cluster} does not answer", now)
                    continue
                if attempt.arrives_at > now:
                    if job.state == "scheduled":
                        with self.store.step("transfer") as step:
                            step.move(job, "transferring", now)
                        job.state = "transferring"
                    continue
                with self.store.step("try") as step:
                    step.change_attempt(attempt, tried_at=now)
                attempt.tried_at = now
            self._send(job, attempt)

    def _send(self, job: Job, attempt: Attempt) -> None:
        if ("send", job.id, attempt.number) in self._asked:
            return
        cluster, card = self._specs[attempt.cluster], self._cards[attempt.card]
        manifest = manifests.build(
            msgspec.json.decode(self.store.manifest(job.id)),
            job,
            attempt,
            card,
            cluster,
            self.settings.name,
            pinned=attempt.strategy != KUBE_DEFAULT,
        )
        self._ask("send", attempt, manifest)

    def _ask(self, kind: Kind, attempt: Attempt, manifest: dict[str, Any] | None = None) -> None:
        self._ask_of(attempt.cluster, kind, attempt.job, attempt.number, manifest)

    def _ask_of(
        self, cluster: str | None, kind: Kind, job: str, number: int, manifest: dict[str, Any] | None = None
    ) -> None:
        link = self.links.get(cluster or "")
        if link is not None and (kind, job, number) not in self._asked:
            self._asked.add((kind, job, number))
            link.ask(Command(kind, job, number, manifest))

    # Deciding

    def _allocate(self, now: float) -> None:
        waiting = self._eligible(now)
        if not waiting or not (self._dirty or time.monotonic() - self._tried_at > AGAIN_S):
            return
        self._dirty, self._tried_at = False, time.monotonic()
        began = time.perf_counter()
        models = tuple(sorted({job.model for job in self.books.jobs.values()}))
        table, _ = self.tables.table(self.network.table.card_types, models)
        index = {model: k for k, model in enumerate(models)}
        types = {kind: t for t, kind in enumerate(table.card_types)}

        def pace(card: str, model: str, beside: tuple[str, ...]) -> float:
            others = [index[name] + 1 if name in index else 0 for name in beside] + [0, 0]
            kind = types.get(self._cards[card].type)
            return float(table.seconds[index[model], kind, others[0], others[1]]) if kind is not None else 1.0

        others = self._others(self.network, self.books, now) if self._others else {}
        self.round = self._allocator.round(
            self.network,
            Moment(
                now,
                self.books.on_cards(now, pace),
                waiting,
                self.up(),
                others_cpu=others.get("cpu", {}),
                others_mem_gib=others.get("mem_gib", {}),
                others_gpu_gib=others.get("gpu_gib", {}),
                service=self.books.service,
                last_card=self.books.last_card,
                avoid=self.books.failed_on,
                startup_s=self.startup_s,
            ),
        )
        self.rounds += 1
        self.round_s = time.perf_counter() - began
        for job_id, why in self.round.why.items():
            self._why.setdefault(job_id, Counter())[why] += 1
        self._schedule(self.round, waiting, now)

    def _eligible(self, now: float) -> list[Job]:
        """Return the waiting jobs that may be placed now: back-off over, and within their tenant's limit."""
        running = Counter(self.books.jobs[job].tenant for job in self.books.attempts)
        found = []
        for job in self.books.in_line():
            quota = self.settings.quotas.get(job.tenant) or self.settings.quotas.get("default")
            if job.not_before > now or job.cancel_at is not None:
                continue
            if quota is not None and quota.running is not None:
                if running[job.tenant] >= quota.running:
                    continue
                running[job.tenant] += 1
            found.append(job)
        return found

    def _schedule(self, decided: Round, waiting: list[Job], now: float) -> None:
        """Write a round down: all its placements and reservations, or none of them."""
        placed = {decision.job.id for decision in decided.decisions}
        changes = []
        for job in waiting:
            promise = decided.held.get(job.id)
            if job.id not in placed and promise != ((job.card, job.promised_at) if job.state == "reserved" else None):
                changes.append((job, promise))
        if not placed and not changes:
            return
        attempts = [self._attempt(decision, now) for decision in decided.decisions]
        with self.store.step("schedule") as step:
            for decision, attempt in zip(decided.decisions, attempts, strict=True):
                step.begin_attempt(attempt)
                step.move(
                    decision.job,
                    "scheduled",
                    now,
                    attempt.card,
                    attempt=attempt.number,
                    card=attempt.card,
                    promised_at=None,
                )
            for job, promise in changes:
                card, at = promise or (None, None)
                if promise is None:
                    step.move(job, "waiting", now, "its reservation ended", card=None, promised_at=None)
                elif job.state == "reserved":
                    step.update(job, card=card, promised_at=at)
                else:
                    step.move(job, "reserved", now, f"{card} from {at:.0f} on", card=card, promised_at=at)
        for decision, attempt in zip(decided.decisions, attempts, strict=True):
            job = decision.job
            job.state, job.attempt, job.card, job.promised_at = "scheduled", attempt.number, attempt.card, None
            self.books.attempts[job.id] = attempt
            self.books.last_card = attempt.card
        for job, promise in changes:
            job.state = "waiting" if promise is None else "reserved"
            job.card, job.promised_at = promise or (None, None)

    def _attempt(self, decision: Decision, now: float) -> Attempt:
        job, card = decision.job, self.network.cards[decision.card]
        why = self._why.pop(job.id, None)
        return Attempt(
            job=job.id,
            number=job.attempt + 1,
            model=job.model,
            cluster=card.cluster,
            node=card.node,
            card=card.name,
            strategy=self.settings.strategy,
            decided_at=now,
            arrives_at=decision.arrives_at,
            predicted_end=decision.predicted_end,
            waited_for=why.most_common(1)[0][0] if why else "",
        )

    def _largest_gib(self) -> float:
        return float(self.network.table.card_mem.max()) - self.settings.gpu_mem_margin_gib

    def _pause(self, now: float) -> float:
        """Return how long to wait for news, on the wall's clock."""
        soonest = now + self.clock.scale * AGAIN_S
        for job in self.books.jobs.values():
            if job.state in IN_LINE and job.not_before > now:
                soonest = min(soonest, job.not_before)
        for job_id, attempt in self.books.attempts.items():
            if attempt.tried_at is None and self.books.jobs[job_id].state in ON_A_CARD:
                soonest = min(soonest, attempt.arrives_at)
        pause = self.clock.wall_s(soonest - now)
        return min(pause, 1.0) if self.store.shared else pause


def _same_address(one: Cluster, other: Cluster) -> bool:
    return (one.kubeconfig, one.context, one.namespace) == (other.kubeconfig, other.context, other.namespace)
