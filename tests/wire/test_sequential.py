"""Confidence sequences: formulas against brute force, and the promise that looking at any time is legal."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad

from wire import sequential

ALPHA = 0.05


def _stakes(values: list[float]) -> list[tuple[float, float]]:
    """The predictable mean and stake before each value, by the authors' recursion."""
    total, squares, before, found = 0.0, 0.0, (0.5, 0.25), []
    for t, value in enumerate(values, 1):
        mean, variance = before
        found.append((mean, math.sqrt(2 * math.log(2 / ALPHA) / (variance * t * math.log(1 + t)))))
        total += value
        now = (0.5 + total) / (t + 1)
        squares += (value - now) ** 2
        before = (now, (0.25 + squares) / (t + 1))
    return found


def test_empirical_bernstein_is_the_published_recursion():
    values = np.random.default_rng(0).beta(2, 5, size=60)
    weights = products = penalty = 0.0
    lower, upper = 0.0, 1.0
    found = sequential.empirical_bernstein(values, alpha=ALPHA)
    for t, (value, (mean, stake)) in enumerate(zip(values, _stakes(list(values)), strict=True)):
        stake = min(stake, 0.5)  # noqa: PLW2901
        weights, products = weights + stake, products + stake * value
        penalty += 4 * (value - mean) ** 2 * (-math.log(1 - stake) - stake) / 4
        reach = (math.log(2 / ALPHA) + penalty) / weights
        lower, upper = max(lower, products / weights - reach), min(upper, products / weights + reach)
        assert (found.lower[t], found.upper[t]) == pytest.approx((lower, upper))


def test_betting_keeps_exactly_the_means_that_did_not_lose_to_the_gambler():
    values = np.random.default_rng(1).binomial(1, 0.2, size=80).astype(float)
    grid = 50
    standing = set(range(grid + 1))
    capital = {k: [1.0, 1.0] for k in standing}
    found = sequential.betting(values, alpha=ALPHA, grid=grid)
    for t, (value, (_, stake)) in enumerate(zip(values, _stakes(list(values)), strict=True)):
        for k, money in capital.items():
            mean = k / grid
            money[0] *= 1 + (min(stake, 0.5 / mean) if mean > 0 else stake) * (value - mean)
            money[1] *= 1 - (min(stake, 0.5 / (1 - mean)) if mean < 1 else stake) * (value - mean)
            if max(money) / 2 >= 1 / ALPHA:
                standing.discard(k)
        assert found.lower[t] == pytest.approx(max(min(standing) - 1, 0) / grid)
        assert found.upper[t] == pytest.approx(min(max(standing) + 1, grid) / grid)


def test_normal_mixture_is_where_the_mixture_martingale_reaches_one_over_alpha():
    tightest_at, t = 100, 37
    variance = sequential.mixture_variance(ALPHA, tightest_at)
    values = np.zeros(t)
    found = sequential.normal_mixture(values, alpha=ALPHA, tightest_at=tightest_at, deviation=1.0)
    reach = t * min(found.upper)  # the sum at which the last (tightest) look would exclude a mean of zero

    def integrand(theta: float) -> float:
        density = math.exp(-(theta**2) / (2 * variance)) / math.sqrt(2 * math.pi * variance)
        return math.exp(theta * reach - theta**2 * t / 2) * density

    assert quad(integrand, -3, 3, points=[reach / t])[0] == pytest.approx(1 / ALPHA, rel=1e-4)


def test_normal_mixture_is_tightest_about_when_asked():
    time = np.arange(1, 5001)

    def reach_at_200(tightest_at: int) -> float:
        found = sequential.normal_mixture(np.zeros(len(time)), tightest_at=tightest_at, deviation=1.0)
        return float(found.upper[199])

    assert reach_at_200(200) < min(reach_at_200(50), reach_at_200(800))


