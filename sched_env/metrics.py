"""The metric sheet: one summary for every problem, from per-episode figures (design section 4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

TRIM = 0.1
"""Share cut from each end by the trimmed mean: waiting times have a few start points that outweigh all others."""
MIN_GAP = 0.005
"""Below this share of the best heuristic's figure a gap to the bound is noise, and ``gap_closed`` is null."""


def trimmed_mean(values: ArrayLike, share: float = TRIM) -> float:
    """Return the mean without the lowest and the highest ``share`` of the values."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    cut = int(share * ordered.size)
    return float(ordered[cut : ordered.size - cut].mean())


def gap_closed(policy: float, best_heuristic: float, bound: float, sign: float = 1.0) -> float | None:
    """Return which share of the way from the best heuristic to the bound the policy went, from means.

    Args:
        policy: Mean of the primary metric under the policy.
        best_heuristic: The same under the best heuristic.
        bound: What no policy can pass.
        sign: +1 when more is better, -1 when less is.

    Returns:
        1 at the bound, 0 at the heuristic, negative below it; None when there is no gap worth closing.
    """
    gap = sign * (bound - best_heuristic)
    if gap <= MIN_GAP * abs(best_heuristic):
        return None
    return sign * (policy - best_heuristic) / gap


def summarise(
    episodes: Sequence[Mapping[str, Any]],
    *,
    primary: tuple[str, float] = ("return", 1.0),
    bound_metric: str | None = None,
    best_heuristic: float | None = None,
) -> dict[str, Any]:
    """Summarise episodes on the metric sheet: means of every figure, spread of the return, endings, gap closed.

    Args:
        episodes: What ``rollout.run_episodes`` returns; a ``bound`` in every one of them gives ``bound``.
        primary: The metric that policies are judged by, and +1 when more of it is better, -1 when less.
        bound_metric: The metric that the bounds are stated in; ``gap_closed`` only where it is the primary one.
        best_heuristic: Mean of the primary metric under the best heuristic, for ``gap_closed``.
    """
    sheet: dict[str, Any] = {"episodes": len(episodes)}
    for key, value in episodes[0].items():
        if isinstance(value, int | float) and key not in ("start", "bound"):
            sheet[key] = float(np.mean([episode[key] for episode in episodes]))
    sheet["return_std"] = float(np.std([episode["return"] for episode in episodes]))
    sheet["wait_s_trimmed"] = trimmed_mean([episode["wait_s"] for episode in episodes])
    sheet["infeasible"] = int(sum(episode["infeasible"] for episode in episodes))
    sheet["ended"] = dict(Counter(episode["ended"] for episode in episodes))
    name, sign = primary
    sheet["primary_metric"], sheet["bound_metric"] = name, bound_metric
    bounds = [episode["bound"] for episode in episodes]
    sheet["bound"] = None if None in bounds else float(np.mean(bounds))
    sheet["gap_closed"] = (
        gap_closed(sheet[name], best_heuristic, sheet["bound"], sign)
        if sheet["bound"] is not None and best_heuristic is not None and bound_metric == name
        else None
    )
    return sheet
