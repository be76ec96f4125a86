"""The catalogue out of measured sets: what each model takes of each type of card, undisturbed and beside others.

Only the sets that are given are looked at, so that a held-out set says nothing about itself. Amounts of a set (cores,
card, memory) are split among its models by ridge regression. Slowing down is that of a shared card, additive in time:

    seconds = undisturbed x (1 + sensitivity of the model x sum of the pressures of the others)

fitted in turns (undisturbed, pressure, sensitivity), each robustly, since language models have iterations of twice
the length for no reason that is recorded.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.runtime_model.profiles import Profiles
from sched_env.jobs.catalogue import BENCHMARKS, LONG_S, Card, Catalogue, Demand

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
ROUNDS, TURNS = 4, 8
RIDGE = 0.3
"""Weight of the penalty that keeps pressures and sensitivities that were seldom seen near the mean."""
SURE_TO = 0.03
"""Relative error below which rows count alike; above it, by one over their error."""
UNDISTURBED = 0.3
"""Quantile of all times of a model on a card from which the fit starts."""
SATURATED = 0.9
"""Cores or card in use from which a measurement says "at least", and is left out."""
SPREAD_RIDGE = 0.3
FEWEST_JOBS = 10
"""Of one kind (short or long iterations) on a card, from which that kind is fitted by itself."""


def catalogue(profiles: Profiles) -> Catalogue:
    """Learn the catalogue."""
    models = profiles.models()
    number = {model: index for index, model in enumerate(models)}
    cards: dict[str, Card] = {}
    demands: dict[str, dict[str, Demand]] = {model: {} for model in models}
    of = np.array([card for card, _ in profiles.sets])
    for card in profiles.cards():
        here = profiles.only(of == card)
        counts = np.zeros((len(here), len(models)))
        for row, (_, names) in enumerate(here.sets):
            np.add.at(counts[row], [number[name] for name in names], 1.0)
        seen = counts.sum(axis=0) > 0
        cpu, gpu = (_split(counts, values, SATURATED) for values in (here.cpu, here.gpu))
        memory = _split(counts, here.mem_gib, np.inf)
        base, pressure, on_long, sensitivity = _slowing(here, counts, number)
        for model in models:
            k = number[model]
            if seen[k]:
                amounts = (cpu[k], gpu[k], memory[k], pressure[k], on_long[k], sensitivity[k])
                demands[model][card] = Demand(float(np.exp(base[k])), *(_told(value) for value in amounts))
        cards[card] = Card({name: demands[name][card].seconds for name in BENCHMARKS if card in demands.get(name, {})})
    return Catalogue(cards, demands, dict(sorted(profiles.flops.items())))


def _told(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _split(counts: Floats, amount: Floats, below: float) -> Floats:
    """Split an amount among the models of each set; NaN for all when nothing was measured."""
    usable = np.isfinite(amount) & (amount < below)
    if not usable.any():
        return np.full(counts.shape[1], np.nan)
    x = np.column_stack([counts[usable], np.ones(usable.sum())])
    penalty = np.full(x.shape[1], SPREAD_RIDGE)
    penalty[-1] *= 0.01
    found: Floats = np.linalg.solve(x.T @ x + np.diag(penalty), x.T @ amount[usable])
    return np.maximum(found[:-1], 0.0)


def _slowing(here: Profiles, counts: Floats, number: dict[str, int]) -> tuple[Floats, Floats, Floats, Floats]:
    """Return log undisturbed seconds, pressure on short and on long iterations, and sensitivity of each model."""
    logs, of = here.logs(), here.of_set()
    own = np.array([number[name] for _, names in here.sets for name in names])
    others = counts[of]
    others[np.arange(len(own)), own] -= 1.0
    base, pressure, sensitivity = _alternate(logs, own, others)
    on_long = pressure
    is_long = base[own] > np.log(LONG_S)
    for chosen in (~is_long, is_long):
        # Each kind by itself, where there is enough of it: what slows a vision model down is not what slows an LLM.
        if FEWEST_JOBS <= chosen.sum() < len(own):
            found, by_kind, felt = _alternate(logs[chosen], own[chosen], others[chosen])
            mine = np.isfinite(found)
            base, sensitivity = np.where(mine, found, base), np.where(mine, felt, sensitivity)
            pressure, on_long = (pressure, by_kind) if chosen is is_long else (by_kind, on_long)
    return base, pressure, on_long, sensitivity


def _alternate(logs: Floats, own: Indices, others: Floats) -> tuple[Floats, Floats, Floats]:
    base = np.full(others.shape[1], np.nan)
    for k in np.unique(own):
        base[k] = np.quantile(logs[own == k], UNDISTURBED)
    pressure, sensitivity = np.full(len(base), 0.05), np.ones(len(base))
    for _ in range(ROUNDS):
        pressure, sensitivity = _bilinear(np.expm1(logs - base[own]), own, others, pressure, sensitivity)
        left = logs - np.log1p(sensitivity[own] * (others @ pressure))
        for k in np.unique(own):
            base[k] = _relative_median(left[own == k])
    return base, *_bilinear(np.expm1(logs - base[own]), own, others, pressure, sensitivity)


def _bilinear(slower: Floats, own: Indices, others: Floats, p: Floats, s: Floats) -> tuple[Floats, Floats]:
    """Fit ``slower = s[own] x (others @ p)`` in turns."""
    slower = np.clip(slower, -0.4, 5.0)
    relative = 1.0 / (1.0 + np.maximum(slower, 0.0)) ** 2
    weights = relative.copy()
    there = np.unique(own)
    for _ in range(TURNS):
        felt = others * s[own][:, None]
        weighted = felt * weights[:, None]
        known = weighted.T @ felt + RIDGE * np.eye(len(p)), weighted.T @ slower + RIDGE * max(float(p.mean()), 0.0)
        p = np.maximum(np.linalg.solve(*known), 0.0).astype(np.float64)
        pressed = others @ p
        top = np.bincount(own, weights * pressed * slower, len(s)) + RIDGE
        s = np.maximum(top / (np.bincount(own, weights * pressed**2, len(s)) + RIDGE), 0.01)
        mean = float(s[there].mean())
        s, p = s / mean, p * mean
        off = np.abs(slower - (others @ p) * s[own]) * np.sqrt(relative)
        weights = relative / np.maximum(off, SURE_TO)
        weights /= weights.mean()
    return p, s


def _relative_median(logs: Floats) -> float:
    """Return the value whose relative error against all is smallest."""
    ordered = np.sort(logs)
    below = np.cumsum(np.exp(-ordered))
    return float(ordered[np.searchsorted(below, 0.5 * below[-1])])
