"""Whole episodes decide: draws see what a policy would see, on the same episodes, and the better side is moved to."""

import numpy as np
import pytest
import torch

from pipeline.policies import polish
from pipeline.policies.polish import EPISODES, PAIRS, Polish
from pipeline.policies.scorer import Scorer, TorchPolicy
from sched_env.rollout import chooser
from sched_env.vector import make_vec


@pytest.fixture
def env(tiny_workload):
    return make_vec(tiny_workload.scenario, EPISODES, 0, tiny_workload.trace, copy=True)


@pytest.fixture
def scorer(env):
    torch.manual_seed(4)
    return Scorer(env.feature_spec, 16)


def test_every_draw_plays_as_a_policy_with_its_weights_would(env, scorer):
    rng = torch.Generator().manual_seed(1)
    layer = [*scorer.encode_features.parameters()]
    draws = [each.detach() + torch.randn((2 * PAIRS, *each.shape), generator=rng) for each in layer]
    with torch.no_grad():
        found = Polish(env, scorer)._played(draws, 7)
    for number in (0, PAIRS, 2 * PAIRS - 1):
        with torch.no_grad():
            for each, draw in zip(layer, draws, strict=True):
                each.copy_(draw[number])
        env.reset(seed=7, options={"park": True})
        choose = chooser(env, TorchPolicy(scorer))
        while env.buffers.active.any():
            env.step(choose(None))
        returns = env.buffers.metrics[:, env.METRICS.index("return")]
        assert found[number] == pytest.approx(returns.mean(), rel=1e-9)


def test_weights_move_to_the_better_side_by_rank_and_the_rest_stays(env, scorer, monkeypatch):
    before = {name: value.clone() for name, value in scorer.state_dict().items()}
    bias = scorer.encode_features.shared.bias
    # Worth is the sum of the bias, times something enormous in one draw: by rank it counts no more than the largest.
    monkeypatch.setattr(
        Polish, "_played", lambda self, draws, _seed: draws[2].sum(dim=1).double().numpy() * np.r_[1e9, np.ones(47)]
    )
    one = Polish(env, scorer)
    for seed in range(5):
        one.generation(seed)
    assert float((bias.detach() - before["encode_features.shared.bias"]).sum()) > 0
    still = {name for name, value in scorer.state_dict().items() if torch.equal(value, before[name])}
    assert {name for name in before if not name.startswith("encode_features.")} == still


def test_ranks_are_signed_and_the_largest_is_one():
    assert polish._ranked(np.array([0.5, -100.0, 0.0, 2.0])).tolist() == [0.5, -1.0, 0.0, 0.75]
