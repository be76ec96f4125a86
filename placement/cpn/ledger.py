"""The steps of jobs and attempts: each one transaction in the store, then the same in the books."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from placement.cpn.allocation import Round
from placement.cpn.books import Books
from placement.cpn.records import Attempt, Job
from placement.cpn.states import RETRIED, Outcome, State
from placement.cpn.store import JobStore

LONGEST_BACKOFF_S = 600.0
OOM_GROWTH = 1.25
"""A job that ran out of memory is booked with so much more the next time."""


class Ledger:
    """Writes what happens.

    Args:
        store: The durable state.
        retry_backoff_s: Before the second attempt; doubles.
    """

    def __init__(self, store: JobStore, retry_backoff_s: float) -> None:
        self.store, self._retry_backoff_s = store, retry_backoff_s
        self.books = Books()

    def take_over(self) -> None:
        """Lead, with what the store says."""
        self.store.lead()
        self.books = Books.read(self.store)

    def schedule(self, decided: Round, attempts: Sequence[Attempt], waiting: Sequence[Job], now: float) -> None:
        """Write a round down: all its placements and reservations, or none of them."""
        placed = {decision.job.id for decision in decided.decisions}
        changes = []
        for job in waiting:
            promise = decided.held.get(job.id)
            if job.id not in placed and promise != ((job.card, job.promised_at) if job.state == "reserved" else None):
                changes.append((job, promise))
        if not placed and not changes:
            return
        with self.store.step("schedule") as step:
            for decision, attempt in zip(decided.decisions, attempts, strict=True):
                step.begin_attempt(attempt)
                where = {"attempt": attempt.number, "card": attempt.card, "promised_at": None}
                step.move(decision.job, "scheduled", now, attempt.card, **where)
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

    def requeue_unsent(self, job: Job, attempt: Attempt, why: str, now: float) -> None:
        """Take back a decision that was never sent; it counts for nothing."""
        with self.store.step("requeue") as step:
            step.move(job, "waiting", now, why, card=None, promised_at=None)
            step.change_attempt(attempt, ended_at=now, outcome="not_submitted", detail=why)
        job.state, job.card, job.promised_at = "waiting", None, None
        attempt.ended_at, attempt.outcome, attempt.detail = now, "not_submitted", why
        self.books.end(attempt)

    def transfer(self, job: Job, now: float) -> None:
        """Let its data begin to move."""
        with self.store.step("transfer") as step:
            step.move(job, "transferring", now)
        job.state = "transferring"

    def announce(self, attempt: Attempt, now: float) -> None:
        """Write down that the Job is about to be sent: from now on only its cluster knows whether it is there."""
        with self.store.step("try") as step:
            step.change_attempt(attempt, tried_at=now)
        attempt.tried_at = now

    def fetched(self, attempt: Attempt, now: float) -> None:
        """Note that the data are there, earlier or later than reckoned; the Job is sent next."""
        with self.store.step("fetched") as step:
            step.change_attempt(attempt, tried_at=now, arrives_at=now)
        attempt.tried_at = attempt.arrives_at = now

    def submitted(self, job: Job, attempt: Attempt, now: float) -> None:
        """Note that its Job is in the cluster."""
        if attempt.submitted_at is None:
            with self.store.step("submit") as step:
                step.move(job, "submitted", now)
                step.change_attempt(attempt, submitted_at=now)
            job.state, attempt.submitted_at = "submitted", now

    def running(self, job: Job, attempt: Attempt, started: float) -> None:
        """Note that its pod runs."""
        with self.store.step("run") as step:
            if job.state == "submitted":
                step.move(job, "running", started)
            step.change_attempt(attempt, started_at=started)
        job.state, attempt.started_at = "running", started

    def relocate(
        self, job: Job, attempt: Attempt, node: str, card: str, may_swap: Callable[[Job], bool] = lambda _: True
    ) -> None:
        """Note where the cluster's own scheduler put a job; whoever was meant for that card gets the one it leaves.

        Args:
            job: Whose attempt.
            attempt: Which has been found elsewhere.
            node: Where.
            card: On it.
            may_swap: Says whether a job can go where this one was meant to; one that cannot waits for its own card.
        """
        moved = [(job, attempt, node, card)]
        for other_id, other in self.books.attempts.items():
            if other is attempt or other.card != card or other.pinned or other.started_at is not None:
                continue
            if may_swap(self.books.jobs[other_id]):
                moved.append((self.books.jobs[other_id], other, attempt.node, attempt.card))
                break
        with self.store.step("relocate") as step:
            for one, its, to_node, to_card in moved:
                step.change_attempt(its, node=to_node, card=to_card)
                step.update(one, card=to_card)
        for one, its, to_node, to_card in moved:
            its.node, its.card, one.card = to_node, to_card, to_card

    def end(
        self, job: Job, attempt: Attempt | None, outcome: Outcome, detail: str, at: float, largest_gib: float
    ) -> bool:
        """End an attempt: the job has finished, failed, been cancelled, or waits for the next.

        Args:
            job: Whose.
            attempt: Which; None for a job that has none.
            outcome: How it ended.
            detail: Why.
            at: When.
            largest_gib: What the largest card can hold: no job is booked with more.

        Returns:
            Whether another attempt will be made.
        """
        failures = job.failures + (outcome in RETRIED)
        again = outcome in RETRIED and failures < job.max_attempts and job.cancel_at is None
        values: dict[str, Any] = {"failures": failures, "card": None, "promised_at": None, "reason": detail}
        if again:
            backoff = min(self._retry_backoff_s * 2.0 ** (failures - 1), LONGEST_BACKOFF_S)
            values |= {"queued_at": at, "not_before": at + backoff}
            if outcome == "oom":
                values["gpu_mem_gib"] = min(job.gpu_mem_gib * OOM_GROWTH, largest_gib)
        else:
            values["ended_at"] = at
            if job.cancel_at is not None and outcome != "finished":
                outcome = "cancelled"
        target: State = "failed"
        if again:
            target = "waiting"
        elif outcome in ("finished", "cancelled"):
            target = outcome
        with self.store.step(f"end {target}") as step:
            step.move(job, target, at, f"{outcome}: {detail}" if detail else outcome, **values)
            if attempt is not None:
                step.change_attempt(attempt, ended_at=at, outcome=outcome, detail=detail)
        job.state = target
        for name, value in values.items():
            setattr(job, name, value)
        if attempt is not None:
            attempt.ended_at, attempt.outcome, attempt.detail = at, outcome, detail
            self.books.end(attempt)
            if outcome in RETRIED:
                self.books.note_failure(attempt)
        if not again:
            self.books.forget(job)
        return again

    def keep_log(self, job: str, number: int, log: str) -> None:
        """Keep the end of an attempt's log."""
        found = [one for one in self.store.attempts([job]) if one.number == number]
        if log and found:
            with self.store.step("log") as step:
                step.change_attempt(found[0], log=log)
