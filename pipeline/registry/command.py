"""The registry's command line: look, compare, walk back, roll back, prove, clean up, bring back.

For example::

    python -m pipeline.registry list --problem functions
    python -m pipeline.registry lineage sha256:35f2 --rebuild /tmp/rebuilt
    python -m pipeline.registry verify
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from pipeline.champions import Standing
from pipeline.errors import RegistryError
from pipeline.registry import bundles, gc, lineage, outcomes, places, restore, runs, views
from pipeline.registry.chain import Chain
from pipeline.registry.service import url_option
from pipeline.registry.verify import verify
from pipeline.settings import var
from sched_env import problems
from wire import environment
from wire.command import Verb, json_option, problem_option
from wire.errors import run_cli

EXIT_FINDINGS = 1
"""``verify`` found something; 2 stays for mistakes in the call."""


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
        raise RegistryError(f"the registry of {home} was asked for", f"that of {var()}", f"set {environment.VAR}")
    chain = Chain.open()
    live = chain.live(problem)
    return bundles.approved(chain, live) if live else None


def standing(problem: str) -> Standing:
    """Say since when the live policy of a problem has answered; there must be one."""
    chain = Chain.open()
    record, since = chain.live(problem), chain.live_since(problem)
    if record is None or since is None:
        raise RegistryError(f"no policy of {problem} is live", "a live record")
    # Records from before nights had a density say nothing of it.
    return Standing(record.digest, since, msgspec.convert(record.gate.get("density", 1.0), float))


def _verify(arguments: argparse.Namespace) -> int:
    chain, findings = verify(getattr(arguments, "url", None))
    _print(map(str, findings))
    if chain is not None:
        _print(views.status(chain))
        _print([f"{len(chain.records)} records, {len(findings)} findings"])
    return EXIT_FINDINGS if findings else 0


def _look() -> Chain:
    """Open the registry for reading: where there is none, none is made."""
    places.require_registry()
    return Chain.open()


def _lineage(arguments: argparse.Namespace) -> int:
    chain = _look()
    thread = lineage.trace(chain, arguments.digest)
    if arguments.json:
        _print([msgspec.json.encode(thread).decode()])
    else:
        _print(views.walked_back(thread))
    if arguments.rebuild:
        first, last = arguments.first_stage, arguments.last_stage
        _print([lineage.rebuild(chain, arguments.digest, arguments.rebuild, first_stage=first, last_stage=last)])
    return 0


def _gc(arguments: argparse.Namespace) -> int:
    places.require_registry()
    policy = gc.Policy(keep_runs=arguments.keep_runs, keep_days=arguments.keep_days, remote=arguments.remote)
    removed = gc.collect(policy, dry_run=arguments.dry_run)
    _print(("would remove " if arguments.dry_run else "removed ") + line for line in removed or ["nothing"])
    return 0


def _rollback(arguments: argparse.Namespace) -> int:
    record = outcomes.roll_back(
        arguments.problem, arguments.url, approver=arguments.approver, reason=arguments.reason, to=arguments.to
    )
    _print([views.describe(record)])
    return 0


def _record_run(arguments: argparse.Namespace) -> int:
    run = runs.record_run(arguments.run_dir.absolute(), arguments.run_id)
    _print([f"{runs.branch_of(run.run_id)} {run.commit}"])
    return 0


def _restore(arguments: argparse.Namespace) -> int:
    _print(restore.restore(trust=arguments.trust))
    return _verify(arguments)


def _printer(view: Callable[[argparse.Namespace], Iterable[str]]) -> Callable[[argparse.Namespace], int]:
    def command(arguments: argparse.Namespace) -> int:
        _print(view(arguments))
        return 0

    return command


def _print(lines: Iterable[str]) -> None:
    """Print lines; what a name or a reason from a record may carry does not reach the terminal as a command."""
    for line in lines:
        sys.stdout.write("".join(c if c.isprintable() else "?" for c in line) + "\n")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line: a command of its own for each thing to do."""
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, text: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        return command

    one = add("list", "what is live, and every record", _printer(lambda a: views.listing(_look(), a.problem)))
    one.add_argument("--problem", choices=problems.names())
    one = add("show", "one record in full", _printer(lambda a: views.shown(_look(), a.record).splitlines()))
    one.add_argument("record", help="sequence, or digest (its beginning is enough)")
    one = add(
        "diff",
        "in what two bundles differ: code, data, params, metrics",
        _printer(lambda a: views.difference(_look(), a.first, a.second)),
    )
    one.add_argument("first")
    one.add_argument("second")
    one = add("lineage", "from a digest back to run, commit, params and data windows", _lineage)
    one.add_argument("digest")
    json_option(one, "every step of the way")
    one.add_argument("--rebuild", type=Path, metavar="DIR", help="make the policy again in DIR and compare")
    one.add_argument("--first-stage", default="ingest", help="stage whose outputs are fetched, not remade")
    one.add_argument("--last-stage", default="export@{problem}", help="stage that writes the bundle")
    one = add("verify", "prove that registry, bundles, keys and tags are whole, or list what is not", _verify)
    one.add_argument("--url", help="a placement service: its counters show a registry that was cut short")
    add("tags", "rebuild the GTO tags from the records", _printer(lambda _: restore.rebuild_tags(_look())))
    one = add("gc", "remove old run branches, workspaces, cache and logs", _gc)
    one.add_argument("--keep-runs", type=int, default=gc.Policy().keep_runs)
    one.add_argument("--keep-days", type=float, default=gc.Policy().keep_days)
    one.add_argument("--remote", action="store_true", help="clean the DVC remote too, if it is a folder")
    one.add_argument("--dry-run", action="store_true")
    one = add("rollback", "go back to the policy that was live before, and record who wanted it", _rollback)
    problem_option(one, problems.names())
    url_option(one)
    one.add_argument("--approver", required=True, help="the person who decided")
    one.add_argument("--reason", default="", help="their words")
    one.add_argument("--to", metavar="DIGEST", help="end on this one; also the way forward again")
    one = add("restore", "bring a lost var/ back from the git remote and the DVC remote", _restore)
    one.add_argument("--trust", action="append", default=[], metavar="KEY", help="key ids that may be trusted")
    one = add("record-run", "push data and branch of a run", _record_run)
    one.add_argument("--run-id", required=True)
    one.add_argument("--run-dir", type=Path, default=Path())


def run(options: argparse.Namespace) -> int:
    """Run the command that was chosen."""
    code: int = options.run(options)
    return code


main = Verb("python -m pipeline.registry", __doc__, arguments, run)


if __name__ == "__main__":
    run_cli(main)
