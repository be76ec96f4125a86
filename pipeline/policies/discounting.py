"""Discounts of a decision's own, and returns of several decisions: SB3's buffers with one discount for each step.

SB3 discounts every step alike. Where decisions come in bunches that would be wrong: in ``pods`` all offers of a window
are made at one moment and its bill comes after the last of them, so with a discount by decisions it pays to decline one
offer after another, and put off the bill. :class:`pipeline.policies.sb3.Sb3VecEnv` says how much each step is
discounted; these buffers write it down beside the step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer
from stable_baselines3.common.buffers import DictReplayBuffer, DictRolloutBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples

from pipeline.policies.sb3 import Sb3VecEnv


class _Discounted:
    """A rollout buffer that keeps each step's discount; without ``source`` (a loaded model) it is ``gamma``."""

    source: Sb3VecEnv | None = None
    discounts: np.ndarray

    def reset(self: Any) -> None:
        """Empty the buffer."""
        super().reset()  # type: ignore[misc]  # of the class beside it
        self.discounts = np.full((self.buffer_size, self.n_envs), self.gamma, np.float32)

    def add(self: Any, *given: Any, **named: Any) -> None:
        """Write a step down, and how much it was discounted."""
        if self.source is not None:
            self.discounts[self.pos] = self.source.discounts
        super().add(*given, **named)  # type: ignore[misc]  # of the class beside it

    def compute_returns_and_advantage(self: Any, last_values: torch.Tensor, dones: np.ndarray) -> None:
        """Estimate advantages (Schulman et al., 2016), step by step as SB3 does."""
        following, goes_on = last_values.clone().cpu().numpy().flatten(), 1.0 - dones.astype(np.float32)
        advantage = np.zeros(self.n_envs, np.float32)
        for step in reversed(range(self.buffer_size)):
            discount = self.discounts[step] * goes_on
            delta = self.rewards[step] + discount * following - self.values[step]
            advantage = delta + discount * self.gae_lambda * advantage
            self.advantages[step] = advantage
            following, goes_on = self.values[step], 1.0 - self.episode_starts[step]
        self.returns = self.advantages + self.values


class RolloutBuffer(_Discounted, DictRolloutBuffer):
    """SB3's, for PPO and A2C."""


class MaskableRolloutBuffer(_Discounted, MaskableDictRolloutBuffer):
    """sb3-contrib's, for MaskablePPO."""


class ReplayBuffer(DictReplayBuffer):
    """SB3's, with discounts, and rewards of up to ``n_steps`` decisions before the target's value.

    Args:
        given: As SB3's.
        n_steps: How many; a reward that comes so many decisions late is learned from at once.
        gamma: The discount of a step that no ``source`` has told.
        named: As SB3's.
    """

    source: Sb3VecEnv | None = None

    def __init__(self, *given: Any, n_steps: int = 1, gamma: float = 0.99, **named: Any) -> None:
        super().__init__(*given, **named)
        self.n_steps = n_steps
        self.discounts = np.full((self.buffer_size, self.n_envs), gamma, np.float32)

    def add(self, *given: Any, **named: Any) -> None:
        """Write a step down, and how much it was discounted."""
        if self.source is not None:
            self.discounts[self.pos] = self.source.discounts
        super().add(*given, **named)

    def _get_samples(self, batch_inds: np.ndarray, env: Any = None) -> DictReplayBufferSamples:  # type: ignore[override]
        """Return steps and those after them, up to ``n_steps``, an episode's end or the newest step."""
        rows = np.random.randint(0, high=self.n_envs, size=len(batch_inds))  # noqa: NPY002 - as SB3, see training.py
        newest = (self.pos - 1) % self.buffer_size
        last, goes_on = batch_inds.copy(), np.ones(len(batch_inds), np.bool_)
        rewards, discounts = np.zeros(len(batch_inds), np.float32), np.ones(len(batch_inds), np.float32)
        for step in range(self.n_steps):
            if step:
                goes_on &= (self.dones[last, rows] == 0.0) & (last != newest)
                last = np.where(goes_on, (last + 1) % self.buffer_size, last)
            rewards += np.where(goes_on, discounts * self.rewards[last, rows], 0.0)
            discounts *= np.where(goes_on, self.discounts[last, rows], 1.0)
        ended = self.dones[last, rows] * (1.0 - self.timeouts[last, rows])
        before: Any = self._normalize_obs({key: kept[batch_inds, rows] for key, kept in self.observations.items()}, env)
        after: Any = self._normalize_obs({key: kept[last, rows] for key, kept in self.next_observations.items()}, env)
        return DictReplayBufferSamples(
            observations={key: self.to_torch(kept) for key, kept in before.items()},
            actions=self.to_torch(self.actions[batch_inds, rows]),
            next_observations={key: self.to_torch(kept) for key, kept in after.items()},
            dones=self.to_torch(ended.reshape(-1, 1)),
            rewards=self.to_torch(self._normalize_reward(rewards.reshape(-1, 1), env)),
            discounts=self.to_torch(discounts.reshape(-1, 1)),
        )
