"""Value mixing over candidates, in the manner of QMIX (Rashid et al., 2018).

Every candidate is an agent with two utilities, to take the request and to leave it; a decision is that one takes and
the others leave. A small network mixes the utilities into the value of the decision, with weights that another network
makes from the state and that are never negative. So the mixed value rises with each agent's utility, and the agent
whose taking gains most is the best decision: greedy on the scores is greedy on the mixed value, and the scorer alone
is exported. QMIX gives each agent weights of its own; here all share them, or the number of candidates would be fixed.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.policies.dqn import DqnSettings, MaskedDQN, ScorerQPolicy, arguments
from pipeline.policies.sb3 import Sb3VecEnv
from pipeline.policies.scorer import Scorer
from pipeline.policies.settings import Positive
from wire.contracts.bundle import MASKED_SCORE
from wire.contracts.feature_spec import FeatureSpec


class QmixSettings(DqnSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of ``qmix.yaml``; ``dueling`` has no meaning here and must be off."""

    mixers: Positive
    """Width of the mixing network."""

    def __post_init__(self) -> None:
        """Refuse what would be ignored."""
        if self.dueling:
            raise ValueError("dueling: the mixing network has a term of the state of its own; expected false")


class Mixer(nn.Module):
    """Utilities from the scorer, mixed by weights made of the pooled state."""

    def __init__(self, spec: FeatureSpec, hidden: int, mixers: int) -> None:
        super().__init__()
        self.scorer = Scorer(spec, hidden)
        self.leave = nn.Linear(hidden, 1)
        self.inner, self.outer = nn.Linear(2 * hidden, mixers), nn.Linear(2 * hidden, mixers)
        self.inner_bias = nn.Linear(2 * hidden, mixers)
        with torch.no_grad():  # begins as the plain sum, from where any mixing can be learned
            for layer in (self.inner, self.outer):
                layer.weight.zero_()
            self.inner.bias.fill_(1.0)
            self.outer.bias.fill_(1.0 / mixers)

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        """Return the mixed value ``[B, C]`` of each candidate's taking while the others leave; masked."""
        mask = observation["mask"].bool()
        encoded, pooled = self.scorer.encode(observation["candidates"], observation["request"], mask)
        feasible = mask.to(encoded.dtype)
        share = feasible / feasible.sum(1, True).clamp(min=1.0)
        gain = self.scorer.score(encoded, pooled, mask)  # of taking over leaving
        # Less their mean, as in dueling: what all gains have in common is the state's, and the weights of the mixing
        # would otherwise multiply it with the little that tells candidates apart.
        gain = torch.where(mask, gain - (gain * share).sum(1, True), torch.zeros_like(gain))
        # Their mean, not their sum: a value must not grow with the number of candidates.
        leaving = (self.leave(encoded).squeeze(-1) * share).sum(1, True)
        total = (gain + leaving).unsqueeze(-1)
        # Leaky, where QMIX has an ELU: values below zero must not flatten out, or nothing is learned there.
        inner = functional.leaky_relu(
            total * self.inner(pooled).abs().unsqueeze(1) + self.inner_bias(pooled).unsqueeze(1), 0.3
        )
        mixed = (inner * self.outer(pooled).abs().unsqueeze(1)).sum(dim=-1) + self.scorer.value_head(pooled)
        return torch.where(mask, mixed, torch.full_like(mixed, MASKED_SCORE))


class MixerPolicy(ScorerQPolicy):
    """Mixed values, and their target, behind SB3's interface."""

    network: ClassVar[type[nn.Module]] = Mixer


class QMix(MaskedDQN):
    """Double Q-learning of the mixed value; it needs the scorer, so there are no stock policies."""

    policy_aliases: ClassVar[dict[str, Any]] = {}


def make(env: Sb3VecEnv, settings: QmixSettings, seed: int, **sb3: Any) -> QMix:
    """Make value mixing on the scorer; ``sb3`` goes through to SB3's constructor."""
    network = {"spec": env.env.feature_spec, "hidden": settings.hidden, "mixers": settings.mixers}
    model = QMix(MixerPolicy, env, seed=seed, policy_kwargs=network, **arguments(settings), **sb3)
    model.replay_buffer.source = env
    return model
