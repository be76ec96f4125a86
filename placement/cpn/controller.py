"""The controller: reads what users and clusters say, lets the kernels decide, and brings every job to its end once.

One thread takes every step, and each step is one transaction (``ledger``). A call to a cluster is announced in the
store before it is made and may be repeated, because the name of a Job follows from the attempt; what it brought is a
step of its own. So whenever the process dies, what the store says is what has to be done next.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from placement.cpn.allocation import Allocator, Round
from placement.cpn.books import Books
from placement.cpn.clock import Clock
from placement.cpn.clusters import Clusters, MakeLink
from placement.cpn.config import CpnSettings
from placement.cpn.course import Course
from placement.cpn.events import Event
from placement.cpn.ledger import Ledger
from placement.cpn.link import Link
from placement.cpn.records import Attempt, Job
from placement.cpn.rounds import Others, Rounds
from placement.cpn.runtimes import Tables
from placement.cpn.states import ENDED, IN_LINE, ON_A_CARD
from placement.cpn.store import DeposedError, JobStore
from placement.cpn.topology import Network, Source

log = logging.getLogger(__name__)

AGAIN_S = 5.0
"""On the wall's clock: how often waiting jobs are tried although nothing was heard."""


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
        prepare: Done once in the controller's thread before anything else, as compiling is.
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
        others: Others | None = None,
        leading: Callable[[], bool] = lambda: True,
        heard: Callable[[Attempt, Job], None] | None = None,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings, self.store, self.tables = settings, store, tables
        self._leading, self._prepare = leading, prepare
        self.clock = clock or Clock(settings.time_scale)
        self.inbox: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self.ledger = Ledger(store, settings.retry_backoff_s)
        self.clusters = Clusters(
            source,
            make_link,
            self.inbox.put,
            silent_after_s=settings.cluster_silent_s,
            reload_s=settings.topology_reload_s,
        )
        self.rounds = Rounds(settings, tables, allocator or Allocator(settings, tables), others)
        self._course = Course(settings, self.ledger, self.clusters, self.rounds, tables, self.clock, heard)
        self._news: list[Event] = []
        self._led = False
        self._tried_at = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cpn controller", daemon=True)

    @property
    def books(self) -> Books:
        """What has not ended."""
        return self.ledger.books

    @property
    def network(self) -> Network:
        """The network as last described."""
        return self.clusters.network

    @property
    def links(self) -> dict[str, Link]:
        """Cluster -> the way to it."""
        return self.clusters.links

    @property
    def ready(self) -> bool:
        """Whether it leads, with everything compiled and read."""
        return self._led

    @property
    def topology_error(self) -> str:
        """Why the newest description is not used; empty: it is."""
        return self.clusters.error

    @property
    def round(self) -> Round:
        """What the last round said."""
        return self.rounds.last

    @property
    def round_s(self) -> float:
        """How long it took."""
        return self.rounds.seconds

    def up(self) -> dict[str, bool]:
        """Say which nodes take jobs."""
        return self.clusters.up()

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
        self.clusters.stop()

    def nudge(self) -> None:
        """Say that a user did something."""
        self.inbox.put(None)

    def _run(self) -> None:
        self._prepare()
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
        if self.clusters.reload(self._course.busy):
            self._course.dirty = True
        now = self.clock()
        self._read_users()
        news, self._news = self._news, []
        for event in news:
            self._course.hear(event, now)
        self._course.withdraw(now)
        self._course.abandon(now)
        self._course.advance(now)
        self._allocate(now)
        self._course.advance(now)
        return self._pause(self.clock())

    def _take_over(self) -> None:
        """Begin to lead: from the store alone."""
        self.ledger.take_over()
        self._news = []
        self._course.begin()
        for job in self.books.jobs.values():
            self._learn_unseen(job)
        self._led = True

    def _pause(self, now: float) -> float:
        """Return how long to wait for news, on the wall's clock."""
        soonest = now + self.clock.scale * AGAIN_S
        for job in self.books.jobs.values():
            if job.state in IN_LINE and job.not_before > now:
                soonest = min(soonest, job.not_before)
        for job_id, attempt in self.books.attempts.items():
            if attempt.tried_at is None and self.books.jobs[job_id].state in ON_A_CARD and attempt.due_at > now:
                soonest = min(soonest, attempt.due_at)
        pause = self.clock.wall_s(soonest - now)
        return min(pause, 1.0) if self.store.shared else pause

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
            self._course.dirty = True

    def _learn_unseen(self, job: Job) -> None:
        """Look up what runs of a model brought that nobody can predict: they were alone on their cards."""
        if self.tables.unseen(job.model):
            cards = self.clusters.cards
            measured = self.store.measured(job.model)
            self.tables.learn(job.model, {cards[card].type: seconds for card, seconds in measured if card in cards})

    # Deciding

    def _allocate(self, now: float) -> None:
        waiting = self.rounds.eligible(self.books, now)
        if not waiting or not (self._course.dirty or time.monotonic() - self._tried_at > AGAIN_S):
            return
        self._course.dirty, self._tried_at = False, time.monotonic()
        decided = self.rounds.decide(self.books, self.clusters, waiting, now)
        attempts = [self.rounds.attempt(decision, self.network, now) for decision in decided.decisions]
        self.ledger.schedule(decided, attempts, waiting, now)
