"""The controller dies before and after every transaction and every call; what follows is as if it had not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from placement.cpn import crash
from placement.cpn.records import Job
from tests.placement.cpn.played import Killed, Rehearsal

Rehearse = Callable[..., Rehearsal]
Submit = Callable[..., Job]

STEPS = (
    "schedule", "transfer", "try", "submit", "run", "end finished", "end waiting", "end failed", "end cancelled", "log",
    "create call", "remove call",
)  # fmt: skip
DEADLY = (1, 2, 4, 7, 11)
"""Passages of a point at which the process dies; each death makes it pass the point again."""
POINTS = [f"{when} {step}" for step in STEPS for when in ("before", "after")]
"""Every transaction of the leader, and every call that changes something in a cluster."""


@pytest.fixture
def points() -> Iterator[Counter[str]]:
    """Count the passages; a test may set a listener that kills."""
    passed: Counter[str] = Counter()
    crash.listener = lambda name: passed.update([name])
    yield passed
    crash.listener = None


def scenario(rehearsal: Rehearsal, submit: Submit) -> dict[str, Job]:
    """Jobs for all that can happen: data to move, failures, a withdrawal on a card and one in line."""
    rehearsal.world.failing = {("fails once", 1): (0.3, "oom")}
    rehearsal.world.failing |= {("fails", number): (0.1, "user_error") for number in range(1, 9)}
    sizes_gb = {"plain": 0, "moved": 3, "fails once": 0, "fails": 0, "withdrawn": 0, "last": 1}
    return {name: submit(rehearsal, name, gb=gb) for name, gb in sizes_gb.items()}


def play(rehearsal: Rehearsal, submit: Submit) -> dict[str, Job]:
    jobs = scenario(rehearsal, submit)
    rehearsal.run(until_s=rehearsal.world.now + 4.0)
    rehearsal.store.ask_to_cancel(jobs["withdrawn"].id, rehearsal.world.now)
    rehearsal.run()
    return jobs


ENDS = {
    "plain": "finished",
    "moved": "finished",
    "fails once": "finished",
    "fails": "failed",
    "withdrawn": "cancelled",
    "last": "finished",
}


def check(rehearsal: Rehearsal, jobs: dict[str, Job]) -> None:
    """Every job ended as it should, once, and nothing was sent or run twice."""
    assert rehearsal.ended() == ENDS
    assert all(count == 1 for count in rehearsal.world.created.values()), rehearsal.world.created
    assert not rehearsal.world.sent_while_running
    assert not rehearsal.world.jobs
    for name, job in jobs.items():
        ends = [move for move in rehearsal.store.moves(job.id) if move["target"] in ("finished", "failed", "cancelled")]
        assert len(ends) == 1, name
        attempts = rehearsal.store.attempts([job.id])
        assert [one.number for one in attempts] == list(range(1, len(attempts) + 1))
        assert all(one.outcome for one in attempts)
        finished = [one for one in attempts if one.outcome == "finished"]
        assert len(finished) == (ENDS[name] == "finished")
    assert sum(rehearsal.store.counts().values()) == len(jobs)


def test_all_points_are_passed(rehearse: Rehearse, submit: Submit, points: Counter[str]) -> None:
    rehearsal = rehearse({"P100": 2}, strategy="fifo", startup_s=1.0)
    check(rehearsal, play(rehearsal, submit))
    assert set(points) == set(POINTS)


@pytest.mark.parametrize("point", POINTS)
def test_a_controller_that_dies_goes_on_exactly_once(
    rehearse: Rehearse, submit: Submit, points: Counter[str], point: str
) -> None:
    rehearsal = rehearse({"P100": 2}, strategy="fifo", startup_s=1.0)

    def die(name: str) -> None:
        points.update([name])
        if name == point and points[name] in DEADLY:
            raise Killed(name)

    crash.listener = die
    jobs = play(rehearsal, submit)
    crash.listener = None
    assert rehearsal.deaths >= 1
    check(rehearsal, jobs)
