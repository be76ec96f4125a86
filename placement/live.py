"""What answers now for each problem, and the flips between one policy and the next.

Readers take one reference (:meth:`LivePolicies.get`) and keep it for a whole decision: a flip replaces the reference,
so a decision is made by the old policy or by the new one, never by a mixture. Flips are serialised by the caller
(one thread makes them all).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from placement import intake
from placement.errors import PushRefusedError, StoreError
from placement.policy import Policy
from placement.settings import Settings, freezes
from placement.store import Pointer, PolicyStore
from sched_env import problems
from wire.contracts.feature_spec import ProblemName
from wire.contracts.record import PromotionRecord
from wire.errors import BundleError

log = logging.getLogger(__name__)

SIGNED_LEAP, TOKEN_LEAP = 1_000_000, 1_000
"""How far above the last counter the next may be: by a signed record, and by a token alone. Promotions that failed
leave gaps; without a limit one call could leave no counter for anybody after it."""


@dataclass(frozen=True)
class Live:
    """The state of one problem."""

    pointer: Pointer | None = None
    """What is live: a policy, or after ``switch_off`` none."""
    policy: Policy | None = None
    """What answers; None leaves it to the heuristic."""
    previous: Policy | None = None
    """Kept in memory, so that a rollback needs nothing but the flip."""
    damaged: str | None = None
    """Why what answers is not what the store says; tried again without a restart."""
    distrusted: str | None = None
    """Why the key of what answers would not be taken today; it answers until the next flip or start."""
    saved: Pointer | None = None
    """What the store says; another than ``pointer`` after a way back while the store could not be written."""

    @property
    def digest(self) -> str | None:
        """Digest of the policy that answers."""
        return self.policy.digest if self.policy else None

    @property
    def degraded(self) -> str | None:
        """What is not as it should be."""
        return self.damaged or self.distrusted

    @property
    def believable(self) -> set[str | None]:
        """Digests that an up-to-date client may believe to be live.

        After a damaged start what answers and what the store names differ. Switching off is the service's own affair,
        of which the registry learns later.
        """
        named = self.pointer.digest if self.pointer else None
        off = {self.pointer.previous_digest} if self.pointer and named is None else set()
        return {named} | ({self.digest} if self.policy else set()) | off


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

    def push(self, problem: ProblemName, archive: Path, precondition: Precondition) -> tuple[Live, PromotionRecord]:
        """Make the bundle in a tar archive live, as the signed record beside it says, or raise and change nothing."""
        self.refuse_frozen()
        self.check(problem, precondition)
        try:
            files, proof = intake.unpack(archive)
        except BundleError as error:
            raise PushRefusedError.because("archive", error) from error
        record = proof.check(problem, self._settings)
        self.check(problem, Precondition(record.previous_digest))
        self._check_counter(problem, record.counter, SIGNED_LEAP)
        try:
            policy = intake.admit(files, problem, self._store, self._settings, record)
            self._store.save(problem, policy.digest, files)
            return self._flip(problem, policy, record.counter), record
        except StoreError as error:
            raise PushRefusedError.because("store", error, status=500) from error

    def rollback(self, problem: ProblemName, precondition: Precondition | None, counter: int | None) -> Live:
        """Flip back to the previous policy; a flip like any other, with a counter of its own."""
        before = self._live[problem]
        self.check(problem, precondition)
        if before.pointer is None or before.pointer.previous_digest is None:
            raise PushRefusedError("precondition", 412, f"{problem} has no previous policy", "two pushes before")
        try:
            target = before.previous or self._open(problem, before.pointer.previous_digest)
        except StoreError as error:
            raise PushRefusedError.because("store", error, status=500) from error
        return self._go_back(problem, target, counter)

    def switch_off(self, problem: ProblemName, precondition: Precondition | None) -> Live:
        """Leave a problem to its heuristic; a rollback brings the policy back."""
        self.check(problem, precondition)
        pointer = self._live[problem].pointer
        if pointer is None or pointer.digest is None:
            raise PushRefusedError("precondition", 412, f"no policy is live for {problem}", "one to switch off")
        return self._go_back(problem, None, None)

    def refuse_frozen(self) -> None:
        """Refuse a push while nothing new may go live; not for good: the same push can be made afterwards."""
        now = datetime.now(UTC)
        for start, end in freezes(self._settings.freeze):
            if start <= now < end:
                expected = f"a time after {end.isoformat()}"
                raise PushRefusedError("frozen", 423, f"nothing new goes live until {end.isoformat()}", expected)

    def check(self, problem: ProblemName, precondition: Precondition | None) -> None:
        """Compare what the client believes is live with what is so."""
        live = self._live[problem]
        if precondition is not None and precondition.digest not in live.believable:
            named = live.digest or (live.pointer.digest if live.pointer else None) or "nothing"
            found = f"{named} is live for {problem}"
            raise PushRefusedError("precondition", 412, found, f"{(precondition.digest or 'nothing')[:80]}")

    def follow(self, problem: ProblemName) -> Live:
        """Take up what the store says is live, when another replica changed it; while it cannot be asked, nothing."""
        live = self._live[problem]
        try:
            pointer = self._store.pointer(problem)
        except StoreError as error:
            log.warning("%s: the store cannot be asked what is live: %s", problem, error)
            return live
        newer = pointer is not None and pointer != live.saved
        if newer and live.saved == live.pointer:
            again = self._restore(problem)
            # What cannot be loaded does not take the place of what answers; it is tried again.
            live = again if again.damaged is None else replace(live, damaged=again.damaged)
            self._live[problem] = live
            log.info("followed: problem=%s digest=%s", problem, live.digest or "none")
        return live

    def recover(self, problem: ProblemName) -> Live:
        """Try again what could not be done before, and ask again whether the keys are still good."""
        live = self._live[problem]
        if live.saved != live.pointer and live.pointer is not None:
            try:
                self._store.flip(problem, live.pointer, expected=live.saved)
                live = replace(live, saved=live.pointer, damaged=None)
            except StoreError as error:
                log.warning("%s: the store still cannot be written: %s", problem, error)
        elif live.damaged is not None:
            again = self._restore(problem)
            live = again if again.damaged is None or live.policy is None else live
        live = replace(live, distrusted=self._distrust(live.policy))
        if live.degraded != self._live[problem].degraded:
            log.warning("%s: %s", problem, live.degraded or "recovered")
        self._live[problem] = live
        return live

    def _check_counter(self, problem: ProblemName, counter: int, leap: int) -> None:
        pointer = self._live[problem].pointer
        seen = pointer.counter if pointer else 0
        if not seen < counter <= seen + leap:
            expected = f"more than {seen}, already seen, and at most {seen + leap}"
            raise PushRefusedError("counter", 412, f"promotion counter {counter}", expected)

    def _go_back(self, problem: ProblemName, policy: Policy | None, counter: int | None) -> Live:
        """Flip to what a token alone may choose; the emergency brake works while the store cannot be written."""
        pointer = self._live[problem].pointer
        wanted = counter if counter is not None else (pointer.counter if pointer else 0) + 1
        self._check_counter(problem, wanted, TOKEN_LEAP)
        try:
            return self._flip(problem, policy, wanted)
        except StoreError as error:
            before = self._live[problem]
            after = self._after(before, policy, wanted)
            damaged = f"went back in memory only, a restart before it can be written would undo that: {error}"
            self._live[problem] = live = replace(after, saved=before.saved, damaged=damaged)
            return self._degraded(problem, live)

    def _flip(self, problem: ProblemName, policy: Policy | None, counter: int) -> Live:
        before = self._live[problem]
        reason = self._distrust(policy)
        if reason is not None:
            raise PushRefusedError("signature", 422, reason, "a key that is trusted now", "sign it anew, then push it")
        after = self._after(before, policy, counter)
        assert after.pointer is not None  # noqa: S101  (a flip has one)
        self._store.flip(problem, after.pointer, expected=before.saved)
        self._live[problem] = after
        log.info("live: problem=%s digest=%s counter=%d", problem, after.digest or "none", counter)
        return after

    @staticmethod
    def _after(before: Live, policy: Policy | None, counter: int) -> Live:
        known = (before.policy, before.previous)
        previous = next((one for one in known if one and not (policy and one.digest == policy.digest)), None)
        off = before.pointer.digest if before.pointer and policy is None else None
        pointer = Pointer(
            digest=policy.digest if policy else None,
            counter=counter,
            previous_digest=previous.digest if previous else off,
            loaded_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
        return Live(pointer, policy, previous, saved=pointer)

    def _distrust(self, policy: Policy | None) -> str | None:
        """Say why the key of a policy would not be taken now; None when it would."""
        if policy is None:
            return None
        try:
            intake.check_key(policy.key, self._settings)
        except (BundleError, OSError) as error:
            return f"{policy.digest}: {error}"
        return None

    def _restore(self, problem: ProblemName) -> Live:
        """Load what the store says is live, verified anew; when it is damaged, the previous one, else none."""
        pointer = None
        try:
            pointer = self._store.pointer(problem)
            if pointer is None:
                return Live()
            policy = self._open(problem, pointer.digest) if pointer.digest else None
        except Exception as error:
            # Whatever a damaged store makes us or a library raise: the service starts, and somebody answers.
            unforeseen = not isinstance(error, PushRefusedError | StoreError)
            log.warning("%s cannot be loaded", problem, exc_info=error if unforeseen else None)
            damaged = f"{type(error).__name__}: {error}" if unforeseen else str(error)
            previous = self._try_open(problem, pointer) if pointer else None
            return self._degraded(problem, Live(pointer, previous, damaged=damaged, saved=pointer))
        # The previous policy is loaded only if it still can be; live ones do not depend on it.
        return Live(pointer, policy, self._try_open(problem, pointer), saved=pointer)

    @staticmethod
    def _degraded(problem: ProblemName, live: Live) -> Live:
        log.error("degraded: problem=%s answers with %s: %s", problem, live.digest or "the heuristic", live.degraded)
        return live

    def _try_open(self, problem: ProblemName, pointer: Pointer) -> Policy | None:
        if pointer.previous_digest is None:
            return None
        try:
            return self._open(problem, pointer.previous_digest)
        except Exception as error:  # noqa: BLE001  (the same promise: what cannot be loaded is not there)
            log.warning("previous policy of %s cannot be loaded: %s", problem, error)
            return None

    def _open(self, problem: ProblemName, digest: str) -> Policy:
        policy = intake.admit(self._store.bundle(problem, digest), problem, self._store, self._settings)
        if policy.digest != digest:
            raise StoreError(f"store holds {policy.digest} in the place of {digest}", "bundles by digest")
        return policy
