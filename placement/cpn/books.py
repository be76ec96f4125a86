"""What the controller knows, in memory: the jobs that have not ended, as the store has them, and how far they are.

Progress is no fact but a reckoning: it follows from which jobs shared a card from when to when, and from what run times
are believed. So it is worked out from the attempts alone, and is the same after a restart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from placement.cpn.allocation import OnCard
from placement.cpn.records import Attempt, Job
from placement.cpn.states import ENDED, IN_LINE, ON_A_CARD
from placement.cpn.store import JobStore

Pace = Callable[[str, str, tuple[str, ...]], float]
"""(card, model, models beside it) -> seconds an iteration."""


@dataclass
class Books:
    """The mirror of the store, of what has not ended."""

    jobs: dict[str, Job] = field(default_factory=dict)
    attempts: dict[str, Attempt] = field(default_factory=dict)
    """Job -> its attempt that has not ended."""
    past: dict[str, list[Attempt]] = field(default_factory=lambda: defaultdict(list))
    """Card -> ended attempts that shared it with one that has not."""
    last_end: dict[str, float] = field(default_factory=dict)
    """Card -> when a job last left it: metrics still show that job for a while."""
    failed_on: dict[str, frozenset[str]] = field(default_factory=dict)
    """Job -> ``cluster/node`` where an attempt of it failed."""
    service: dict[str, float] = field(default_factory=dict)
    last_card: str | None = None
    seq: int = 0
    """Changes by users up to here have been read."""

    @classmethod
    def read(cls, store: JobStore) -> Books:
        """Read everything that has not ended."""
        books = cls(seq=store.last_seq(), service=store.service(), last_card=store.last_card())
        books.last_end = store.last_ends()
        for job in store.active():
            books.jobs[job.id] = job
        for attempt in store.open_attempts():
            books.attempts[attempt.job] = attempt
        failed = [job.id for job in books.jobs.values() if job.failures]
        for start in range(0, len(failed), 500):
            for attempt in store.attempts(failed[start : start + 500]):
                if attempt.outcome not in (None, "not_submitted"):
                    books.note_failure(attempt)
        for card, since in books.oldest_starts().items():
            books.past[card] = store.shared_cards_with(card, since)
        return books

    def oldest_starts(self) -> dict[str, float]:
        """Return, for each card with running jobs, when the oldest of them began."""
        oldest: dict[str, float] = {}
        for attempt in self.attempts.values():
            if attempt.started_at is not None:
                oldest[attempt.card] = min(oldest.get(attempt.card, attempt.started_at), attempt.started_at)
        return oldest

    def note_failure(self, attempt: Attempt) -> None:
        """Remember where a job failed."""
        self.failed_on[attempt.job] = self.failed_on.get(attempt.job, frozenset()) | {
            f"{attempt.cluster}/{attempt.node}"
        }

    def end(self, attempt: Attempt) -> None:
        """Take an ended attempt off its card."""
        self.attempts.pop(attempt.job, None)
        if attempt.ended_at is not None and attempt.tried_at is not None:
            self.last_end[attempt.card] = attempt.ended_at
        if attempt.started_at is not None and attempt.ended_at is not None:
            self.service[attempt.model] = self.service.get(attempt.model, 0.0) + attempt.ended_at - attempt.started_at
            self.past[attempt.card].append(attempt)
        oldest = min(
            (one.started_at for one in self.on(attempt.card) if one.started_at is not None), default=float("inf")
        )
        kept = [one for one in self.past.pop(attempt.card, []) if (one.ended_at or 0.0) > oldest]
        if kept:
            self.past[attempt.card] = kept

    def forget(self, job: Job) -> None:
        """Drop a job that has ended."""
        self.jobs.pop(job.id, None)
        self.failed_on.pop(job.id, None)

    def on(self, card: str) -> list[Attempt]:
        """Return the attempts on a card."""
        return [attempt for attempt in self.attempts.values() if attempt.card == card]

    def was_alone(self, attempt: Attempt) -> bool:
        """Whether nobody ran beside an attempt from its start to now; asked before it is taken off its card."""
        since = attempt.started_at
        beside = [one for one in self.on(attempt.card) if one is not attempt and one.started_at is not None]
        return since is not None and not beside and all((o.ended_at or 0.0) <= since for o in self.past[attempt.card])

    def in_line(self) -> Iterable[Job]:
        """Return the jobs that wait, in order of submission."""
        return sorted((job for job in self.jobs.values() if job.state in IN_LINE), key=lambda job: job.seq)

    def on_cards(self, now: float, pace: Pace, startup_s: float) -> list[OnCard]:
        """Return what is on cards, and how far each is; what does not run yet begins after ``startup_s``, or now."""
        by_card: dict[str, list[Attempt]] = defaultdict(list)
        for attempt in self.attempts.values():
            by_card[attempt.card].append(attempt)
        found = []
        for card, present in by_card.items():
            left = remaining(
                present, self.past.get(card, []), {a.job: self.jobs[a.job].epochs for a in present}, now, pace
            )
            for attempt in present:
                began = attempt.started_at
                start = began if began is not None else max(attempt.arrives_at + startup_s, now)
                found.append(OnCard(self.jobs[attempt.job], attempt, left[attempt.job], start, began is not None))
        return found

    def check(self) -> None:
        """Hold the books to themselves; what fails here is a fault of ours.

        Raises:
            AssertionError: When a job is lost or on two cards.
        """
        on_card = {job.id for job in self.jobs.values() if job.state in ON_A_CARD}
        if on_card != set(self.attempts) or any(job.state in ENDED for job in self.jobs.values()):
            raise AssertionError(f"jobs on cards {sorted(on_card)}, attempts of {sorted(self.attempts)}")


def remaining(
    present: list[Attempt], past: list[Attempt], epochs: dict[str, float], now: float, pace: Pace
) -> dict[str, float]:
    """Return the epochs that each job on a card has left, by believed speeds, from who was there when."""
    left = dict(epochs)
    running = [one for one in present if one.started_at is not None and one.started_at < now]
    if not running:
        return left
    spans = [(one.started_at or now, now, one) for one in running]
    spans += [(one.started_at or 0.0, one.ended_at or 0.0, one) for one in past if one.started_at is not None]
    first = min(begin for begin, end, one in spans if end == now)
    times = sorted({max(time, first) for begin, end, _ in spans for time in (begin, end) if time <= now})
    card = present[0].card
    for start, stop in pairwise(times):
        there = [one for begin, end, one in spans if begin <= start and end >= stop]
        for one in there:
            if one.job in left and any(one is each for each in running):
                beside = tuple(other.model for other in there if other is not one)[:2]
                left[one.job] -= (stop - start) / pace(card, one.model, beside)
    return {job: max(value, 0.0) for job, value in left.items()}
