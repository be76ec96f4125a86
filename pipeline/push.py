"""Push: hand the approved bundle to the placement service.

    python -m pipeline.push --problem functions --url http://127.0.0.1:8100

A refusal is final and recorded as ``failed``; a service that does not answer is not, and the push can be run again.
"""

from __future__ import annotations

import argparse
import sys

from pipeline.errors import RegistryError
from pipeline.registry import bundles
from pipeline.registry.chain import Chain
from pipeline.registry.outcomes import settle
from pipeline.registry.service import Refused, live_policy, push_bundle
from sched_env import problems
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
    try:
        push_bundle(url, record, bundles.approved(chain, record))
    except Refused as error:
        settle(record, "failed", error.found)
        raise
    return record


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.push", description="Push the approved bundle")
    parser.add_argument("--problem", required=True, choices=problems.names())
    parser.add_argument("--url", required=True, help="address of the placement service")
    arguments = parser.parse_args()
    record = push(arguments.problem, arguments.url)
    sys.stdout.write(f"{record.problem}: pushed {record.digest} with counter {record.counter} to {arguments.url}\n")
    return 0


if __name__ == "__main__":
    run_cli(main)
