"""Rewards that users bring, in every problem: ``reward: module:function``, called once a step for all environments.

The built-in ones are in the kernels. A user's function may run any Python, and returns one number an environment::

    def tidy(step: Placements) -> np.ndarray:
        return step.reward - 0.01 * step.candidate("cpu_free")
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sched_env.stepping import RESTART
from wire.contracts.feature_spec import FeatureSpec
from wire.errors import ConfigError, legal

if TYPE_CHECKING:
    from sched_env.scenarios import Scenario
    from sched_env.vector import PlacementVectorEnv

Floats = NDArray[np.float64]
Reward = Callable[[Any], Any]


@dataclass(frozen=True)
class Placements:
    """What a reward may look at: one entry an environment, of the placement just made."""

    spec: FeatureSpec
    action: NDArray[np.int64]
    chosen: NDArray[np.float32]
    """[B, F]: the candidates that were chosen, as they were seen before; columns by :meth:`candidate`."""
    asked: NDArray[np.float32]
    """[B, R]: what was placed; columns by :meth:`request`."""
    reward: Floats
    """What the built-in reward would have been."""
    wait_s: Floats
    """How long what was placed had waited."""
    elapsed_s: Floats
    """From this decision to the next; 0 where the episode ended."""
    ended: NDArray[np.bool_]

    def candidate(self, feature: str) -> NDArray[np.float32]:
        """Return a feature of the chosen candidates."""
        return self.chosen[:, _index(self.spec.candidate, feature)]

    def request(self, feature: str) -> NDArray[np.float32]:
        """Return a feature of what was placed."""
        return self.asked[:, _index(self.spec.request, feature)]


def _index(features: Sequence[Any], name: str) -> int:
    names = [feature.name for feature in features]
    if name not in names:
        raise ConfigError(f"there is no feature {name!r}", legal(names))
    return names.index(name)


def resolve(scenario: Scenario) -> Reward | None:
    """Return the user's function, or None for a built-in reward."""
    name = str(scenario.reward)
    if ":" not in name:
        return None
    module, _, attribute = name.partition(":")
    expected = legal([*scenario.rewards, "module:function"])
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"reward {name!r} cannot be imported: {error}", expected) from error
    if not callable(function):
        raise ConfigError(f"reward {name!r} is a {type(function).__name__}", "a function")
    result: Reward = function
    return result


def step(env: PlacementVectorEnv, reward: Reward, actions: NDArray[np.int64], at_end: int) -> int:
    """Step all environments, and put what the user's function gives where the kernel put its own reward."""
    out = env.buffers
    before, active = env.returns.copy(), out.active.copy()
    inputs = env.reward_inputs(actions)
    finished = env.run(actions, at_end)
    if finished >= 0:
        given = np.asarray(reward(inputs()), np.float64)
        _check(env, given, active)
        put(env, np.where(active, env.whole_reward(given), 0.0), before, active, at_end)
    return finished


def _check(env: PlacementVectorEnv, given: Floats, active: NDArray[np.bool_]) -> None:
    name = f"reward {env.scenario.reward!r} returned"
    if given.shape != (env.num_envs,) or not np.isfinite(given).all():
        raise ConfigError(f"{name} {given!r}", f"{env.num_envs} finite numbers, one each")
    low, high = env.scenario.reward_range or (-np.inf, np.inf)
    strange = active & ((given < low) | (given > high))
    if strange.any():
        raise ConfigError(f"{name} {given[strange][0]}", f"reward_range: {low} to {high}")


def put(env: PlacementVectorEnv, reward: Floats, before: Floats, active: NDArray[np.bool_], at_end: int) -> None:
    """Give these rewards for a step that has been made, from these returns on."""
    out = env.buffers
    out.reward[:] = reward
    over = (out.terminated | out.truncated) & active
    out.metrics[over, 0] = before[over] + reward[over]
    going_on = active & ~over if at_end == RESTART else active
    env.returns[going_on] = before[going_on] + reward[going_on]


def placements(env: PlacementVectorEnv, actions: NDArray[np.int64]) -> Callable[[], Placements]:
    """Note what is about to be placed where; the result completes it once the step has been made."""
    out, rows = env.buffers, np.arange(env.num_envs)
    known = np.clip(actions, 0, out.mask.shape[1] - 1)  # an infeasible action is refused by the step itself
    chosen, asked, time_s = out.candidates[rows, known].copy(), out.request.copy(), out.time_s.copy()

    def after() -> Placements:
        ended = out.terminated | out.truncated
        elapsed_s = np.where(ended, 0.0, out.time_s - time_s)
        return Placements(
            env.feature_spec, actions.copy(), chosen, asked, out.reward.copy(), out.wait_s.copy(), elapsed_s, ended
        )

    return after
