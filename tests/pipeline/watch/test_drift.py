"""Drift is what the reference days themselves have not shown."""

import itertools

import numpy as np
import pytest

from pipeline.watch import drift

STEP = 300


def days(count, rng, *, series=8):
    """A daily rhythm, series of different sizes, noise; [steps, series]."""
    at = np.arange(count * drift.DAY_S // STEP) * float(STEP)
    rhythm = 1 + 0.6 * np.sin(2 * np.pi * at / drift.DAY_S)
    return at, rhythm[:, None] * np.exp(rng.normal(0, 1, series)) * np.exp(rng.normal(0, 0.2, (len(at), series)))


@pytest.fixture
def usual():
    rng = np.random.default_rng(5)
    at, values = days(15, rng)
    learned = 14 * drift.DAY_S // STEP
    series = {str(name): (at[:learned], values[:learned, name]) for name in range(values.shape[1])}
    return drift.reference(series), at[learned:], values[learned:]


def looks(known, at, values):
    per = drift.SLOT_S // STEP
    for end in range(per, len(at), 3):
        now = {str(name): values[end - per : end, name] for name in range(values.shape[1])}
        yield drift.look(known, at[end], now)


def test_a_day_like_the_others_is_no_drift_at_any_hour(usual):
    known, at, values = usual
    beyond = [seen.beyond for seen in looks(known, at, values)]
    assert not any(one and other for one, other in itertools.pairwise(beyond)), "never twice in a row"
    assert min(known.limits) >= drift.ACT


def test_twice_the_load_is_drift_at_every_hour(usual):
    known, at, values = usual
    assert all(seen.beyond for seen in looks(known, at, 2 * values))


def test_a_new_series_is_held_against_the_usual_ones(usual):
    known, at, _ = usual
    seen = drift.look(known, at[0], {"never seen": np.full(6, 1e6)})
    assert seen.beyond
    assert seen.samples == 6


def test_the_index_is_nothing_for_the_same_and_grows_with_the_difference():
    same, other = np.array([5.0, 5.0]), np.array([9.0, 1.0])
    assert drift.psi(same, 3 * same) == pytest.approx(0)
    assert drift.psi(same, other) == pytest.approx((0.5 - 0.9) * np.log(0.5 / 0.9) + (0.5 - 0.1) * np.log(0.5 / 0.1))


def test_too_little_is_known_to_judge_or_to_look():
    at = np.arange(10) * 300.0
    assert drift.reference({}) is None
    assert drift.reference({"a": (at, np.ones(10))}) is None, "one day says nothing about another"
    known = drift.reference({"a": (np.arange(2000) * 300.0, np.ones(2000))})
    assert drift.look(known, 0.0, {}) is None
    assert drift.look(known, 0.0, {"a": np.array([np.nan])}) is None
