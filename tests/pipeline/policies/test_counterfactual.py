"""Counterfactual advantages are what trying each candidate by hand gives, centred, and leave the states alone."""

from __future__ import annotations

import numpy as np

from pipeline.policies import counterfactual
from sched_env import heuristics
from sched_env.vector import make_vec


def test_advantages_are_the_centred_returns_of_trying_every_candidate():
    env = make_vec("functions/serverless", 3, num_nodes=4, horizon=100)
    env.reset(seed=2)
    rule = heuristics.batch("warm_first", env)
    for _ in range(12):
        env.step(rule())
    before = env.get_state()
    found = counterfactual.advantages(env, "warm_first", 5)
    for name, array in before.state.items():
        assert array.tobytes() == getattr(env.state, name).tobytes()
    np.testing.assert_array_equal(found.mask, env.buffers.mask)
    assert not found.advantages[~found.mask].any()
    for b in range(3):
        returns = {}
        for action in np.flatnonzero(env.buffers.mask[b]):
            alone = env.fork([b])
            choose, total = heuristics.batch("warm_first", alone), float(alone.step([action])[1][0])
            for _ in range(4):
                total += float(alone.step(choose())[1][0])
            returns[action] = total
        mean = np.mean(list(returns.values()))
        for action, total in returns.items():
            np.testing.assert_allclose(found.advantages[b, action], total - mean, atol=1e-12)
        assert np.ptp(found.advantages[b][found.mask[b]]) > 0.0
