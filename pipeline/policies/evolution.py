"""A search over few weights: a rule as a sum of terms, whose weights are drawn, tried, and kept when they do well.

A term is the positive part of a linear form of features, a score the weighted sum of some terms. That is a small case
of the scorer, so what comes out is exported and served as any other policy. The search begins at weights that are a
rule. In each generation weights are drawn around the mean, all are tried on the same episodes of the train windows, and
mean and spread move towards the best of them (the cross-entropy method). Validation chooses among the segments, the
start included: the result is never worse there than the rule it began at.

Whole episodes are compared, so no credit has to be assigned and nothing is guessed; a dozen weights are all it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.policies import checkpoint
from pipeline.policies.checkpoint import CHECKPOINT_FILE, Row, Trained, drawn, weights
from pipeline.policies.scorer import CLIP, Scorer
from pipeline.policies.settings import Common, Positive, Rate
from sched_env.rollout import chooser
from sched_env.vector import PlacementVectorEnv
from wire.contracts.feature_spec import FeatureSpec
from wire.errors import ConfigError, legal

Floats = NDArray[np.float64]
Matrix = NDArray[np.float32]
Score = Callable[[Matrix, Matrix, NDArray[np.bool_]], Matrix]
CONSTANT = "1"
"""Stands for 1 in a term."""


class EvolutionSettings(Common, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of ``evolution.yaml``; ``envs`` episodes judge a draw, ``hidden`` is at least the number of terms."""

    terms: Annotated[list[dict[str, float]], msgspec.Meta(min_length=1)]
    """Each a linear form of features by name, in their own units; ``"1"`` is a constant. Its positive part counts."""
    start: list[float]
    """Weight of each term where the search begins."""
    generations: Positive
    """Generations a segment."""
    population: Annotated[int, msgspec.Meta(ge=4)]
    """Draws a generation, in pairs to both sides of the mean."""
    elite: Rate
    """Share of them that the next mean and spread are made of."""
    spread: Annotated[float, msgspec.Meta(gt=0)]
    """Of the first draws: this share of a start weight, and of the mean size of all where that is smaller."""
    inertia: Rate
    """Share of mean and spread that stays from one generation to the next."""
    beside: dict[str, float]
    """Further metrics of the episodes -> weight. A draw is then worth what it gains on the start's return, as a share
    of it, and the same of each of these times its weight: the return alone would be bought with what nobody sees."""
    shuffled: bool
    """The control: draws are ranked at random. Such a search must gain nothing."""


def train(
    make_env: Callable[[int], PlacementVectorEnv],
    settings: EvolutionSettings,
    *,
    seed: int,
    scratch: Path,
    validate: Callable[[Scorer | str], Row],
    objective: Callable[[Row], float],
    report: Callable[[int, Row], None],
    device: str = "cpu",
    tensorboard: Path | None = None,
) -> Trained:
    """Train, resuming from ``scratch``; arguments as those of :func:`pipeline.policies.training.train`."""
    del device, tensorboard  # nothing here is worth a card, and the curve says everything
    env = make_env(settings.envs)
    start = np.array(settings.start)
    if start.size != len(settings.terms):
        raise ConfigError(f"{start.size} start weights for {len(settings.terms)} terms", "one for each term")
    state = checkpoint.load(scratch / CHECKPOINT_FILE)
    if state is None:
        scorer = of_terms(env.feature_spec, settings.terms, start, settings.hidden)
        first: Row = {"segment": 0.0, "steps": 0.0} | validate(scorer)
        spread = settings.spread * np.maximum(np.abs(start), np.abs(start).mean())
        state = {
            "segment": 0,
            "mean": start.tolist(),
            "spread": spread.tolist(),
            "best": weights(scorer),
            "curve": [first],
        }
        report(0, first)
    curve: list[Row] = state["curve"]
    while state["segment"] < settings.segments:
        segment = state["segment"] + 1
        mean, spread = np.array(state["mean"]), np.array(state["spread"])
        rng, taken = np.random.default_rng(drawn(seed, segment)), 0.0
        for _ in range(settings.generations):
            mean, spread, steps = _generation(env, settings, mean, spread, rng)
            taken += steps
        scorer = of_terms(env.feature_spec, settings.terms, mean, settings.hidden)
        row = {"segment": float(segment), "steps": curve[-1]["steps"] + taken} | validate(scorer)
        if objective(row) > max(map(objective, curve)):
            state["best"] = weights(scorer)
        curve.append(row)
        state.update(segment=segment, mean=mean.tolist(), spread=spread.tolist())
        checkpoint.save(scratch / CHECKPOINT_FILE, state)
        report(segment, row)
    scorer = of_terms(env.feature_spec, settings.terms, start, settings.hidden)
    scorer.load_state_dict(state["best"])
    return Trained(scorer=scorer, curve=curve)


