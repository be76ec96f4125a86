"""Push: hand the approved bundle to the placement service.

    python -m pipeline.push --problem functions --url http://127.0.0.1:8100

A refusal is final and recorded as ``failed``; a service that does not answer is not, and the push can be run again.
"""

from __future__ import annotations

import argparse
import sys

from pipeline.errors import RegistryError
from pipeline.registry.chain import Chain
from pipeline.registry.outcomes import push_approved
from pipeline.registry.service import live_policy, url_option
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


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    problem_option(parser, problems.names())
    url_option(parser)


def run(options: argparse.Namespace) -> int:
    """Push, and say what the service has now."""
    record = push(options.problem, options.url)
    sys.stdout.write(f"{record.problem}: pushed {record.digest} with counter {record.counter} to {options.url}\n")
    return 0


main = Verb("python -m pipeline.push", __doc__, arguments, run)


if __name__ == "__main__":
    run_cli(main)
