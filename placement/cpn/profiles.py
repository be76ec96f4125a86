"""Finished jobs as measured sets, for the next fit of the runtime model (``profiles/*.csv``).

A time counts only for the company that it was measured in. Of all that ran, those are taken that were alone on their
card, or had the same others beside them, nearly from begin to end: what is in between belongs to no set.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import partial

from placement.cpn.records import Attempt, Job
from sched_env.jobs.finished import Ended
from sched_env.jobs.runtime import MOST_ON_A_CARD

SHORT = 0.05
"""Share of a job's run that may pass in other company: a start or an end, not a change."""


def measured(jobs: Iterable[Job], attempts: Iterable[Attempt], card_types: Mapping[str, str]) -> list[Ended]:
    """Return the sets whose company did not change, oldest first.

    Args:
        jobs: Tell the iterations.
        attempts: All of them: a failed one was company too.
        card_types: Card -> its type; cards that left the network are passed over.
    """
    iterations = {job.id: job.epochs for job in jobs}
    on_card: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        if attempt.started_at is not None and attempt.ended_at is not None and attempt.ended_at > attempt.started_at:
            on_card[attempt.card].append(attempt)
    found: list[Ended] = []
    for card, there in on_card.items():
        beside = _company(there)
        for one in there if card in card_types else ():
            together = sorted([one, *beside[_key(one)]], key=_key)
            whole = together[0] is one and len(together) <= MOST_ON_A_CARD and all(map(_counts, together))
            if whole and all(_same(together, member, beside[_key(member)]) for member in together):
                times = tuple(_seconds(member) / iterations[member.job] for member in together)
                last = max(member.ended_at or 0.0 for member in together)
                found.append(Ended(last, card_types[card], tuple(member.model for member in together), times))
    return sorted(found, key=lambda ended: ended.time_s)


def _company(there: list[Attempt]) -> dict[tuple[str, int], list[Attempt]]:
    """Return for each attempt of a card those that were with it for more than a moment."""
    beside: dict[tuple[str, int], list[Attempt]] = {_key(one): [] for one in there}
    ordered = sorted(there, key=lambda one: one.started_at or 0.0)
    for at, one in enumerate(ordered):
        for other in itertools.takewhile(partial(_begins_within, one), itertools.islice(ordered, at + 1, None)):
            if _shared(one, other):
                beside[_key(one)].append(other)
                beside[_key(other)].append(one)
    return beside


def _begins_within(one: Attempt, other: Attempt) -> bool:
    return (other.started_at or 0.0) < (one.ended_at or 0.0)


def _key(attempt: Attempt) -> tuple[str, int]:
    return attempt.job, attempt.number


def _counts(attempt: Attempt) -> bool:
    return attempt.outcome == "finished" and attempt.pinned


def _seconds(attempt: Attempt) -> float:
    return (attempt.ended_at or 0.0) - (attempt.started_at or 0.0)


def _overlap(one: Attempt, other: Attempt) -> float:
    begin = max(one.started_at or 0.0, other.started_at or 0.0)
    return max(min(one.ended_at or 0.0, other.ended_at or 0.0) - begin, 0.0)


def _shared(one: Attempt, other: Attempt) -> bool:
    """Say whether two were together for more than a moment of either."""
    return _overlap(one, other) > SHORT * min(_seconds(one), _seconds(other))


def _same(together: list[Attempt], member: Attempt, company: list[Attempt]) -> bool:
    """Say whether a member's company is the others of the set, nearly all of its time."""
    others = [other for other in together if other is not member]
    return sorted(map(_key, company)) == sorted(map(_key, others)) and all(
        _overlap(member, other) >= (1.0 - SHORT) * _seconds(member) for other in others
    )
