"""MaskablePPO on the scorer, in segments that can be resumed: what a kill -9 costs is the segment under way.

Every segment starts from (seed, segment) alone: environments, torch and numpy are seeded anew. So a training that was
killed and resumed ends with the same weights, to the bit, as one that was not.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
import numpy as np
import torch
from sb3_contrib import MaskablePPO

from pipeline.policies.imitation import demonstrate, imitate
from pipeline.policies.sb3 import Sb3VecEnv, ScorerPolicy
from pipeline.policies.scorer import Scorer
from sched_env.vector import PlacementVectorEnv

log = logging.getLogger(__name__)

Positive = Annotated[int, msgspec.Meta(ge=1)]
Rate = Annotated[float, msgspec.Meta(ge=0, le=1)]


class PpoConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of ``train.<problem>.maskable_ppo``."""

    envs: Positive = 64
    """Environments stepped at once; with ``rollout_steps`` it makes one batch of experience."""
    rollout_steps: Positive = 128
    segments: Positive = 24
    """Checkpoints, validations and possible resume points of a training."""
    rollouts_per_segment: Positive = 2
    epochs: Positive = 6
    batch: Positive = 2048
    learning_rate: float = 1e-3
    """Falls linearly to a tenth over the segments."""
    gamma: Rate = 0.95
    """An instance lives for about twenty decisions: further ahead the value is noise."""
    gae_lambda: Rate = 0.95
    clip_range: Rate = 0.2
    entropy: float = 0.003
    hidden: Positive = 64
    reward_scale: float = 0.3
    """Keeps values of order one, so that value and policy share one encoder in peace."""
    missing_rate: Rate = 0.01
    """Share of decisions in which a droppable feature is hidden, as it happens live."""
    teacher: str | None = None
    """Heuristic that the network imitates first; null: the problem's fallback; empty: none."""
    teacher_steps: Positive = 256
    teacher_epochs: Positive = 15


class Trained(msgspec.Struct):
    """A finished training: the weights that did best on validation, and the curve."""

    scorer: Scorer
    curve: list[dict[str, float]]


def train(
    make_env: Callable[[int], PlacementVectorEnv],
    config: PpoConfig,
    *,
    seed: int,
    scratch: Path,
    validate: Callable[[Scorer], dict[str, float]],
    objective: Callable[[dict[str, float]], float],
    report: Callable[[int, dict[str, float]], None],
) -> Trained:
    """Train, resuming from ``scratch`` if an earlier attempt left a checkpoint there.

    Args:
        make_env: Makes the given number of training environments, with ``copy=True``.
        config: Settings.
        seed: Names the training; equal seeds give equal weights.
        scratch: Folder for the checkpoint.
        validate: Scores a network on the validation windows.
        objective: How good such an answer is; the highest picks the weights.
        report: Told after every segment.
    """
    torch.set_num_threads(1)  # sums in another order would give other bits
    env = Sb3VecEnv(make_env(config.envs), reward_scale=config.reward_scale, missing_rate=config.missing_rate)
    model = _model(env, config, seed)
    scorer = cast(ScorerPolicy, model.policy).scorer
    checkpoint = scratch / "checkpoint.pt"
    state = _load(checkpoint)
    if state is None:
        _seed_everything(env, seed, 0)
        start: dict[str, float] = {"segment": 0.0}
        teacher = env.env.problem.fallback if config.teacher is None else config.teacher
        if teacher:
            lessons = demonstrate(env, teacher, steps=config.teacher_steps, gamma=config.gamma)
            start["teacher_matched"] = imitate(
                scorer, lessons, epochs=config.teacher_epochs, batch=256, learning_rate=1e-3, value_weight=0.5
            )
        start |= validate(scorer)
        state = {"segment": 0, "curve": [start], "best": _copy(scorer), "objective": objective(start)}
        report(0, start)
    else:
        scorer.load_state_dict(state["scorer"])
        model.policy.optimizer.load_state_dict(state["optimizer"])
    for segment in range(state["segment"] + 1, config.segments + 1):
        row = {"segment": float(segment), **_segment(model, env, config, seed, segment), **validate(scorer)}
        state["curve"].append(row)
        if objective(row) > state["objective"]:
            state |= {"best": _copy(scorer), "objective": objective(row)}
        state |= {
            "segment": segment,
            "scorer": scorer.state_dict(),
            "optimizer": model.policy.optimizer.state_dict(),
        }
        _save(checkpoint, state)
        report(segment, row)
    scorer.load_state_dict(state["best"])
    return Trained(scorer=scorer, curve=state["curve"])


def _model(env: Sb3VecEnv, config: PpoConfig, seed: int) -> MaskablePPO:
    return MaskablePPO(
        ScorerPolicy,
        env,
        n_steps=config.rollout_steps,
        batch_size=config.batch,
        n_epochs=config.epochs,
        learning_rate=config.learning_rate,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        clip_range=config.clip_range,
        ent_coef=config.entropy,
        policy_kwargs={"spec": env.env.feature_spec, "hidden": config.hidden},
        seed=seed,
        device="cpu",
    )


def _segment(model: MaskablePPO, env: Sb3VecEnv, config: PpoConfig, seed: int, segment: int) -> dict[str, float]:
    _seed_everything(env, seed, segment)
    model.learning_rate = config.learning_rate * (1.0 - 0.9 * (segment - 1) / config.segments)
    model._setup_lr_schedule()
    model._last_obs = None  # makes learn() reset the environments under the new seed
    model.ep_info_buffer = None
    steps = config.envs * config.rollout_steps * config.rollouts_per_segment
    model.learn(total_timesteps=steps, reset_num_timesteps=True)
    ended: Iterable[dict[str, float]] = model.ep_info_buffer or ()
    returns = [episode["r"] for episode in ended]
    logged = model.logger.name_to_value
    return {
        "steps": float(segment * steps),
        "train_return": float(np.mean(returns)) if returns else float("nan"),
        "entropy": -float(logged.get("train/entropy_loss", float("nan"))),
        "explained_variance": float(logged.get("train/explained_variance", float("nan"))),
    }


def _seed_everything(env: Sb3VecEnv, seed: int, segment: int) -> None:
    drawn = int(np.random.SeedSequence([seed, segment]).generate_state(1)[0])
    env.reseed(drawn)
    torch.manual_seed(drawn)
    np.random.seed(drawn)  # noqa: NPY002 - SB3 shuffles its rollout buffer with the global generator


def _copy(scorer: Scorer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in scorer.state_dict().items()}


def _save(path: Path, state: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    torch.save(state, unfinished)
    unfinished.replace(path)


def _load(path: Path) -> dict[str, Any] | None:
    """Load a checkpoint; one that cannot be read (a disk that filled up, a torn write) means starting over."""
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        log.warning("%s cannot be read (%s): the training starts over", path, error)
        return None
    return state
