"""``CpnEnv``: one computing power network in Gymnasium's form, a thin view over the kernels of ``jobs``."""

from __future__ import annotations

from typing import Any

from sched_env import scenarios
from sched_env.jobs.state import (
    ARRIVED,
    DONE,
    FIRST,
    HELD_JOB,
    JOBS,
    LOST,
    OUTCOME,
    ROW,
    RUNS,
    SIZE,
)
from sched_env.jobs.vector import CpnVectorEnv, make
from sched_env.single import InvalidAction, PlacementEnv

JOB_STATES = ("submitted later", "waiting", "reserved", "transferring", "running", "finished", "failed")
"""Where a job can be in the simulator; the live controller's states between waiting and running, scheduled and
submitted, take no time here."""


class CpnEnv(PlacementEnv[CpnVectorEnv]):
    """One network: observation ``candidates`` (C, F), ``request`` (R), ``mask`` (C); action: a card for the job.

    Args:
        scenario: Name, file or loaded scenario.
        trace: A queue or workload (``sched_env.jobs.vector``); the scenario's own when left out.
        invalid_action: As :class:`~sched_env.single.PlacementEnv`, and ``invalid_penalty`` too.
        seed: Names the start points and failures until ``reset`` is given another.
        overrides: Scenario keys to replace.
    """

    CANDIDATE = "card"

    def __init__(
        self,
        scenario: str | scenarios.Scenario = "jobs/cpn",
        trace: Any = None,
        *,
        invalid_action: InvalidAction = "terminate",
        invalid_penalty: float = 10.0,
        seed: int = 0,
        render_mode: None = None,
        **overrides: Any,
    ) -> None:
        many = make(scenarios.load(scenario, overrides), 1, seed=seed, trace=trace, copy=True)
        super().__init__(many, invalid_action, invalid_penalty)
        self.render_mode = render_mode

    def job_states(self) -> list[str]:
        """Return the state of every job of the episode, in order of submission (``JOB_STATES``)."""
        state = self.many.state
        first, size, arrived = (int(state.tally[0, column]) for column in (FIRST, SIZE, ARRIVED))
        states = [JOB_STATES[1] if j < arrived else JOB_STATES[0] for j in range(size)]
        for j in state.hold[0, :, HELD_JOB]:
            if j >= 0:
                states[j] = "reserved"
        for c, count in enumerate(state.kind[0, :, JOBS]):
            for i in range(count):
                slot = state.slot[0, c, i]
                states[int(slot[ROW]) - first] = "running" if slot[RUNS] else "transferring"
        for j in range(size):
            outcome = int(state.job[0, j, OUTCOME])
            if outcome:
                states[j] = {DONE: "finished", LOST: "failed"}[outcome]
        return states

    def queues(self) -> dict[str, list[int]]:
        """Return upstream's five lists (numbers of jobs in the episode) as views of the job states."""
        belongs = {
            "waiting": "Origin",
            "transferring": "Scheduled",
            "running": "Assigned",
            "finished": "Finished",
            "reserved": "Reserved",
        }
        lists: dict[str, list[int]] = {name: [] for name in belongs.values()}
        for j, where in enumerate(self.job_states()):
            if where in belongs:
                lists[belongs[where]].append(j)
        return lists
