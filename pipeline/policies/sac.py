"""Discrete soft actor-critic (Christodoulou, 2019), masked: expectations over feasible candidates, none sampled.

The actor's probabilities, both critics and the target entropy know the mask: with one feasible candidate nothing is
left to be uncertain about, so the temperature is tuned towards a share of the most entropy that the mask allows.
``DiscreteSAC("MultiInputPolicy", env)`` works on stock policies too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, cast

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.torch_layers import CombinedExtractor
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.common.utils import polyak_update
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from torch import Tensor, nn
from torch.nn import functional

from pipeline.policies.discounting import ReplayBuffer
from pipeline.policies.dqn import QScorer
from pipeline.policies.off_policy import MaskedOffPolicy, Observed, mask_of, masked
from pipeline.policies.sb3 import Sb3VecEnv
from pipeline.policies.scorer import Scorer
from pipeline.policies.settings import Amount, Falling, OffPolicySettings, Rate
from wire.contracts.feature_spec import FeatureSpec

MAX_GRADIENT = 10.0


class SacSettings(OffPolicySettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of ``sac.yaml``."""

    temperature: Amount
    """At the start; learned from there."""
    target_entropy: Rate
    """Share of the most entropy that the mask allows."""


class Networks(nn.Module):
    """Actor, two critics and their targets, made by one function each."""

    def __init__(self, actor: nn.Module, critic: Callable[[], nn.Module], temperature: float) -> None:
        super().__init__()
        self.actor = actor
        self.critics, self.targets = nn.ModuleList([critic(), critic()]), nn.ModuleList([critic(), critic()])
        self.targets.load_state_dict(self.critics.state_dict())
        self.targets.requires_grad_(False)
        self.log_temperature = nn.Parameter(torch.tensor(float(np.log(temperature))))

    def optimizers(self, learning_rate: float) -> tuple[torch.optim.Optimizer, ...]:
        """Return Adam for the actor, the critics and the temperature."""
        parts = (self.actor.parameters(), self.critics.parameters(), [self.log_temperature])
        return tuple(torch.optim.Adam(part, lr=learning_rate) for part in parts)


class ActorScorer(nn.Module):
    """The scorer as logits."""

    def __init__(self, spec: FeatureSpec, hidden: int) -> None:
        super().__init__()
        self.scorer = Scorer(spec, hidden)

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        """Return the scores ``[B, C]``."""
        scores: Tensor = self.scorer(observation["candidates"], observation["request"], observation["mask"].bool())
        return scores


class ScorerSacPolicy(BasePolicy):
    """Actor and critics over scorers."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: Schedule,
        *,
        spec: FeatureSpec,
        hidden: int,
        temperature: float = 0.1,
    ) -> None:
        super().__init__(observation_space, action_space)
        self._made_of = {"spec": spec, "hidden": hidden, "temperature": temperature}
        self.networks = Networks(ActorScorer(spec, hidden), lambda: QScorer(spec, hidden), temperature)
        self.actor_optimizer, self.critic_optimizer, self.temperature_optimizer = self.networks.optimizers(
            lr_schedule(1)
        )

    @property
    def scorer(self) -> Scorer:
        """What is exported."""
        return cast(Scorer, self.networks.actor.scorer)

    def _predict(self, observation: Observed, deterministic: bool = True) -> Tensor:
        del deterministic
        best: Tensor = self.networks.actor(observation).argmax(dim=1)
        return best

    def _get_constructor_parameters(self) -> dict[str, Any]:
        spaces_ = {"observation_space": self.observation_space, "action_space": self.action_space}
        return {**spaces_, "lr_schedule": Falling(0.0), **self._made_of}


class StockSacPolicy(DQNPolicy):
    """Actor and critics as SB3 builds networks of action values: features extractor and MLP."""

    def _build(self, lr_schedule: Schedule) -> None:
        self.networks = Networks(self.make_q_net(), self.make_q_net, 0.1)
        self.q_net = cast(QNetwork, self.networks.actor)  # what DQNPolicy acts by
        self.actor_optimizer, self.critic_optimizer, self.temperature_optimizer = self.networks.optimizers(
            lr_schedule(1)
        )


class StockSacMultiInputPolicy(StockSacPolicy):
    """The same for observations that are dictionaries."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **{"features_extractor_class": CombinedExtractor} | named)


