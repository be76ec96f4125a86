"""Points at which a controller may die, by name, so that a test can let it die at each of them.

There is one before and after every transaction and every call of a Kubernetes API. Outside of tests nothing listens.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from wire.environment import variable

AT = variable("crash_at")
"""``<point>`` or ``<point>#<n>``: kill -9 at the n-th passage; for tests of whole processes."""

_passed: dict[str, int] = {}
listener: Callable[[str], None] | None = None
"""Told of each point by tests within one process."""


def point(name: str) -> None:
    """Pass a point."""
    if listener is not None:
        listener(name)
    wanted = os.environ.get(AT)
    if wanted:
        at, _, count = wanted.partition("#")
        if at == name:
            _passed[name] = _passed.get(name, 0) + 1
            if _passed[name] >= int(count or 1):
                os.kill(os.getpid(), signal.SIGKILL)
