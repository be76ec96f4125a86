"""What every command line of Loadmaster is made of: the same flags, the same words, the same exit codes.

A verb is two functions and one line, and ``main`` then serves ``python -m pipeline.train``, ``loadmaster train`` and
the tests alike::

    def arguments(parser: argparse.ArgumentParser) -> None:
        problem_option(parser, problems.names())
        json_option(parser, "the metrics")

    def run(options: argparse.Namespace) -> int:
        ...
        return 0

    main = Verb("python -m pipeline.train", __doc__, arguments, run)

    if __name__ == "__main__":
        run_cli(main)

A line in ``wire.cli.VERBS`` makes it a verb of ``loadmaster``. Exit codes: 0 done; 1 where a verb documents that it
found something (a failed gate, a broken registry); 2 a mistake in input or settings, with one clear line; 130
interrupted.

To convert a ``main`` written out by hand: what was between ``ArgumentParser(...)`` and ``parse_args`` becomes
``arguments`` (with the options below in place of the hand-written ones), what came after becomes ``run``, and
``main = Verb(...)`` takes the name, so that callers and tests stay as they are.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from wire.errors import EXIT_USER_ERROR


class Parser(argparse.ArgumentParser):
    """A parser that says a mistake in one line, as ``run_cli`` does, and takes no abbreviated flags."""

    def __init__(self, *given: Any, **named: Any) -> None:
        # A script that says --pro must not change its meaning when a flag --progress arrives.
        named.setdefault("allow_abbrev", False)
        named.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*given, **named)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is, and leave."""
        self.exit(EXIT_USER_ERROR, f"error: {message}; see {self.prog} --help\n")


@dataclass(frozen=True)
class Verb:
    """One command line."""

    prog: str
    """How it is called when it is not called through ``loadmaster``."""
    description: str | None
    """Its help; usually the module's docstring."""
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int | None]

    def __call__(self, argv: Sequence[str] | None = None, *, prog: str | None = None) -> int:
        """Parse and run; ``argv`` is the process's own when it is left out."""
        parser = Parser(prog=prog or self.prog, description=(self.description or "").strip())
        self.arguments(parser)
        return self.run(parser.parse_args(argv)) or 0


def problem_option(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    """``--problem``, one of those there are."""
    parser.add_argument("--problem", required=True, choices=tuple(names))


def params_option(parser: argparse.ArgumentParser, default: Path) -> None:
    """``--params``, the file the settings are read from."""
    parser.add_argument("--params", type=Path, default=default, help="parameter file (default: %(default)s)")


def seed_option(parser: argparse.ArgumentParser, names: str, *, default: int | None = 0) -> None:
    """``--seed``, saying what it names; without a default it must be given."""
    parser.add_argument("--seed", type=int, default=default, required=default is None, help=f"names {names}")


def json_option(parser: argparse.ArgumentParser, what: str) -> None:
    """``--json``: for programs, in place of the words for people."""
    parser.add_argument("--json", action="store_true", help=f"{what}, as JSON")