def _missed_when_fixed(values: np.ndarray, truth: float) -> bool:
    """Whether an ordinary 95 % interval, looked at after every value from the 50th on, ever excludes the truth."""
    time = np.arange(1, len(values) + 1)
    mean = np.cumsum(values) / time
    reach = 1.96 * np.sqrt(np.maximum(np.cumsum(values**2) / time - mean**2, 0.0) / time)
    return bool(np.any((np.abs(mean - truth) > reach)[50:]))


def test_looking_after_every_request_is_legal_and_is_not_with_a_fixed_interval():
    random, runs, rate = np.random.default_rng(4), 200, 0.05
    missed = dict.fromkeys(["betting", "bernstein", "normal", "fixed", "fixed on costs"], 0)
    for _ in range(runs):
        violations, costs = random.binomial(1, rate, size=1000).astype(float), random.exponential(size=1000)
        # The running intersection keeps a miss for ever, so the last bounds tell of every look.
        for name, found, truth in (
            ("betting", sequential.betting(violations, grid=100), rate),
            ("bernstein", sequential.empirical_bernstein(violations), rate),
            ("normal", sequential.normal_mixture(costs), 1.0),
        ):
            low, high = found.now
            missed[name] += not low <= truth <= high
        missed["fixed"] += _missed_when_fixed(violations, rate)
        missed["fixed on costs"] += _missed_when_fixed(costs, 1.0)
    assert max(missed["betting"], missed["bernstein"], missed["normal"]) <= ALPHA * runs
    assert min(missed["fixed"], missed["fixed on costs"]) > 0.2 * runs


def test_betting_is_tighter_than_bernstein_and_both_learn():
    values = np.random.default_rng(5).binomial(1, 0.05, size=3000).astype(float)
    wide, narrow = sequential.empirical_bernstein(values).now, sequential.betting(values, grid=2000).now
    assert narrow[1] - narrow[0] < wide[1] - wide[0] < 0.05


def test_no_violation_yet_does_not_prove_that_there_will_be_none():
    assert sequential.normal_mixture(np.zeros(200)).now == (-np.inf, np.inf)
    assert sequential.betting(np.zeros(200)).now[1] > 0.01


def test_bounds_never_widen():
    values = np.random.default_rng(6).random(500)
    for make in (sequential.betting, sequential.empirical_bernstein, sequential.normal_mixture):
        found = make(values)
        assert (np.diff(found.lower[60:]) >= 0).all()
        assert (np.diff(found.upper[60:]) <= 0).all()


def test_normal_mixture_of_large_values_keeps_its_precision():
    values = np.random.default_rng(7).normal(size=500)
    small, large = sequential.normal_mixture(values).now, sequential.normal_mixture(1e9 + values).now
    assert np.subtract(large, 1e9) == pytest.approx(small, abs=1e-4)


def test_a_harmful_canary_is_stopped_and_an_equal_one_advances():
    random = np.random.default_rng(8)
    control = sequential.betting(random.binomial(1, 0.05, size=6000).astype(float), alpha=ALPHA / 2)
    harmful = sequential.betting(random.binomial(1, 0.15, size=2000).astype(float), alpha=ALPHA / 2)
    equal = sequential.betting(random.binomial(1, 0.05, size=6000).astype(float), alpha=ALPHA / 2)
    early = sequential.betting(random.binomial(1, 0.05, size=50).astype(float), alpha=ALPHA / 2)
    assert sequential.advise(sequential.difference(harmful, control), 0.02) == "stop"
    assert sequential.advise(sequential.difference(equal, control), 0.03) == "advance"
    assert sequential.advise(sequential.difference(early, control), 0.02) == "wait"


def test_values_out_of_bounds_are_refused():
    with pytest.raises(ValueError, match="between 0 and 1"):
        sequential.betting(np.array([0.5, 1.5]))
    with pytest.raises(ValueError, match="between 0 and 1"):
        sequential.empirical_bernstein(np.array([np.nan]))
