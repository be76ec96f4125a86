"""One environment in Gymnasium's form: a thin view over a vector environment of one."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from sched_env.vector import ENDED, Outcome, PlacementVectorEnv
from wire.errors import ConfigError, InfeasibleActionError, legal

Observation = dict[str, NDArray[Any]]
Step = tuple[Observation, float, bool, bool, dict[str, Any]]
InvalidAction = Literal["terminate", "penalise", "raise"]
Many = TypeVar("Many", bound=PlacementVectorEnv)


def known(invalid_action: str) -> InvalidAction:
    """Return what an infeasible action is to do, if that is one of the three things it can."""
    choices: tuple[InvalidAction, ...] = get_args(InvalidAction)
    for choice in choices:
        if choice == invalid_action:
            return choice
    raise ConfigError(f"invalid_action is {invalid_action!r}", legal(choices))


class PlacementEnv(gymnasium.Env[Any, Any], Generic[Many]):
    """Observation ``candidates`` (C, F), ``request`` (R), ``mask`` (C); action: a candidate.

    Args:
        many: The vector environment behind this one: one environment, observations copied.
        invalid_action: What an infeasible action does, the state being unchanged in every case: ``terminate`` ends the
            episode with ``info["invalid"]``, ``penalise`` costs ``invalid_penalty``, ``raise`` raises.
        invalid_penalty: Reward taken by ``penalise``.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as Gymnasium
    CANDIDATE: ClassVar[str]
    """What a candidate is called."""

    def __init__(self, many: Many, invalid_action: InvalidAction, invalid_penalty: float) -> None:
        self.many = many
        self.invalid_action, self.invalid_penalty = known(invalid_action), float(invalid_penalty)
        self._over = True
        self.action_space = many.single_action_space
        self.observation_space: spaces.Space[Any] = spaces.Dict(many.single_observation_space.spaces)  # type: ignore[attr-defined]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode; ``options={"start": row}`` names its first trace row, otherwise it is drawn."""
        super().reset(seed=seed)
        start = (options or {}).get("start", -1)
        self.many.reset(seed=seed, options={"starts": [start], "park": True})
        self._over = False
        return self._observe(), {"start": int(self.many.buffers.start[0]), **self._facts()}

    def step(self, action: Any) -> Step:
        """Put what is offered on candidate ``action``."""
        if self._over:
            raise ResetNeeded("the episode is over; call reset()")
        try:
            reward, terminated, truncated, info = self._place(int(action))
        except InfeasibleActionError:
            return self._refuse(action)
        return self._observe(), reward, terminated, truncated, info

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the feasible actions, as sb3-contrib's MaskablePPO asks for them."""
        mask: NDArray[np.bool_] = self.many.buffers.mask[0].copy()
        return mask

    def raw(self) -> tuple[dict[str, NDArray[np.float64]], dict[str, float]]:
        """Return the raw fields of the present decision, as the live service would report them."""
        return self.many.raw(0)

    def _facts(self) -> dict[str, Any]:
        """Return what every ``info`` holds."""
        return {}

    def _place(self, candidate: int) -> tuple[float, bool, bool, dict[str, Any]]:
        return self._report(self.many.step([candidate]))

    def _report(self, outcome: Outcome) -> tuple[float, bool, bool, dict[str, Any]]:
        """Turn what the vector environment returned into what this one does, but for the observation."""
        _, reward, terminated, truncated, infos = outcome
        info = self._facts()
        if infos:
            self._over = True
            metrics = infos["episode"]
            info["episode_metrics"] = {name: float(metrics[name][0]) for name in self.many.METRICS}
            info["ended"] = ENDED[metrics["ended"][0]]
        return float(reward[0]), bool(terminated[0]), bool(truncated[0]), info

    def _refuse(self, action: Any) -> Step:
        if self.invalid_action == "raise":
            raise InfeasibleActionError(
                f"{self.CANDIDATE} {action} cannot take what is offered",
                f"a {self.CANDIDATE} whose mask is 1",
                "nothing changed",
            )
        ends = self.invalid_action == "terminate"
        self._over = ends
        reward = 0.0 if ends else -self.invalid_penalty
        return self._observe(), reward, ends, False, {**self._facts(), "invalid": True}

    def _observe(self) -> Observation:
        seen = self.many.observe()
        return {
            "candidates": seen["candidates"][0],
            "request": seen["request"][0],
            "mask": seen["mask"][0].astype(np.int8),
        }
