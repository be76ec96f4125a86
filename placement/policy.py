"""A loaded policy: an onnxruntime session with its manifest, and the deadline it is held to."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from placement.errors import PolicyFailedError
from placement.watchdog import Watchdog
from wire import bundle, graph
from wire.contracts.bundle import Manifest, ModelName
from wire.errors import BundleError
from wire.graph import BoolArray, FloatArray
from wire.models import GraphModel
from wire.policy import GraphPolicy

MOST_CANDIDATES, MOST_REQUESTS, TRIAL_DRAWS = 20_000, 1_024, 12
"""Largest call of /v1/place; random sizes tried before a policy may go live."""


@dataclass(frozen=True)
class TrialLimits:
    """What the service will ask of a policy at most, and what the policy may take for it."""

    batch_rows: int
    deadline_s: float
    memory_mib: int


WARM_UP_SIZES = (1, 2, 500)
"""Candidate counts run once before a policy is live: the first run of a size allocates its buffers."""


@dataclass(frozen=True)
class Policy:
    """A policy that has passed every check and replayed its golden vectors here."""

    manifest: Manifest
    key: str
    """Id of the key that signed it."""
    session: Any
    models: Mapping[ModelName, GraphModel]
    """The bundle's further models."""

    @property
    def digest(self) -> str:
        """Name of what decides placements."""
        return self.manifest.digest

    def score(self, candidates: FloatArray, request: FloatArray, mask: BoolArray, watchdog: Watchdog) -> FloatArray:
        """Score a batch; raises :class:`PolicyFailedError` at the deadline or on any fault."""
        options = graph.runtime().RunOptions()
        try:
            with watchdog.limit(options):
                scores = graph.scores(self.session, candidates, request, mask, options)
        except Exception as error:  # onnxruntime's exceptions share no base below Exception
            if options.terminate:
                said = f"no scores within {watchdog.deadline_s * 1e3:g} ms"
                raise PolicyFailedError("deadline", said) from error
            raise PolicyFailedError("error", f"the policy failed: {str(error)[:200]}") from error
        if scores.shape != mask.shape:
            raise PolicyFailedError("error", f"the policy answered shape {scores.shape} for {mask.shape}")
        return scores


def exercise(policy: Policy, limits: TrialLimits) -> None:
    """Ask a policy for random sizes and batches, up to the largest that the service will; each must come in time.

    CPU time counts, not the clock: a busy machine is not the policy's fault.
    """
    rng, spec = np.random.default_rng(0), policy.manifest.feature_spec
    scale = np.array([feature.scale for feature in spec.candidate], np.float32)
    asked = np.array([feature.scale for feature in spec.request], np.float32)
    largest = [(1, limits.batch_rows), (limits.batch_rows, 1), (1, MOST_CANDIDATES)]
    sizes = [(int(rng.integers(1, 33)), int(rng.integers(1, limits.batch_rows // 32 + 2))) for _ in range(TRIAL_DRAWS)]
    for requests, size in [*sizes, *largest]:
        batch = min(requests, MOST_REQUESTS)
        candidates = rng.exponential(scale, (batch, size, len(scale))).astype(np.float32)
        request = rng.exponential(asked, (batch, len(asked))).astype(np.float32)
        mask = rng.random((batch, size)) < rng.random((batch, 1))
        what = f"{batch} requests x {size} candidates"
        took = np.inf
        for _ in range(2):  # the first run of a size allocates its buffers
            started = time.thread_time()
            with graph.refusing(f"the policy fails for {what}"):
                found = graph.scores(policy.session, candidates, request, mask)
            took = min(took, time.thread_time() - started)
        if found.shape != mask.shape or not np.isfinite(found[mask]).all():
            raise BundleError(f"the policy answers shape {found.shape}, or NaN, for {what}", "a finite score for each")
        if took > limits.deadline_s:
            raise BundleError(
                f"the policy takes {took * 1e3:.0f} ms of CPU for {what}", f"at most {limits.deadline_s * 1e3:g} ms"
            )


def open_policy(checked: bundle.Bundle, key: str) -> Policy:
    """Load a checked bundle, replay its golden vectors, warm it up."""
    loaded = GraphPolicy(checked.policy, checked.manifest.digest, checked)
    session = loaded.session
    bundle.replay_golden(session, checked.golden)
    spec = checked.manifest.feature_spec
    for size in WARM_UP_SIZES:
        candidates = np.zeros((1, size, len(spec.candidate)), np.float32)
        request = np.zeros((1, len(spec.request)), np.float32)
        graph.scores(session, candidates, request, np.ones((1, size), np.bool_))
    return Policy(checked.manifest, key, session, loaded.models)
