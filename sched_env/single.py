"""One environment in Gymnasium's form: a thin view over a vector environment of one."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Mapping
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
ROUNDING = 1.0 + 1e-9
"""What bounds of sums are multiplied with: the sums themselves may have been rounded the other way."""
GIVE_UP_AFTER = 3
"""With ``penalise``: so many refusals in a row, and the first feasible candidate is taken. A deterministic policy that
sees the same would otherwise do the same for ever."""
INVALID = "invalid"
"""How an episode ended that an infeasible action ended; the other endings are in ``sched_env.vector.ENDED``."""
Many = TypeVar("Many", bound=PlacementVectorEnv)


def known(invalid_action: str) -> InvalidAction:
    """Return what an infeasible action is to do, if that is one of the three things it can."""
    choices: tuple[InvalidAction, ...] = get_args(InvalidAction)
    for choice in choices:
        if choice == invalid_action:
            return choice
    raise ConfigError(f"invalid_action is {invalid_action!r}", legal(choices))


def whole_number(action: Any) -> int:
    """Read an action: a whole number, or an array that holds one, which is what ``predict`` of SB3 returns."""
    try:
        return operator.index(action)
    except TypeError:
        values = np.asarray(action)
        if values.size == 1 and np.issubdtype(values.dtype, np.integer):
            return int(values.item())
        raise ConfigError(f"the action is {action!r}", "a whole number") from None


def start_of(options: Mapping[str, Any] | None, drawn: int = -1) -> int:
    """Return the start that the options of a reset ask for; ``drawn`` when they ask for none."""
    unknown = [name for name in options or {} if name != "start"]
    if unknown:
        raise ConfigError(f"reset option {unknown[0]!r} is unknown", legal(["start"]))
    start = (options or {}).get("start")
    if start is None:
        return drawn
    if isinstance(start, bool) or not isinstance(start, int | np.integer) or start < 0:
        raise ConfigError(f"reset option start is {start!r}", "a trace row: a whole number, 0 or more")
    return int(start)


class PlacementEnv(gymnasium.Env[Any, Any], Generic[Many]):
    """Observation ``candidates`` (C, F), ``request`` (R), ``mask`` (C); action: a candidate.

    Args:
        scenario: Name, file or loaded scenario; the class's own when left out.
        trace: As :func:`~sched_env.vector.make_vec`; the scenario's own when left out.
        invalid_action: What an infeasible action does; it never pays (docs/decisions/0019). ``terminate`` ends the
            episode, and the reward is at least as bad as everything that could still have come: ``_worst_rest``.
            ``penalise`` offers the same again, and takes the first feasible candidate after three refusals in a row.
            ``raise`` raises. The state is unchanged in every case; ``info["invalid"]`` says that it happened.
        invalid_penalty: Taken from the reward for every infeasible action, with ``terminate`` and ``penalise`` alike: a
            positive number.
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
        if not 0.0 <= invalid_penalty < np.inf:
            raise ConfigError(
                f"invalid_penalty is {invalid_penalty}", "a positive number", "it is taken from the reward"
            )
        self.render_mode = render_mode
        self.invalid_action, self.invalid_penalty = known(invalid_action), float(invalid_penalty)
        self.many = make_vec(scenario or self.SCENARIO, 1, seed, trace, copy=True, **overrides)  # type: ignore[assignment]
        if self.many.user_reward and self.invalid_action == "terminate" and self.scenario.reward_range is None:
            raise ConfigError(
                f"reward {self.scenario.reward!r} has no reward_range and invalid_action is terminate",
                "a range: [low, high] of the reward, or an infeasible action might pay",
                "set reward_range, or invalid_action to penalise or raise",
            )
        self._over = True
        self._forget_refusals()
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
        start = start_of(options)
        super().reset(seed=seed)
        self.many.reset(seed=seed, options={"starts": [start], "park": True})
        self._begin()
        return self._observe(), {"start": int(self.many.buffers.start[0]), "invalid": False, **self._facts()}

    def step(self, action: Any) -> Step:
        """Put what is offered on candidate ``action``; what ``predict`` of SB3 returns will do."""
        self._check_under_way()
        chosen = self._read(action)
        try:
            reward, terminated, truncated, info = self._place(chosen)
        except InfeasibleActionError:
            return self._refuse(chosen)
        self._refused = 0
        return self._answer(reward, terminated, truncated, info)

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the feasible actions, as sb3-contrib's MaskablePPO asks for them."""
        mask: NDArray[np.bool_] = self.many.buffers.mask[0].copy()
        return mask

    def raw_fields(self) -> tuple[dict[str, NDArray[np.float64]], dict[str, float]]:
        """Return the raw fields of the present decision, as the live service would report them."""
        return self.many.raw_fields(0)

    def render(self) -> Any:
        """Return a text (``ansi``) or a picture (``rgb_array``) of what is in use, or nothing."""
        if self.render_mode is None:
            return None
        gauges = self.many.problem.gauges(self.raw_fields()[0])
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

    def _begin(self) -> None:
        self._over = False
        self._forget_refusals()

    def _forget_refusals(self) -> None:
        self._infeasible = self._refused = 0
        self._lost = 0.0
        """What infeasible actions have added to the rewards of the episode."""

    def _read(self, action: Any) -> Any:
        """Read an action as ``_place`` takes it."""
        return whole_number(action)

    def _place(self, chosen: Any) -> tuple[float, bool, bool, dict[str, Any]]:
        return self._report(self.many.step([chosen]))

    def _report(self, outcome: Outcome) -> tuple[float, bool, bool, dict[str, Any]]:
        """Turn what the vector environment returned into what this one does, but for the observation."""
        _, reward, terminated, truncated, infos = outcome
        self._over = bool(infos)
        return float(reward[0]), bool(terminated[0]), bool(truncated[0]), {"invalid": False, **self._facts()}

    def _answer(self, reward: float, terminated: bool, truncated: bool, info: dict[str, Any]) -> Step:
        """Return the outcome of a step; when the episode is over, with its figures, under one key on every ending."""
        seen = self._observe()
        if self._over:
            info["episode_metrics"] = self._figures(ENDED[self.many.buffers.ended[0]])
        return seen, reward, terminated, truncated, info

    def _figures(self, ended: str) -> dict[str, Any]:
        """Return the metric sheet of an episode whose accounts are closed."""
        buffers = self.many.buffers
        sheet = dict(zip(self.many.METRICS, buffers.metrics[0].tolist(), strict=True))
        sheet["return"] += self._lost
        return {**sheet, "start": int(buffers.start[0]), "infeasible": self._infeasible, "ended": ended}

    def _refuse(self, chosen: Any) -> Step:
        """Answer an infeasible action; nothing has changed."""
        if self.invalid_action == "raise":
            raise InfeasibleActionError(
                f"{self.CANDIDATE} {chosen} cannot take what is offered",
                f"a {self.CANDIDATE} whose mask is 1",
                "nothing changed",
            )
        self._infeasible += 1
        self._refused += 1
        penalty = -self.invalid_penalty
        if self.invalid_action == "terminate":
            worst = self._worst_rest() if self.many.user_reward is None else self._worst_of_user()
            penalty += min(worst, 0.0)
        self._lost += penalty
        if self.invalid_action == "terminate":
            self._over, seen = True, self._observe()
            info = {**self._facts(), "invalid": True}
            self.many.close_accounts()
            return seen, penalty, True, False, {**info, "episode_metrics": self._figures(INVALID)}
        if self._refused < GIVE_UP_AFTER:
            return self._observe(), penalty, False, False, {**self._facts(), "invalid": True}
        self._refused = 0
        reward, terminated, truncated, info = self._place(self._instead_of(chosen))
        return self._answer(penalty + reward, terminated, truncated, {**info, "invalid": True})

    def _instead_of(self, _chosen: Any) -> Any:
        """Return a feasible action in place of an infeasible one: the first."""
        return int(self.many.buffers.mask[0].argmax())

    @abstractmethod
    def _worst_rest(self) -> float:
        """Return a number that no way on from here can fall below: of the rewards until the end of the episode."""

    def _worst_of_user(self) -> float:
        """Return the same where the reward is the user's: the least it may be, at every decision that may come."""
        least = min((self.scenario.reward_range or [0.0])[0], 0.0)
        most = self._most_decisions()
        return least * (min(most, self.scenario.horizon) if self.scenario.horizon else most) * ROUNDING

    def _most_decisions(self) -> int:
        """Return how many decisions the episode can still have, this one included."""
        raise NotImplementedError(f"{type(self).__name__} takes no reward of the user's")

    def _observe(self) -> Observation:
        seen = self.many.observe()
        return {
            "candidates": seen["candidates"][0],
            "request": seen["request"][0],
            "mask": seen["mask"][0].astype(np.int8),
        }
