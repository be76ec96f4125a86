"""How far off a lifetime model is on lives that it has not seen, told from one number a VM: the pinball loss.

A life that has not ended when the span does is known to be longer than what was seen of it. So truth and quantiles are
both cut at what could be seen: the quantile of a cut life is the cut quantile, and nobody is left out, which would
leave out the long lives. Everything is of log(1 + seconds): lives go from seconds to weeks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.lifetime_model.seen import Lives
from sched_env.vm.lives import MEDIAN, QUANTILES, asked

Floats = NDArray[np.float64]


def rows(lives: Lives) -> NDArray[np.float32]:
    """Return what a model is asked of VMs at their creation."""
    return asked(lives.cpu, lives.mem, lives.created_s)


def _logs(lives: Lives, answer: NDArray[np.float32]) -> tuple[Floats, Floats]:
    told = np.minimum(answer.astype(np.float64), lives.left_s[:, None])
    return np.log1p(np.minimum(lives.life_s, lives.left_s)), np.log1p(told)


def pinball(lives: Lives, answer: NDArray[np.float32]) -> Floats:
    """Return the loss of each VM, mean over the quantiles; smaller is better, and honest quantiles are the best."""
    truth, told = _logs(lives, answer)
    off, share = truth[:, None] - told, np.array(QUANTILES)
    loss: Floats = np.maximum(share * off, (share - 1.0) * off).mean(axis=1)
    return loss


def figures(lives: Lives, answer: NDArray[np.float32]) -> dict[str, float]:
    """Return what a model's quantiles are worth."""
    truth, told = _logs(lives, answer)
    off = truth - told[:, MEDIAN]
    inside = (truth >= told[:, 0]) & (truth <= told[:, -1])
    return {
        "pinball": float(pinball(lives, answer).mean()),
        "log_rmse": float(np.sqrt((off**2).mean())),
        "log_mae": float(np.abs(off).mean()),
        "between_10_and_90": float(inside.mean()),
        "lives": float(truth.size),
        "ended_share": float(lives.ended.mean()),
    }