class DiscreteSAC(MaskedOffPolicy):
    """Soft actor-critic for discrete, masked actions; see the module.

    Args:
        policy: ``MlpPolicy``, ``MultiInputPolicy`` or :class:`ScorerSacPolicy`.
        env: As SB3's.
        target_entropy: Share of the most entropy that the mask allows.
        named: As SB3's off-policy algorithms.
    """

    policy_aliases: ClassVar[dict[str, Any]] = {
        "MlpPolicy": StockSacPolicy,
        "MultiInputPolicy": StockSacMultiInputPolicy,
    }

    def __init__(
        self,
        policy: Any,
        env: Any,
        learning_rate: Any = 3e-4,
        *,
        target_entropy: float = 0.3,
        _init_setup_model: bool = True,
        **named: Any,
    ) -> None:
        self.target_entropy = target_entropy
        named |= {"sde_support": False, "supported_action_spaces": (spaces.Discrete,), "support_multi_env": True}
        super().__init__(policy, env, learning_rate, **named)
        if _init_setup_model:
            self._setup_model()

    def scores(self, observation: Observed) -> Tensor:
        """Return masked logits."""
        return masked(self.policy.networks.actor(observation), observation)

    def choose(self, observation: Observed, deterministic: bool) -> Tensor:
        """Choose the most likely action, or draw one."""
        scores = self.scores(observation)
        return scores.argmax(dim=1) if deterministic else torch.multinomial(scores.softmax(dim=1), 1).squeeze(1)

    def train(self, gradient_steps: int, batch_size: int = 256) -> None:
        """Take gradient steps of critics, actor and temperature."""
        self.policy.set_training_mode(True)
        nets, policy = self.policy.networks, self.policy
        self._update_learning_rate([policy.actor_optimizer, policy.critic_optimizer, policy.temperature_optimizer])
        logged: list[tuple[float, float, float]] = []
        for _ in range(gradient_steps):
            data = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            discounts = self.gamma if data.discounts is None else data.discounts
            temperature = nets.log_temperature.exp().detach()
            with torch.no_grad():
                logs = self.scores(data.next_observations).log_softmax(dim=1)
                after = torch.min(
                    *(masked(net(data.next_observations), data.next_observations) for net in nets.targets)
                )
                soft = (logs.exp() * (after - temperature * logs)).sum(dim=1, keepdim=True)
                target = data.rewards + torch.where(data.dones > 0, 0.0, discounts * soft)
            values = [net(data.observations) for net in nets.critics]
            critic_loss: Any = sum(functional.smooth_l1_loss(q.gather(1, data.actions.long()), target) for q in values)
            _descend(policy.critic_optimizer, critic_loss)
            logs = self.scores(data.observations).log_softmax(dim=1)
            chances = logs.exp()
            worth = masked(torch.min(*values).detach(), data.observations)
            actor_loss = (chances * (temperature * logs - worth)).sum(dim=1).mean()
            _descend(policy.actor_optimizer, actor_loss)
            entropy = -(chances * logs).sum(dim=1).detach()
            gap = entropy - self.target_entropy * self._most_entropy(data.observations)
            _descend(policy.temperature_optimizer, (nets.log_temperature * gap).mean())
            polyak_update(nets.critics.parameters(), nets.targets.parameters(), self.tau)
            logged.append((critic_loss.item(), entropy.mean().item(), temperature.item()))
        self._n_updates += gradient_steps
        for name, value in zip(("loss", "entropy", "temperature"), np.mean(logged, axis=0), strict=True):
            self.logger.record(f"train/{name}", value)

    def _most_entropy(self, observation: Observed) -> Tensor:
        mask = mask_of(observation)
        if mask is None:
            return torch.tensor(float(np.log(cast(spaces.Discrete, self.action_space).n)), device=self.device)
        return mask.sum(dim=1).clamp(min=1).log()

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy", *(f"policy.{part}_optimizer" for part in ("actor", "critic", "temperature"))], []


def _descend(optimizer: torch.optim.Optimizer, loss: Any) -> None:
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], MAX_GRADIENT)
    optimizer.step()


def make(env: Sb3VecEnv, settings: SacSettings, seed: int, **sb3: Any) -> DiscreteSAC:
    """Make discrete SAC on the scorer; ``sb3`` goes through to SB3's constructor."""
    network = {"spec": env.env.feature_spec, "hidden": settings.hidden, "temperature": settings.temperature}
    model = DiscreteSAC(
        ScorerSacPolicy,
        env,
        Falling(settings.learning_rate),
        buffer_size=settings.buffer,
        learning_starts=settings.learning_starts,
        batch_size=settings.batch,
        tau=settings.tau,
        gamma=settings.gamma,
        replay_buffer_class=ReplayBuffer,
        replay_buffer_kwargs={"n_steps": settings.n_steps, "gamma": settings.gamma},
        train_freq=settings.rollout_steps,
        gradient_steps=settings.updates,
        target_entropy=settings.target_entropy,
        policy_kwargs=network,
        seed=seed,
        **sb3,
    )
    model.replay_buffer.source = env
    return model
