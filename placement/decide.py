"""The one core of every adapter: ``decide(state, requests)`` gives ranked candidates with a reason.

The policy scores, the mask rules, and when the policy cannot answer (none loaded, deadline, NaN, fault) the fallback
heuristic does: a caller always gets an answer for a request that makes sense. Requests of one call are independent of
each other: all are ranked against the same state. There is no event loop in it: an adapter calls ``decide`` where it
stands, or, in one, awaits ``decide_beside``.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

import msgspec
import numpy as np
from numpy.typing import NDArray

from placement import explain as explaining
from placement.decision_log import DecisionLog
from placement.errors import FallbackReason, PlaceRefusedError, PolicyFailedError
from placement.live import Live, LivePolicies
from placement.metrics import Metrics
from placement.settings import Settings
from placement.state import State, check_request
from placement.watchdog import Watchdog
from sched_env import heuristics, problems
from sched_env.observation import Observation
from wire.contracts.decision import DecisionLine
from wire.contracts.place import Explanation, Placement, PlacementRequest, Ranked

Scores = NDArray[np.float32]

INLINE_ROWS = 2_048
"""Candidate rows scored on the event loop itself: half a millisecond of the largest network that passes the trial's
deadline with ease, and what a change of threads would cost on a busy machine."""

LOGGED_SCORES = 5
"""Top scores written to the decision log."""


@dataclass(frozen=True)
class Decision:
    """Placements of one call and what made them."""

    placements: list[Placement]
    digest: str | None
    defaulted: int
    scores: NDArray[np.floating]
    """Of the last request, candidate by candidate; minus infinity where it cannot go."""


@dataclass
class _Call:
    """A call on its way."""

    started: float
    live: Live
    defaulted: int
    placements: list[Placement] = field(default_factory=list)
    scores: NDArray[np.floating] = field(default_factory=lambda: np.empty(0))

    def take(self, ranked: list[tuple[Placement, NDArray[np.floating]]]) -> None:
        """Add a batch; only the last request's scores are kept, for adapters that ask one at a time."""
        self.placements += [placement for placement, _ in ranked]
        self.scores = ranked[-1][1]


class Decider:
    """Makes decisions with whatever is live."""

    def __init__(self, live: LivePolicies, settings: Settings, metrics: Metrics, log: DecisionLog) -> None:
        self._live, self._settings, self._metrics, self._log = live, settings, metrics, log
        self._watchdog = Watchdog(settings.deadline_ms / 1e3)
        self._executor = ThreadPoolExecutor(settings.scoring_threads, thread_name_prefix="score")
        ready = threading.Barrier(settings.scoring_threads + 1)
        for _ in range(settings.scoring_threads):
            self._executor.submit(ready.wait)
        ready.wait()  # every thread runs by now: starting one is not part of anybody's deadline

    def close(self) -> None:
        """Let the scoring threads go."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._watchdog.close()

    def decide(
        self, state: State, requests: Sequence[PlacementRequest], top_k: int, *, explain: bool = False
    ) -> Decision:
        """Rank the candidates of ``state`` for each request."""
        call = self._begin(state, requests)
        for batch in self._batches(state, requests):
            call.take(self._rank(call.live, state, batch, top_k, explain=explain))
        return self._end(call, state, requests)

    async def decide_beside(
        self, state: State, requests: Sequence[PlacementRequest], top_k: int, *, explain: bool = False
    ) -> Decision:
        """As :meth:`decide`; what takes longer than a change of threads is scored beside the event loop."""
        call, loop = self._begin(state, requests), asyncio.get_running_loop()
        for batch in self._batches(state, requests):
            rank = partial(self._rank, call.live, state, batch, top_k, explain=explain)
            small = len(batch) * len(state.names) <= INLINE_ROWS and not explain
            # Between the batches of a large call other callers get their turn.
            call.take(rank() if small else await loop.run_in_executor(self._executor, rank))
        return self._end(call, state, requests)

    def _begin(self, state: State, requests: Sequence[PlacementRequest]) -> _Call:
        defaulted = state.defaulted + sum(check_request(state.problem, request) for request in requests)
        # One reference for the whole call: never two policies in one answer.
        return _Call(time.perf_counter(), self._live.get(state.problem), defaulted)

    def _batches(self, state: State, requests: Sequence[PlacementRequest]) -> Iterator[Sequence[PlacementRequest]]:
        step = max(1, self._settings.batch_rows // len(state.names))
        return (requests[first : first + step] for first in range(0, len(requests), step))

    def _end(self, call: _Call, state: State, requests: Sequence[PlacementRequest]) -> Decision:
        metrics, problem = self._metrics, state.problem
        metrics.decisions.labels(problem).inc(len(requests))
        metrics.defaulted.labels(problem).inc(call.defaulted)
        metrics.seconds.labels(problem).observe(time.perf_counter() - call.started)
        return Decision(call.placements, call.live.digest, call.defaulted, call.scores)

    def _rank(
        self, live: Live, state: State, requests: Sequence[PlacementRequest], top_k: int, *, explain: bool
    ) -> list[tuple[Placement, NDArray[np.floating]]]:
        observations = [_observe(state, request) for request in requests]
        scored = self._score(live, observations)
        rows = itertools.repeat(scored, len(requests)) if isinstance(scored, PolicyFailedError) else scored
        placed = [
            self._place(live, state, request, observation, self._usable(state, row, observation.mask), top_k)
            for request, observation, row in zip(requests, observations, rows, strict=True)
        ]
        if not explain:
            return placed
        return [
            (msgspec.structs.replace(one, explanation=self._explain(live, state, observation, one, scores)), scores)
            for (one, scores), observation in zip(placed, observations, strict=True)
        ]

    def _explain(
        self, live: Live, state: State, observation: Observation, placed: Placement, scores: NDArray[np.floating]
    ) -> Explanation | None:
        score, policy = None, live.policy
        if policy is not None and not placed.fallback:
            score = partial(policy.score, watchdog=self._watchdog)
        spec = policy.manifest.feature_spec if policy else problems.get(state.problem).spec
        try:
            return explaining.explain(spec, state.names, observation, scores, score, self._settings.batch_rows)
        except PolicyFailedError:  # over its deadline now, although it was not before: then without what would change
            return explaining.explain(spec, state.names, observation, scores, None, self._settings.batch_rows)

    def _score(self, live: Live, observations: list[Observation]) -> Scores | PolicyFailedError:
        if live.policy is None:
            return PolicyFailedError("no_policy", "no policy is live")
        try:
            return live.policy.score(*_stack(observations), self._watchdog)
        except PolicyFailedError as failure:
            return failure

    def _usable(
        self, state: State, scores: Scores | PolicyFailedError, mask: NDArray[np.bool_]
    ) -> Scores | PolicyFailedError:
        """Look at one request's scores: NaN is a failure of the policy, a choice against the mask is counted."""
        if isinstance(scores, PolicyFailedError):
            return scores
        if not np.isfinite(scores[mask]).all():
            return PolicyFailedError("nan", "the policy answered NaN")
        if mask.any() and not mask[scores.argmax()]:
            self._metrics.vetoes.labels(state.problem).inc()
        return scores

    def _place(
        self,
        live: Live,
        state: State,
        request: PlacementRequest,
        observation: Observation,
        scores: Scores | PolicyFailedError,
        top_k: int,
    ) -> tuple[Placement, NDArray[np.floating]]:
        problem, mask = state.problem, observation.mask
        feasible = int(np.count_nonzero(mask))
        fallback: FallbackReason | None = None
        ranked: list[Ranked] = []
        values: NDArray[np.floating] = np.full(len(mask), -np.inf)
        if feasible == 0:
            self._metrics.nowhere.labels(problem).inc()
            reason = "no candidate is feasible: " + _ruled_out(state, request)
        else:
            reason = ""
            if isinstance(scores, PolicyFailedError):
                fallback, name = scores.reason, self._settings.fallback(problem)
                self._metrics.fallback(problem, fallback)
                values = _fallback_scores(name, state, request, mask)
                reason = f"{name} answered because {scores}; "
            else:
                values = scores
            values = np.where(mask, values, -np.inf)
            ranked = _best(state.names, values, min(feasible, max(top_k, 2)))
            reason += f"highest score of {feasible} feasible candidates (of {len(mask)})"
            if len(ranked) > 1:
                reason += f", {ranked[0].score - ranked[1].score:.4g} above {ranked[1].name}"
        self._log.write(
            DecisionLine(
                at=datetime.now(UTC).isoformat(timespec="milliseconds"),
                problem=problem,
                digest=live.digest,
                counter=live.pointer.counter if live.pointer else None,
                request=request.id,
                features=feature_hash(observation),
                candidates=len(mask),
                feasible=feasible,
                chosen=ranked[0].name if ranked else None,
                runner_up=ranked[1].name if len(ranked) > 1 else None,
                top=[(entry.name, entry.score) for entry in ranked[:LOGGED_SCORES]],
                propensity=1.0 if ranked else None,  # the choice is deterministic
                fallback=fallback,
                reason=reason,
            )
        )
        return Placement(request.id, ranked[:top_k], feasible, reason, fallback is not None), values


