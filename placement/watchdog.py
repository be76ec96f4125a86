"""Stops a policy that takes too long, without a thread for each run.

Handing a run to another thread costs more than scoring a hundred candidates. The run therefore stays in the thread of
its caller, and one thread looks, as long as anything runs, for what is over its time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LOOKS = 5
"""Times within a deadline that somebody looks: a run may be late by a fifth."""


class Watchdog:
    """Ends runs of onnxruntime at their deadline.

    Args:
        deadline_s: What each run has.
    """

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self._running: dict[int, tuple[float, Any]] = {}
        self._something_runs, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._look, name="watchdog", daemon=True)
        self._thread.start()

    @contextmanager
    def limit(self, options: Any) -> Iterator[None]:
        """Watch over a run: past the deadline it stops at its next operator, and raises."""
        self.begin(options)
        try:
            yield
        finally:
            self.end(options)

    def begin(self, options: Any) -> None:
        """As :meth:`limit`, where a context manager would cost more than what it watches over."""
        self._running[id(options)] = (time.monotonic() + self.deadline_s, options)
        if not self._something_runs.is_set():
            self._something_runs.set()

    def end(self, options: Any) -> None:
        """The run is over."""
        del self._running[id(options)]

    def close(self) -> None:
        """Let the thread go."""
        self._closed.set()
        self._something_runs.set()
        self._thread.join(timeout=10)

    def _look(self) -> None:
        while not self._closed.is_set():
            self._something_runs.wait()
            if self._closed.wait(self.deadline_s / LOOKS):
                return
            now = time.monotonic()
            for until, options in list(self._running.values()):
                if now > until:
                    options.terminate = True
            # Cleared before the second look: a run that begins in between sets it again.
            self._something_runs.clear()
            if self._running:
                self._something_runs.set()
