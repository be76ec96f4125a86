"""The help of ``python -m pipeline.VERB``, said before the module behind it is imported.

A verb's module imports what it works with, torch in the worst case, and nobody who asks for help shall wait for it.
While ``python -m`` looks for a module, it imports the packages above it with ``sys.argv[0]`` still ``-m``: they ask us.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib import resources


def answer() -> None:
    """Print the help that the command line asks for and leave; do nothing if it asks for none, or none is known."""
    if sys.argv[:1] == ["-m"] and sys.argv[-1] in ("-h", "--help") and (said := _help(sys.orig_argv, sys.argv[1:-1])):
        sys.stdout.write(said + "\n")
        raise SystemExit(0)


def _help(called: Sequence[str], below: Sequence[str]) -> str | None:
    """Find the help in what ``scripts/reference.py`` wrote; a test holds that to the parsers."""
    module = called[called.index("-m") + 1] if "-m" in called else ""
    try:
        helps: dict[str, str] = json.loads(resources.files("wire").joinpath("helps.json").read_text())
    except (OSError, ValueError):
        return None
    return helps.get(" ".join(["python -m", module, *below]))
