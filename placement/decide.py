"""The one core of every adapter: ``decide(state, requests)`` gives ranked candidates with a reason.

The policy scores, the mask rules, and when the policy cannot answer (none loaded, deadline, NaN, fault) the fallback
heuristic does: a caller always gets an answer for a request that makes sense. Requests of one call are independent of
each other: all are ranked against the same state. There is no event loop in it: an adapter calls ``decide`` where it
stands, or, in one, awaits ``decide_beside``.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import msgspec
import numpy as np
from numpy.typing import NDArray

from placement import explain as explaining
from placement import shortlist
from placement.arms import Arm, Beside
from placement.decision_log import Decided, DecisionLog
from placement.errors import FallbackReason, PolicyFailedError
from placement.live import LivePolicies
from placement.metrics import Metrics
from placement.ranking import all_finite, best, fallback_scores, observe, ruled_out, stack
from placement.settings import Settings
from placement.state import State, check_request
from placement.watchdog import Watchdog
from sched_env import problems
from sched_env.observation import Observation
from wire.contracts.place import Explanation, Placement, PlacementRequest, Ranked

Scores = NDArray[np.float32]

_LOWEST = np.array(-np.inf, np.float32)
_NONE: NDArray[np.floating] = np.empty(0)

INLINE_ROWS = 2_048
"""Candidate rows scored on the event loop itself: half a millisecond of the largest network that passes the trial's
deadline with ease, and what a change of threads would cost on a busy machine."""


@dataclass(frozen=True)
class Decision:
    """Placements of one call and what made them."""

    placements: list[Placement]
    digest: str | None
    defaulted: int
    scores: NDArray[np.floating]
    """Of the last request, candidate by candidate; minus infinity where it cannot go. A feasible candidate that was not
    on the shortlist is below all that were."""


@dataclass
class _Call:
    """A call on its way."""

    started: float
    arm: Arm
    defaulted: int
    placements: list[Placement] = field(default_factory=list)
    scores: NDArray[np.floating] = field(default_factory=lambda: _NONE)

    def take(self, ranked: list[tuple[Placement, NDArray[np.floating]]]) -> None:
        """Add a batch; only the last request's scores are kept, for adapters that ask one at a time."""
        self.placements += [placement for placement, _ in ranked]
        self.scores = ranked[-1][1]