def feature_hash(observation: Observation) -> str:
    """Name an observation, so that a logged decision can be matched with a rebuilt one."""
    digest = hashlib.blake2b(digest_size=16)
    for array in observation:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _observe(state: State, request: PlacementRequest) -> Observation:
    where = "the request"
    try:
        with np.errstate(all="ignore"):
            observation = problems.get(state.problem).build(state.columns_for(request), request.fields)
    except ZeroDivisionError:
        pass  # a request's own fields are plain numbers: they raise where a column would hold infinity
    else:
        rows = np.isfinite(observation.candidates).all(axis=1)
        if rows.all() and np.isfinite(observation.request).all():
            return observation
        if not rows.all():
            where = f"candidate {state.names[int(rows.argmin())]!r}"
    found = f"features of {where} for request {request.id!r} are not finite"
    raise PlaceRefusedError(422, found, "capacities and times above 0")


def _stack(
    observations: list[Observation],
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]]:
    if len(observations) == 1:
        only = observations[0]
        return only.candidates[np.newaxis], only.request[np.newaxis], only.mask[np.newaxis]
    candidates, request, mask = zip(*observations, strict=True)
    return np.stack(candidates), np.stack(request), np.stack(mask)


def _fallback_scores(
    name: str, state: State, request: PlacementRequest, mask: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Score by heuristic; what it cannot compare (a capacity of 0) comes last, because nobody else will answer."""
    with np.errstate(all="ignore"):
        scores = heuristics.score(state.problem, name, state.columns_for(request), request.fields, mask)
    return np.nan_to_num(scores, nan=np.finfo(np.float64).min)


def _best(names: list[str], scores: NDArray[np.floating], count: int) -> list[Ranked]:
    """Return the best ``count`` candidates; equal scores keep the order of the candidates."""
    order = np.argsort(-scores, kind="stable")[:count]
    return [Ranked(names[index], float(scores[index])) for index in order]


def _ruled_out(state: State, request: PlacementRequest) -> str:
    """Say how many candidates each reason rules out."""
    counts = problems.get(state.problem).ruled_out(state.columns_for(request), request.fields)
    said = [f"{count} {what}" for what, count in counts.items() if count]
    return ", ".join(said) or f"the mask of {state.problem} rules out all {len(state.names)}"
