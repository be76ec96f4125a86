"""Whether a lifetime model ships: only where lives are known, not merely better than not at all.

The rule, set down before any user's cluster was judged by it: on the validation windows, which neither model was fitted
on, its pinball loss is below that of one distribution for all by an interval of a paired bootstrap over blocks of time
that lies below ``-WORTH``. That it excludes 0 is not enough: that flavours live differently is certain of any cluster
within a day. On huawei-east-1 the loss is 19 to 35 % lower in each of six nights, and server hours are not
(docs/decisions/0064): such a model would be carried, signed and asked for nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.lifetime_model.seen import Lives
from pipeline.statistics.bootstrap import Resampler
from pipeline.statistics.estimators import Floats

WORTH = 0.5
"""Part of the loss that must be gone: about what is gone of lives told with an error of 1.0 in their logarithm, with
which server hours are hardly fewer (docs/results/lifetimes.md)."""
BLOCK_S = 3600.0
"""VMs that come together are alike (a batch of one user): an hour is what counts as one piece of evidence."""
FEWEST_BLOCKS = 4
"""Hours with VMs, below which nothing is concluded."""
FEWEST_LIVES = 100
SAMPLES, SEED, CONFIDENCE = 2_000, 0, 0.95


class Verdict(NamedTuple):
    """Whether it ships, why, and the interval."""

    ships: bool
    why: str
    measured: dict[str, float]


def judge(lives: Lives, ours: Floats, plain: Floats) -> Verdict:
    """Compare the losses of two models, VM by VM."""
    block: NDArray[np.int64] = np.unique(lives.created_s // BLOCK_S, return_inverse=True)[1].astype(np.int64)
    count = np.bincount(block).astype(np.float64)
    if len(block) < FEWEST_LIVES or len(count) < FEWEST_BLOCKS:
        said = f"{len(block)} lives in {len(count)} hours of validation"
        return Verdict(False, f"{said}; at least {FEWEST_LIVES} in {FEWEST_BLOCKS} are needed to conclude anything", {})
    better = np.bincount(block, ours - plain)
    scale = float(plain.mean())

    def difference(drawn: Floats) -> Floats:
        return np.asarray((drawn @ better) / (drawn @ count) / scale)

    blocks = np.arange(len(count))
    found = Resampler(np.zeros(len(count), np.intp), blocks, samples=SAMPLES, seed=SEED).estimate(
        difference, confidence=CONFIDENCE
    )
    interval = f"{100 * found.value:+.1f} % [{100 * found.lower:.1f}, {100 * found.upper:.1f}]"
    measured = {"against_plain": found.value, "lower": found.lower, "upper": found.upper, "blocks": float(len(count))}
    ships = found.upper < -WORTH
    said = "" if ships else f"; not below {-100 * WORTH:.0f} %, so lives are not known well enough to place by them"
    return Verdict(ships, f"pinball loss against one distribution for all {interval}{said}", measured)
