"""How a promotion ends: ``live`` once the service says so, ``failed`` if it does not.

``rolled_back`` and ``switched_off`` follow a flip of the service. The service is always asked first and the record
written second, so that a record never says what was not so. A process killed in between leaves a flip without a
record: ``confirm`` and ``verify`` tell, ``reconcile`` or the same rollback again writes it.
"""

from __future__ import annotations

from pipeline.errors import PushError, RegistryError
from pipeline.registry import bundles, terminal
from pipeline.registry.chain import Chain, append
from pipeline.registry.records import FLIPS, OFF, changes
from pipeline.registry.service import Refused, live_policy, policy_state, push_bundle
from pipeline.registry.service import roll_back as flip_back
from wire.contracts.policies import LivePolicy
from wire.contracts.record import Answer, PromotionRecord, State


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
    """Record a flip that was made in the service (a rollback, or switched off); None when there was none."""
    answer = policy_state(url, problem)
    live = _settled(Chain.open(), problem)
    if live is None if answer is None or answer.digest is None else live is not None and _is(answer, live):
        return None
    if answer is not None and answer.digest is None and answer.degraded is None:
        return _record_off(problem, url, answer)
    return _record_flip(problem, url, answer, approver=None, reason=f"{url} flipped to it")


def roll_back(
    problem: str, url: str, *, approver: str, reason: str, to: str | None = None, answer: Answer | None = None
) -> PromotionRecord:
    """Go back to a policy that was live once, and record who wanted it and why.

    What the service ran before it still holds: it flips, and the record follows. Any other is pushed again, with a
    signed record of the rollback. Run again, it finishes what is unfinished and never flips a second time; the way
    forward again is ``to``.

    Args:
        problem: Whose policy.
        url: Address of the service.
        approver: The person who decided; there must be one.
        reason: Their words.
        to: The digest to end on, or its beginning; without it, what was live before.
        answer: What Airflow keeps of their answer; without it, the word of whoever holds the key.
    """
    terminal.refuse_nobody(approver)
    said, chain = live_policy(url, problem), Chain.open()
    live = _settled(chain, problem)
    reason = reason or "no comment given"
    off = changes(chain.of(problem))[-1:]
    if live is None and off and said is None:
        before = chain.approved(problem, _once_live(chain, problem, to) if to is not None else off[0].digest)
        assert before is not None  # noqa: S101  (the chain takes no flip to what was never approved)
        return _push_again(problem, url, before, approver=approver, reason=reason, given=answer)
    if live is None or said is None:
        raise RegistryError(
            f"{problem}: no policy is live",
            "one to go back from",
            "python -m pipeline.verify_live --reconcile first, if the service was switched off",
        )
    if said.digest == live.digest and not _is(said, live):
        # Switched off and on again since (``loadmaster mode``): that is recorded, and nobody has gone back yet.
        live = _record_flip(problem, url, said, approver=None, reason=f"{url} was left to the rule, and given back")
        chain = Chain.open()
    if not _is(said, live):
        # Either an earlier attempt flipped and did not live to record it, or somebody else did: no second flip.
        if to is not None and not _begins(said.digest, to):
            raise RegistryError(f"{problem}: {url} flipped to {_describe(said)} meanwhile", f"{to} to be live")
        return _record_flip(problem, url, said, approver=approver, reason=reason, given=answer)
    if to is not None and _begins(live.digest, to):
        return live
    if to is None and live.state == "rolled_back" and live.digest != live.previous_digest:
        raise RegistryError(
            f"{problem} was rolled back already: {_describe_live(live)} is live (record {live.sequence})",
            fix=f"nothing was changed; --to {said.previous_digest} flips forward again",
        )
    target = _once_live(chain, problem, to) if to is not None else said.previous_digest or _before(chain, live)
    before = chain.approved(problem, target) if target else None
    if target is None or before is None:
        raise RegistryError(
            f"{problem}: before {live.digest[:19]} {url} ran {target or 'no policy'}",
            "an approved policy to go back to",
            "python -m pipeline.registry list shows what was live; --to names it",
        )
    # The service would refuse what a withdrawn key signed, unless it has not heard of that yet.
    if bundles.signed_by_retired(chain, before) or target != said.previous_digest:
        return _push_again(problem, url, before, approver=approver, reason=reason, given=answer)
    flip_back(url, problem, live_digest=live.digest, counter=chain.counter(problem) + 1)
    after = live_policy(url, problem)
    if after is None or after.digest != target:
        raise PushError(f"{problem}: {url} reports {_describe(after)} after the rollback", target)
    return _record_flip(problem, url, after, approver=approver, reason=reason, given=answer)


