"""What every training shares: its seeds, the row of its curve, and checkpoints that survive a kill."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from pipeline.policies.scorer import Scorer

log = logging.getLogger(__name__)

Row = dict[str, float]
CHECKPOINT_FILE = "checkpoint.pt"


class Trained(msgspec.Struct):
    """A finished training: the weights that did best on validation, and the curve."""

    scorer: Scorer
    curve: list[Row]


def drawn(seed: int, part: int) -> int:
    """Return the seed of a part of a training."""
    return int(np.random.SeedSequence([seed, part]).generate_state(1)[0])


def seed_torch_and_numpy(seed: int, part: int) -> None:
    """Seed what SB3 and torch draw from."""
    torch.manual_seed(drawn(seed, part))
    np.random.seed(drawn(seed, part))  # noqa: NPY002 - SB3 draws from its buffers with the global generator


def weights(scorer: Scorer) -> dict[str, torch.Tensor]:
    """Copy a network's weights."""
    return {name: tensor.clone() for name, tensor in scorer.state_dict().items()}


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    torch.save(state, unfinished)
    unfinished.replace(path)


def load(path: Path) -> dict[str, Any] | None:
    """Load a checkpoint; one that cannot be read (a disk that filled up, a torn write) means starting over."""
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        log.warning("%s cannot be read (%s): the training starts over", path, error)
        return None
    return state
