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


class Broadcast(nn.Module):
    """A linear layer over (a row, what all rows share), the shared part computed once and added to every row.

    The same function as a linear layer over their concatenation, without writing the shared part out for every row:
    at 100 candidates that was a third of the cost of training (docs/results/train_speed.md).
    """

    def __init__(self, rows: int, shared: int, outputs: int) -> None:
        super().__init__()
        joint = nn.Linear(rows + shared, outputs)  # drawn as one layer, so that both parts have its scale
        self.rows, self.shared = nn.Linear(rows, outputs, bias=False), nn.Linear(shared, outputs)
        with torch.no_grad():
            self.rows.weight.copy_(joint.weight[:, :rows])
            self.shared.weight.copy_(joint.weight[:, rows:])
            self.shared.bias.copy_(joint.bias)

    def forward(self, rows: Tensor, shared: Tensor) -> Tensor:
        """Return ``[B, C, outputs]`` from rows ``[B, C, ...]`` and what they share ``[B, ...]``."""
        joined: Tensor = self.rows(rows) + self.shared(shared).unsqueeze(1)
        return joined


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
        self.encode_features = Broadcast(len(spec.candidate), len(spec.request), hidden)
        self.encode_hidden = nn.Linear(hidden, hidden)
        self.score_hidden = Broadcast(hidden, 2 * hidden, hidden)
        self.score_head = nn.Linear(hidden, 1)
        self.value_head = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def encode(self, candidates: Tensor, request: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Encode each candidate ``[B, C, H]`` and the set of feasible ones ``[B, 2H]``."""
        rows = (candidates / self.candidate_scale).clamp(-CLIP, CLIP)
        asked = (request / self.request_scale).clamp(-CLIP, CLIP)
        return self.pool(self.encode_features(rows, asked), mask)

    def pool(self, first: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Do the rest of :meth:`encode` from what the first layer gives, before its ReLU."""
        encoded = self.encode_hidden(first.relu()).relu()
        feasible = mask.to(encoded.dtype)
        share = feasible / feasible.sum(dim=1, keepdim=True).clamp(min=1.0)
        mean = torch.bmm(share.unsqueeze(1), encoded).squeeze(1)
        # Encodings are never negative: an infeasible one made zero is out of the maximum.
        largest = (encoded * feasible.unsqueeze(-1)).amax(dim=1)
        return encoded, torch.cat([mean, largest], dim=-1)

    def score(self, encoded: Tensor, pooled: Tensor, mask: Tensor) -> Tensor:
        """Score encoded candidates; masked ones get ``MASKED_SCORE``."""
        scores = self.score_head(self.score_hidden(encoded, pooled).relu()).squeeze(-1)
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
        device = self._scorer.candidate_scale.device
        with torch.no_grad():
            scores = self._scorer(*(torch.from_numpy(array).to(device) for array in (candidates, request, mask)))
        return np.asarray(scores.cpu().numpy())
