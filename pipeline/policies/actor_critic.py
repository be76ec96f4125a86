"""The scorer behind SB3's actor-critic interface: what PPO, MaskablePPO and A2C learn.

Logits are the scores, the value comes from the pooled set. The mask is part of the observation and already in the
scores, so all three choose feasible candidates only, whether or not they know of masks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.distributions import MaskableDistribution
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.type_aliases import Schedule
from torch import Tensor

from pipeline.policies.scorer import Scorer
from wire.contracts.feature_spec import FeatureSpec


class ScorerPolicy(MaskableActorCriticPolicy):
    """One scorer for scores and value.

    Args:
        observation_space: ``candidates``, ``request`` and ``mask``.
        action_space: The candidates.
        lr_schedule: Given by the algorithm.
        spec: What the features mean.
        hidden: Width of the scorer's layers.
        sb3: What an algorithm adds for its stock policies; the scorer has no use for it.
    """

    scorer: Scorer

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: Schedule,
        *,
        spec: FeatureSpec,
        hidden: int,
        **sb3: Any,
    ) -> None:
        del sb3
        self._spec, self._hidden = spec, hidden
        super().__init__(observation_space, action_space, lr_schedule)

    def _build(self, lr_schedule: Schedule) -> None:
        self.scorer = Scorer(self._spec, self._hidden)
        self.optimizer = torch.optim.Adam(self.scorer.parameters(), lr=lr_schedule(1), eps=1e-5)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = super()._get_constructor_parameters()
        return data | {"spec": self._spec, "hidden": self._hidden}

    def _evaluate(self, obs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the log probability of every candidate and the state's value."""
        scores, value = self.scorer.act_and_value(obs["candidates"], obs["request"], obs["mask"].bool())
        return scores.log_softmax(dim=1), value

    def forward(  # type: ignore[override]
        self, obs: dict[str, Tensor], deterministic: bool = False, action_masks: np.ndarray | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions, values and log probabilities."""
        del action_masks
        logs, value = self._evaluate(obs)
        actions = logs.argmax(dim=1) if deterministic else torch.multinomial(logs.exp(), 1).squeeze(1)
        return actions, value, _of(logs, actions)

    def evaluate_actions(  # type: ignore[override]
        self, obs: dict[str, Tensor], actions: Tensor, action_masks: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return values, log probabilities and entropy of given actions."""
        del action_masks
        logs, value = self._evaluate(obs)
        return value, _of(logs, actions), -(logs.exp() * logs).sum(dim=1)

    def get_distribution(  # type: ignore[override]
        self, obs: dict[str, Tensor], action_masks: np.ndarray | None = None
    ) -> MaskableDistribution:
        """Return the distribution over candidates."""
        del action_masks
        return self.action_dist.proba_distribution(action_logits=self._evaluate(obs)[0])

    def predict_values(self, obs: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        """Return the state's value."""
        return self._evaluate(obs)[1]


def _of(logs: Tensor, actions: Tensor) -> Tensor:
    return logs.gather(1, actions.long().unsqueeze(1)).squeeze(1)
