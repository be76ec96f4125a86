"""The course of attempts: what clusters say of them, how they end, and what is sent next."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import msgspec

from placement.cpn import manifests
from placement.cpn.clock import Clock
from placement.cpn.clusters import Clusters
from placement.cpn.config import CpnSettings
from placement.cpn.events import Cleaned, Event, Fetched, Gone, Listed, PodSeen, Refused, Sent
from placement.cpn.ledger import Ledger
from placement.cpn.records import Attempt, Job
from placement.cpn.rounds import Rounds
from placement.cpn.runtimes import Tables
from placement.cpn.states import Outcome

LATE_NEWS_S = 5.0
"""On the wall's clock: for what is older than this, as after a restart, a cluster's own times (whole seconds) count."""


class Course:
    """Follows attempts from the decision to their end.

    Args:
        settings: The file.
        ledger: Writes steps.
        clusters: Where attempts are.
        rounds: Told how long starting takes, and of jobs that have ended.
        tables: Learns run times nobody could predict.
        clock: The controller's.
        heard: Told of every attempt that ended, for metrics.
    """

    def __init__(
        self,
        settings: CpnSettings,
        ledger: Ledger,
        clusters: Clusters,
        rounds: Rounds,
        tables: Tables,
        clock: Clock,
        heard: Callable[[Attempt, Job], None] | None,
    ) -> None:
        self._settings, self._ledger, self._clusters, self._rounds = settings, ledger, clusters, rounds
        self._tables, self._clock, self._heard = tables, clock, heard
        self._aborts: dict[str, tuple[Outcome, str]] = {}
        """Job -> how its attempt ends once its Job is gone."""
        self.dirty = True
        """Whether anything happened after which waiting jobs may find a place."""

    def begin(self) -> None:
        """Go on from the books, which were read anew."""
        self._aborts, self.dirty = {}, True
        self._clusters.ask_anew()
        self._clusters.apply(self._clusters.network, self.busy())
        for attempt in self._ledger.books.attempts.values():
            if attempt.submitted_at is not None:
                self._clusters.ask("check", attempt)

    def busy(self) -> set[str]:
        """Return the clusters that have jobs of ours."""
        return {attempt.cluster for attempt in self._ledger.books.attempts.values()}

    def withdraw(self, now: float) -> None:
        """Bring withdrawn jobs to their end, once nothing of them is left in a cluster."""
        for job in [one for one in self._ledger.books.jobs.values() if one.cancel_at is not None]:
            attempt = self._ledger.books.attempts.get(job.id)
            if attempt is None or attempt.tried_at is None:
                self._end(job, attempt, "cancelled", "withdrawn by its user", now)
            else:
                self._clusters.ask("remove", attempt)

    def abandon(self, now: float) -> None:
        """Give up attempts on nodes that are gone, once their Job is; and wait for those already given up."""
        lost_s = self._settings.node_lost_s
        for job_id, attempt in list(self._ledger.books.attempts.items()):
            if job_id in self._aborts:
                self._clusters.ask("remove", attempt)
            elif attempt.submitted_at is not None and self._clusters.down_s(attempt) > lost_s:
                self._aborts[job_id] = "node_lost", f"node {attempt.node} was not ready for {lost_s:g} s"
                self._clusters.ask("remove", attempt)
            elif attempt.tried_at is None and attempt.cluster not in self._clusters.network.clusters:
                self._requeue(self._ledger.books.jobs[job_id], attempt, "its cluster left", now)

    # What clusters say

    def hear(self, event: Event, now: float) -> None:
        """Take what a cluster said."""
        self._clusters.answered(event)
        if isinstance(event, Listed):
            self._compare(event)
            self.dirty = True  # a cluster that is heard of, again or at last, may take what waits
            return
        if isinstance(event, Cleaned):
            self._ledger.keep_log(event.job, event.attempt, event.log)
            return
        job, attempt = self._ledger.books.jobs.get(event.job), self._ledger.books.attempts.get(event.job)
        if job is None or attempt is None or attempt.number != event.attempt:
            # Of an attempt that has ended: what is left of it goes.
            if isinstance(event, PodSeen | Sent):
                cluster = event.cluster if isinstance(event, PodSeen) else None
                self._clusters.ask_of(cluster, "clean", event.job, event.attempt)
            return
        self.dirty = True
        if isinstance(event, Sent):
            self._ledger.submitted(job, attempt, now)
        elif isinstance(event, Refused):
            self._end(job, attempt, "user_error", f"the cluster refused the Job: {event.detail}", now)
        elif isinstance(event, Fetched):
            if attempt.tried_at is None and not event.ok:
                self._end(job, attempt, "user_error", f"its data could not be brought: {event.detail}", now)
            elif attempt.tried_at is None:
                self._ledger.fetched(attempt, now)
        elif isinstance(event, Gone):
            outcome, detail = self._aborts.pop(job.id, ("vanished", "its Job was deleted"))
            if job.cancel_at is not None:
                outcome, detail = "cancelled", "withdrawn by its user"
            if attempt.submitted_at is not None or outcome == "cancelled":
                self._end(job, attempt, outcome, detail, now)
        else:
            self._pod(event, job, attempt, now)

    def _pod(self, event: PodSeen, job: Job, attempt: Attempt, now: float) -> None:
        self._ledger.submitted(job, attempt, now)
        if event.node and event.node != attempt.node:
            self._found_elsewhere(job, attempt, event.node)
        if event.outcome in ("image",) or (
            event.outcome == "user_error" and event.ended_at is None and not event.running
        ):
            # It may still start: what has been given up must be gone before another attempt is made.
            self._aborts.setdefault(job.id, (event.outcome, event.detail))
            self._clusters.ask("remove", attempt)
            return
        if attempt.started_at is None and (event.running or event.outcome is not None):
            started = self._when(event.started_at, now)
            self._ledger.running(job, attempt, started)
            self._rounds.started(attempt, started)
        if event.outcome is not None:
            self._end(job, attempt, event.outcome, event.detail, self._when(event.ended_at, now))
            self._clusters.ask("clean", attempt)

    def _when(self, said_s: float | None, now: float) -> float:
        """Take the cluster's own time for old news, and ours, which is finer, for what is fresh."""
        if said_s is None or time.time() - said_s < LATE_NEWS_S:
            return now
        return min(self._clock.at(said_s), now)

    def _found_elsewhere(self, job: Job, attempt: Attempt, node: str) -> None:
        """Note where the cluster's own scheduler put a job: on a free card of that node, as far as the books know."""
        cards = [
            card
            for card in self._clusters.network.cards.values()
            if (card.cluster, card.node) == (attempt.cluster, node)
        ]
        if cards:
            taken = Counter(one.card for one in self._ledger.books.attempts.values())
            card = min(cards, key=lambda one: (taken[one.name], one.number)).name
            # A large job whose card a small one was given waits in the cluster for that very card. Booked on the card
            # that the small one left, which cannot hold it, it would block that one, and its own would look free.
            left = attempt.node
            self._ledger.relocate(
                job, attempt, node, card, lambda other: left in self._nodes_for(other, attempt.cluster)
            )

    def _compare(self, event: Listed) -> None:
        """Look for those that should be in a cluster and have no pod there."""
        for attempt in self._ledger.books.attempts.values():
            missing = (attempt.job, attempt.number) not in event.attempts
            if missing and attempt.cluster == event.cluster and attempt.submitted_at is not None:
                self._clusters.ask("check", attempt)
        for job, number in event.attempts:
            known = self._ledger.books.attempts.get(job)
            if known is None or known.number != number:
                self._clusters.ask_of(event.cluster, "clean", job, number)

    # What follows

    def _end(self, job: Job, attempt: Attempt | None, outcome: Outcome, detail: str, at: float) -> None:
        largest = float(self._clusters.network.table.card_mem.max()) - self._settings.gpu_mem_margin_gib
        alone = attempt is not None and self._ledger.books.was_alone(attempt)
        again = self._ledger.end(job, attempt, outcome, detail, at, largest)
        self._aborts.pop(job.id, None)
        if attempt is not None:
            self._clusters.ended(attempt)
            card = self._clusters.cards.get(attempt.card)
            if attempt.outcome == "finished" and attempt.started_at is not None and card is not None:
                seconds = (at - attempt.started_at) / job.epochs
                self._tables.learn(job.model, {card.type: seconds})
                if alone:
                    self._tables.observe(job.model, card.type, seconds)
            if self._heard is not None:
                self._heard(attempt, job)
        if not again:
            self._rounds.forget(job)
        self.dirty = True

    def _requeue(self, job: Job, attempt: Attempt, why: str, now: float) -> None:
        self._ledger.requeue_unsent(job, attempt, why, now)
        self._clusters.ended(attempt)
        self.dirty = True

    def advance(self, now: float) -> None:
        """Let transfers begin and end, and send what is due."""
        for job_id, attempt in list(self._ledger.books.attempts.items()):
            job = self._ledger.books.jobs[job_id]
            if job.state not in ("scheduled", "transferring") or job.cancel_at is not None or job_id in self._aborts:
                continue
            if attempt.tried_at is None:
                if not self._clusters.heard_of(attempt.cluster):
                    self._requeue(job, attempt, f"cluster {attempt.cluster} does not answer", now)
                    continue
                fetches = self._fetches(job, attempt)
                if fetches or attempt.due_at > now:
                    if job.state == "scheduled":
                        self._ledger.transfer(job, now)
                    if fetches and not self._clusters.is_asked("fetch", attempt):
                        self._clusters.ask("fetch", attempt, self._prefetch(job, attempt))
                    continue
                self._ledger.announce(attempt, now)
            if not self._clusters.is_asked("send", attempt):
                self._clusters.ask("send", attempt, self._manifest(job, attempt))

    def _fetches(self, job: Job, attempt: Attempt) -> bool:
        """Whether a Job of its own brings the data, so that its end says when they are there."""
        return self._settings.prefetch_image is not None and attempt.pinned and job.data_gb > 0.0

    def _prefetch(self, job: Job, attempt: Attempt) -> dict[str, object]:
        card, cluster = self._clusters.cards[attempt.card], self._clusters.specs[attempt.cluster]
        return manifests.prefetch(job, attempt, card, cluster, self._settings.name, self._settings.prefetch_image or "")

    def _manifest(self, job: Job, attempt: Attempt) -> dict[str, object]:
        return manifests.build(
            msgspec.json.decode(self._ledger.store.manifest(job.id)),
            job,
            attempt,
            self._clusters.cards[attempt.card],
            self._clusters.specs[attempt.cluster],
            self._settings.name,
            among=None if attempt.pinned else self._nodes_for(job, attempt.cluster),
        )

    def _nodes_for(self, job: Job, cluster: str) -> list[str]:
        """Return the nodes of a cluster that have a card for a job: its own scheduler knows nothing of GPU memory."""
        need = job.gpu_mem_gib + self._settings.gpu_mem_margin_gib
        nodes = self._clusters.specs[cluster].nodes
        return [node.name for node in nodes if all(group.mem_gib >= need for group in node.cards) and node.cards]
