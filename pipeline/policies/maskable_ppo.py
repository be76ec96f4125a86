"""MaskablePPO (Huang & Ontañón, 2020): sb3-contrib's PPO that never proposes what the mask rules out.

The pipeline's default. It works on stock policies too: ``MaskablePPO("MultiInputPolicy", Sb3VecEnv(env))``.
"""

from __future__ import annotations

from typing import Any, cast

from sb3_contrib import MaskablePPO

from pipeline.policies import ppo
from pipeline.policies.actor_critic import ScorerPolicy
from pipeline.policies.discounting import MaskableRolloutBuffer
from pipeline.policies.sb3 import Sb3VecEnv


def make(env: Sb3VecEnv, settings: ppo.PpoSettings, seed: int, **sb3: Any) -> MaskablePPO:
    """Make sb3-contrib's MaskablePPO on the scorer; ``sb3`` goes through to its constructor."""
    named = {"rollout_buffer_class": MaskableRolloutBuffer, **ppo.arguments(env, settings), **sb3}
    model = MaskablePPO(ScorerPolicy, env, seed=seed, **named)
    cast(MaskableRolloutBuffer, model.rollout_buffer).source = env
    return model
