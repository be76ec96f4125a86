"""How an exported graph is held against the network it was made of: what both read, without the weight of either."""

from __future__ import annotations

import msgspec
import numpy as np

from wire.contracts.feature_spec import FeatureSpec

SIZES = (1, 2, 3, 5, 20, 100, 1000)
"""Candidate counts that are compared; exporters like to freeze the small ones."""


class Parity(msgspec.Struct, frozen=True):
    """How far the exported graph is from the network it was made of."""

    max_error: float
    """Largest |torch - onnxruntime|, in units of 1 + the decision's largest score: float32 rounds in proportion."""
    argmax_equal: bool
    permutation_invariant: bool
    mask_violations: int


def draw(spec: FeatureSpec, *, rows: int, size: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw plausible observations: features of the order of their scales, seven candidates in ten feasible."""
    rng = np.random.default_rng([seed, size])
    scale = np.array([feature.scale for feature in spec.candidate])
    asked = np.array([feature.scale for feature in spec.request])
    mask = rng.random((rows, size)) < 0.7
    mask[:, 0] = True
    return (
        (rng.random((rows, size, len(scale))) * 1.5 * scale).astype(np.float32),
        (rng.random((rows, len(asked))) * 1.5 * asked).astype(np.float32),
        mask,
    )
