"""Counterfactual advantages are what trying each candidate by hand gives, centred, and leave the states alone."""

from __future__ import annotations

import numpy as np
import torch

from pipeline.policies import counterfactual
from pipeline.policies.scorer import Scorer
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
            np.testing.assert_allclose(found.advantages[b, action], total - mean, rtol=1e-5, atol=1e-6)
        assert np.ptp(found.advantages[b][found.mask[b]]) > 0.0


def test_packing_leaves_out_infeasible_candidates_and_nothing_of_the_scores():
    env = make_vec("vm/recovering", 6, servers=4)
    env.reset(seed=1)
    rule = heuristics.batch("first_fit", env)
    for _ in range(40):
        env.step(rule())
    parts = [counterfactual.advantages(env, "first_fit", 3)]
    env.step(rule())
    parts.append(counterfactual.advantages(env, "first_fit", 3))
    found = counterfactual.packed(parts)
    assert not all(part.mask.all() for part in parts)
    assert found.mask.shape == (12, max(part.mask.sum(axis=1).max() for part in parts))
    scorer = Scorer(env.feature_spec, 8)
    with torch.no_grad():
        scores = scorer(*map(torch.from_numpy, found[:3])).numpy()
        whole = np.concatenate([scorer(*map(torch.from_numpy, part[:3])).numpy() for part in parts])
    masks, worth = (np.concatenate([getattr(part, name) for part in parts]) for name in ("mask", "advantages"))
    for row in range(12):
        np.testing.assert_allclose(scores[row][found.mask[row]], whole[row][masks[row]], atol=1e-6)
        np.testing.assert_array_equal(found.advantages[row][found.mask[row]], worth[row][masks[row]])
    assert (found.mask[:, :-1] >= found.mask[:, 1:]).all(), "feasible ones first"
