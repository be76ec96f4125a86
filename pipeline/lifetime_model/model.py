"""Quantiles of what is left of a life, by flavour, quarter of the day and age; lives that have not ended are censored.

Kaplan-Meier: of those that have lived as long and were still seen, the share that goes on. A group that is small takes
the numbers of the next larger one: a flavour in a quarter of the day, the flavour, all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import DataError
from pipeline.lifetime_model.seen import Lives
from sched_env.vm.lives import QUANTILES

Floats = NDArray[np.float64]

AGES_S = np.array([0.0, 60, 300, 900, 1800, 3600, 7200, 14400, 28800, 57600, 86400, 172800, 345600, 691200], np.float32)
"""Ages at which the quantiles are kept; between two, those of the younger less the time since."""
QUARTERS_H = np.array([0.0, 6.0, 12.0, 18.0], np.float32)
"""Hours at which quarters of the day begin."""
LEAST = 100
"""VMs that a group needs to be told from the next larger one."""
LEAST_AT_AGE = 20
"""Of those, that must have been seen to reach an age."""
LEAST_LEFT_S = 1.0
"""Nobody is expected to be gone already."""
NO_FLAVOUR = np.array([[-1.0, -1.0]], np.float32)
"""Stands where no flavour is common enough: no VM is of it."""


@dataclass(frozen=True)
class Fitted:
    """A lifetime model."""

    flavours: NDArray[np.float32]
    """[G, 2]: cores and GiB."""
    tables: NDArray[np.float32]
    """[G + 1, quarters, ages, quantiles]: seconds left; the last group is of all flavours."""

    def predict(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return [rows, quantiles] of seconds left; what the graph computes, to the bit."""
        same = (rows[:, None, :2] == self.flavours).all(axis=2)
        group = np.where(same.any(axis=1), same.argmax(axis=1), len(self.flavours))
        quarter = (rows[:, 2:3] >= QUARTERS_H[1:]).sum(axis=1)
        age = (rows[:, 3:4] >= AGES_S[1:]).sum(axis=1)
        since = rows[:, 3] - AGES_S[age]
        left: NDArray[np.float32] = np.maximum(
            self.tables[group, quarter, age] - since[:, None], np.float32(LEAST_LEFT_S)
        )
        return left


def fit(lives: Lives) -> Fitted:
    """Fit on lives that were seen."""
    if len(lives.life_s) < LEAST:
        raise DataError(f"{len(lives.life_s)} lives", f"at least {LEAST}", "take more days of windows")
    whole = remaining(lives, np.zeros((AGES_S.size, len(QUANTILES))))
    flavour = np.stack([lives.cpu, lives.mem], axis=1).astype(np.float32)
    found, of, count = np.unique(flavour, axis=0, return_inverse=True, return_counts=True)
    quarter = (lives.created_s % 86_400.0 / 3600.0)[:, None] >= QUARTERS_H[1:]
    common, tables = np.flatnonzero(count >= LEAST), []
    for number in common:
        mine = of.ravel() == number
        own = remaining(lives.only(mine), whole)
        here = [mine & (quarter.sum(axis=1) == part) for part in range(QUARTERS_H.size)]
        tables.append([remaining(lives.only(some), own) if some.sum() >= LEAST else own for some in here])
    tables.append([whole] * QUARTERS_H.size)
    flavours = found[common]
    if not common.size:
        flavours, tables = NO_FLAVOUR, tables * 2
    return Fitted(flavours, np.array(tables, np.float32))


def plain(lives: Lives) -> Fitted:
    """Return the model to beat: one distribution of lives for all."""
    whole = remaining(lives, np.zeros((AGES_S.size, len(QUANTILES))))
    return Fitted(NO_FLAVOUR, np.array([[whole] * QUARTERS_H.size] * 2, np.float32))


def remaining(lives: Lives, otherwise: Floats) -> Floats:
    """Return the quantiles of what is left at each age, [ages, quantiles]; ``otherwise`` where too few were so old."""
    order = np.argsort(lives.life_s, kind="stable")
    life_s, ended = lives.life_s[order], lives.ended[order]
    at_risk = np.arange(life_s.size, 0, -1)
    survival = np.cumprod(1.0 - ended / at_risk)
    found = otherwise.copy()
    for row, age in enumerate(AGES_S.astype(np.float64)):
        first = int(np.searchsorted(life_s, age, side="right"))
        if life_s.size - first < LEAST_AT_AGE and row:
            continue
        before = survival[first - 1] if first else 1.0
        at = first + np.searchsorted(-survival[first:], -(1.0 - np.array(QUANTILES)) * before, side="left")
        # Lives that were seen longest have not ended: beyond them nothing is known, and the longest stands for it.
        found[row] = life_s[np.minimum(at, life_s.size - 1)] - age
    return np.maximum(found, LEAST_LEFT_S)