class Decider:
    """Makes decisions with whatever is live.

    Args:
        live: What answers.
        settings: Deadline, batch and shortlist.
        metrics: Where decisions are counted.
        log: Where they are written.
        beside: Shadow and canary, told of each decision; None where nobody watches.
    """

    def __init__(
        self,
        live: LivePolicies,
        settings: Settings,
        metrics: Metrics,
        log: DecisionLog,
        beside: Beside | None = None,
    ) -> None:
        self._live, self._settings, self._metrics, self._log = live, settings, metrics, log
        self._beside = beside
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
            call.take(self._rank(call, state, batch, top_k, explain=explain))
        return self._end(call, state, requests)

    def feasible(self, state: State, request: PlacementRequest) -> NDArray[np.bool_]:
        """Say where a request can go by the service's own check; no policy is asked, and nothing is decided."""
        fallback = self._settings.fallback(state.problem)
        return shortlist.feasible(state.problem, state.columns_for(request), request.fields, fallback)[0]

    async def decide_beside(
        self, state: State, requests: Sequence[PlacementRequest], top_k: int, *, explain: bool = False
    ) -> Decision:
        """As :meth:`decide`; what takes longer than a change of threads is scored beside the event loop."""
        call, loop = self._begin(state, requests), asyncio.get_running_loop()
        for batch in self._batches(state, requests):
            rank = partial(self._rank, call, state, batch, top_k, explain=explain)
            small = len(batch) * len(state.names) <= INLINE_ROWS and not explain
            # Between the batches of a large call other callers get their turn.
            call.take(rank() if small else await loop.run_in_executor(self._executor, rank))
        return self._end(call, state, requests)

    def _begin(self, state: State, requests: Sequence[PlacementRequest]) -> _Call:
        defaulted = state.defaulted
        for request in requests:
            defaulted += check_request(state.problem, request)
        # One reference for the whole call: never two policies in one answer.
        return _Call(time.perf_counter(), self._live.get(state.problem).arm(requests[0].id), defaulted)

    def _batches(self, state: State, requests: Sequence[PlacementRequest]) -> Iterator[Sequence[PlacementRequest]]:
        step = max(1, self._settings.batch_rows // len(state.names))
        return (requests[first : first + step] for first in range(0, len(requests), step))

    def _end(self, call: _Call, state: State, requests: Sequence[PlacementRequest]) -> Decision:
        seconds = time.perf_counter() - call.started
        self._metrics.note(state.problem, len(requests), call.defaulted, seconds)
        if self._beside is not None and call.arm.watched:
            self._beside.decided(state.problem, call.arm, call.placements, seconds)
        return Decision(call.placements, call.arm.digest, call.defaulted, call.scores)

    def _rank(
        self, call: _Call, state: State, requests: Sequence[PlacementRequest], top_k: int, *, explain: bool
    ) -> list[tuple[Placement, NDArray[np.floating]]]:
        policy = call.arm.policy
        if policy is not None and len(state.names) > self._settings.shortlist_above:
            return [self._rank_shortlist(call, state, request, top_k, explain=explain) for request in requests]
        build = policy.build if policy is not None else problems.get(state.problem).build
        seen = [observe(state, request, build) for request in requests]
        scored = self._score(call.arm, seen)
        placed = []
        for row, (request, one) in enumerate(zip(requests, seen, strict=True)):
            scores = scored if isinstance(scored, PolicyFailedError) else self._usable(state, scored[row], one.mask)
            found = self._place(call, state, request, one, scores, top_k)
            placed.append((self._explained(call.arm, state, one, *found), found[1]) if explain else found)
        return placed

    def _rank_shortlist(
        self, call: _Call, state: State, request: PlacementRequest, top_k: int, *, explain: bool
    ) -> tuple[Placement, NDArray[np.floating]]:
        """Let the policy see the best few hundred of very many, and some by chance."""
        fallback = self._settings.fallback(state.problem)
        mask, cheap = shortlist.feasible(state.problem, state.columns_for(request), request.fields, fallback)
        rows = shortlist.choose(mask, cheap, request.id, self._settings)
        if not len(rows):
            rows = np.zeros(1, np.intp)  # nothing is feasible: one of them says so as well as all
        self._metrics.of(state.problem).shortlisted.inc()
        placed, scores = self._rank(call, state.take(rows), [request], top_k, explain=explain)[0]
        everywhere = np.full(len(mask), -np.inf)
        finite = scores[np.isfinite(scores)]
        if len(finite):
            np.copyto(everywhere, np.nextafter(finite.min(), -np.inf), where=mask)
            everywhere[rows] = scores
            feasible = int(np.count_nonzero(mask))
            said = f"{placed.reason}; of {feasible} feasible ones among {len(mask)}"
            return msgspec.structs.replace(placed, feasible=feasible, reason=said), everywhere
        return msgspec.structs.replace(
            placed, reason="no candidate is feasible: " + ruled_out(state, request)
        ), everywhere

    def _explained(
        self, arm: Arm, state: State, seen: Observation, placed: Placement, scores: NDArray[np.floating]
    ) -> Placement:
        return msgspec.structs.replace(placed, explanation=self._explain(arm, state, seen, placed, scores))

    def _explain(
        self, arm: Arm, state: State, seen: Observation, placed: Placement, scores: NDArray[np.floating]
    ) -> Explanation | None:
        score, policy = None, arm.policy
        if policy is not None and not placed.fallback:
            score = partial(policy.score, watchdog=self._watchdog)
        spec = policy.manifest.feature_spec if policy else problems.get(state.problem).spec
        try:
            return explaining.explain(spec, state.names, seen, scores, score, self._settings.batch_rows)
        except PolicyFailedError:  # over its deadline now, although it was not before: then without what would change
            return explaining.explain(spec, state.names, seen, scores, None, self._settings.batch_rows)

    def _score(self, arm: Arm, seen: list[Observation]) -> Sequence[Scores] | PolicyFailedError:
        policy = arm.policy
        if policy is None:
            return PolicyFailedError("no_policy", "no policy is live")
        try:
            if len(seen) == 1:
                return (policy.score_one(seen[0], self._watchdog),)
            return list(policy.score(*stack(seen), self._watchdog))
        except PolicyFailedError as failure:
            return failure

    def _usable(self, state: State, scores: Scores, mask: NDArray[np.bool_]) -> Scores | PolicyFailedError:
        """Look at one request's scores: NaN is a failure of the policy, a choice against the mask is counted."""
        # The scores of what is masked are finite too, unless a policy made them otherwise: then one looks closely.
        if not all_finite(scores) and not np.isfinite(scores[mask]).all():
            return PolicyFailedError("nan", "the policy answered NaN")
        if not mask.item(scores.argmax()) and mask.any():
            self._metrics.of(state.problem).vetoes.inc()
        return scores

    def _place(
        self,
        call: _Call,
        state: State,
        request: PlacementRequest,
        seen: Observation,
        scores: Scores | PolicyFailedError,
        top_k: int,
    ) -> tuple[Placement, NDArray[np.floating]]:
        problem, mask, arm = state.problem, seen.mask, call.arm
        feasible = int(np.count_nonzero(mask))
        fallback: FallbackReason | None = None
        ranked: list[Ranked] = []
        if feasible == 0:
            values: NDArray[np.floating] = np.full(len(mask), -np.inf)
            self._metrics.of(problem).nowhere.inc()
            reason = "no candidate is feasible: " + ruled_out(state, request)
        else:
            reason = ""
            if isinstance(scores, PolicyFailedError):
                fallback, name = scores.reason, self._settings.fallback(problem)
                self._metrics.fallback(problem, fallback)
                scored: NDArray[np.floating] = fallback_scores(name, state, request, mask)
                reason = f"{name} answered because {scores}; "
            else:
                scored = scores
            # The shield: whatever was scored, what is not feasible by our own check is never ranked.
            values = np.where(mask, scored, _LOWEST)
            ranked = best(state.names, values, min(feasible, max(top_k, 2)))
            reason += f"highest score of {feasible} feasible candidates (of {len(mask)})"
            if len(ranked) > 1:
                reason += f", {ranked[0].score - ranked[1].score:.4g} above {ranked[1].name}"
        if self._beside is not None and arm.shadow is not None and ranked:
            self._beside.score_later(arm.shadow, state, request, ranked[0].name)
        took_us, now_s = (time.perf_counter() - call.started) * 1e6, time.time()
        if ranked:
            self._log.sampled.offer(now_s, state, request, arm.digest, ranked[0].name, fallback)
        self._log.write(
            Decided(now_s, problem, arm, request.id, seen, len(mask), feasible, ranked, fallback, reason, took_us)
        )
        return Placement(request.id, ranked[:top_k], feasible, reason, fallback is not None), values
