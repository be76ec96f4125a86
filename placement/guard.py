"""Goes back by itself: from a canary that does worse than what is live, or from a new policy that does badly.

What is counted for each arm, one number between 0 and 1 each: whether the heuristic had to answer, whether the answer
was slow, and, where Prometheus can say it, whether the pod that was placed met its objective. The test may be made as
often as one likes (``wire/sequential.py``): it goes back wrongly, ever, with probability ``ALPHA``. Going back is the
service's own; advancing is a person's.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

from placement.arms import Arm
from placement.errors import PushRefusedError
from placement.live import Live
from placement.outcomes import Outcomes
from placement.settings import Settings
from wire import sequential
from wire.contracts.feature_spec import ProblemName
from wire.contracts.place import Placement

log = logging.getLogger(__name__)

ALPHA = 0.01
"""Of ever going back from a policy that is no worse, over all that is counted together."""
FEWEST, MOST = 30, 100_000
"""Values of an arm before anything is said, and that are kept: what they could not show will not be shown."""
WAITING = 200_000
"""Answers that may wait for the next look."""
COUNTED = ("fallback", "slow", "sla")


class _Answered(NamedTuple):
    problem: ProblemName
    digest: str
    requests: tuple[str, ...]
    fallbacks: tuple[bool, ...]
    slow: bool


class _Values:
    """What one policy did since it was first watched, in the order in which it happened."""

    def __init__(self) -> None:
        self.of: dict[str, list[float]] = {what: [] for what in COUNTED}

    def add(self, what: str, values: Sequence[float]) -> None:
        kept = self.of[what]
        kept.extend(values[: max(0, MOST - len(kept))])

    def bounds(self, what: str) -> tuple[float, float] | None:
        values = self.of[what]
        if len(values) < FEWEST:
            return None
        alpha = ALPHA / (2 * len(COUNTED))
        return sequential.empirical_bernstein(np.array(values), alpha=alpha).now


class Guard:
    """Watches the arms.

    Args:
        settings: Limits, margins, and where the objectives are asked for.
        live: Returns what answers for a problem now.
        go_back: Leaves a policy, with a reason; audited by whoever gives it.
    """

    def __init__(
        self,
        settings: Settings,
        live: Callable[[ProblemName], Live],
        go_back: Callable[[ProblemName, str, str], None],
    ) -> None:
        self._settings, self._live, self._go_back = settings, live, go_back
        self._outcomes = Outcomes(settings)
        self._waiting: deque[_Answered] = deque(maxlen=WAITING)
        self._values: dict[tuple[ProblemName, str], _Values] = {}
        self._compared: dict[ProblemName, tuple[str | None, str | None]] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="guard", daemon=True)
        self._thread.start()

    def decided(self, problem: ProblemName, arm: Arm, placements: Sequence[Placement], seconds: float) -> None:
        """Note an answer; an append, nothing else."""
        if arm.digest is not None:
            slow = seconds * 1e3 > self._settings.guard_slow_ms
            ids = tuple(one.id for one in placements) if self._outcomes.wanted else ()
            self._waiting.append(_Answered(problem, arm.digest, ids, tuple(one.fallback for one in placements), slow))

    def close(self) -> None:
        """Watch no longer."""
        self._closed.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._closed.wait(self._settings.guard_every_s):
            try:
                self.look()
            except Exception:  # whoever watches must go on watching
                log.exception("the guard could not look")

    def look(self) -> None:
        """Take in what happened since the last look, and go back where that is shown."""
        while self._waiting:
            one = self._waiting.popleft()
            values = self._values.get((one.problem, one.digest))
            if values is None:
                values = self._values[one.problem, one.digest] = _Values()
            values.add("fallback", [float(fallback) for fallback in one.fallbacks])
            values.add("slow", [float(one.slow)])
            self._outcomes.expect(one.requests, (one.problem, one.digest))
        for key, value in self._outcomes.ask():
            if key in self._values:
                self._values[key].add("sla", [value])
        for problem in {problem for problem, _ in self._values}:
            self._judge(problem)

    def _judge(self, problem: ProblemName) -> None:
        live = self._live(problem)
        canary = live.canary.digest if live.canary and live.pointer and live.pointer.canary else None
        pair = (live.digest, canary)
        if self._compared.get(problem) != pair:
            # Another pair: what was counted before belongs to other times, and one arm must not have seen more of them.
            for key in [key for key in self._values if key[0] == problem]:
                del self._values[key]
            self._compared[problem] = pair
            return
        reason = self._worse(problem, live.digest, canary) if canary else self._bad(problem, live)
        if reason is not None:
            left = canary or live.digest or ""
            log.error("going back: problem=%s leaves=%s: %s", problem, left, reason)
            try:
                self._go_back(problem, left, reason)
            except PushRefusedError as error:  # somebody was faster, or there is nothing to go back to
                log.warning("%s: did not go back: %s", problem, error)
            self._compared.pop(problem, None)

    def _worse(self, problem: ProblemName, live: str | None, canary: str) -> str | None:
        """Say what a canary is shown to do worse than what is live."""
        tried, standing = self._values.get((problem, canary)), self._values.get((problem, live or ""))
        for what in COUNTED if tried and standing else ():
            ours, theirs = tried.bounds(what), standing.bounds(what)  # type: ignore[union-attr]
            if ours is None or theirs is None:
                continue
            worse = ours[0] - theirs[1], ours[1] - theirs[0]
            if sequential.advise(worse, self._settings.guard_margin) == "stop":
                return f"canary's {what} rate is above the live policy's by {worse[0]:.3f} or more ({_of(tried, what)})"
        return None

    def _bad(self, problem: ProblemName, live: Live) -> str | None:
        """Say what a policy that went live lately is shown to do too often, whatever the one before did."""
        pointer, values = live.pointer, self._values.get((problem, live.digest or ""))
        if values is None or pointer is None or live.previous is None or live.digest != pointer.digest:
            return None
        if (datetime.now(UTC) - datetime.fromisoformat(pointer.loaded_at)).total_seconds() > self._settings.probation_s:
            return None
        if pointer.returned is not None and pointer.returned.digest == live.previous.digest:
            return None  # the one before was left for its own faults: to and fro helps nobody
        for what in ("fallback", "sla"):  # a busy machine slows every policy: latency is compared between arms only
            bounds = values.bounds(what)
            if bounds is not None and bounds[0] > self._settings.guard_most:
                return f"{what} rate is {bounds[0]:.3f} or more ({_of(values, what)})"
        return None


def _of(values: _Values | None, what: str) -> str:
    kept = values.of[what] if values else []
    return f"{sum(kept):g} of {len(kept)}"
