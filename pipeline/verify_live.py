"""Verify: ask the placement service what is live, and only then write the ``live`` record.

    python -m pipeline.verify_live --problem functions --url http://127.0.0.1:8100

When the service runs anything else, ``failed`` is written and the exit code is not 0. ``--reconcile`` instead records
a flip that the service made by itself, or that a rollback made.
"""

from __future__ import annotations

import argparse
import sys

from pipeline.registry.outcomes import confirm, reconcile
from pipeline.registry.service import url_option
from pipeline.registry.views import describe
from sched_env import problems
from wire.command import Verb, problem_option
from wire.errors import run_cli


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    problem_option(parser, problems.names())
    url_option(parser)
    parser.add_argument("--reconcile", action="store_true", help="record a flip made in the service")


def run(options: argparse.Namespace) -> int:
    """Ask the service, write the record, and say what it says."""
    decide = reconcile if options.reconcile else confirm
    record = decide(options.problem, options.url)
    sys.stdout.write((describe(record) if record else f"{options.problem}: nothing to reconcile") + "\n")
    return 0


main = Verb("python -m pipeline.verify_live", __doc__, arguments, run)


if __name__ == "__main__":
    run_cli(main)
