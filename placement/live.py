"""What answers now for each problem, and the flips between one policy and the next.

Readers take one reference (:meth:`LivePolicies.get`) and keep it for a whole decision: a flip replaces the reference,
so a decision is made by the old policy or by the new one, never by a mixture. Flips are serialised by the caller
(one thread makes them all).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from msgspec import structs

from placement.arms import Arm, takes
from placement.errors import PushRefusedError, StoreError
from placement.opening import Opener
from placement.policy import Policy
from placement.settings import Settings, freezes
from placement.store import Canary, Pointer, PolicyStore, Returned
from sched_env import problems
from wire.contracts.feature_spec import ProblemName
from wire.contracts.record import PromotionRecord

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
    canary: Policy | None = None
    shadow: Policy | None = None
    """Of the pointer's own, loaded; None where it names none, or it could not be loaded here."""

    @property
    def digest(self) -> str | None:
        """Digest of the policy that answers."""
        return self.policy.digest if self.policy else None

    @property
    def degraded(self) -> str | None:
        """What is not as it should be."""
        return self.damaged or self.distrusted

    def arm(self, request: str) -> Arm:
        """Return who answers a request."""
        canary = self._canary_arm
        if canary is not None and takes(request, self.pointer.canary.share):  # type: ignore[union-attr]
            return canary
        return self._live_arm

    @cached_property
    def _live_arm(self) -> Arm:
        return Arm("live", self.policy, self.pointer.counter if self.pointer else None, self.shadow)

    @cached_property
    def _canary_arm(self) -> Arm | None:
        if self.canary is None or self.pointer is None or self.pointer.canary is None:
            return None
        return Arm("canary", self.canary, self.pointer.canary.counter, self.shadow)

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
        self._store, self._settings, self._opener = store, settings, Opener(store, settings)
        self._live: dict[ProblemName, Live] = {problem: self._restore(problem) for problem in problems.names()}

    def get(self, problem: ProblemName) -> Live:
        """Return what answers now; one atomic read."""
        return self._live[problem]

    def push(self, problem: ProblemName, archive: Path, precondition: Precondition) -> tuple[Live, PromotionRecord]:
        """Make the bundle in a tar archive live, as the signed record beside it says, or raise and change nothing."""
        policy, record = self._take(problem, archive, precondition)
        with _store_refuses():
            return self._flip(problem, policy, record.counter), record

    def stage(
        self, problem: ProblemName, archive: Path, precondition: Precondition, share: float | None
    ) -> tuple[Live, PromotionRecord]:
        """Try a bundle, which is proved like one that goes live: as canary on a share of the calls, or as shadow.

        Its record is not used up by that: the same one makes it live afterwards.
        """
        before = self._live[problem]
        if before.pointer is None or before.policy is None:
            found = f"no policy is live for {problem}"
            raise PushRefusedError("precondition", 412, found, "one to compare with", "push it instead")
        if share is not None:
            _refuse_cooling(before.pointer.returned)
            if before.pointer.canary is not None:
                found = f"{before.pointer.canary.digest} is the canary of {problem}"
                raise PushRefusedError("precondition", 412, found, "none", "advance it, or end it")
        policy, record = self._take(problem, archive, precondition)
        if share is None:
            pointer = structs.replace(before.pointer, shadow_digest=policy.digest)
            return self._try_out(problem, pointer, shadow=policy), record
        pointer = structs.replace(before.pointer, canary=Canary(policy.digest, record.counter, share, _now()))
        return self._try_out(problem, pointer, canary=policy), record

    def advance(self, problem: ProblemName, precondition: Precondition | None) -> Live:
        """Make the canary live, with the counter of its record."""
        self.refuse_frozen()
        self.check(problem, precondition)
        before = self._live[problem]
        if before.canary is None or before.pointer is None or before.pointer.canary is None:
            raise PushRefusedError("precondition", 412, f"{problem} has no canary", "one to advance")
        with _store_refuses():
            return self._flip(problem, before.canary, before.pointer.canary.counter)

    def end(self, problem: ProblemName, what: Literal["canary", "shadow"], returned: Returned | None = None) -> Live:
        """Try a canary, or a shadow, no longer; ``returned`` says why, when it was the service's own wish."""
        pointer = self._live[problem].pointer
        if pointer is None or (pointer.canary if what == "canary" else pointer.shadow_digest) is None:
            raise PushRefusedError("precondition", 412, f"{problem} has no {what}", "one to end")
        if what == "shadow":
            return self._try_out(problem, structs.replace(pointer, shadow_digest=None), shadow=None)
        after = structs.replace(pointer, canary=None, returned=returned or pointer.returned)
        return self._try_out(problem, after, canary=None)

    def go_back(self, problem: ProblemName, digest: str, reason: str) -> Live:
        """Leave a policy by the service's own wish: the canary for the live one, the live one for the one before.

        Refused where ``digest`` is neither any more.
        """
        now, pointer = datetime.now(UTC), self._live[problem].pointer
        until = (now + timedelta(seconds=self._settings.cool_down_s)).isoformat(timespec="seconds")
        returned = Returned(digest, now.isoformat(timespec="seconds"), until, reason)
        if pointer is not None and pointer.canary is not None and pointer.canary.digest == digest:
            return self.end(problem, "canary", returned)
        self.rollback(problem, Precondition(digest), None)
        after = self._live[problem].pointer
        assert after is not None  # noqa: S101  (a flip has just made it)
        return self._try_out(problem, structs.replace(after, returned=returned))

    def rollback(self, problem: ProblemName, precondition: Precondition | None, counter: int | None) -> Live:
        """Flip back to the previous policy; a flip like any other, with a counter of its own."""
        before = self._live[problem]
        self.check(problem, precondition)
        if before.pointer is None or before.pointer.previous_digest is None:
            raise PushRefusedError("precondition", 412, f"{problem} has no previous policy", "two pushes before")
        try:
            target = before.previous or self._opener.open(problem, before.pointer.previous_digest)
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

    def _take(self, problem: ProblemName, archive: Path, precondition: Precondition) -> tuple[Policy, PromotionRecord]:
        """Take a bundle and its proof through every check and keep it; nothing is live by that."""
        self.refuse_frozen()
        self.check(problem, precondition)
        files, record = self._opener.unpack(problem, archive)
        self.check(problem, Precondition(record.previous_digest))
        self._check_counter(problem, record.counter, SIGNED_LEAP)
        with _store_refuses():
            policy = self._opener.admit(problem, files, record)
            self._store.save(problem, policy.digest, files)
        return policy, record

    def _try_out(self, problem: ProblemName, pointer: Pointer, **loaded: Policy | None) -> Live:
        """Change what is tried beside the live policy; what is live stays."""
        before = self._live[problem]
        tried: Any = loaded
        for policy in filter(None, loaded.values()):
            self._opener.refuse_distrusted(policy)
        try:
            self._store.flip(problem, pointer, expected=before.saved)
        except StoreError as error:
            if any(loaded.values()):
                raise PushRefusedError.because("store", error, status=500) from error
            # Ending something works like every way back, whatever the disk says.
            damaged = f"ended in memory only, a restart before it can be written would undo that: {error}"
            live = replace(before, pointer=pointer, damaged=damaged, **tried)
        else:
            live = replace(before, pointer=pointer, saved=pointer, **tried)
        self._live[problem] = live
        trying = pointer.canary.digest if pointer.canary else "none"
        log.info("beside: problem=%s canary=%s shadow=%s", problem, trying, pointer.shadow_digest or "none")
        return live

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
        live = replace(live, distrusted=self._opener.distrust(live.policy))
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
        self._opener.refuse_distrusted(policy)
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
        # A canary was compared with what was live: it ends with that. A shadow decides nothing, and stays.
        shadow = before.shadow if before.shadow and not (policy and before.shadow.digest == policy.digest) else None
        pointer = Pointer(
            digest=policy.digest if policy else None,
            counter=counter,
            previous_digest=previous.digest if previous else off,
            loaded_at=_now(),
            shadow_digest=shadow.digest if shadow else None,
            returned=before.pointer.returned if before.pointer else None,
        )
        return Live(pointer, policy, previous, saved=pointer, shadow=shadow)

    def _restore(self, problem: ProblemName) -> Live:
        """Load what the store says is live, verified anew; when it is damaged, the previous one, else none."""
        pointer = None
        try:
            pointer = self._store.pointer(problem)
            if pointer is None:
                return Live()
            policy = self._opener.open(problem, pointer.digest) if pointer.digest else None
        except Exception as error:
            # Whatever a damaged store makes us or a library raise: the service starts, and somebody answers.
            unforeseen = not isinstance(error, PushRefusedError | StoreError)
            log.warning("%s cannot be loaded", problem, exc_info=error if unforeseen else None)
            damaged = f"{type(error).__name__}: {error}" if unforeseen else str(error)
            previous = self._opener.try_open(problem, pointer.previous_digest) if pointer else None
            return self._degraded(problem, Live(pointer, previous, damaged=damaged, saved=pointer))
        return Live(
            pointer,
            policy,
            self._opener.try_open(problem, pointer.previous_digest),
            saved=pointer,
            canary=self._opener.try_open(problem, pointer.canary.digest if pointer.canary else None),
            shadow=self._opener.try_open(problem, pointer.shadow_digest),
        )

    @staticmethod
    def _degraded(problem: ProblemName, live: Live) -> Live:
        log.error("degraded: problem=%s answers with %s: %s", problem, live.digest or "the heuristic", live.degraded)
        return live


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _refuse_cooling(returned: Returned | None) -> None:
    """Refuse a canary so soon after the service went back by itself."""
    if returned is not None and datetime.now(UTC) < datetime.fromisoformat(returned.until):
        found = f"{returned.digest} was left at {returned.at}: {returned.reason}"
        raise PushRefusedError("cool_down", 423, found[:400], f"a time after {returned.until}")


@contextmanager
def _store_refuses() -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise PushRefusedError.because("store", error, status=500) from error
