"""A loaded policy: an onnxruntime session with its manifest, and the deadline it is held to."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from placement.errors import PolicyFailedError
from placement.watchdog import Watchdog
from sched_env import problems
from sched_env.observation import Observation
from sched_env.problem import Build
from wire import bundle, graph
from wire.contracts.bundle import CANDIDATES_INPUT, MASK_INPUT, REQUEST_INPUT, SCORES_OUTPUT, Manifest, ModelName
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


BOUND_SIZES = 8
"""Numbers of candidates for which a thread keeps its arrays: a cluster's node count changes rarely."""

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
    bound: threading.local = field(default_factory=threading.local, repr=False, compare=False)
    """Of each thread, its arrays by number of candidates."""

    @property
    def digest(self) -> str:
        """Name of what decides placements."""
        return self.manifest.digest

    @cached_property
    def build(self) -> Build:
        """What builds the observations of its feature spec: the present one, or the one before."""
        return problems.get(self.manifest.problem).builder(self.manifest.feature_spec.version)

    def score(self, candidates: FloatArray, request: FloatArray, mask: BoolArray, watchdog: Watchdog) -> FloatArray:
        """Score a batch; raises :class:`PolicyFailedError` at the deadline or on any fault."""
        options = graph.runtime().RunOptions()
        with watchdog.limit(options), _failing(options, watchdog):
            scores = graph.scores(self.session, candidates, request, mask, options)
        if scores.shape != mask.shape:
            raise PolicyFailedError("error", f"the policy answered shape {scores.shape} for {mask.shape}")
        return scores

    def score_one(self, seen: Observation, watchdog: Watchdog) -> FloatArray:
        """Score one observation; the answer is good until this thread asks for the same number of candidates again.

        A network of the usual size scores a hundred candidates in 50 us: making the arrays, and handing them over
        by name, would cost as much again. Each thread therefore keeps them for the sizes that it was asked for last.
        """
        bound: dict[int, _Bound] | None = getattr(self.bound, "sizes", None)
        if bound is None:
            bound = self.bound.sizes = {}
        count = len(seen.mask)
        one = bound.pop(count, None)
        if one is None:
            if len(bound) >= BOUND_SIZES:
                del bound[next(iter(bound))]
            one = _Bound(self.session, seen)
        bound[count] = one  # the last asked for is the last to go
        return one.run(self.session, seen, watchdog)


class _Bound:
    """Inputs and output of one size, kept between runs."""

    def __init__(self, session: Any, seen: Observation) -> None:
        onnxruntime = graph.runtime()
        self._seen = Observation(*(np.empty((1, *array.shape), array.dtype) for array in seen))
        self._places = tuple(array[0] for array in self._seen)
        self._scores = np.empty((1, len(seen.mask)), np.float32)
        self._options = onnxruntime.RunOptions()
        self._io = session.io_binding()
        for name, array in zip((CANDIDATES_INPUT, REQUEST_INPUT, MASK_INPUT), self._seen, strict=True):
            self._io.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        self._io.bind_output(
            SCORES_OUTPUT, "cpu", 0, np.float32, self._scores.shape, self._scores.__array_interface__["data"][0]
        )

    def run(self, session: Any, seen: Observation, watchdog: Watchdog) -> FloatArray:
        options = self._options
        options.terminate = False
        for place, array in zip(self._places, seen, strict=True):
            place[:] = array
        watchdog.begin(options)
        try:
            # The public method first reads a setting of the options by name, which takes as long as a small run.
            session._sess.run_with_iobinding(self._io._iobinding, options)
        except Exception as error:
            raise _failed(error, options, watchdog) from error
        finally:
            watchdog.end(options)
        scores: FloatArray = self._scores[0]
        return scores


@contextmanager
def _failing(options: Any, watchdog: Watchdog) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # onnxruntime's exceptions share no base below Exception
        raise _failed(error, options, watchdog) from error


def _failed(error: Exception, options: Any, watchdog: Watchdog) -> PolicyFailedError:
    if options.terminate:
        return PolicyFailedError("deadline", f"no scores within {watchdog.deadline_s * 1e3:g} ms")
    return PolicyFailedError("error", f"the policy failed: {str(error)[:200]}")


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
