"""How a promotion ends: ``live`` once the service says so, ``failed`` if it does not; ``rolled_back`` after a flip."""

from __future__ import annotations

from pipeline.contracts.record import PromotionRecord, State
from pipeline.errors import PushError, RegistryError
from pipeline.registering.chain import Chain, append
from pipeline.registering.service import LivePolicy, live_policy


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
            approver=None,
            reason=f"{url} flipped to it",
            loaded_at=answer.loaded_at,
        )

    chain = Chain.open()
    live, pending = chain.live(problem), chain.pending(problem)
    if pending is not None:
        raise RegistryError(
            f"a promotion of {problem} is under way (record {pending.sequence})",
            fix="finish it with python -m pipeline.verify_live first",
        )
    if (answer is None and live is None) or (live is not None and _is(answer, live)):
        return None
    return append(decide)


def _is(answer: LivePolicy | None, record: PromotionRecord) -> bool:
    return answer is not None and (answer.digest, answer.counter) == (record.digest, record.counter)


def _describe(answer: LivePolicy | None) -> str:
    return f"{answer.digest} (counter {answer.counter})" if answer else "no policy"


def _describe_live(live: PromotionRecord | None) -> str:
    return f"{live.digest} (counter {live.counter})" if live else "no policy"
