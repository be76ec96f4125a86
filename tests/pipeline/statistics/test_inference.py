"""Decisions from intervals, Holm, and power, against published and simulated values."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtri

from pipeline.statistics import power
from pipeline.statistics.bootstrap import Estimate
from pipeline.statistics.inference import deteriorated, holm, non_inferiority, superiority


def interval(lower: float, upper: float) -> Estimate:
    return Estimate((lower + upper) / 2, lower, upper, 1.0, 0.5, 10)


def test_holm_of_the_textbook_example():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holm_of_one_is_itself_and_never_exceeds_one():
    assert holm([0.04]) == [0.04]
    assert holm([0.6, 0.9]) == [1.0, 1.0]


def test_holm_rejects_exactly_what_the_step_down_procedure_rejects():
    random = np.random.default_rng(0)
    for _ in range(300):
        p = random.uniform(0.0, 0.1, size=random.integers(1, 9))
        rejected = set()
        for step, index in enumerate(np.argsort(p)):
            if p[index] > 0.05 / (len(p) - step):
                break
            rejected.add(int(index))
        assert {index for index, value in enumerate(holm(list(p))) if value <= 0.05} == rejected


@pytest.mark.parametrize(
    ("lower", "upper", "answer"),
    [(0.01, 0.03, "yes"), (0.0, 0.03, "open"), (-0.02, 0.03, "open"), (-0.03, -0.01, "no")],
)
def test_superiority_needs_the_whole_interval_above_zero(lower, upper, answer):
    assert superiority(interval(lower, upper)) == answer


@pytest.mark.parametrize(
    ("lower", "upper", "answer"),
    [
        (-0.01, 0.009, "yes"),
        (0.001, 0.009, "yes"),  # significantly worse, and still harmless
        (-0.05, 0.05, "open"),  # not significantly worse, and not harmless either
        (0.005, 0.02, "open"),
        (0.011, 0.02, "no"),
        (0.0, 0.01, "yes"),
    ],
)
def test_non_inferiority_is_about_the_margin_not_about_significance(lower, upper, answer):
    assert non_inferiority(interval(lower, upper), 0.01) == answer


def test_a_slice_deteriorates_only_when_its_upper_bound_is_below_the_margin():
    assert deteriorated(interval(-0.05, -0.011), 0.01)
    assert not deteriorated(interval(-0.05, -0.009), 0.01)


@pytest.mark.parametrize(
    ("deviation", "effect", "wanted"),
    # 32: the textbook value for half a standard deviation; the others are rows of gates.md's table (paired s.d. 0.4
    # and 0.5 % need 2 traces for 1 %).
    [(1.0, 0.5, 32), (0.004, 0.01, 2), (0.005, 0.01, 2), (0.10, 0.01, 785)],
)
def test_sample_size_of_known_cases(deviation, effect, wanted):
    assert power.sample_size(deviation, effect) == wanted


def test_power_is_what_simulation_finds():
    random = np.random.default_rng(1)
    n, deviation, effect = 50, 1.0, 0.35
    means = random.normal(effect, deviation / np.sqrt(n), size=200_000)
    found = np.mean(means - ndtri(0.975) * deviation / np.sqrt(n) > 0.0)
    assert power.power(deviation / np.sqrt(n), effect) == pytest.approx(found, abs=0.004)


def test_sample_size_and_power_agree():
    n = power.sample_size(0.3, 0.02, power=0.9)
    assert power.power(0.3 / np.sqrt(n), 0.02) >= 0.9 > power.power(0.3 / np.sqrt(n - 1), 0.02)


def test_no_variance_has_all_power():
    assert power.power(0.0, 0.01) == 1.0
    assert power.sample_size(0.0, 0.01) == 1


def test_several_guardrails_share_the_probability_of_missing_one():
    assert power.shared_power(0.8, 4) == pytest.approx(0.95)
    assert power.shared_power(0.8, 0) == pytest.approx(0.8)
