"""What answers now for each problem, and the flips between one policy and the next.

Readers take one reference (:meth:`LivePolicies.get`) and keep it for a whole decision: a flip replaces the reference,
so a decision is made by the old policy or by the new one, never by a mixture. Flips are serialised by the caller
(one thread makes them all).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from placement import intake
from placement.errors import PushRefusedError, StoreError
from placement.policy import Policy
from placement.settings import Settings
from placement.store import Pointer, PolicyStore
from sched_env import problems
from wire.contracts.feature_spec import ProblemName
from wire.errors import BundleError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Live:
    """The state of one problem."""

    pointer: Pointer | None = None
    """What the store says is live."""
    policy: Policy | None = None
    """What answers; None leaves it to the heuristic."""
    previous: Policy | None = None
    """Kept in memory, so that a rollback needs nothing but the flip."""
    degraded: str | None = None
    """Why what answers is not what the store says."""

    @property
    def digest(self) -> str | None:
        """Digest of the policy that answers."""
        return self.policy.manifest.digest if self.policy else None


@dataclass(frozen=True)
class Precondition:
    """What the client believes is live: a digest, or nothing at all (``If-None-Match: *``)."""

    digest: str | None


class LivePolicies:
    """The live policy of each problem, kept in step with the store."""

    def __init__(self, store: PolicyStore, settings: Settings) -> None:
        self._store, self._settings = store, settings
        self._live: dict[ProblemName, Live] = {problem: self._restore(problem) for problem in problems.names()}

    def get(self, problem: ProblemName) -> Live:
        """Return what answers now; one atomic read."""
        return self._live[problem]

    def push(self, problem: ProblemName, archive: Path, precondition: Precondition, counter: int) -> Live:
        """Make the bundle in a tar archive live, or raise and change nothing."""
        self.check(problem, precondition, counter)
        before = self._live[problem]
        try:
            files = intake.unpack(archive)
        except BundleError as error:
            raise PushRefusedError.because("archive", error) from error
        try:
            policy = intake.admit(files, problem, self._store, self._settings)
            self._store.save(problem, policy.manifest.digest, files)
            return self._flip(problem, policy, before.policy, counter)
        except StoreError as error:
            raise PushRefusedError.because("store", error, status=500) from error

    def rollback(self, problem: ProblemName, precondition: Precondition | None, counter: int) -> Live:
        """Flip back to the previous policy; a flip like any other, with a counter of its own."""
        self.check(problem, precondition, counter)
        before = self._live[problem]
        if before.pointer is None or before.pointer.previous_digest is None:
            raise PushRefusedError("precondition", 412, f"{problem} has no previous policy", "two pushes before")
        try:
            target = before.previous or self._open(problem, before.pointer.previous_digest)
            return self._flip(problem, target, before.policy, counter)
        except StoreError as error:
            raise PushRefusedError.because("store", error, status=500) from error

    def check(self, problem: ProblemName, precondition: Precondition | None, counter: int) -> None:
        """Compare what the client believes with what is so: digest first, then the rising counter."""
        live = self._live[problem]
        stored = live.pointer.digest if live.pointer else None
        # After a damaged start what answers and what the store names differ; either shows an up-to-date client.
        if precondition is not None and precondition.digest not in (stored, live.digest):
            believed = precondition.digest or "nothing"
            raise PushRefusedError(
                "precondition", 412, f"{live.digest or stored or 'nothing'} is live for {problem}", f"{believed}"
            )
        if live.pointer is not None and counter <= live.pointer.counter:
            raise PushRefusedError(
                "counter", 412, f"promotion counter {counter}", f"more than {live.pointer.counter}, already seen"
            )

    def _flip(self, problem: ProblemName, policy: Policy, previous: Policy | None, counter: int) -> Live:
        before = self._live[problem]
        if previous is not None and previous.manifest.digest == policy.manifest.digest:
            previous = before.previous  # the same policy again, with another manifest or to repair the store
        pointer = Pointer(
            digest=policy.manifest.digest,
            counter=counter,
            previous_digest=previous.manifest.digest if previous else None,
            loaded_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
        self._store.flip(problem, pointer, expected=before.pointer)
        self._live[problem] = after = Live(pointer, policy, previous)
        log.info("live: problem=%s digest=%s counter=%d signed by %s", problem, pointer.digest, counter, policy.key)
        return after

    def _restore(self, problem: ProblemName) -> Live:
        """Load what the store says is live, verified anew; when it is damaged, the previous one, else none."""
        try:
            pointer = self._store.pointer(problem)
        except StoreError as error:
            return self._degraded(problem, Live(degraded=str(error)))
        if pointer is None:
            return Live()
        try:
            policy = self._open(problem, pointer.digest)
        except (PushRefusedError, StoreError) as error:
            return self._degraded(problem, Live(pointer, self._try_open(problem, pointer), degraded=str(error)))
        # The previous policy is loaded only if it still can be; live ones do not depend on it.
        return Live(pointer, policy, self._try_open(problem, pointer))

    @staticmethod
    def _degraded(problem: ProblemName, live: Live) -> Live:
        log.error("degraded: problem=%s answers with %s: %s", problem, live.digest or "the heuristic", live.degraded)
        return live

    def _try_open(self, problem: ProblemName, pointer: Pointer) -> Policy | None:
        if pointer.previous_digest is None:
            return None
        try:
            return self._open(problem, pointer.previous_digest)
        except (PushRefusedError, StoreError) as error:
            log.warning("previous policy of %s cannot be loaded: %s", problem, error)
            return None

    def _open(self, problem: ProblemName, digest: str) -> Policy:
        policy = intake.admit(self._store.bundle(problem, digest), problem, self._store, self._settings)
        if policy.manifest.digest != digest:
            raise StoreError(f"store holds {policy.manifest.digest} in the place of {digest}", "bundles by digest")
        return policy
