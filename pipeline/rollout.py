"""Rollout: what was approved answers 1 % of the calls, then 5, 25 and all of them, beside what is live.

    python -m pipeline.rollout --problem functions --url http://127.0.0.1:8100 --dwell-minutes 30

Each call looks once and does at most one step: begin, wait, go on, or say that it is live. It goes on when the step has
lasted its dwell time and the any-time-valid bound on how much worse the canary is than the live policy (share of the
calls that the heuristic had to answer, and that were slow) is within the margin. Looking often costs nothing: the bound
holds at all times at once (``wire/sequential.py``). Every step is a record. The service ends a canary that is shown to
be worse by itself; that is recorded as ``failed``, and so is one that was not shown to be good within ``--most-hours``.
Without a live policy there is nothing to compare with: it is pushed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from pipeline.errors import PushError, RegistryError
from pipeline.registry import bundles
from pipeline.registry.chain import Chain, append
from pipeline.registry.outcomes import push_approved, settle
from pipeline.registry.service import advance_canary, end_canary, policy_state, push_bundle, url_option
from sched_env import problems
from wire import environment, sequential
from wire.command import Verb, problem_option
from wire.contracts.decision import DecisionLine
from wire.contracts.policies import LivePolicy
from wire.contracts.record import PromotionRecord
from wire.errors import run_cli

SHARES = (0.01, 0.05, 0.25)
"""Of the calls; after the last of them it answers all."""
MARGIN = 0.02
"""By how much the canary's rates may be above the live policy's: as the service's own guard (``guard_margin``)."""
ALPHA = 0.05
LONGEST = 20_000
"""Values an arm that are looked at, the newest: the bound takes time with their number."""
SLOW_US = 25_000.0
"""As the guard's ``guard_slow_ms``."""
LOG = "decisions.jsonl"


class Step(NamedTuple):
    """What a look came to."""

    said: str
    live: bool


class Arms(NamedTuple):
    """Ones and zeros of both arms, in their order, since the step began."""

    canary: list[float]
    live: list[float]


def step(
    problem: str, url: str, *, dwell_s: float, needed: int, most_s: float = np.inf, log: Path | None = None
) -> Step:
    """Look at a rollout, and do its next step if it is time.

    Args:
        problem: Whose policy.
        url: Address of the service.
        dwell_s: How long a step lasts at least.
        needed: Calls that each arm must have answered before the bound is asked; 0: time alone decides, for a trial.
        most_s: A rollout that is not through by then is ended, and recorded as failed.
        log: The service's decision log; where the settings say it is, without.
    """
    chain = Chain.open()
    record, said = chain.pending(problem), policy_state(url, problem)
    if record is None:
        live = chain.live(problem)
        if live is None or said is None or said.digest != live.digest:
            raise RegistryError(f"no promotion of {problem} is under way", "an approved record", "pipeline.promote")
        return Step(f"{problem}: {live.digest} is live", True)
    if said is not None and (said.digest, said.counter) == (record.digest, record.counter):
        return Step(f"{problem}: {record.digest} answers every call", True)
    if said is None or said.digest is None:
        push_approved(record, url)
        return Step(f"{problem}: {record.digest} answers every call: there was no policy to compare it with", True)
    if said.canary is None or said.canary.digest != record.digest:
        return _begin(chain, record, url, said)
    if _lasted(chain, record) > most_s:
        end_canary(url, problem)
        settle(record, "failed", f"as a canary it was not shown to be good enough within {most_s / 3600:g} hours")
        raise PushError(f"{problem}: not shown to be good enough within {most_s / 3600:g} hours", "recorded as failed")
    share, began = said.canary.share, datetime.fromisoformat(said.canary.since)
    lasted_s = (datetime.now(UTC) - began).total_seconds()
    if lasted_s < dwell_s:
        return Step(f"{problem}: {share:.0%} for {lasted_s:.0f} of {dwell_s:.0f} s", False)
    found = log or environment.place("log_dir") / LOG
    evidence = {} if needed == 0 else _evidence(found, problem, said, record.digest)
    for what, arms in evidence.items():
        if min(len(arms.canary), len(arms.live)) < needed:
            counts = f"{len(arms.canary)} and {len(arms.live)} calls"
            return Step(f"{problem}: {share:.0%}, {counts} of the {needed} that each arm needs", False)
        worse = worse_by(arms)
        if sequential.advise(worse, MARGIN) != "advance":
            return Step(
                f"{problem}: {share:.0%}, {what} worse by [{worse[0]:.3f}, {worse[1]:.3f}]: not shown yet", False
            )
    words = "; ".join(f"{what} worse by at most {worse_by(arms)[1]:.3f}" for what, arms in evidence.items())
    return _next(chain, record, url, share, words or "by time alone")


