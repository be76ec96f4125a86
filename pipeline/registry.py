"""The registry's command line.

python -m pipeline.registry list [--problem P]        what is live, and every record
python -m pipeline.registry record-run --run-id ID    commit and push what a run depended on and made
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pipeline.errors import RegistryError
from pipeline.promote import describe
from pipeline.registering import bundles, places
from pipeline.registering.chain import Chain
from pipeline.registering.runs import branch_of, record_run
from pipeline.settings import var
from sched_env.contracts.feature_spec import PROBLEMS
from sched_env.errors import run_cli


def live_bundle(problem: str, home: Path | None = None) -> Path | None:
    """Return the folder of the bundle that the records say is live, checked; None before the first promotion.

    Args:
        problem: Whose champion.
        home: ``var/``, if the caller knows it.
    """
    home = home or var()
    if places.is_embedded() and not (home / "registry.git").exists():
        return None
    if home != var():
        raise RegistryError(f"the registry of {home} was asked for", f"that of {var()}", "set LOADMASTER_VAR")
    chain = Chain.open()
    live = chain.live(problem)
    return bundles.approved(chain, live) if live else None


def _list(problem: str | None) -> None:
    chain = Chain.open()
    for name in PROBLEMS:
        if problem in (None, name) and chain.of(name):
            pending = chain.pending(name)
            waiting = f"; record {pending.sequence} is approved and not live yet" if pending else ""
            sys.stdout.write(f"{name}: {chain.live_digest(name) or 'no policy'} is live{waiting}\n")
    for record in chain.records:
        if problem in (None, record.problem):
            sys.stdout.write(f"  {record.sequence:>4} {record.decided_at} {describe(record)}: {record.reason}\n")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.registry", description="Promotion records and bundles")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("list", help="what is live, and every record")
    one.add_argument("--problem", choices=PROBLEMS)
    one = commands.add_parser("record-run", help="push data and branch of a run")
    one.add_argument("--run-id", required=True)
    one.add_argument("--run-dir", type=Path, default=Path())
    arguments = parser.parse_args()
    if arguments.command == "list":
        _list(arguments.problem)
    else:
        run = record_run(arguments.run_dir.absolute(), arguments.run_id)
        sys.stdout.write(f"{branch_of(run.run_id)} {run.commit}\n")
    return 0


if __name__ == "__main__":
    run_cli(main)
