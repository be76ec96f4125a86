"""A head start: the network first learns to do what a heuristic does, then reinforcement learning goes on from there.

Learning from nothing wastes most of a night rediscovering what a one-line rule knows, and passes through policies that
nobody would want near a cluster.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pipeline.policies.sb3 import Sb3VecEnv
from pipeline.policies.scorer import Scorer
from sched_env import heuristics


class Demonstrations(NamedTuple):
    """What the teacher saw and did, flattened over time and environments, and what it earned from there on."""

    candidates: Tensor
    request: Tensor
    mask: Tensor
    action: Tensor
    discounted_return: Tensor


def demonstrate(env: Sb3VecEnv, teacher: str, *, steps: int, gamma: float) -> Demonstrations:
    """Let a heuristic place ``steps`` requests in every environment.

    Args:
        env: The training environments.
        teacher: Name of the heuristic.
        steps: Vector steps.
        gamma: Discount of the returns, as in training, so that the value head starts right too.
    """
    observation = env.reset()
    rule = heuristics.batch(teacher, env.env, env.env.seed)
    seen: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
    rewards, dones = np.zeros((steps, env.num_envs)), np.zeros((steps, env.num_envs), np.bool_)
    for step in range(steps):
        action = rule().copy()
        seen.append((observation["candidates"], observation["request"], observation["mask"], action))
        env.step_async(action)
        observation, rewards[step], dones[step], _ = env.step_wait()
    returns, following = np.zeros_like(rewards), np.zeros(env.num_envs)
    for step in reversed(range(steps)):
        following = rewards[step] + gamma * following * ~dones[step]
        returns[step] = following
    candidates, request, mask, chosen = (torch.from_numpy(np.concatenate(column)) for column in zip(*seen, strict=True))
    earned = torch.from_numpy(returns.reshape(-1).astype(np.float32))
    return Demonstrations(candidates, request, mask, chosen, earned)


def imitate(
    scorer: Scorer, lessons: Demonstrations, *, epochs: int, batch: int, learning_rate: float, value_weight: float
) -> float:
    """Fit scores to the teacher's choices and values to its returns; returns the share of choices matched at the end.

    Args:
        scorer: The network; changed in place.
        lessons: The teacher's decisions.
        epochs: Passes over them.
        batch: Decisions a gradient step.
        learning_rate: Adam's.
        value_weight: Weight of the value's error beside the cross entropy.
    """
    optimizer = torch.optim.Adam(scorer.parameters(), lr=learning_rate)
    count = len(lessons.action)
    matched = 0.0
    for _ in range(epochs):
        hits = 0
        for rows in torch.split(torch.randperm(count), batch):
            scores, value = scorer.act_and_value(lessons.candidates[rows], lessons.request[rows], lessons.mask[rows])
            loss = functional.cross_entropy(scores, lessons.action[rows])
            loss = loss + value_weight * functional.mse_loss(value, lessons.discounted_return[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            hits += int((scores.argmax(dim=1) == lessons.action[rows]).sum())
        matched = hits / count
    return matched
