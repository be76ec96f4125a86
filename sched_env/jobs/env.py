"""``CpnEnv``: one computing power network in Gymnasium's form, a thin view over the kernels of ``jobs``."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from sched_env import scenarios
from sched_env.errors import ConfigError, InfeasibleActionError, legal
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
from sched_env.jobs.vector import make
from sched_env.traces.tables_jobs import Floats
from sched_env.vector import ENDED

Observation = dict[str, NDArray[Any]]
Step = tuple[Observation, float, bool, bool, dict[str, Any]]
INVALID_ACTIONS = ("terminate", "penalise", "raise")
JOB_STATES = ("submitted later", "waiting", "reserved", "transferring", "running", "finished", "failed")
"""Where a job can be in the simulator; the live controller's states between waiting and running, scheduled and
submitted, take no time here."""


class CpnEnv(gymnasium.Env[Any, Any]):
    """One network: observation ``candidates`` (C, F), ``request`` (R), ``mask`` (C); action: a card.

    Args:
        scenario: Name, file or loaded scenario.
        trace: A queue or workload (``sched_env.jobs.vector``); the scenario's own when left out.
        invalid_action: What an infeasible action does, the state being unchanged in every case: ``terminate`` ends the
            episode with ``info["invalid"]``, ``penalise`` costs ``invalid_penalty``, ``raise`` raises.
        invalid_penalty: Reward taken by ``penalise``.
        seed: Names the start points and failures until ``reset`` is given another.
        overrides: Scenario keys to replace.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as Gymnasium

    def __init__(
        self,
        scenario: str | scenarios.Scenario = "jobs/cpn",
        trace: Any = None,
        *,
        invalid_action: Literal["terminate", "penalise", "raise"] = "terminate",
        invalid_penalty: float = 10.0,
        seed: int = 0,
        render_mode: None = None,
        **overrides: Any,
    ) -> None:
        if invalid_action not in INVALID_ACTIONS:
            raise ConfigError(f"invalid_action is {invalid_action!r}", legal(INVALID_ACTIONS))
        self.many = make(scenarios.load(scenario, overrides), 1, seed=seed, trace=trace, copy=True)
        """The vector environment behind this one."""
        self.render_mode = render_mode
        self._invalid_action, self._invalid_penalty = invalid_action, invalid_penalty
        self._over = True
        self.action_space = self.many.single_action_space
        self.observation_space = spaces.Dict(self.many.single_observation_space.spaces)  # type: ignore[attr-defined]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode; ``options={"start": row}`` names the first job, otherwise it is drawn from the seed."""
        super().reset(seed=seed)
        start = (options or {}).get("start", -1)
        self.many.reset(seed=seed, options={"starts": [start], "park": True})
        self._over = False
        return self._observe(), {"start": int(self.many.buffers.start[0])}

    def step(self, action: int) -> Step:
        """Put the offered job on card ``action``."""
        if self._over:
            raise ResetNeeded("the episode is over; call reset()")
        try:
            _, reward, terminated, truncated, infos = self.many.step([int(action)])
        except InfeasibleActionError:
            return self._refuse()
        info: dict[str, Any] = {}
        if infos:
            self._over = True
            metrics = infos["episode"]
            info["episode_metrics"] = {name: float(metrics[name][0]) for name in self.many.METRICS}
            info["ended"] = ENDED[metrics["ended"][0]]
        return self._observe(), float(reward[0]), bool(terminated[0]), bool(truncated[0]), info

    def _refuse(self) -> Step:
        if self._invalid_action == "raise":
            raise InfeasibleActionError("the card cannot take the job", "a card whose mask is 1", "nothing changed")
        ends = self._invalid_action == "terminate"
        self._over = ends
        return self._observe(), 0.0 if ends else -self._invalid_penalty, ends, False, {"invalid": True}

    def _observe(self) -> Observation:
        seen = self.many.observe()
        return {
            "candidates": seen["candidates"][0],
            "request": seen["request"][0],
            "mask": seen["mask"][0].astype(np.int8),
        }

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the feasible actions, as sb3-contrib's MaskablePPO asks for them."""
        mask: NDArray[np.bool_] = self.many.buffers.mask[0].copy()
        return mask

    def raw(self) -> tuple[dict[str, Floats], dict[str, float]]:
        """Return the raw fields of the present decision, as the live service would report them."""
        return self.many.raw(0)

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
