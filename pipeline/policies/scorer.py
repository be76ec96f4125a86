"""The policy network: one score a candidate, the same weights for every candidate, any number, any order.

DeepSets: each candidate's features and the request are encoded by one shared network; the mean and the maximum over
feasible candidates tell every candidate what the others look like. Only products, sums and maxima are used, so the
exported graph keeps batch and candidate axes free.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from wire.contracts.bundle import MASKED_SCORE
from wire.contracts.feature_spec import FeatureSpec

CLIP = 10.0
"""Normalised features beyond this are clipped: an outlier in a live metric must not outvote everything else."""


def _mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs))


class Scorer(nn.Module):
    """Scores candidates; its forward pass is exactly what is exported.

    Args:
        spec: Gives the number of features and the scales that normalise them inside the graph.
        hidden: Width of every layer.
    """

    candidate_scale: Tensor
    request_scale: Tensor

    def __init__(self, spec: FeatureSpec, hidden: int = 64) -> None:
        super().__init__()
        self.register_buffer("candidate_scale", torch.tensor([f.scale for f in spec.candidate], dtype=torch.float32))
        self.register_buffer("request_scale", torch.tensor([f.scale for f in spec.request], dtype=torch.float32))
        self.encoder = nn.Sequential(_mlp(len(spec.candidate) + len(spec.request), hidden, hidden), nn.Tanh())
        self.score_head = _mlp(3 * hidden, hidden, 1)
        self.value_head = _mlp(2 * hidden, hidden, 1)

    def encode(self, candidates: Tensor, request: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Encode each candidate ``[B, C, H]`` and the set of feasible ones ``[B, 2H]``."""
        rows = (candidates / self.candidate_scale).clamp(-CLIP, CLIP)
        asked = (request / self.request_scale).clamp(-CLIP, CLIP)
        joint = torch.cat([rows, asked.unsqueeze(1).expand(-1, rows.shape[1], -1)], dim=-1)
        encoded = self.encoder(joint)
        feasible = mask.unsqueeze(-1).to(encoded.dtype)
        count = feasible.sum(dim=1).clamp(min=1.0)
        mean = (encoded * feasible).sum(dim=1) / count
        # Encodings lie in [-1, 1]: pushing infeasible ones below -1 takes them out of the maximum.
        largest = (encoded * feasible - 2.0 * (1.0 - feasible)).amax(dim=1)
        return encoded, torch.cat([mean, largest], dim=-1)

    def score(self, encoded: Tensor, pooled: Tensor, mask: Tensor) -> Tensor:
        """Score encoded candidates; masked ones get ``MASKED_SCORE``."""
        context = pooled.unsqueeze(1).expand(-1, encoded.shape[1], -1)
        scores = self.score_head(torch.cat([encoded, context], dim=-1)).squeeze(-1)
        return torch.where(mask, scores, torch.full_like(scores, MASKED_SCORE))

    def forward(self, candidates: Tensor, request: Tensor, mask: Tensor) -> Tensor:
        """Return scores ``[B, C]``."""
        encoded, pooled = self.encode(candidates, request, mask)
        return self.score(encoded, pooled, mask)

    def act_and_value(self, candidates: Tensor, request: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores ``[B, C]`` and the state's value ``[B]``, for training."""
        encoded, pooled = self.encode(candidates, request, mask)
        return self.score(encoded, pooled, mask), self.value_head(pooled).squeeze(-1)


class TorchPolicy:
    """A scorer as the plain callable that rollouts take: numpy in, numpy out."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer.eval()

    def __call__(self, candidates: np.ndarray, request: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Score a batch of observations."""
        with torch.no_grad():
            scores = self._scorer(torch.from_numpy(candidates), torch.from_numpy(request), torch.from_numpy(mask))
        return np.asarray(scores.numpy())