def _generation(
    env: PlacementVectorEnv, settings: EvolutionSettings, mean: Floats, spread: Floats, rng: np.random.Generator
) -> tuple[Floats, Floats, float]:
    """Draw, try all on the same episodes, and return the next mean and spread, and decisions taken."""
    half = rng.normal(size=(settings.population // 2, mean.size))
    draws = mean + spread * np.concatenate([half, -half])
    episodes, steps, tried = int(rng.integers(1 << 31)), 0.0, []
    judged = {"return": 1.0} | settings.beside
    usual = [np.array(settings.start)] if settings.beside else []
    for each in (*usual, *draws):
        figures, decisions = _tried(env, of_features(env.feature_spec, settings.terms, each), episodes, judged)
        tried.append(figures)
        steps += decisions
    worth = np.stack(tried)[:, 0]
    if settings.beside:
        figures = np.stack(tried)
        # What the rule has none of is counted in what the draws have of it; what nobody has weighs nothing.
        unit = np.where(figures[0] != 0.0, np.abs(figures[0]), np.abs(figures).mean(axis=0))
        shares = (figures[1:] - figures[0]) / np.where(unit > 0.0, unit, 1.0)
        worth = shares @ np.array([env.problem.better(name) * weight for name, weight in judged.items()])
    order = rng.permutation(len(draws)) if settings.shuffled else np.argsort(-worth, kind="stable")
    best = draws[order[: max(2, round(settings.elite * len(draws)))]]
    kept = settings.inertia
    return kept * mean + (1 - kept) * best.mean(axis=0), kept * spread + (1 - kept) * best.std(axis=0), steps


def _tried(env: PlacementVectorEnv, policy: Score, episodes: int, metrics: Iterable[str]) -> tuple[Floats, float]:
    """Play the episodes that a seed draws to their ends; return means of these metrics, and decisions taken."""
    env.reset(seed=episodes, options={"park": True})
    choose, steps = chooser(env, policy), 0.0
    while env.buffers.active.any():
        steps += float(env.buffers.active.sum())
        env.step(choose(None))
    return env.buffers.metrics[:, [env.METRICS.index(name) for name in metrics]].mean(axis=0), steps


def _placed(spec: FeatureSpec, terms: Sequence[dict[str, float]]) -> tuple[Matrix, Matrix, Matrix]:
    """Return the factors [T, F] of candidate features and [T, R] of the request's, in units of their scales, and [T].

    Raises:
        ConfigError: When a term names no feature.
    """
    sides = [{feature.name: (place, feature.scale) for place, feature in enumerate(side)}
             for side in (spec.candidate, spec.request)]  # fmt: skip
    factors = [np.zeros((len(terms), len(side)), np.float32) for side in sides]
    constant = np.zeros(len(terms), np.float32)
    for number, term in enumerate(terms):
        for name, factor in term.items():
            if name == CONSTANT:
                constant[number] = factor
                continue
            known = next((one for one in range(2) if name in sides[one]), None)
            if known is None:
                raise ConfigError(f"term {number} names {name!r}", legal([CONSTANT, *sides[0], *sides[1]]))
            place, scale = sides[known][name]
            factors[known][number, place] = factor * scale
    return factors[0], factors[1], constant


def of_features(spec: FeatureSpec, terms: Sequence[dict[str, float]], given: Floats) -> Score:
    """Return the scores of :func:`of_terms`, of feasible candidates alone and without a network: for many draws."""
    rows, shared, constant = _placed(spec, terms)
    scale, asked = (np.array([f.scale for f in side], np.float32) for side in (spec.candidate, spec.request))
    weight = given.astype(np.float32)

    def score(candidates: Matrix, request: Matrix, mask: NDArray[np.bool_]) -> Matrix:
        scores = np.full(mask.shape, -np.inf, np.float32)
        of_all = (request / asked).clip(-CLIP, CLIP) @ shared.T + constant
        own = (candidates[mask] / scale).clip(-CLIP, CLIP) @ rows.T + of_all[np.nonzero(mask)[0]]
        scores[mask] = np.maximum(own, 0.0) @ weight
        return scores

    return score


def of_terms(spec: FeatureSpec, terms: Sequence[dict[str, float]], given: Floats, hidden: int) -> Scorer:
    """Return the scorer whose scores are the weighted sums of these terms.

    Raises:
        ConfigError: When a term names no feature, or there are more terms than the scorer is wide.
    """
    if len(terms) > hidden:
        raise ConfigError(f"{len(terms)} terms in a scorer of width {hidden}", "hidden at least as many")
    rows, shared, constant = (torch.from_numpy(each) for each in _placed(spec, terms))
    scorer, count = Scorer(spec, hidden), len(terms)
    with torch.no_grad():
        for parameter in scorer.parameters():
            parameter.zero_()
        first, unit = scorer.encode_features, torch.eye(hidden)
        first.rows.weight[:count], first.shared.weight[:count], first.shared.bias[:count] = rows, shared, constant
        scorer.encode_hidden.weight.copy_(unit)
        scorer.score_hidden.rows.weight.copy_(unit)
        scorer.score_head.weight[0, :count] = torch.from_numpy(given).float()
    return scorer
