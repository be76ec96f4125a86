import numpy as np
import pytest
import torch

from pipeline.policies.scorer import Scorer, TorchPolicy
from sched_env import problems
from wire.contracts.bundle import MASKED_SCORE

SPEC = problems.spec("functions")


@pytest.fixture(scope="module")
def scorer():
    torch.manual_seed(0)
    return Scorer(SPEC, hidden=16)


def observation(rows, size, seed=0):
    rng = np.random.default_rng(seed)
    scale = [feature.scale for feature in SPEC.candidate]
    asked = [feature.scale for feature in SPEC.request]
    mask = rng.random((rows, size)) < 0.6
    mask[:, 0] = True
    return (
        (rng.random((rows, size, len(scale))) * scale).astype(np.float32),
        (rng.random((rows, len(asked))) * asked).astype(np.float32),
        mask,
    )


@pytest.mark.parametrize("size", [1, 2, 7, 300])
def test_one_network_scores_any_number_of_candidates(scorer, size):
    candidates, request, mask = observation(3, size)
    scores = TorchPolicy(scorer)(candidates, request, mask)
    assert scores.shape == (3, size)
    assert np.isfinite(scores).all()
    assert (scores[~mask] == np.float32(MASKED_SCORE)).all()
    assert (scores[mask] > MASKED_SCORE).all()


def test_the_order_of_candidates_does_not_matter(scorer):
    candidates, request, mask = observation(5, 40)
    order = np.random.default_rng(1).permutation(40)
    scores = TorchPolicy(scorer)(candidates, request, mask)
    shuffled = TorchPolicy(scorer)(candidates[:, order], request, mask[:, order])
    np.testing.assert_allclose(shuffled, scores[:, order], atol=1e-5)


def test_an_infeasible_candidate_changes_no_other_score(scorer):
    candidates, request, mask = observation(1, 10)
    mask[0, 4] = False
    before = TorchPolicy(scorer)(candidates, request, mask)
    candidates[0, 4] = 1e6
    np.testing.assert_array_equal(TorchPolicy(scorer)(candidates, request, mask), before)


def test_an_outlier_is_clipped_instead_of_deciding_alone(scorer):
    candidates, request, mask = observation(1, 10)
    candidates[0, 0, 0] = 1e30
    assert np.isfinite(TorchPolicy(scorer)(candidates, request, mask)).all()
