"""Of very many candidates, those that the policy is asked about: the best by cheap scores, and some by chance.

A network over a hundred thousand candidates takes tens of milliseconds, nearly all of them spent on candidates that
never win. What is lost by not asking is measured against the full scan: ``benchmarks/shortlist_loss.py``,
docs/results/shortlist.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from placement.settings import Settings
from sched_env import heuristics, problems
from sched_env.observation import Columns, Mask, Row, Scores
from wire.contracts.feature_spec import ProblemName

GLANCE = 4096
"""Candidates by which it is guessed how high the scores of the best are; a guess too high is noticed."""


def feasible(problem: ProblemName, columns: Columns, request: Row, fallback: str) -> tuple[Mask, Sequence[Scores]]:
    """Return which candidates are feasible by the service's own check, and the cheap scores of all."""
    asked = problems.get(problem)
    with np.errstate(all="ignore"):
        if asked.quick is not None:
            return asked.quick(columns, request)
        mask = asked.build(columns, request).mask
        return mask, (heuristics.score(problem, fallback, columns, request, mask),)


def choose(mask: Mask, scores: Sequence[Scores], name: str, settings: Settings) -> NDArray[np.intp]:
    """Return rows of feasible candidates, in rising order: the best of each score, and a sample.

    Args:
        mask: Which candidates are feasible.
        scores: Cheap scores; NaN comes last.
        name: Of the request; the same request draws the same sample, so that an answer can be made again.
        settings: How many of each.
    """
    rows = np.flatnonzero(mask)
    best, sample = settings.shortlist_best, settings.shortlist_sample
    if len(rows) <= len(scores) * best + sample:
        return rows
    rng = np.random.default_rng(crc32(name.encode()))
    drawn = rows[rng.integers(0, len(rows), max(sample, GLANCE))]
    parts = [drawn[:sample]]
    for score in scores:
        some = rows
        if len(rows) > 4 * GLANCE:
            # Partitioning all of them would take longer than everything else: what a glance says is out is left out.
            seen = min(GLANCE, 8 + 2 * GLANCE * best // len(rows))
            least = np.partition(score[drawn[:GLANCE]], GLANCE - seen)[GLANCE - seen]
            above = np.flatnonzero(mask & (score >= least))
            some = above if len(above) > best else rows
        parts.append(some[np.argpartition(-score[some], best)[:best]])
    return np.unique(np.concatenate(parts))