def _before(chain: Chain, live: PromotionRecord) -> str | None:
    """Return what was live before a policy, of the records: a service that was switched off has forgotten it."""
    others = [one.digest for one in chain.of(live.problem) if one.state in FLIPS and one.digest != live.digest]
    return others[-1] if others else None


def _once_live(chain: Chain, problem: str, to: str) -> str:
    """Complete the beginning of a digest to that of one policy that was live before."""
    found = {one.digest for one in chain.of(problem) if one.state in FLIPS and _begins(one.digest, to)}
    if len(found) != 1:
        raise RegistryError(
            f"{len(found)} policies that were live begin with {to}",
            "one",
            "forward goes promote, with a gate; python -m pipeline.registry list shows what was live",
        )
    return found.pop()


def _push_again(
    problem: str, url: str, before: PromotionRecord, *, approver: str, reason: str, given: Answer | None = None
) -> PromotionRecord:
    """Sign the decision to go back to an older policy, hand it to the service with that, and ask what it runs."""
    given = given or terminal.typed(approver, digest=before.digest, report_sha256=None)
    sha256, files = before.bundle_sha256, {}
    chain = Chain.open()
    if bundles.signed_by_retired(chain, before):
        directory = bundles.sign_anew(bundles.approved(chain, before, history=True))
        sha256, files = bundles.files_sha256(directory), {bundles.pointer_of(before.digest): bundles.store(directory)}

    def decide(chain: Chain) -> PromotionRecord:
        live = _settled(chain, problem)
        return chain.follow_up(
            before,
            state="approved",
            kind="rollback",
            counter=chain.counter(problem) + 1,
            previous_digest=live.digest if live else None,
            approver=given.person_name,
            reason=reason,
            bundle_sha256=sha256,
            answer=given,
        )

    record = append(decide, files=files)
    push_approved(record, url)
    return confirm(problem, url)


def push_approved(record: PromotionRecord, url: str) -> None:
    """Hand the bundle of an approved record to the service; a refusal is final, and recorded as ``failed``."""
    chain = Chain.open()
    chain.refuse_withdrawn(record)
    try:
        push_bundle(url, record, bundles.approved(chain, record))
    except Refused as error:
        settle(record, "failed", error.found)
        raise


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
    problem: str,
    url: str,
    answer: LivePolicy | None,
    *,
    approver: str | None,
    reason: str,
    given: Answer | None = None,
) -> PromotionRecord:
    """Write that the service runs an earlier policy again."""
    if given is None and approver is not None and answer is not None and answer.digest is not None:
        given = terminal.typed(approver, digest=answer.digest, report_sha256=None)

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
            kind="rollback",
            approver=given.person_name if given else None,
            reason=reason,
            loaded_at=answer.loaded_at,
            answer=given,
        )

    return append(decide)


def _record_off(problem: str, url: str, answer: LivePolicy) -> PromotionRecord:
    """Write that a problem was left to its heuristic: whose wish that was, the service's audit log says."""

    def decide(chain: Chain) -> PromotionRecord:
        live = _settled(chain, problem)
        if live is None or answer.counter <= chain.counter(problem):
            raise RegistryError(
                f"{problem}: {url} is off at counter {answer.counter}, the records are at {chain.counter(problem)}",
                "a counter that rises with every flip",
            )
        return chain.follow_up(
            live,
            state=OFF,
            counter=answer.counter,
            previous_digest=live.digest,
            kind="rollback",
            approver=None,
            reason=f"{url} was switched off; {answer.fallback} answers",
            loaded_at=answer.loaded_at,
            answer=None,
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
