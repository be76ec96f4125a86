"""A loaded policy: an onnxruntime session with its manifest, and the deadline it is held to."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np

from placement.errors import PolicyFailedError
from wire import bundle, graph
from wire.contracts.bundle import Manifest, ModelName
from wire.graph import BoolArray, FloatArray
from wire.models import GraphModel
from wire.policy import GraphPolicy

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

    async def score(
        self, candidates: FloatArray, request: FloatArray, mask: BoolArray, *, deadline_s: float, executor: Executor
    ) -> FloatArray:
        """Score a batch beside the event loop; raises :class:`PolicyFailedError` at the deadline or on any fault."""
        options = graph.runtime().RunOptions()
        run = asyncio.get_running_loop().run_in_executor(
            executor, graph.scores, self.session, candidates, request, mask, options
        )
        done, _ = await asyncio.wait((run,), timeout=deadline_s)
        if not done:
            # Stops the graph at its next operator, or before it starts; nobody waits for the result any more.
            options.terminate = True
            run.cancel()
            raise PolicyFailedError("deadline", f"no scores within {deadline_s * 1e3:g} ms")
        try:
            scores = run.result()
        except Exception as error:  # onnxruntime's exceptions share no base below Exception
            raise PolicyFailedError("error", f"the policy failed: {str(error)[:200]}") from error
        if scores.shape != mask.shape:
            raise PolicyFailedError("error", f"the policy answered shape {scores.shape} for {mask.shape}")
        return scores


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
