"""What algorithms with a replay buffer share: the mask in an observation, random feasible actions, epsilon's decay."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import torch
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from torch import Tensor

from wire.contracts.bundle import MASKED_SCORE

MASK_KEYS = ("mask", "avail", "action_mask")
"""Where our environments put the mask in an observation; one without any has none."""

Observed = Tensor | dict[str, Tensor]


class PiecewiseLinear(msgspec.Struct, frozen=True):
    """A schedule through given points, as VMAgent's ``linear_decay``."""

    values: tuple[float, ...]
    at: tuple[float, ...]
    """Share of the training done at which each value is reached, rising from 0 to 1."""

    def __call__(self, remaining: float) -> float:
        """Return the value with this much of the training left."""
        return float(np.interp(1.0 - remaining, self.at, self.values))


EPSILON = PiecewiseLinear((0.9, 0.5, 0.2, 0.2), (0.0, 0.25, 0.9, 1.0))
"""VMAgent's: from nine random choices in ten to two."""


def masked(scores: Tensor, observation: Observed) -> Tensor:
    """Put infeasible actions below every other."""
    mask = mask_of(observation)
    return scores if mask is None else scores.masked_fill(~mask, MASKED_SCORE)


def mask_of(observation: Observed) -> Tensor | None:
    """Return which actions are feasible, if the observation says."""
    found = [observation[key] for key in MASK_KEYS if key in observation] if isinstance(observation, dict) else []
    return found[0].bool() if found else None


def random_feasible(scores: Tensor) -> Tensor:
    """Draw one action a row among those that are not masked, each with equal chance; any, where all are masked."""
    chances = (scores > MASKED_SCORE).float()
    chances[chances.sum(dim=1) == 0] = 1.0
    return torch.multinomial(chances, 1).squeeze(1)


class MaskedOffPolicy(OffPolicyAlgorithm):
    """SB3's loop of acting and storing, with every action feasible, warm-up and exploration included."""

    policy: Any
    replay_buffer: Any

    def choose(self, observation: Observed, deterministic: bool) -> Tensor:
        """Choose an action a row, with the algorithm's own exploration unless deterministic."""
        raise NotImplementedError

    def scores(self, observation: Observed) -> Tensor:
        """Return the masked scores that :meth:`choose` goes by."""
        raise NotImplementedError

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[np.ndarray, Any]:
        """As SB3's, masked."""
        del episode_start
        self.policy.set_training_mode(False)
        tensors, vectorised = self.policy.obs_to_tensor(observation)
        with torch.no_grad():
            actions = self.choose(tensors, deterministic).cpu().numpy()
        return (actions if vectorised else actions.squeeze(0)), state

    def _sample_action(
        self, learning_starts: int, action_noise: Any = None, n_envs: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        del action_noise, n_envs
        if self.num_timesteps < learning_starts:
            tensors, _ = self.policy.obs_to_tensor(self._last_obs)
            with torch.no_grad():
                actions = random_feasible(self.scores(tensors)).cpu().numpy()
        else:
            actions, _ = self.predict(self._last_obs, deterministic=False)
        return actions, actions
