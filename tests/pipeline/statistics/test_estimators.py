"""Estimators against scipy, brute force and definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import trim_mean

from pipeline.statistics import estimators

ONE_SCENARIO = np.zeros(3, dtype=np.intp)


def _repeat(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return np.repeat(values, counts.astype(int))


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40), st.integers(0, 2**31))
@settings(max_examples=100, deadline=None)
def test_iqm_of_a_resample_is_the_trimmed_mean_of_the_values_drawn(values, seed):
    values = np.array(values)
    counts = np.random.default_rng(seed).multinomial(len(values), np.full(len(values), 1 / len(values)), size=5)
    found = estimators.iqm(values)(counts.astype(float))
    wanted = [trim_mean(_repeat(values, row), 0.25) for row in counts]
    assert found == pytest.approx(wanted, abs=1e-9)


def test_iqm_of_twelve_values_by_hand():
    # The worked example of the interquartile mean: 5 8 4 38 8 6 9 7 7 3 1 6 -> (5+6+6+7+7+8)/6.
    values = np.array([5, 8, 4, 38, 8, 6, 9, 7, 7, 3, 1, 6], dtype=float)
    assert estimators.iqm(values)(np.ones((1, 12)))[0] == pytest.approx(6.5)


@pytest.mark.parametrize("share", [0.1, 0.25, 0.33])
def test_cvar_is_the_optimum_of_rockafellar_and_uryasev(share):
    values = np.random.default_rng(3).normal(size=57)
    counts = np.random.default_rng(4).multinomial(57, np.full(57, 1 / 57), size=3)
    for row, found in zip(counts, estimators.cvar(values, share)(counts.astype(float)), strict=True):
        drawn = _repeat(values, row)
        objective = lambda t, drawn=drawn: -(t - np.mean(np.maximum(t - drawn, 0.0)) / share)  # noqa: E731
        best = min(minimize_scalar(objective, bounds=(-4, 4), method="bounded").fun, *(objective(t) for t in drawn))
        assert found == pytest.approx(-best, abs=1e-9)


def test_cvar_of_a_whole_number_of_traces_is_the_mean_of_the_worst():
    values = np.arange(20.0)
    assert estimators.cvar(values, 0.1)(np.ones((1, 20)))[0] == pytest.approx(0.5)


def test_relative_difference_is_positive_when_better_for_either_orientation_and_sign():
    better, reference = np.array([-9.0, -9.0, -9.0]), np.array([-10.0, -10.0, -10.0])
    gain = estimators.relative_difference(better, reference, ONE_SCENARIO, higher=True)
    assert gain == pytest.approx([0.1, 0.1, 0.1])
    saved = estimators.relative_difference(-better, -reference, ONE_SCENARIO, higher=False)
    assert saved == pytest.approx([0.1, 0.1, 0.1])


def test_a_trace_whose_reference_is_zero_does_not_explode():
    gain = estimators.relative_difference(
        np.array([1.0, 9.0, 11.0]), np.array([0.0, 10.0, 20.0]), ONE_SCENARIO, higher=True
    )
    assert gain == pytest.approx([0.1, -0.1, -0.9])


def test_each_scenario_has_its_own_unit():
    scenario = np.array([0, 0, 1, 1], dtype=np.intp)
    gain = estimators.relative_difference(
        np.array([11.0, 11.0, 110.0, 110.0]), np.array([10.0, 10.0, 100.0, 100.0]), scenario, higher=True
    )
    assert gain == pytest.approx([0.1] * 4)


def test_a_reference_of_zero_everywhere_loses_or_wins_a_hundred_per_cent():
    nothing, waits = np.zeros(3), np.array([2.0, 2.0, 2.0])
    assert estimators.relative_difference(waits, nothing, ONE_SCENARIO, higher=False) == pytest.approx([-1.0] * 3)
    assert estimators.relative_difference(nothing, nothing, ONE_SCENARIO, higher=False) == pytest.approx([0.0] * 3)


def test_rounding_errors_are_no_difference():
    reference = np.full(3, 1e6)
    gain = estimators.relative_difference(reference * (1 + 1e-13), reference, ONE_SCENARIO, higher=True)
    assert (gain == 0.0).all()


def test_probability_of_improvement_counts_ties_as_half():
    assert estimators.wins(np.array([0.2, 0.0, -0.1, 0.3])).tolist() == [1.0, 0.5, 0.0, 1.0]


def test_performance_profile_is_the_share_above_each_threshold():
    shares = estimators.performance_profile(np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.0, 2.0, 3.5, 4.0]))
    assert shares.tolist() == [1.0, 0.5, 0.25, 0.0]


def test_neighbour_correlation_is_that_of_the_block_means_in_order():
    block = np.array([5, 5, 1, 1, 3, 3, 9, 9])
    values = np.array([3.0, 5.0, 1.0, 1.0, 2.0, 2.0, 6.0, 8.0])  # block means, in order of time: 1 2 4 7
    centred = np.array([1.0, 2.0, 4.0, 7.0]) - 3.5
    wanted = (centred[1:] * centred[:-1]).sum() / (centred**2).sum()
    assert estimators.neighbour_correlation(values, block) == pytest.approx(wanted)
    assert estimators.neighbour_correlation(np.ones(8), block) == 0.0
