"""The challenger beside each reference: every number the rules need, computed once over common resamples."""

from __future__ import annotations

from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.contracts.evaluation import Terms
from pipeline.contracts.gate import Comparison, Profile
from pipeline.errors import GateError
from pipeline.gate.config import Config
from pipeline.gate.episodes import CHALLENGER, CHAMPION, Episodes
from pipeline.gate.wording import RATE, bounds
from pipeline.statistics import estimators
from pipeline.statistics.bootstrap import Estimate, Resampler
from pipeline.statistics.estimators import Floats
from pipeline.statistics.inference import holm
from sched_env.metrics import gap_closed

_PROFILE_POINTS = 41
_CHANCE = 2.326
"""Standard deviations that the correlation of independent blocks exceeds once in a hundred reports."""


class Beaten(NamedTuple):
    """One heuristic and how the challenger stands to it."""

    name: str
    better_by: Estimate
    p_holm: float


class Comparer:
    """Estimates on one evaluation; the bootstrap draws are shared, so differences between rows are not noise."""

    def __init__(self, terms: Terms, episodes: Episodes, config: Config) -> None:
        self.terms, self.episodes, self.config = terms, episodes, config
        self.primary, self.higher = terms.primary_metric, terms.higher_is_better
        self.resampler = Resampler(
            episodes.scenario, episodes.block, samples=config.bootstrap_samples, seed=config.seed
        )
        live = terms.fallback
        if not episodes.champion and live not in episodes.heuristics:
            raise GateError(
                f"there is no champion, and {live!r}, which places without one, was not evaluated",
                f"one of {', '.join(episodes.heuristics)}",
                f"add it to evaluate.{terms.problem}.heuristics in params.yaml",
            )
        self.reference = CHAMPION if episodes.champion else live
        self.differences = cache(self._differences)
        self.primary_against = cache(self._primary_against)

    def _estimate(self, statistic: estimators.Statistic, rows: NDArray[np.bool_] | None = None) -> Estimate:
        return self.resampler.estimate(statistic, rows, confidence=self.config.confidence, method=self.config.interval)

    def _differences(self, reference: str) -> Floats:
        """Paired relative differences on the primary metric, larger is better."""
        metric = self.primary
        return estimators.relative_difference(
            self.episodes.metric(CHALLENGER, metric),
            self.episodes.metric(reference, metric),
            self.episodes.scenario,
            higher=self.higher,
        )

    def _primary_against(self, reference: str, scenario: int | None = None) -> Estimate:
        """IQM of the paired relative differences, over all traces or one scenario's."""
        if scenario is None:
            return self._estimate(estimators.iqm(self.differences(reference)))
        rows = self.episodes.scenario == scenario
        return self._estimate(estimators.iqm(self.differences(reference)[rows]), rows)

    @cached_property
    def heuristics(self) -> list[Beaten]:
        """Every heuristic, the best first; p-values adjusted by Holm over all of them."""
        metric, sign = self.primary, 1.0 if self.higher else -1.0
        own = self.episodes.metric(CHALLENGER, metric)
        unit = estimators.scale(own, self.episodes.scenario, own)
        level = {name: sign * np.mean(self.episodes.metric(name, metric) / unit) for name in self.episodes.heuristics}
        names = sorted(level, key=lambda name: (-level[name], name))
        found = [self.primary_against(name) for name in names]
        adjusted = holm([estimate.p for estimate in found])
        return [Beaten(*row) for row in zip(names, found, adjusted, strict=True)]

    @property
    def best(self) -> Beaten:
        """The heuristic with the best mean on the primary metric."""
        return self.heuristics[0]

    @property
    def rivals(self) -> list[str]:
        """Whom the challenger must beat: the reference and the best heuristic, once if they are the same."""
        return list(dict.fromkeys([self.reference, self.best.name]))

    def worse_by(self, metric: str, reference: str) -> Estimate:
        """Mean paired difference of a metric in its own unit, larger being worse.

        The plain mean, not the IQM: violations and costs live in the tails, which the IQM would cut off.
        """
        change = self.episodes.metric(CHALLENGER, metric) - self.episodes.metric(reference, metric)
        return self._estimate(estimators.mean(change))

    def mean(self, policy: str, metric: str, rows: NDArray[np.bool_] | None = None) -> float:
        """Plain mean of a policy's metric."""
        values = self.episodes.metric(policy, metric)
        return float(np.mean(values if rows is None else values[rows]))

    def tail(self) -> Estimate:
        """How much better the challenger's worst traces are than the reference's, in units of the reference's mean."""
        metric, sign = self.primary, 1.0 if self.higher else -1.0
        own, other = (self.episodes.metric(name, metric) for name in (CHALLENGER, self.reference))
        unit = sign * estimators.scale(other, self.episodes.scenario, own)
        return self._estimate(estimators.cvar_difference(own / unit, other / unit, self.config.cvar_share))

    def compare_primary(self, reference: str, scenario: int | None = None) -> Comparison:
        """A row of the report on the primary metric."""
        rows = None if scenario is None else self.episodes.scenario == scenario
        found = self.primary_against(reference, scenario)
        gain = self.differences(reference) if rows is None else self.differences(reference)[rows]
        adjusted = {beaten.name: beaten.p_holm for beaten in self.heuristics}
        return Comparison(
            metric=self.primary,
            reference=reference,
            scenario=None if scenario is None else self.episodes.scenarios[scenario],
            unit="relative",
            challenger_mean=self.mean(CHALLENGER, self.primary, rows),
            reference_mean=self.mean(reference, self.primary, rows),
            better_by=bounds(found),
            traces=len(gain),
            p=found.p,
            p_holm=adjusted.get(reference) if scenario is None else None,
            probability_of_improvement=bounds(self._estimate(estimators.mean(estimators.wins(gain)), rows))
            if scenario is None
            else None,
        )

    def compare_some(self, reference: str, rows: NDArray[np.bool_]) -> Comparison:
        """A row of the report on the primary metric over some of the traces."""
        found = self._estimate(estimators.iqm(self.differences(reference)[rows]), rows)
        return Comparison(
            metric=self.primary,
            reference=reference,
            scenario=None,
            unit="relative",
            challenger_mean=self.mean(CHALLENGER, self.primary, rows),
            reference_mean=self.mean(reference, self.primary, rows),
            better_by=bounds(found),
            traces=int(rows.sum()),
            p=found.p,
        )

    def compare_mean(self, metric: str, reference: str) -> Comparison:
        """A row of the report on a metric where less is better; relative to the reference's mean, rates in points."""
        base = self.mean(reference, metric)
        change = self.episodes.metric(reference, metric) - self.episodes.metric(CHALLENGER, metric)
        relative = base != 0.0 and not metric.endswith(RATE)
        found = self._estimate(estimators.mean(change / abs(base) if relative else change))
        return Comparison(
            metric=metric,
            reference=reference,
            scenario=None,
            unit="relative" if relative else "absolute",
            challenger_mean=self.mean(CHALLENGER, metric),
            reference_mean=base,
            better_by=bounds(found),
            traces=len(change),
            p=found.p,
        )

    def dependence(self) -> list[str]:
        """Warn when neighbouring blocks say the same: then they are not independent, and intervals too narrow."""
        correlation = estimators.neighbour_correlation(self.differences(self.reference), self.episodes.block)
        limit = _CHANCE / np.sqrt(self.resampler.blocks())
        if correlation <= limit:
            return []
        return [
            f"neighbouring time blocks are correlated ({correlation:.2f}, by chance at most {limit:.2f}): "
            "intervals may be too narrow; make blocks longer than an episode (evaluate, block_seconds)"
        ]

    def bound(self) -> float | None:
        """Mean of what no policy can beat, in the metric it is stated in."""
        return self.mean(CHALLENGER, "bound") if "bound" in self.episodes.values[CHALLENGER] else None

    def gap_closed(self) -> float | None:
        """Share of the way from the best heuristic to the bound, as a ratio of means; None without a bound.

        Also where the bound is stated in another metric: a share across metrics would mean nothing.
        """
        if self.bound() is None or self.terms.bound_metric != self.primary:
            return None
        metric = self.primary
        means = (
            self.mean(CHALLENGER, metric),
            self.mean(self.best.name, metric),
            self.mean(CHALLENGER, "bound"),
        )
        return gap_closed(*means, sign=1.0 if self.higher else -1.0)

    def profile(self) -> Profile:
        """Performance profiles of the challenger and its rivals, scores in units of the reference's mean size."""
        metric, sign = self.primary, 1.0 if self.higher else -1.0
        other = self.episodes.metric(self.reference, metric)
        unit = sign * estimators.scale(other, self.episodes.scenario, self.episodes.metric(CHALLENGER, metric))
        scores = {name: self.episodes.metric(name, metric) / unit for name in [CHALLENGER, *self.rivals]}
        every = np.concatenate(list(scores.values()))
        thresholds = np.linspace(every.min(), every.max(), _PROFILE_POINTS)
        return Profile(
            [float(threshold) for threshold in thresholds],
            {
                name: [float(share) for share in estimators.performance_profile(values, thresholds)]
                for name, values in scores.items()
            },
        )
