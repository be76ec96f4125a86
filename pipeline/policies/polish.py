"""Polish: the last step of ``expert``, which compares whole episodes where trials compare a few dozen decisions.

The first layer of a student is moved a little in random directions, to both sides of each; all of them play the same
whole episodes of the train windows, and the weights move to where episodes ended better (an evolution strategy). No
credit is assigned, so nothing that shows late is missed: the discount of PPO, and a further improvement by trials, both
made students worse from here on (docs/decisions/0062-whole-episodes-at-last.md). The first layer is enough, and all
layers are no better; it alone differs between draws, so one batch steps them all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.policies.counterfactual import feasible_first
from pipeline.policies.scorer import CLIP, Scorer
from sched_env.vector import PlacementVectorEnv

PAIRS = 24
"""Directions a generation, each tried to both sides."""
EPISODES = 8
"""Played by every draw of a generation; others in the next."""
SIZE = 0.1
"""Of a draw, in root mean squares of the weights it moves. Smaller ones end in the noise of the episodes."""
INERTIA = 0.8
"""Share of the direction that stays from one generation to the next."""
PART = 20
"""Generations between two looks at validation, and checkpoints."""

Floats = NDArray[np.float64]


class Polish:
    """Moves the first layer of a scorer.

    Args:
        env: An environment of :data:`EPISODES` rows; what state it is in does not matter, and is lost.
        scorer: Moved in place.
        kept: :attr:`kept` of one that was stopped.
    """

    def __init__(self, env: PlacementVectorEnv, scorer: Scorer, kept: dict[str, Any] | None = None) -> None:
        self._env, self._scorer = env, scorer
        self._fork: PlacementVectorEnv | None = None
        self._moved = [*scorer.encode_features.parameters()]
        # What is 0 everywhere would never move; there is no other scale to take.
        sizes = [SIZE * float(each.detach().square().mean().sqrt()) or SIZE for each in self._moved]
        self.kept = kept or {"sizes": sizes, "momentum": [torch.zeros_like(each) for each in self._moved]}
        """All that has to be kept, beside the weights, to go on: how far draws go, and the direction so far."""
        self.decisions = 0.0
        """Taken so far."""

    def generation(self, seed: int) -> None:
        """Draw, play and move."""
        rng, sizes, momentum = torch.Generator().manual_seed(seed), self.kept["sizes"], self.kept["momentum"]
        drawn = [torch.randn((PAIRS, *each.shape), generator=rng) for each in self._moved]
        with torch.no_grad():
            both = [
                torch.cat([each + size * draw, each - size * draw])
                for each, size, draw in zip(self._moved, sizes, drawn, strict=True)
            ]
            returns = self._played(both, seed)
            share = torch.from_numpy(_ranked(returns[:PAIRS] - returns[PAIRS:])).float() / PAIRS
            for each, size, draw, before in zip(self._moved, sizes, drawn, momentum, strict=True):
                before.mul_(INERTIA).add_((1 - INERTIA) * torch.tensordot(share, draw, dims=1))
                each.add_(size * before)

    def _played(self, draws: list[Tensor], seed: int) -> Floats:
        """Let every draw play the same episodes to their ends; return its mean return."""
        count = 2 * PAIRS
        self._env.reset(seed=seed, options={"park": True})
        rows = np.repeat(np.arange(EPISODES)[None], count, axis=0).ravel()
        env = self._fork = self._env.fork(rows, into=self._fork)
        b, scorer = env.buffers, self._scorer
        of_rows, of_all, bias = (each.transpose(1, 2) if each.dim() == 3 else each.unsqueeze(1) for each in draws)
        actions = np.zeros(env.num_envs, np.int64)
        while b.active.any():
            order, mask = feasible_first(b.mask)
            candidates = torch.from_numpy(np.take_along_axis(b.candidates, order[..., None], axis=1))
            feasible, width = torch.from_numpy(mask), order.shape[1]
            own = (candidates / scorer.candidate_scale).clamp(-CLIP, CLIP).view(count, EPISODES * width, -1)
            asked = (torch.from_numpy(b.request) / scorer.request_scale).clamp(-CLIP, CLIP).view(count, EPISODES, -1)
            shared = torch.baddbmm(bias, asked, of_all).view(env.num_envs, 1, -1)
            first = torch.bmm(own, of_rows).view(env.num_envs, width, -1) + shared
            scores = scorer.score(*scorer.pool(first, feasible), feasible).numpy()
            actions[:] = order[np.arange(env.num_envs), scores.argmax(axis=1)]
            self.decisions += float(b.active.sum())
            env.step(actions)
        returns: Floats = b.metrics[:, env.METRICS.index("return")].reshape(count, EPISODES).mean(axis=1)
        return returns


def _ranked(differences: Floats) -> Floats:
    """Return each difference's sign times its rank by size, 1 for the largest: one lucky draw must not lead."""
    ranks = np.abs(differences).argsort().argsort() + 1.0
    ranked: Floats = np.sign(differences) * ranks / len(differences)
    return ranked
