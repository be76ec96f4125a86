"""DQN (Mnih et al., 2015) with masked targets, double (van Hasselt et al., 2016) and dueling (Wang et al., 2016).

A target that takes its maximum over infeasible actions learns from values that nobody ever corrects; here targets,
exploration and predictions see feasible actions only. On the scorer the dueling form is exact: the scores are the
advantages, so what is exported decides as Q does. ``MaskedDQN("MultiInputPolicy", env)`` works on stock policies too.
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import Schedule
from torch import Tensor, nn
from torch.nn import functional

from pipeline.policies.discounting import ReplayBuffer
from pipeline.policies.off_policy import EPSILON, MaskedOffPolicy, Observed, PiecewiseLinear, masked, random_feasible
from pipeline.policies.sb3 import Sb3VecEnv
from pipeline.policies.scorer import Scorer
from pipeline.policies.settings import Falling, OffPolicySettings, Positive
from wire.contracts.feature_spec import FeatureSpec


class DqnSettings(OffPolicySettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of ``dqn.yaml``."""

    double: bool
    """The network chooses the next action, the target network says what it is worth."""
    dueling: bool
    """Q = value + advantage, less the mean advantage of the feasible."""
    target_update_interval: Positive
    """Decisions between updates of the target."""
    epsilon: tuple[float, ...]
    epsilon_at: tuple[float, ...]
    """Share of random choices, by the share of the training done; linear in between."""


class QScorer(nn.Module):
    """The scorer as action values."""

    def __init__(self, spec: FeatureSpec, hidden: int, dueling: bool = True) -> None:
        super().__init__()
        self.scorer, self.dueling = Scorer(spec, hidden), dueling

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        """Return Q ``[B, C]``; masked where infeasible."""
        mask = observation["mask"].bool()
        scores, value = self.scorer.act_and_value(observation["candidates"], observation["request"], mask)
        if not self.dueling:
            return scores
        feasible = mask.to(scores.dtype)
        mean = (scores * feasible).sum(dim=1) / feasible.sum(dim=1).clamp(min=1.0)
        return torch.where(mask, scores + (value - mean).unsqueeze(1), scores)


class ScorerQPolicy(BasePolicy):
    """A network of action values over the scorer, and its target, behind SB3's interface."""

    network: ClassVar[type[nn.Module]] = QScorer

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: Schedule,
        **network: Any,
    ) -> None:
        super().__init__(observation_space, action_space)
        self._network = network
        self.q_net, self.q_net_target = self.network(**network), self.network(**network)
        self.q_net_target.load_state_dict(self.q_net.state_dict())
        self.q_net_target.requires_grad_(False).train(False)
        self.optimizer = torch.optim.Adam(self.q_net.parameters(), lr=lr_schedule(1))

    @property
    def scorer(self) -> Scorer:
        """What is exported."""
        return cast(Scorer, self.q_net.scorer)

    def _predict(self, observation: Observed, deterministic: bool = True) -> Tensor:
        del deterministic
        best: Tensor = self.q_net(observation).argmax(dim=1)
        return best

    def set_training_mode(self, mode: bool) -> None:
        """Put the network, never its target, into training mode."""
        self.q_net.train(mode)
        self.training = mode

    def _get_constructor_parameters(self) -> dict[str, Any]:
        spaces_ = {"observation_space": self.observation_space, "action_space": self.action_space}
        return {**spaces_, "lr_schedule": Falling(0.0), **self._network}


class MaskedDQN(MaskedOffPolicy, DQN):
    """SB3's DQN; see the module.

    Args:
        given: As SB3's.
        double: Whether the network chooses the next action of a target.
        epsilon: The share of random choices over the training.
        named: As SB3's.
    """

    q_net: Any
    q_net_target: Any

    def __init__(self, *given: Any, double: bool = True, epsilon: PiecewiseLinear = EPSILON, **named: Any) -> None:
        self.double, self.epsilon = double, epsilon
        super().__init__(*given, **named)

    def _setup_model(self) -> None:
        super()._setup_model()
        self.exploration_schedule = self.epsilon
        self.exploration_rate = self.epsilon(1.0)  # SB3 would take its first step without exploring

    def scores(self, observation: Observed) -> Tensor:
        """Return masked action values."""
        return masked(self.q_net(observation), observation)

    def choose(self, observation: Observed, deterministic: bool) -> Tensor:
        """Choose the best action, or with chance epsilon any feasible one, each row by itself."""
        scores = self.scores(observation)
        best = scores.argmax(dim=1)
        if deterministic:
            return best
        explores = torch.rand(len(best), device=best.device) < self.exploration_rate
        return torch.where(explores, random_feasible(scores), best)

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Take gradient steps on Huber's loss towards masked targets."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        losses = []
        for _ in range(gradient_steps):
            data = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            discounts = self.gamma if data.discounts is None else data.discounts
            with torch.no_grad():
                after = masked(self.q_net_target(data.next_observations), data.next_observations)
                best = (self.scores(data.next_observations) if self.double else after).argmax(dim=1, keepdim=True)
                # Where nothing is feasible the episode is over, and its target is the reward alone.
                target = data.rewards + torch.where(data.dones > 0, 0.0, discounts * after.gather(1, best))
            present = self.q_net(data.observations).gather(1, data.actions.long())
            loss = functional.smooth_l1_loss(present, target)
            self.policy.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.q_net.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
            losses.append(loss.item())
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", np.mean(losses))


def make(env: Sb3VecEnv, settings: DqnSettings, seed: int, **sb3: Any) -> MaskedDQN:
    """Make DQN on the scorer; ``sb3`` goes through to SB3's constructor."""
    network = {"spec": env.env.feature_spec, "hidden": settings.hidden, "dueling": settings.dueling}
    model = MaskedDQN(ScorerQPolicy, env, seed=seed, policy_kwargs=network, **arguments(settings), **sb3)
    model.replay_buffer.source = env
    return model


def arguments(settings: DqnSettings) -> dict[str, Any]:
    """Translate our settings into SB3's words."""
    return {
        "learning_rate": Falling(settings.learning_rate),
        "buffer_size": settings.buffer,
        "learning_starts": settings.learning_starts,
        "batch_size": settings.batch,
        "tau": settings.tau,
        "gamma": settings.gamma,
        "replay_buffer_class": ReplayBuffer,
        "replay_buffer_kwargs": {"n_steps": settings.n_steps, "gamma": settings.gamma},
        "train_freq": settings.rollout_steps,
        "gradient_steps": settings.updates,
        "target_update_interval": settings.target_update_interval,
        "double": settings.double,
        "epsilon": PiecewiseLinear(settings.epsilon, settings.epsilon_at),
    }
