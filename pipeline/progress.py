"""Progress of long work: a bar with its rates on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import ExitStack
from typing import Self

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

LINE_SECONDS = 30.0
"""How often a log gets a line; work that is done before says nothing."""


class Progress:
    """Counts pieces of work, and the rows in them, from any thread; a context manager.

    Args:
        what: What is being done.
        total: Pieces there are.
        unit: What a piece is called.
        done: Pieces that were there before.
    """

    def __init__(self, what: str, total: int, unit: str, done: int = 0) -> None:
        self._what, self._unit, self._total, self._done = what, unit, total, done
        self._bar = tqdm(total=total, initial=done, unit=unit, desc=what, disable=None)
        self._lock, self._rows = threading.Lock(), 0
        self._begun = self._said = time.monotonic()
        self._open = ExitStack()

    def __enter__(self) -> Self:
        if not self._bar.disable:
            self._open.enter_context(logging_redirect_tqdm())
        self._open.enter_context(self._bar)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def add(self, *, rows: int = 0, pieces: int = 0) -> None:
        """Count rows that were done, and pieces that were finished with them."""
        with self._lock:
            self._rows += rows
            self._done += pieces
            now = time.monotonic()
            rate = f"{self._rows:,} rows, {self._rows / max(now - self._begun, 1e-3):,.0f} rows/s"
            self._bar.set_postfix_str(rate, refresh=False)
            self._bar.update(pieces)
            if self._bar.disable and now - self._said >= LINE_SECONDS:
                self._said = now
                sys.stderr.write(f"{self._what}: {self._done} of {self._total} {self._unit}s, {rate}\n")
