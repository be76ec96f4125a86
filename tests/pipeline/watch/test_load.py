"""A change of the load is seen within the hour, whatever day it is; a step that is usual at its time is none."""

import itertools
import math

import numpy as np
import pytest

from pipeline.watch import drift, load

STEP = 300


def days(count, rng, *, series=8, midnight=0.0):
    """A daily rhythm, days that differ by a fifth, noise that lasts; [steps, series]."""
    at = np.arange(count * drift.DAY_S // STEP) * float(STEP)
    rhythm = 1 + 0.5 * np.sin(2 * np.pi * at / drift.DAY_S)
    busy = np.exp(rng.normal(0, 0.2 + midnight, count))[(at // drift.DAY_S).astype(int)]
    noise = np.zeros((len(at), series))
    for step in range(1, len(at)):
        noise[step] = 0.9 * noise[step - 1] + rng.normal(0, 0.1, series)
    return at, (rhythm * busy)[:, None] * np.exp(rng.normal(0, 1, series)) * np.exp(noise)


def as_series(at, values, begin, end):
    return {str(name): (at[begin:end], values[begin:end, name]) for name in range(values.shape[1])}


def looks(known, at, values, first, last):
    span = load.SPAN_S // STEP
    return [load.look(known, at[end], as_series(at, values, end - span, end)) for end in range(first, last, 3)]


@pytest.fixture(scope="module")
def world():
    at, values = days(16, np.random.default_rng(5))
    learned = 14 * drift.DAY_S // STEP
    return load.learn(as_series(at, values, 0, learned)), at, values, learned


def twice(beyond):
    return any(one and other for one, other in itertools.pairwise(beyond))


def test_a_day_a_fifth_busier_than_the_others_is_no_alarm(world):
    known, at, values, learned = world
    day = drift.DAY_S // STEP
    assert not twice([seen.beyond for seen in looks(known, at, 1.25 * values, learned + 12, learned + day)])


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_load_that_doubles_or_halves_is_seen_within_the_hour(world, factor):
    known, at, values, learned = world
    for hour in (5, 11, 17, 30, 41):
        shift, moved = learned + hour * 12 + 1, values.copy()
        moved[shift:] *= factor
        seen = [one.beyond for one in looks(known, at, moved, shift - shift % 3 + 3, shift + 12)]
        assert twice(seen), f"{hour} h: {seen}"


def test_a_step_at_a_time_at_which_steps_are_usual_needs_more():
    at, values = days(15, np.random.default_rng(6), midnight=0.2)
    known = load.learn(as_series(at, values, 0, len(at) - 288))
    assert known.limits[0] > 1.5 * known.limits[48], "days begin at midnight here, nothing begins at noon"
    assert min(known.limits) >= load.ACT


def test_one_series_alone_changes_little(world):
    known, at, values, learned = world
    moved = values.copy()
    moved[learned + 100 :, 3] *= 1e6
    assert max(abs(seen.step) for seen in looks(known, at, moved, learned + 103, learned + 106)) < load.MOST / 2


def test_what_is_missing_is_not_judged(world):
    known, at, values, learned = world
    assert load.learn({}) is None
    assert load.learn(as_series(at, values, 0, 2 * 288)) is None, "two days say nothing about each other"
    assert load.look(known, at[learned], {}) is None
    hole = values.copy()
    hole[learned - 12 : learned - 6] = np.nan
    assert looks(known, at, hole, learned, learned + 1) == [None], "nothing to hold it against"
    gone = values.copy()
    gone[: learned - 288 * 2 : 7] = np.nan
    assert load.learn(as_series(at, gone, 0, learned)) is not None


def test_silence_is_a_change_and_stays_finite(world):
    known, at, values, learned = world
    quiet = values.copy()
    quiet[learned + 50 :] = 0.0
    seen = looks(known, at, quiet, learned + 54, learned + 55)[0]
    assert seen.beyond
    assert math.isfinite(seen.step)
