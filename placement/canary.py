"""What is tried beside the live policies: look at it, make the canary live, end it.

    loadmaster canary [show] --url http://127.0.0.1:8100
    loadmaster canary advance|end|end-shadow --problem functions --url http://127.0.0.1:8100

``loadmaster push --as canary --share 0.1`` begins one, ``--as shadow`` a shadow. Advancing needs the push token with
the role ``push``, ending the role ``rollback``; both are in the service's audit log. A canary that does worse than what
is live is ended by the service itself.
"""

from __future__ import annotations

import argparse
import sys

import msgspec

from placement.errors import StoreError
from placement.mode import ask, call
from sched_env import problems
from wire.command import Verb
from wire.contracts.policies import Flipped, LivePolicy
from wire.errors import run_cli

_CALLS = {
    "advance": ("POST", "/canary/advance"),
    "end": ("DELETE", "/canary"),
    "end-shadow": ("DELETE", "/shadow"),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("what", nargs="?", default="show", choices=("show", *_CALLS))
    parser.add_argument("--problem", choices=problems.names(), help="needed for everything but show")
    parser.add_argument("--url", default="http://127.0.0.1:8100", help="address of the placement service")


def run(options: argparse.Namespace) -> int:
    """Show, or change one problem."""
    url, there = ask(options.url)
    if options.what == "show":
        for problem, live in there.items():
            if live is not None and (options.problem in (None, problem)):
                sys.stdout.write(f"{problem}: {_said(live)}\n")
        return 0
    if options.problem is None:
        raise StoreError(f"{options.what} without --problem", "the problem that it is about")
    method, path = _CALLS[options.what]
    flipped = msgspec.json.decode(call(url, method, f"/v1/policies/{options.problem}{path}"), type=Flipped)
    trying = f", canary {flipped.canary_digest or 'none'}, shadow {flipped.shadow_digest or 'none'}"
    sys.stdout.write(f"{options.problem}: {flipped.digest} answers, counter {flipped.counter}{trying}\n")
    return 0


def _said(live: LivePolicy) -> str:
    said = f"{live.digest or live.fallback} answers"
    if live.canary is not None:
        said += f"; canary {live.canary.digest} answers {live.canary.share:.0%} since {live.canary.since}"
    if live.shadow_digest is not None:
        said += f"; shadow {live.shadow_digest}"
    if live.returned is not None:
        said += f"; left {live.returned.digest} at {live.returned.at} by itself: {live.returned.reason}"
    return said


main = Verb("loadmaster canary", __doc__, arguments, run)


if __name__ == "__main__":
    run_cli(main)
