"""The bootstrap against published intervals, scipy, exhaustive enumeration and known coverage."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from pipeline.statistics import estimators
from pipeline.statistics.bootstrap import Resampler

# Efron and Tibshirani, An Introduction to the Bootstrap (1993), table 14.1: spatial test data, part A.
SPATIAL = np.array(
    [48, 36, 20, 29, 42, 42, 20, 42, 22, 41, 45, 14, 6, 0, 33, 28, 34, 4, 32, 24, 47, 41, 24, 26, 30, 41], dtype=float
)


def variance(values: np.ndarray) -> estimators.Statistic:
    def of(counts: np.ndarray) -> np.ndarray:
        total = counts.sum(axis=1)
        return counts @ values**2 / total - (counts @ values / total) ** 2

    return of


def alone(n: int, samples: int = 4000, seed: int = 1) -> Resampler:
    """Every trace its own block: the ordinary bootstrap."""
    return Resampler(np.zeros(n, dtype=np.intp), np.arange(n), samples=samples, seed=seed)


def test_spatial_data_give_the_published_percentile_and_bca_intervals():
    resampler = alone(26, samples=40_000)
    percentile = resampler.estimate(variance(SPATIAL), confidence=0.9, widen=False)
    bca = resampler.estimate(variance(SPATIAL), confidence=0.9, method="bca", widen=False)
    assert percentile.value == pytest.approx(171.5, abs=0.05)
    # The book's own 2,000 resamples leave a few units of noise in its figures.
    assert (percentile.lower, percentile.upper) == pytest.approx((100.8, 233.9), abs=4.0)
    assert (bca.lower, bca.upper) == pytest.approx((115.8, 259.6), abs=2.0)


def test_acceleration_of_the_spatial_data_is_the_published_one():
    resampler = alone(26, samples=20_000)
    statistic = variance(SPATIAL)
    bias, acceleration = resampler._bca(statistic, None, 171.53, resampler.distribution(statistic))
    assert acceleration == pytest.approx(0.061, abs=0.0005)
    assert bias == pytest.approx(0.146, abs=0.06)  # from 2,000 resamples: two standard errors


def test_bca_agrees_with_scipy():
    values = np.random.default_rng(2).exponential(size=60)
    ours = alone(60, samples=20_000).estimate(estimators.mean(values), method="bca", widen=False)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="BCa", rng=np.random.default_rng(3))
    interval = theirs.confidence_interval
    assert (ours.lower, ours.upper) == pytest.approx((interval.low, interval.high), abs=0.02)
    assert ours.error == pytest.approx(theirs.standard_error, rel=0.03)


def test_resamples_have_the_distribution_of_all_resamples_that_exist():
    values = np.array([0.0, 1.0, 3.0, 10.0])
    every = np.array([np.mean(drawn) for drawn in itertools.product(values, repeat=4)])
    drawn = alone(4, samples=50_000).distribution(estimators.mean(values))
    for level in (0.05, 0.25, 0.5, 0.75, 0.95):
        point = np.quantile(every, level)
        assert np.mean(drawn <= point) == pytest.approx(np.mean(every <= point), abs=0.01)


def test_a_block_is_drawn_whole_and_once_for_all_scenarios():
    scenario = np.tile(np.repeat([0, 1], 2), 5).astype(np.intp)
    block = np.repeat(np.arange(5), 4)
    resampler = Resampler(scenario, block, samples=200, seed=0)
    assert resampler.draws.shape == (200, 5)
    assert (resampler.draws.sum(axis=1) == 5).all()
    assert resampler.stratum.tolist() == [0] * 5


def test_scenarios_with_blocks_of_their_own_are_strata():
    scenario = np.repeat([0, 1], 6).astype(np.intp)
    resampler = Resampler(scenario, np.arange(12), samples=300, seed=0)
    assert (resampler.draws[:, :6].sum(axis=1) == 6).all()
    assert (resampler.draws[:, 6:].sum(axis=1) == 6).all()
    # A difference between scenarios is not noise: a statistic that is constant within them has no variance.
    assert resampler.estimate(estimators.mean(np.repeat([0.0, 5.0], 6))).error == 0.0


def test_traces_of_one_block_are_one_piece_of_evidence():
    random = np.random.default_rng(7)
    shared = random.normal(size=20)
    values = np.repeat(shared, 50)
    scenario, block = np.zeros(1000, dtype=np.intp), np.repeat(np.arange(20), 50)
    clustered = Resampler(scenario, block, samples=4000, seed=1).estimate(estimators.mean(values))
    assert clustered.error == pytest.approx(np.std(shared, ddof=1) / np.sqrt(20), rel=0.05)
    careless = alone(1000).estimate(estimators.mean(values))
    assert clustered.error > 5 * careless.error


def test_one_block_bounds_nothing():
    resampler = Resampler(np.zeros(9, dtype=np.intp), np.zeros(9, dtype=int), samples=100, seed=0)
    found = resampler.estimate(estimators.mean(np.arange(9.0)))
    assert (found.value, found.lower, found.upper, found.p) == (4.0, -np.inf, np.inf, 1.0)


def test_blocks_alone_in_their_stratum_still_vary():
    scenario = np.array([0, 1, 0, 1, 0], dtype=np.intp)
    block = np.array([0, 1, 2, 2, 3])
    resampler = Resampler(scenario, block, samples=500, seed=0)
    assert resampler.estimate(estimators.mean(np.arange(5.0))).error > 0.0


def test_the_same_seed_gives_the_same_interval_and_another_seed_another():
    values = np.random.default_rng(0).normal(size=50)
    first, second, other = (alone(50, seed=seed).estimate(estimators.iqm(values)) for seed in (5, 5, 6))
    assert first == second
    assert first != other


def test_chunks_do_not_change_the_result(monkeypatch):
    values = np.random.default_rng(0).normal(size=30)
    whole = alone(30).distribution(estimators.iqm(values))
    monkeypatch.setattr("pipeline.statistics.bootstrap._CHUNK_ELEMENTS", 64)
    assert alone(30).distribution(estimators.iqm(values)) == pytest.approx(whole, abs=1e-12)


def test_p_value_and_interval_agree_on_every_side_of_the_threshold():
    random = np.random.default_rng(11)
    for _ in range(60):
        values = random.normal(0.25, 1.0, size=40)
        for method in ("percentile", "bca"):
            found = alone(40, samples=2000).estimate(estimators.mean(values), method=method)
            # Quantiles are interpolated, counts are not: allow the width of one resample around the threshold.
            if abs(found.p - 0.05) > 0.005:
                assert (found.p < 0.05) == (found.lower > 0.0 or found.upper < 0.0)


def test_p_value_is_about_that_of_the_t_test():
    values = np.random.default_rng(12).normal(0.3, 1.0, size=40)
    found = alone(40, samples=20_000).estimate(estimators.mean(values))
    assert found.p == pytest.approx(stats.ttest_1samp(values, 0.0).pvalue, rel=0.25)
    strong = alone(40).estimate(estimators.mean(values + 5.0))
    assert strong.p < 1e-15


@pytest.mark.parametrize("blocks", [10, 25])
def test_widened_intervals_cover_even_with_few_blocks(blocks):
    random = np.random.default_rng(20)
    resampler = Resampler(np.zeros(blocks * 4, dtype=np.intp), np.repeat(np.arange(blocks), 4), samples=600, seed=1)
    covered = {True: 0, False: 0}
    for _ in range(600):
        values = np.repeat(random.normal(size=blocks), 4) + random.normal(size=blocks * 4)
        for widen in covered:
            found = resampler.estimate(estimators.mean(values), widen=widen)
            covered[widen] += found.lower <= 0.0 <= found.upper
    assert covered[True] / 600 == pytest.approx(0.95, abs=0.025)
    assert covered[False] < covered[True]
