"""Push: hand the approved bundle to the placement service.

    python -m pipeline.push --problem functions --url http://127.0.0.1:8100
    python -m pipeline.push --problem functions --as canary --share 0.1

``--as`` tries it first, beside what is live: as a shadow, which only scores, or as a canary, which answers a share of
the calls. The record stays approved: a push without ``--as``, or ``loadmaster canary advance``, makes it live.

A refusal is final and recorded as ``failed``; a service that does not answer is not, and the push can be run again.
"""

from __future__ import annotations

import argparse
import sys
from typing import get_args

from pipeline.errors import RegistryError
from pipeline.registry import bundles
from pipeline.registry.chain import Chain
from pipeline.registry.outcomes import push_approved
from pipeline.registry.service import Stage, live_policy, push_bundle, url_option
from sched_env import problems
from wire.command import Verb, problem_option
from wire.contracts.record import PromotionRecord
from wire.errors import run_cli


def push(problem: str, url: str) -> PromotionRecord:
    """Push the approved bundle of a problem and return its record; nothing happens if the service has it already."""
    chain = Chain.open()
    record = chain.pending(problem)
    live = live_policy(url, problem)
    if record is None:
        record = chain.live(problem)
        if record is None or live is None or (live.digest, live.counter) != (record.digest, record.counter):
            raise RegistryError(
                f"no promotion of {problem} is waiting for its push",
                "an approved record",
                "python -m pipeline.promote writes one; python -m pipeline.registry list shows what there is",
            )
        return record
    if live is not None and (live.digest, live.counter) == (record.digest, record.counter):
        return record  # An earlier attempt got through and did not live to hear the answer.
    push_approved(record, url)
    return record


def stage(problem: str, url: str, where: Stage, share: float) -> PromotionRecord:
    """Let the approved bundle be tried beside what is live; the record stays as it is, whatever the service says."""
    chain = Chain.open()
    record = chain.pending(problem)
    if record is None:
        raise RegistryError(f"no promotion of {problem} is waiting", "an approved record", "python -m pipeline.promote")
    chain.refuse_withdrawn(record)
    push_bundle(url, record, bundles.approved(chain, record), stage=where, share=share)
    return record


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    problem_option(parser, problems.names())
    url_option(parser)
    parser.add_argument("--as", dest="stage", choices=get_args(Stage), help="try it beside what is live")
    parser.add_argument("--share", type=float, default=0.1, help="of the calls, for a canary (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Push, and say what the service has now."""
    if options.stage:
        record = stage(options.problem, options.url, options.stage, options.share)
        sys.stdout.write(f"{record.problem}: {record.digest} is tried as {options.stage} by {options.url}\n")
        return 0
    record = push(options.problem, options.url)
    sys.stdout.write(f"{record.problem}: pushed {record.digest} with counter {record.counter} to {options.url}\n")
    return 0


main = Verb("python -m pipeline.push", __doc__, arguments, run)


if __name__ == "__main__":
    run_cli(main)