def _lasted(chain: Chain, record: PromotionRecord) -> float:
    """Seconds since the first step."""
    steps = [one for one in chain.of(record.problem) if one.state == "canary" and one.counter == record.counter]
    began = steps[0].decided_at if steps else record.decided_at
    return (datetime.now(UTC) - datetime.fromisoformat(began)).total_seconds()


def _begin(chain: Chain, record: PromotionRecord, url: str, said: LivePolicy) -> Step:
    """Start with the smallest share, unless the service has already left this policy by its own wish."""
    began = [one for one in chain.of(record.problem) if one.state == "canary" and one.counter == record.counter]
    if said.returned is not None and said.returned.digest == record.digest:
        settle(record, "failed", f"{url} ended the canary: {said.returned.reason}")
        raise PushError(f"{record.problem}: {url} ended the canary: {said.returned.reason}", "recorded as failed")
    # A step that was cut between the end of one share and the beginning of the next goes on where it was.
    share = max((float(one.reason.split("%")[0]) / 100 for one in began), default=SHARES[0])
    return _serve(chain, record, url, share, "begun" if not began else "taken up again")


def _next(chain: Chain, record: PromotionRecord, url: str, share: float, why: str) -> Step:
    following = next((one for one in SHARES if one > share + 1e-9), None)
    if following is None:
        advance_canary(url, record)
        return Step(f"{record.problem}: {record.digest} answers every call ({why})", True)
    end_canary(url, record.problem)
    return _serve(chain, record, url, following, why)


def _serve(chain: Chain, record: PromotionRecord, url: str, share: float, why: str) -> Step:
    chain.refuse_withdrawn(record)
    push_bundle(url, record, bundles.approved(chain, record), stage="canary", share=share)

    def decide(chain: Chain) -> PromotionRecord:
        reason = f"{share:.0%} of the calls: {why}"
        return chain.follow_up(record, state="canary", approver=None, reason=reason, answer=None)

    append(decide)
    return Step(f"{record.problem}: {share:.0%} of the calls ({why})", False)


def worse_by(arms: Arms) -> tuple[float, float]:
    """Bounds, at all times at once, of how much more often it happens to the canary than to what is live."""
    canary, live = (sequential.betting(np.array(values), alpha=ALPHA / 2) for values in arms)
    return sequential.difference(canary, live)


def _evidence(log: Path, problem: str, said: LivePolicy, canary: str) -> dict[str, Arms]:
    """Read what both arms did since the step began: the heuristic had to answer; the answer was slow."""
    assert said.canary is not None  # noqa: S101  (whoever asks has looked)
    found = {"fallbacks": Arms([], []), "slow answers": Arms([], [])}
    for line in _lines(log):
        if line.problem == problem and line.at >= said.canary.since and line.digest in (canary, said.digest):
            arm = line.digest != canary
            found["fallbacks"][arm].append(float(line.fallback is not None))
            if line.latency_us is not None:
                found["slow answers"][arm].append(float(line.latency_us > SLOW_US))
    return {what: Arms(*(values[-LONGEST:] for values in arms)) for what, arms in found.items()}


def _lines(log: Path) -> Iterator[DecisionLine]:
    decoder = msgspec.json.Decoder(DecisionLine)
    try:
        lines = log.open("rb")
    except OSError as error:
        raise RegistryError(
            f"the decision log {log} cannot be read: {error}",
            "what both arms answered",
            "mount the service's log, set LOADMASTER_LOG_DIR, or go by time alone (--calls 0)",
        ) from error
    with lines:
        for line in lines:
            try:
                yield decoder.decode(line)
            except msgspec.DecodeError:
                continue  # The last line may be half written.


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    problem_option(parser, problems.names())
    url_option(parser)
    parser.add_argument(
        "--dwell-minutes", type=float, default=30.0, help="a step lasts at least (default: %(default)s)"
    )
    parser.add_argument(
        "--most-hours", type=float, default=24.0, help="after that it has failed (default: %(default)s)"
    )
    parser.add_argument(
        "--calls", type=int, default=200, help="each arm answers before the bound is asked; 0: time alone"
    )


def run(options: argparse.Namespace) -> int:
    """Look once; the last line is ``live`` or ``wait``."""
    most_s, dwell_s = options.most_hours * 3600, options.dwell_minutes * 60
    done = step(options.problem, options.url, dwell_s=dwell_s, needed=options.calls, most_s=most_s)
    sys.stdout.write(f"{done.said}\n{'live' if done.live else 'wait'}\n")
    return 0


main = Verb("python -m pipeline.rollout", __doc__, arguments, run)


if __name__ == "__main__":
    run_cli(main)
