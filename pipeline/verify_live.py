"""Verify: ask the placement service what is live, and only then write the ``live`` record.

    python -m pipeline.verify_live --problem functions --url http://127.0.0.1:8100

When the service runs anything else, ``failed`` is written and the exit code is not 0. ``--reconcile`` instead records
a flip that the service made by itself, or that a rollback made.
"""

from __future__ import annotations

import argparse
import sys

from pipeline.registry.outcomes import confirm, reconcile
from pipeline.registry.views import describe
from sched_env import problems
from wire.errors import run_cli


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.verify_live", description="Record what is live")
    parser.add_argument("--problem", required=True, choices=problems.names())
    parser.add_argument("--url", required=True, help="address of the placement service")
    parser.add_argument("--reconcile", action="store_true", help="record a flip made in the service")
    arguments = parser.parse_args()
    decide = reconcile if arguments.reconcile else confirm
    record = decide(arguments.problem, arguments.url)
    sys.stdout.write((describe(record) if record else f"{arguments.problem}: nothing to reconcile") + "\n")
    return 0


if __name__ == "__main__":
    run_cli(main)
