"""How a promotion ends: ``live`` once the service says so, ``failed`` if it does not; ``rolled_back`` after a flip.

The service is always asked first and the record written second, so that a record never says what was not so. A process
killed in between leaves a flip without a record: ``confirm`` and ``verify`` tell, ``reconcile`` or the same rollback
again writes it.
"""

from __future__ import annotations

from pipeline.errors import PushError, RegistryError
from pipeline.registry.chain import Chain, append
from pipeline.registry.service import live_policy
from pipeline.registry.service import roll_back as flip_back
from wire.contracts.policies import LivePolicy
from wire.contracts.record import PromotionRecord, State


def settle(approved: PromotionRecord, state: State, reason: str, *, loaded_at: str | None = None) -> PromotionRecord:
    """Write how an approved promotion ended, once."""

    def decide(chain: Chain) -> PromotionRecord:
        pending = chain.pending(approved.problem)
        if pending is None or pending.sequence != approved.sequence:
            raise RegistryError(f"record {approved.sequence} was settled by somebody else meanwhile")
        return chain.follow_up(pending, state=state, approver=None, reason=reason, loaded_at=loaded_at)

    return append(decide)


def confirm(problem: str, url: str) -> PromotionRecord:
    """Ask the service what is live and write it down: the only way a record becomes ``live``.

    Raises:
        PushError: The service runs something else than what was approved (recorded as ``failed``), or than what the
            records say is live.
    """
    answer = live_policy(url, problem)
    chain = Chain.open()
    pending, live = chain.pending(problem), chain.live(problem)
    if pending is not None:
        if _is(answer, pending):
            return settle(pending, "live", f"{url} reports it live", loaded_at=answer.loaded_at if answer else None)
        reason = f"{url} reports {_describe(answer)} instead of counter {pending.counter}"
        settle(pending, "failed", reason)
        raise PushError(
            f"{problem}: {reason}", pending.digest, f"recorded as failed; {_describe_live(live)} stays in the records"
        )
    if live is not None and _is(answer, live):
        return live
    raise PushError(
        f"{problem}: {url} reports {_describe(answer)}, the records say {_describe_live(live)}",
        "the same on both sides",
        "python -m pipeline.verify_live --reconcile records a flip that the service made by itself",
    )


def reconcile(problem: str, url: str) -> PromotionRecord | None:
    """Record a flip that was made in the service (its own fallback, or a rollback); None when there was none."""
    answer = live_policy(url, problem)
    live = _settled(Chain.open(), problem)
    if (answer is None and live is None) or (live is not None and _is(answer, live)):
        return None
    return _record_flip(problem, url, answer, approver=None, reason=f"{url} flipped to it")


def roll_back(problem: str, url: str, *, approver: str, reason: str, to: str | None = None) -> PromotionRecord:
    """Have the service flip to the policy it ran before, and record who wanted it and why.

    Run again, it finishes what is unfinished and never flips a second time; the way forward again is ``to``.

    Args:
        problem: Whose policy.
        url: Address of the service.
        approver: The person who decided; there must be one.
        reason: Their words.
        to: The digest to end on, or its beginning; without it, what was live before.
    """
    if not approver.strip():
        raise RegistryError("nobody asked for this rollback", "--approver with the name of a person")
    answer, chain = live_policy(url, problem), Chain.open()
    live = _settled(chain, problem)
    if live is None or answer is None:
        raise RegistryError(f"{problem}: no policy is live", fix="there is nothing to roll back")
    reason = reason or "no comment given"
    if not _is(answer, live):
        # Either an earlier attempt flipped and did not live to record it, or somebody else did: no second flip.
        if to is not None and not _begins(answer.digest, to):
            raise RegistryError(f"{problem}: {url} flipped to {_describe(answer)} meanwhile", f"{to} to be live")
        return _record_flip(problem, url, answer, approver=approver.strip(), reason=reason)
    if to is not None and _begins(live.digest, to):
        return live
    if to is None and live.state == "rolled_back":
        raise RegistryError(
            f"{problem} was rolled back already: {_describe_live(live)} is live (record {live.sequence})",
            fix=f"nothing was changed; --to {answer.previous_digest} flips forward again",
        )
    target = answer.previous_digest
    if target is None or chain.approved(problem, target) is None or (to is not None and not _begins(target, to)):
        raise RegistryError(
            f"{problem}: before {live.digest[:19]} {url} ran {target or 'no policy'}",
            to or "an approved policy to go back to",
            "the service keeps one policy before the live one; any other is promoted again from its run",
        )
    flip_back(url, problem, live_digest=live.digest, counter=chain.counter(problem) + 1)
    after = live_policy(url, problem)
    if after is None or after.digest != target:
        raise PushError(f"{problem}: {url} reports {_describe(after)} after the rollback", target)
    return _record_flip(problem, url, after, approver=approver.strip(), reason=reason)


def _settled(chain: Chain, problem: str) -> PromotionRecord | None:
    """Return the record of what is live; refuse while a promotion is under way."""
    pending = chain.pending(problem)
    if pending is not None:
        raise RegistryError(
            f"a promotion of {problem} is under way (record {pending.sequence})",
            fix="finish it with python -m pipeline.verify_live first",
        )
    return chain.live(problem)


def _record_flip(
    problem: str, url: str, answer: LivePolicy | None, *, approver: str | None, reason: str
) -> PromotionRecord:
    """Write that the service runs an earlier policy again."""

    def decide(chain: Chain) -> PromotionRecord:
        live = chain.live(problem)
        before = chain.approved(problem, answer.digest) if answer and answer.digest else None
        if answer is None or before is None or answer.counter is None:
            raise RegistryError(
                f"{problem}: {url} reports {_describe(answer)}, which no record approved",
                f"a policy that was promoted; {_describe_live(live)} was live last",
                "push the recorded policy again, or look for who put this one there",
            )
        if answer.counter <= chain.counter(problem):
            raise RegistryError(
                f"{problem}: {url} reports {_describe(answer)}, the records are at counter {chain.counter(problem)}",
                "a counter that rises with every flip",
            )
        return chain.follow_up(
            before,
            state="rolled_back",
            counter=answer.counter,
            previous_digest=live.digest if live else None,
            approver=approver,
            reason=reason,
            loaded_at=answer.loaded_at,
        )

    return append(decide)


def _begins(digest: str | None, beginning: str) -> bool:
    return digest is not None and digest.removeprefix("sha256:").startswith(beginning.removeprefix("sha256:"))


def _is(answer: LivePolicy | None, record: PromotionRecord) -> bool:
    return answer is not None and (answer.digest, answer.counter) == (record.digest, record.counter)


def _describe(answer: LivePolicy | None) -> str:
    return f"{answer.digest} (counter {answer.counter})" if answer else "no policy"


def _describe_live(live: PromotionRecord | None) -> str:
    return f"{live.digest} (counter {live.counter})" if live else "no policy"
