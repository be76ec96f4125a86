"""One environment in Gymnasium's form: a thin view over a vector environment of one."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from sched_env import render, scenarios
from sched_env.vector import ENDED, Outcome, PlacementVectorEnv, make_vec
from wire.errors import ConfigError, InfeasibleActionError, legal

Observation = dict[str, NDArray[Any]]
Step = tuple[Observation, float, bool, bool, dict[str, Any]]
InvalidAction = Literal["terminate", "penalise", "raise"]
INVALID_PENALTY = 10.0
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
        scenario: Name, file or loaded scenario; the class's own when left out.
        trace: As :func:`~sched_env.vector.make_vec`; the scenario's own when left out.
        invalid_action: What an infeasible action does, the state being unchanged in every case: ``terminate`` ends the
            episode with ``info["invalid"]``, ``penalise`` goes on, ``raise`` raises.
        invalid_penalty: What an infeasible action costs, with ``terminate`` and ``penalise`` alike: a positive number,
            taken from the reward.
        seed: Names the start points, and every other draw, until ``reset`` is given another.
        render_mode: ``ansi`` or ``rgb_array`` (``sched_env.render``).
        overrides: Scenario keys to replace.
    """

    metadata: dict[str, Any] = {"render_modes": list(render.MODES), "render_fps": 4}  # noqa: RUF012 - as Gymnasium
    SCENARIO: ClassVar[str]
    """The scenario when none is named."""
    CANDIDATE: ClassVar[str]
    """What a candidate is called."""
    many: Many
    """The vector environment behind this one: one environment."""

    def __init__(
        self,
        scenario: str | scenarios.Scenario | None = None,
        trace: Any = None,
        *,
        invalid_action: InvalidAction = "terminate",
        invalid_penalty: float = INVALID_PENALTY,
        seed: int = 0,
        render_mode: str | None = None,
        **overrides: Any,
    ) -> None:
        if render_mode not in (None, *render.MODES):
            raise ConfigError(f"render_mode is {render_mode!r}", legal(render.MODES))
        if not invalid_penalty >= 0.0:
            raise ConfigError(
                f"invalid_penalty is {invalid_penalty}", "a positive number", "it is taken from the reward"
            )
        self.render_mode = render_mode
        self.invalid_action, self.invalid_penalty = known(invalid_action), float(invalid_penalty)
        self.many = make_vec(scenario or self.SCENARIO, 1, seed, trace, copy=True, **overrides)  # type: ignore[assignment]
        self._over = True
        self.action_space = self.many.single_action_space
        self.observation_space: spaces.Space[Any] = spaces.Dict(self.many.single_observation_space.spaces)  # type: ignore[attr-defined]

    @property
    def scenario(self) -> scenarios.Scenario:
        """The settings in force."""
        return self.many.scenario

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
        self._check_under_way()
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

    def render(self) -> Any:
        """Return a text (``ansi``) or a picture (``rgb_array``) of what is in use, or nothing."""
        if self.render_mode is None:
            return None
        gauges = self.many.problem.gauges(self.raw()[0])
        return render.image(gauges) if self.render_mode == "rgb_array" else render.text(gauges, self._headline())

    def _headline(self) -> str:
        buffers, wanted = self.many.buffers, self.many.feature_spec.request
        values = zip(wanted, buffers.request[0].tolist(), strict=True)
        asked = ", ".join(f"{feature.name} {value:.4g} {feature.unit}" for feature, value in values)
        return f"{buffers.time_s[0]:.1f} s: {asked}"

    def _check_under_way(self) -> None:
        if self._over:
            raise ResetNeeded("the episode is over, or has not begun: call reset()")

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
        return self._observe(), -self.invalid_penalty, ends, False, {**self._facts(), "invalid": True}

    def _observe(self) -> Observation:
        seen = self.many.observe()
        return {
            "candidates": seen["candidates"][0],
            "request": seen["request"][0],
            "mask": seen["mask"][0].astype(np.int8),
        }
