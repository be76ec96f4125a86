"""``CpnEnv``: one computing power network in Gymnasium's form, a thin view over the kernels of ``jobs``."""

from __future__ import annotations

import numpy as np

from sched_env.jobs.state import (
    ARRIVAL,
    ARRIVED,
    ATTEMPTS,
    DATA,
    DONE,
    EPOCHS,
    FIRST,
    HELD_JOB,
    JOBS,
    LOST,
    MODEL,
    NOW,
    ORIGIN,
    OUTCOME,
    ROW,
    RUNS,
    SIZE,
    START,
    UNDECIDED,
    WITHDRAWN,
)
from sched_env.jobs.vector import CpnVectorEnv
from sched_env.jobs.whatif import transfer_s
from sched_env.single import ROUNDING, PlacementEnv, Step

JOB_STATES = (
    "submitted later",
    "waiting",
    "reserved",
    "scheduled",
    "transferring",
    "submitted",
    "running",
    "finished",
    "failed",
    "cancelled",
)
"""Where a job can be, in the order it goes through them; a failed attempt leads back to waiting. Scheduled lasts
``dispatch_s``, submitted ``startup_s``: without them a job passes through in no time."""
OUTCOMES = {DONE: "finished", LOST: "failed", WITHDRAWN: "cancelled"}
LISTS = {
    "waiting": "Origin",
    "reserved": "Reserved",
    "scheduled": "Scheduled",
    "transferring": "Scheduled",
    "submitted": "Assigned",
    "running": "Assigned",
    "finished": "Finished",
}
"""Upstream's list of each state: Scheduled is chosen but not yet with the cluster, Assigned is what the cluster has."""
ROUNDING_S = 1e-6
"""States on a card are reckoned back from the start: a phase this close to its end is over."""


class CpnEnv(PlacementEnv[CpnVectorEnv]):
    """One network: observation ``candidates`` (C, F), ``request`` (R), ``mask`` (C); action: a card for the job.

    Arguments as :class:`~sched_env.single.PlacementEnv`; the trace is a queue or workload (``sched_env.jobs.vector``).
    """

    SCENARIO = "jobs/cpn"
    CANDIDATE = "card"

    def cancel(self, job: int) -> Step:
        """Withdraw a job (its number in the episode) for its user; returns what ``step`` does, for the next decision.

        Nothing is placed and no decision is counted; see :meth:`CpnVectorEnv.cancel`.

        Raises:
            ConfigError: When there is no such job, or it has ended, or has not been submitted; nothing has changed.
        """
        self._check_under_way()
        return self._answer(*self._report(self.many.cancel([job])))

    def _worst_rest(self) -> float:
        """Somebody runs while anybody waits: at worst all jobs that are left run one after another.

        Each as often as it may be tried, where it is slowest, after the last has been submitted.
        """
        cards, queue, runtimes, rules, state = self.many.arguments
        first, size = (int(state.tally[0, column]) for column in (FIRST, SIZE))
        left = np.flatnonzero(state.job[0, :size, OUTCOME] == UNDECIDED)
        rows, links = queue.rows[first + left], queue.links[first + left]
        pace_s = np.where(np.isfinite(runtimes.truth), runtimes.truth, 0.0).max(axis=(1, 2, 3))[links[:, MODEL]]
        moving_s = rows[:, DATA] * cards.seconds_per_gb.max(axis=1)[links[:, ORIGIN]]
        attempt_s = rules.dispatch_s + rules.startup_s + moving_s + rows[:, EPOCHS] * pace_s
        now = float(state.total[0, NOW])
        arrivals = np.maximum(rows[:, ARRIVAL], now)
        end = arrivals.max(initial=now) + ((rules.max_attempts - state.job[0, left, ATTEMPTS]) * attempt_s).sum()
        seconds = end - now if rules.by_makespan else (end - arrivals).sum() / size
        return -float(seconds) * rules.inverse_scale * ROUNDING

    def _most_decisions(self) -> int:
        """Each attempt of each job is placed; where one may wait, at every submission, withdrawal, start and end."""
        rules, state = self.many.rules, self.many.state
        left = np.flatnonzero(state.job[0, : int(state.tally[0, SIZE]), OUTCOME] == UNDECIDED)
        attempts = int((rules.max_attempts - state.job[0, left, ATTEMPTS]).sum())
        return attempts if rules.pairs == 0 else 3 * attempts + 2 * left.size

    def job_states(self) -> list[str]:
        """Return the state of every job of the episode, in order of submission (``JOB_STATES``)."""
        state = self.many.state
        first, size, arrived = (int(state.tally[0, column]) for column in (FIRST, SIZE, ARRIVED))
        states = ["waiting" if j < arrived else "submitted later" for j in range(size)]
        for j in state.hold[0, :, HELD_JOB]:
            if j >= 0:
                states[j] = "reserved"
        for c, count in enumerate(state.kind[0, :, JOBS]):
            for i in range(count):
                states[int(state.slot[0, c, i, ROW]) - first] = self._state_on_card(c, i)
        for j in range(size):
            outcome = int(state.job[0, j, OUTCOME])
            if outcome != UNDECIDED:
                states[j] = OUTCOMES[outcome]
        return states

    def _state_on_card(self, c: int, i: int) -> str:
        cards, queue, _, rules, state = self.many.arguments
        slot = state.slot[0, c, i]
        if slot[RUNS]:
            return "running"
        left = slot[START] - state.total[0, NOW] - rules.startup_s - ROUNDING_S
        if left <= 0.0:
            return "submitted"
        return "transferring" if left <= transfer_s(cards, queue, c, int(slot[ROW])) else "scheduled"

    def queues(self) -> dict[str, list[int]]:
        """Return upstream's five lists (numbers of jobs in the episode) as views of the job states."""
        lists: dict[str, list[int]] = {name: [] for name in LISTS.values()}
        for j, where in enumerate(self.job_states()):
            if where in LISTS:
                lists[LISTS[where]].append(j)
        return lists
