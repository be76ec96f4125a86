"""Big jobs start within their reservations, and nobody waits longer than the bound that docs/cpn.md states."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from placement.cpn.records import Job
from sched_env.jobs import synthetic
from tests.placement.cpn.played import Rehearsal

Rehearse = Callable[..., Rehearsal]
Submit = Callable[..., Job]


def test_a_big_job_starts_within_its_reservation_in_a_stream_of_small_ones(rehearse: Rehearse, submit: Submit) -> None:
    """Two small jobs on a card leave too little memory, and there is always a next one: a reservation has to end it."""
    rehearsal = rehearse({"RTX4090": 2}, strategy="min_completion_time_reserve")
    big: Job | None = None
    for number in range(60):
        submit(rehearsal, f"small-{number}", "transformer", epochs=300)
        if number == 10:
            big = submit(rehearsal, "big", "llm-9b", epochs=20)
        rehearsal.run(until_s=rehearsal.world.now + 10.0)
    rehearsal.run()
    assert big is not None
    moves = rehearsal.store.moves(big.id)
    promised = float(next(move["note"] for move in moves if move["target"] == "reserved").split(" from ")[1].split()[0])
    only = rehearsal.store.attempts([big.id])[0]
    assert only.decided_at <= promised + 1.0  # the note is in whole seconds
    after = [one for one in rehearsal.store.everything()[1] if one.decided_at > only.decided_at]
    assert len(after) > 10  # the stream went on: it did not simply run dry
    assert set(rehearsal.ended().values()) == {"finished"}


@pytest.mark.soak
@pytest.mark.parametrize("strategy", ["fifo", "shortest_predicted_first"])
def test_no_job_of_a_thousand_waits_longer_than_the_bound(rehearse: Rehearse, submit: Submit, strategy: str) -> None:
    """Patience, and then one longest run for each job that had run out of patience before, and one more."""
    patience = 600.0
    rehearsal = rehearse(strategy=strategy, patience_s=patience)
    rng = np.random.default_rng(0)
    weights = np.array([model.weight for model in synthetic.MODELS])
    began = rehearsal.world.now
    for number, model in enumerate(rng.choice(len(synthetic.MODELS), 1000, p=weights)):
        kind = synthetic.MODELS[model]
        submit(rehearsal, f"job-{number}", kind.name, epochs=max(round(kind.epochs * rng.lognormal(-0.08, 0.4)), 1))
        rehearsal.run(until_s=began + 24.0 * (number + 1))
    rehearsal.run()
    jobs, attempts, _ = rehearsal.store.everything()
    assert {job.state for job in jobs} == {"finished"}
    decided = {one.job: one.decided_at for one in attempts}
    longest = max((one.ended_at or 0.0) - one.decided_at for one in attempts)
    waits = np.array([decided[job.id] - job.submitted_at for job in jobs])
    assert waits.max() > patience  # otherwise nothing is shown
    for job in jobs:
        impatient = job.submitted_at + patience
        ahead = sum(other.submitted_at < job.submitted_at and decided[other.id] > impatient for other in jobs)
        assert decided[job.id] <= impatient + (ahead + 1) * longest, job.name
