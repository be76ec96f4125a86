from __future__ import annotations

import numpy as np

from sched_env import draws
from sched_env.jit import kernel


@kernel
def many(seed, stream, count, limit, out, shares):
    for counter in range(count):
        out[counter] = draws.below(limit, seed, stream, counter)
        shares[counter] = draws.uniform(seed, stream, counter)


def sample(seed, stream, count=20_000, limit=10):
    out, shares = np.zeros(count, np.int64), np.zeros(count)
    many(seed, stream, count, limit, out, shares)
    return out, shares


def test_draws_are_uniform_and_stay_below_the_limit():
    out, shares = sample(1, 2)
    assert (out.min(), out.max()) == (0, 9)
    counts = np.bincount(out)
    assert abs(counts - 2000).max() < 5 * np.sqrt(2000)
    assert 0.0 <= shares.min() < 0.01
    assert 0.99 < shares.max() < 1.0
    assert abs(shares.mean() - 0.5) < 0.01


def test_streams_and_seeds_are_unrelated_and_repeatable():
    base = sample(0, 0)[1]
    np.testing.assert_array_equal(base, sample(0, 0)[1])
    for seed, stream in ((0, 1), (1, 0), (1, 1)):
        assert abs(np.corrcoef(base, sample(seed, stream)[1])[0, 1]) < 0.03
    assert abs(np.corrcoef(base[:-1], base[1:])[0, 1]) < 0.03
