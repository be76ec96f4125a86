"""How long use was above a threshold, from the three numbers that windows keep of it."""

import numpy as np
import pytest

from pipeline.calibrate.pods import time_above


def of(samples, limit):
    """Return what windows would say of samples, and the share of them that is above."""
    kept = np.mean(samples), np.quantile(samples, 0.95), np.max(samples)
    return float(time_above(*(np.array([value]) for value in (*kept, limit)))[0]), float(np.mean(samples > limit))


def test_nobody_was_above_a_limit_that_no_sample_reached():
    assert of(np.array([1.0, 5.0, 6.0, 6.4, 6.3]), 6.4)[0] == 0.0


def test_all_of_the_time_was_above_a_limit_below_every_sample():
    assert of(np.array([7.0, 7.5, 7.2, 7.8, 7.4]), 5.0)[0] == pytest.approx(1.0)


@pytest.mark.parametrize("limit", [4.0, 5.0, 6.0, 6.4])
def test_on_average_the_share_is_that_of_the_samples(limit):
    rng = np.random.default_rng(0)
    found = np.array([of(rng.normal(rng.uniform(2.0, 6.0), 0.8, 10), limit) for _ in range(4000)])
    estimated, counted = found.mean(axis=0)
    assert estimated == pytest.approx(counted, rel=0.1, abs=0.005)


def test_equal_samples_are_either_above_or_not():
    assert of(np.full(5, 3.0), 3.5)[0] == 0.0
    assert of(np.full(5, 3.0), 2.5)[0] == pytest.approx(1.0)
