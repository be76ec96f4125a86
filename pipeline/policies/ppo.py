"""PPO (Schulman et al., 2017) on the scorer: SB3's, with the mask in the scores.

On the scorer it is the same algorithm as MaskablePPO, because masked candidates have no probability either way; it is
here for who comes from SB3 or VMAgent and asks for it by this name. On stock policies the two differ: PPO proposes
infeasible candidates, and the Gymnasium environments do with them what ``invalid_action`` says.
"""

from __future__ import annotations

from typing import Any, cast

from stable_baselines3 import PPO

from pipeline.policies.actor_critic import ScorerPolicy
from pipeline.policies.discounting import RolloutBuffer
from pipeline.policies.sb3 import Sb3VecEnv
from pipeline.policies.settings import Amount, Falling, Positive, Rate, Settings


class PpoSettings(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of ``ppo.yaml`` and ``maskable_ppo.yaml``."""

    epochs: Positive
    batch: Positive
    """Small batches stay in cache (docs/results/train_speed.md)."""
    gae_lambda: Rate
    clip_range: Rate
    entropy: Amount
    """Weight of the entropy in the loss: keeps the policy from settling too early."""


def make(env: Sb3VecEnv, settings: PpoSettings, seed: int, **sb3: Any) -> PPO:
    """Make SB3's PPO on the scorer; ``sb3`` goes through to its constructor (device, tensorboard_log)."""
    # Of MaskablePPO's family, which takes a mask more and is otherwise the same.
    named = {"rollout_buffer_class": RolloutBuffer, **arguments(env, settings), **sb3}
    model = PPO(cast(Any, ScorerPolicy), env, seed=seed, **named)
    cast(RolloutBuffer, model.rollout_buffer).source = env
    return model


def arguments(env: Sb3VecEnv, settings: PpoSettings) -> dict[str, Any]:
    """Translate our settings into SB3's words."""
    return {
        "n_steps": settings.rollout_steps,
        "batch_size": settings.batch,
        "n_epochs": settings.epochs,
        "learning_rate": Falling(settings.learning_rate),
        "gamma": settings.gamma,
        "gae_lambda": settings.gae_lambda,
        "clip_range": settings.clip_range,
        "ent_coef": settings.entropy,
        "policy_kwargs": {"spec": env.env.feature_spec, "hidden": settings.hidden},
    }
