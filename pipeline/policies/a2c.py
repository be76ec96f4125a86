"""A2C (Mnih et al., 2016) on the scorer: SB3's, one gradient step a rollout, no clipping of the policy's change."""

from __future__ import annotations

from typing import Any, cast

from stable_baselines3 import A2C

from pipeline.policies.actor_critic import ScorerPolicy
from pipeline.policies.discounting import RolloutBuffer
from pipeline.policies.sb3 import Sb3VecEnv
from pipeline.policies.settings import Amount, Falling, Rate, Settings


class A2cSettings(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of ``a2c.yaml``."""

    gae_lambda: Rate
    entropy: Amount
    normalise_advantage: bool
    """Keeps steps of one size, whatever the rewards' scale."""


def make(env: Sb3VecEnv, settings: A2cSettings, seed: int, **sb3: Any) -> A2C:
    """Make SB3's A2C on the scorer; ``sb3`` goes through to its constructor."""
    model = A2C(
        cast(Any, ScorerPolicy),  # of MaskablePPO's family, which takes a mask more and is otherwise the same
        env,
        n_steps=settings.rollout_steps,
        learning_rate=Falling(settings.learning_rate),
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
        ent_coef=settings.entropy,
        normalize_advantage=settings.normalise_advantage,
        use_rms_prop=False,
        rollout_buffer_class=RolloutBuffer,
        policy_kwargs={"spec": env.env.feature_spec, "hidden": settings.hidden},
        seed=seed,
        **sb3,
    )
    cast(RolloutBuffer, model.rollout_buffer).source = env
    return model
