"""Stable-Baselines3 on our environments: a ``VecEnv`` over the vector environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from sched_env.vector import PlacementVectorEnv
from wire.contracts.feature_spec import FeatureSpec

Observation = dict[str, np.ndarray]


def hide(observation: Observation, spec: FeatureSpec, rate: float, drops: np.random.Generator) -> None:
    """Replace droppable features by their defaults, each in so many of the rows, as it happens live."""
    droppable = [
        (name, column, feature.default)
        for name, features in (("candidates", spec.candidate), ("request", spec.request))
        for column, feature in enumerate(features)
        if feature.droppable
    ]
    missing = drops.random((len(observation["request"]), len(droppable))) < rate
    for (name, column, default), hidden in zip(droppable, missing.T, strict=True):
        observation[name][hidden, ..., column] = default


class Sb3VecEnv(VecEnv):
    """Hands a :class:`PlacementVectorEnv` to Stable-Baselines3.

    Args:
        env: Must have been made with ``copy=True``: SB3 keeps the last observation while the next step runs.
        reward_scale: Rewards are multiplied by it, so that values are of order one.
        missing_rate: Share of decisions in which a droppable feature is replaced by its default, as it happens live.
        gamma: The discount. Below 1 an episode that its horizon cuts off goes on beyond it, as far as values are
            concerned. At 1 it does not: a sum of costs without an end has no value, and what would be learned instead
            is the cost a decision, by which it pays to decide often.
        gamma_every_s: The time that ``gamma`` is for; None: a decision, whenever the next one comes.
    """

    def __init__(
        self,
        env: PlacementVectorEnv,
        *,
        reward_scale: float = 1.0,
        missing_rate: float = 0.0,
        gamma: float = 0.99,
        gamma_every_s: float | None = None,
    ) -> None:
        if not env.copy:
            raise ValueError("the environment reuses its buffers; SB3 needs make_vec(..., copy=True)")
        self.env, self._reward_scale, self._missing_rate = env, reward_scale, missing_rate
        self._gamma, self._gamma_every_s = gamma, gamma_every_s
        self.discounts = np.full(env.num_envs, gamma)
        """Of the last step, for each environment."""
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)
        self._mask = np.zeros((env.num_envs, env.width), np.bool_)
        self._actions = np.zeros(env.num_envs, np.int64)
        self._seed = env.seed
        self._drops = np.random.default_rng(env.seed)
        self.taken: list[np.ndarray] = []
        """Every action since the last reset: stepping them again leads to the same state, so a checkpoint is these."""

    def reseed(self, seed: int) -> None:
        """Make the next reset start the sequence of episodes named by this seed."""
        self._seed, self._drops = seed, np.random.default_rng(seed)

    def reset(self) -> Observation:
        """Begin new episodes."""
        observation, _ = self.env.reset(seed=self._seed)
        self.taken = []
        return self._seen(observation)

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the actions for :meth:`step_wait`."""
        self._actions = np.asarray(actions, np.int64)

    def step_wait(self) -> tuple[Observation, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Step all environments."""
        before_s = self.env.buffers.time_s.copy()
        observation, reward, terminated, truncated, infos = self.env.step(self._actions)
        self.taken.append(self._actions.astype(np.int32))
        done = terminated | truncated
        if self._gamma_every_s is not None:
            passed_s = np.where(done, self._gamma_every_s, self.env.buffers.time_s - before_s)
            self.discounts = self._gamma ** (passed_s / self._gamma_every_s)
        rows: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for index in np.flatnonzero(done):
            episode = infos["episode"]
            rows[index] = {
                "terminal_observation": {name: array[index] for name, array in infos["final_obs"].items()},
                "TimeLimit.truncated": bool(self._gamma < 1.0 and truncated[index] and not terminated[index]),
                "episode": {"r": float(episode["return"][index]), "l": int(episode["steps"][index]), "t": 0.0},
            }
        return self._seen(observation), (reward * self._reward_scale).astype(np.float32), done, rows

    def _seen(self, observation: Observation) -> Observation:
        """Remember the mask, hide features as often as they are missing live, and keep one shape as clusters grow."""
        missing_columns = self.env.buffers.mask.shape[1] - observation["mask"].shape[1]
        if missing_columns:
            observation["candidates"] = np.pad(observation["candidates"], ((0, 0), (0, missing_columns), (0, 0)))
            observation["mask"] = np.pad(observation["mask"], ((0, 0), (0, missing_columns)))
        self._mask = observation["mask"]
        if self._missing_rate:
            hide(observation, self.env.feature_spec, self._missing_rate, self._drops)
        return observation

    def env_method(self, method_name: str, *_args: Any, indices: Any = None, **_kwargs: Any) -> list[Any]:
        """Answer ``action_masks``, the one method that MaskablePPO calls."""
        if method_name != "action_masks":
            raise AttributeError(method_name)
        return list(self._mask if indices is None else self._mask[indices])

    def has_attr(self, attr_name: str) -> bool:
        """Say that masks are to be had."""
        return attr_name == "action_masks"

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute of the vector environment, once for each environment asked for."""
        return [getattr(self.env, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:  # noqa: ARG002
        """Refuse: the environments share their arrays."""
        raise AttributeError(f"{attr_name} of single environments cannot be set: they share their arrays")

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:  # noqa: ARG002
        """Say that nothing is wrapped."""
        return [False] * len(list(self._get_indices(indices)))

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seed the next reset, as SB3 asks for."""
        if seed is not None:
            self.reseed(seed)
        return [seed] * self.num_envs

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Return no images: the vector environment does not render."""
        return [None] * self.num_envs

    def close(self) -> None:
        """Nothing to close."""
