"""The decision log: one JSON line a decision, written beside the event loop, rotated by size.

The way back from a live decision starts here: line -> digest -> run -> commit -> data windows. Losing lines is counted;
it never delays or fails a decision.
"""

from __future__ import annotations

import threading
from collections import deque

import msgspec

from placement.appending import AppendedFile
from placement.metrics import Metrics
from placement.settings import Settings
from wire.contracts.decision import DecisionLine

FILE_NAME = "decisions.jsonl"
QUEUE_LINES = 20_000
"""Lines that may wait for a slow disk: seconds of load, a few MiB of memory."""
EVERY_S = 0.05
"""How often lines are written."""
RECENT = 50
"""Decisions kept in memory for the page."""


class DecisionLog:
    """Appends decisions; keeps the last ones at hand."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._metrics = metrics
        self._file = AppendedFile(settings.log_dir / FILE_NAME, settings.log_file_mib, settings.log_files)
        self._waiting: deque[DecisionLine] = deque()
        self._encoder = msgspec.json.Encoder()
        self.recent: deque[DecisionLine] = deque(maxlen=RECENT)
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        if settings.decision_log:
            self._thread = threading.Thread(target=self._run, name="decision-log", daemon=True)
            self._thread.start()

    def write(self, entry: DecisionLine) -> None:
        """Note a decision; nobody is woken for it, which would take longer than the decision."""
        self.recent.append(entry)
        if self._thread is None:
            return
        if len(self._waiting) < QUEUE_LINES:
            self._waiting.append(entry)
        else:
            self._metrics.log_lost.inc()

    def close(self) -> None:
        """Write what is waiting and stop."""
        if self._thread is not None:
            self._closed.set()
            self._thread.join(timeout=10)

    def _run(self) -> None:
        last = False
        while not last:
            last = self._closed.wait(EVERY_S)
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), 1000))]
                try:
                    self._file.append(self._encoder.encode_lines(batch))
                except OSError:
                    self._metrics.log_lost.inc(len(batch))
        self._file.close()
