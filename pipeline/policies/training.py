"""The loop that SB3's algorithms are trained by: its ``learn``, in segments that can be resumed.

At the end of a segment the network is validated and a checkpoint written; what a ``kill -9`` costs is the segment under
way. Torch and numpy are seeded anew from (seed, segment), environments go on, so long episodes are not cut. A
checkpoint holds the weights, the optimisers and every action taken: environments are deterministic, so playing the
actions again brings back their state, and the replay buffer with it. A training that was killed and resumed ends with
the same weights, to the bit, as one that was not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from pipeline.policies import checkpoint
from pipeline.policies.algorithms import ALGORITHMS, Learner
from pipeline.policies.checkpoint import CHECKPOINT_FILE, Row, Trained, drawn, seed_torch_and_numpy, weights
from pipeline.policies.imitation import demonstrate, imitate
from pipeline.policies.sb3 import Sb3VecEnv
from pipeline.policies.scorer import Scorer
from pipeline.policies.settings import Settings
from sched_env.vector import PlacementVectorEnv

COUNTERS = ("num_timesteps", "_n_updates", "_n_calls", "_episode_num", "_current_progress_remaining",
            "exploration_rate")  # fmt: skip
"""What SB3's algorithms count, as far as an algorithm has it."""
LOGGED = {"entropy_loss": -1.0, "entropy": 1.0, "explained_variance": 1.0, "loss": 1.0}
"""What algorithms log under ``train/`` and curves show -> sign."""


def train(
    make_env: Callable[[int], PlacementVectorEnv],
    algorithm: str,
    settings: Any,
    *,
    seed: int,
    scratch: Path,
    validate: Callable[[Scorer | str], Row],
    objective: Callable[[Row], float],
    report: Callable[[int, Row], None],
    callbacks: Sequence[BaseCallback] = (),
    device: str = "cpu",
    tensorboard: Path | None = None,
) -> Trained:
    """Train, resuming from ``scratch`` if an earlier attempt left a checkpoint there.

    Args:
        make_env: Makes the given number of training environments, with ``copy=True``.
        algorithm: Its name.
        settings: Its settings.
        seed: Names the training; equal seeds give equal weights on a CPU.
        scratch: Folder for the checkpoint.
        validate: Scores a network, or a rule by its name, on the validation windows.
        objective: How good such an answer is; the highest picks the weights.
        report: Told after every segment.
        callbacks: Further ones of SB3's.
        device: ``cpu``, ``cuda``, or ``auto``: a GPU where there is one.
        tensorboard: Folder for TensorBoard's files.
    """
    torch.set_num_threads(1)  # sums in another order would give other bits
    kind = ALGORITHMS[algorithm]
    if isinstance(kind, Learner):
        return kind.train(
            make_env,
            settings,
            seed=seed,
            scratch=scratch,
            validate=validate,
            objective=objective,
            report=report,
            device=device,
            tensorboard=tensorboard,
        )
    env = Sb3VecEnv(
        make_env(settings.envs),
        reward_scale=settings.reward_scale,
        missing_rate=settings.missing_rate,
        gamma=settings.gamma,
        gamma_every_s=settings.gamma_every_s,
    )
    model = kind.make(env, settings, seed, device=device, tensorboard_log=str(tensorboard) if tensorboard else None)
    scorer = cast(Scorer, model.policy.scorer)
    file = scratch / CHECKPOINT_FILE
    state = checkpoint.load(file)
    if state is None:
        start: Row = {"segment": 0.0, "steps": 0.0, **_taught(env, scorer, settings, seed)} | validate(scorer)
        state = {"segment": 0, "curve": [start], "best": weights(scorer), "objective": objective(start)}
        report(0, start)
        env.reseed(drawn(seed, 1))
    else:
        _restore(model, env, seed, state)

    def end_segment(segment: int) -> None:
        row = {"segment": float(segment), **_figures(model), **validate(scorer)}
        state["curve"].append(row)
        if objective(row) > state["objective"]:
            state.update(best=weights(scorer), objective=objective(row))
        state.update(
            segment=segment,
            model=model.get_parameters(),
            counters={name: getattr(model, name) for name in COUNTERS if hasattr(model, name)},
            actions=torch.from_numpy(np.stack(env.taken)),
        )
        checkpoint.save(file, state)
        report(segment, row)

    left = settings.total_steps - model.num_timesteps
    if left:
        loop = _Segments(settings, seed, state["segment"], end_segment)
        model.learn(left, callback=[loop, *callbacks], reset_num_timesteps=False, tb_log_name=algorithm)
    scorer.load_state_dict(state["best"])
    return Trained(scorer=scorer.cpu(), curve=state["curve"])


class _Segments(BaseCallback):
    """Counts rollouts and ends a segment after so many: when the network has learned from the last of them."""

    def __init__(self, settings: Settings, seed: int, done: int, end: Callable[[int], None]) -> None:
        super().__init__()
        self._settings, self._seed, self._segment, self._end = settings, seed, done, end
        self._rollouts = 0

    def _on_training_start(self) -> None:
        seed_torch_and_numpy(self._seed, self._segment + 1)

    def _on_rollout_start(self) -> None:
        if self._rollouts == self._settings.rollouts_per_segment:
            self._finish()
        self._rollouts += 1

    def _finish(self) -> None:
        self._segment, self._rollouts = self._segment + 1, 0
        self._end(self._segment)
        self.model.ep_info_buffer.clear()  # type: ignore[union-attr]  # the next figures are of the next segment
        seed_torch_and_numpy(self._seed, self._segment + 1)

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self._finish()


def _taught(env: Sb3VecEnv, scorer: Scorer, settings: Settings, seed: int) -> Row:
    """Let the network imitate its teacher first, if it has one."""
    seed_torch_and_numpy(seed, 0)
    teacher = env.env.problem.fallback if settings.teacher is None else settings.teacher
    if not teacher:
        return {}
    env.reseed(drawn(seed, 0))
    lessons = demonstrate(env, teacher, steps=settings.teacher_steps, gamma=settings.gamma)
    matched = imitate(scorer, lessons, epochs=settings.teacher_epochs, batch=256, learning_rate=1e-3, value_weight=0.5)
    return {"teacher_matched": matched}


def _restore(model: BaseAlgorithm, env: Sb3VecEnv, seed: int, state: dict[str, Any]) -> None:
    """Bring model, environments and replay buffer back to where the checkpoint was written."""
    env.reseed(drawn(seed, 1))
    model._last_obs, done = env.reset(), np.ones(env.num_envs, np.bool_)
    for actions in state["actions"].numpy():
        env.step_async(actions)
        seen, rewards, done, infos = env.step_wait()
        if isinstance(model, OffPolicyAlgorithm):
            model._store_transition(model.replay_buffer, actions, seen, rewards, done, infos)  # type: ignore[arg-type]
        model._last_obs = seen
    model._last_episode_starts = done
    model.set_parameters(state["model"])
    for name, value in state["counters"].items():
        setattr(model, name, value)


def _figures(model: BaseAlgorithm) -> Row:
    returns = [episode["r"] for episode in model.ep_info_buffer or ()]
    logged = model.logger.name_to_value
    shown = {name: sign * float(logged[f"train/{name}"]) for name, sign in LOGGED.items() if f"train/{name}" in logged}
    if "entropy_loss" in shown:
        shown["entropy"] = shown.pop("entropy_loss")
    return {
        "steps": float(model.num_timesteps),
        "train_return": float(np.mean(returns)) if returns else float("nan"),
        **shown,
    }
