"""A shadow scores what the live policy has decided, later and beside it: what it would have chosen, and how fast.

It decides nothing. What it cannot keep up with is left out and counted; a decision never waits for it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import NamedTuple

import numpy as np

from placement.errors import PlaceRefusedError, PolicyFailedError
from placement.metrics import Metrics
from placement.policy import Policy
from placement.ranking import observe
from placement.settings import Settings
from placement.state import State
from placement.watchdog import Watchdog
from wire.contracts.place import PlacementRequest

WAITING = 256
"""Decisions that may wait: with 5,000 candidates each some 200 MiB."""
EVERY_S = 0.02
"""How often somebody looks for them; nobody is woken by a decision."""


class _Decided(NamedTuple):
    policy: Policy
    state: State
    request: PlacementRequest
    chosen: str


class Shadow:
    """Scores beside; its thread starts with the first decision that has a shadow."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._metrics = metrics
        self._watchdog = Watchdog(settings.deadline_ms / 1e3)
        self._waiting: deque[_Decided] = deque()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def score_later(self, policy: Policy, state: State, request: PlacementRequest, chosen: str) -> None:
        """Note a decision."""
        if len(self._waiting) >= WAITING:
            self._count(state, "lost")
            return
        self._waiting.append(_Decided(policy, state, request, chosen))
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="shadow", daemon=True)
                    self._thread.start()

    def close(self) -> None:
        """Leave what waits."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(timeout=10)
        self._watchdog.close()

    def _run(self) -> None:
        while not self._closed.wait(EVERY_S):
            while self._waiting and not self._closed.is_set():
                self._score(self._waiting.popleft())

    def _score(self, one: _Decided) -> None:
        try:
            # Its own features: it may speak another version of the spec than the live policy.
            seen = observe(one.state, one.request, one.policy.build)
            started = time.perf_counter()
            scores = one.policy.score_one(seen, self._watchdog)
        except (PolicyFailedError, PlaceRefusedError):
            self._count(one.state, "failed")
            return
        self._metrics.shadow_seconds.labels(one.state.problem).observe(time.perf_counter() - started)
        if not np.isfinite(scores[seen.mask]).all():
            self._count(one.state, "failed")
            return
        chosen = one.state.names[int(np.where(seen.mask, scores, -np.inf).argmax())]
        self._count(one.state, "agrees" if chosen == one.chosen else "differs")

    def _count(self, state: State, outcome: str) -> None:
        self._metrics.shadow.labels(state.problem, outcome).inc()
