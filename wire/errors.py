"""The root of Loadmaster's error tree, and the one place where a command line turns an error into an exit code.

Every error says what was found, what was expected and what to do about it. ``pipeline.errors`` and
``placement.errors`` hang their own classes below :class:`LoadmasterError`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import NoReturn

EXIT_USER_ERROR = 2
"""A mistake in input or settings: the message says how to put it right; running again unchanged will not help."""

EXIT_INTERRUPTED = 130
"""Ctrl-C, as shells report it."""


class LoadmasterError(Exception):
    """Base of every error we raise on purpose.

    Args:
        found: What is wrong, naming the file, key or value.
        expected: What would have been right; legal values are listed here.
        fix: What the reader can do now.
    """

    def __init__(self, found: str, expected: str = "", fix: str = "") -> None:
        self.found, self.expected, self.fix = found, expected, fix
        parts = [found.rstrip(".")]
        if expected:
            parts.append("expected " + expected.rstrip("."))
        if fix:
            parts.append(fix.rstrip("."))
        super().__init__("; ".join(parts))


class ConfigError(LoadmasterError):
    """Raised when a setting, scenario or parameter file is wrong."""


class ContractError(LoadmasterError):
    """Raised when a document or table does not follow its contract (schema, version, digest, signature)."""


class TraceError(LoadmasterError):
    """Raised when a trace file cannot be read; names file, line and reason."""


class InfeasibleActionError(LoadmasterError):
    """Raised when an action would place a request where it does not fit; the state is unchanged."""


class BundleError(LoadmasterError):
    """Raised when a policy bundle is refused; nothing has been changed."""


def legal(values: Iterable[object]) -> str:
    """List legal values for an ``expected`` text: ``one of a, b, c``."""
    return "one of " + ", ".join(str(value) for value in values)


def run_cli(main: Callable[[], int | None]) -> NoReturn:
    """Run a command line's ``main``, turning our errors into one clear line on stderr and a non-zero exit."""
    try:
        code = main() or 0
    except LoadmasterError as error:
        sys.stderr.write(f"error: {error}\n")
        code = EXIT_USER_ERROR
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has gone; silence the interpreter's own complaint at shutdown.
        sys.stderr.close()
        code = 0
    sys.exit(code)
