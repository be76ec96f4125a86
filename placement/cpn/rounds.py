"""Rounds of decisions: who may be placed now, with what is known of the moment, and what came of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping

from placement.cpn.allocation import Allocator, Decision, Moment, Round
from placement.cpn.books import Books, Pace
from placement.cpn.clusters import Clusters
from placement.cpn.config import CpnSettings
from placement.cpn.records import Attempt, Job
from placement.cpn.runtimes import Tables
from placement.cpn.topology import Network

SMOOTHING = 0.2
NOTHING = Round([], {}, {}, {})

Others = Callable[[Network, Books, float], Mapping[str, Mapping[str, float]]]
"""Says what others use of nodes and cards (``collection``)."""


class Rounds:
    """Asks the allocator, and remembers what the rounds said.

    Args:
        settings: The file.
        tables: Run times.
        allocator: Decides.
        others: What others use; none: as described.
    """

    def __init__(self, settings: CpnSettings, tables: Tables, allocator: Allocator, others: Others | None) -> None:
        self._settings, self._tables, self._allocator, self._others = settings, tables, allocator, others
        self.last: Round = NOTHING
        self.seconds = 0.0
        """That the last one took."""
        self.startup_s = 0.0
        """From data there to running, as measured of late."""
        self._why: dict[str, Counter[str]] = {}

    def decide(self, books: Books, clusters: Clusters, waiting: list[Job], now: float) -> Round:
        """Decide what can be decided now; nothing outside changes."""
        began = time.perf_counter()
        network = clusters.network
        others = self._others(network, books, now) if self._others else {}
        self.last = self._allocator.round(
            network,
            Moment(
                now,
                books.on_cards(now, self._pace(books, clusters), self.startup_s),
                waiting,
                clusters.up(),
                others_cpu=others.get("cpu", {}),
                others_mem_gib=others.get("mem_gib", {}),
                others_gpu_gib=others.get("gpu_gib", {}),
                service=books.service,
                last_card=books.last_card,
                avoid=books.failed_on,
                startup_s=self.startup_s,
            ),
        )
        self.seconds = time.perf_counter() - began
        for job_id, why in self.last.why.items():
            self._why.setdefault(job_id, Counter())[why] += 1
        return self.last

    def _pace(self, books: Books, clusters: Clusters) -> Pace:
        """Say how fast models run, by the tables of the moment."""
        models = tuple(sorted({job.model for job in books.jobs.values()}))
        table, _ = self._tables.table(clusters.network.table.card_types, models)
        index = {model: k for k, model in enumerate(table.model_names)}
        types = {kind: t for t, kind in enumerate(table.card_types)}

        def pace(card: str, model: str, beside: tuple[str, ...]) -> float:
            others = [index[name] + 1 if name in index else 0 for name in beside] + [0, 0]
            kind = types.get(clusters.cards[card].type)
            return float(table.seconds[index[model], kind, others[0], others[1]]) if kind is not None else 1.0

        return pace

    def eligible(self, books: Books, now: float) -> list[Job]:
        """Return the waiting jobs that may be placed now: back-off over, and within their tenant's limit."""
        running = Counter(books.jobs[job].tenant for job in books.attempts)
        found = []
        for job in books.in_line():
            quota = self._settings.quotas.get(job.tenant) or self._settings.quotas.get("default")
            if job.not_before > now or job.cancel_at is not None:
                continue
            if quota is not None and quota.running is not None:
                if running[job.tenant] >= quota.running:
                    continue
                running[job.tenant] += 1
            found.append(job)
        return found

    def attempt(self, decision: Decision, network: Network, now: float) -> Attempt:
        """Return the attempt that a decision begins."""
        job, card = decision.job, network.cards[decision.card]
        why = self._why.pop(job.id, None)
        return Attempt(
            job=job.id,
            number=job.attempt + 1,
            model=job.model,
            cluster=card.cluster,
            node=card.node,
            card=card.name,
            strategy=self._settings.strategy,
            decided_at=now,
            arrives_at=decision.arrives_at,
            predicted_end=decision.predicted_end,
            waited_for=why.most_common(1)[0][0] if why else "",
        )

    def started(self, attempt: Attempt, at: float) -> None:
        """Learn how long starting takes."""
        took = max(at - attempt.arrives_at, 0.0)
        self.startup_s = took if self.startup_s == 0.0 else self.startup_s + SMOOTHING * (took - self.startup_s)

    def forget(self, job: Job) -> None:
        """Drop a job that has ended."""
        self._why.pop(job.id, None)
