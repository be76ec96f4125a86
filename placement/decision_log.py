"""The decision log: one JSON line a decision, written beside the event loop, rotated by size.

The way back from a live decision starts here: line -> digest -> run -> commit -> data windows. Losing lines is counted;
it never delays or fails a decision.
"""

from __future__ import annotations

import queue
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
RECENT = 50
"""Decisions kept in memory for the page."""


class DecisionLog:
    """Appends decisions; keeps the last ones at hand."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._metrics = metrics
        self._file = AppendedFile(settings.log_dir / FILE_NAME, settings.log_file_mib, settings.log_files)
        self._queue: queue.Queue[DecisionLine | None] = queue.Queue(QUEUE_LINES)
        self._encoder = msgspec.json.Encoder()
        self.recent: deque[DecisionLine] = deque(maxlen=RECENT)
        self._thread: threading.Thread | None = None
        if settings.decision_log:
            self._thread = threading.Thread(target=self._run, name="decision-log", daemon=True)
            self._thread.start()

    def write(self, entry: DecisionLine) -> None:
        """Note a decision."""
        self.recent.append(entry)
        if self._thread is None:
            return
        try:
            self._queue.put_nowait(entry)
        except queue.Full:
            self._metrics.log_lost.inc()

    def close(self) -> None:
        """Write what is waiting and stop."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout=10)

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            batch = [entry]
            last = False
            while not last and len(batch) < 1000:
                try:
                    more = self._queue.get_nowait()
                except queue.Empty:
                    break
                last = more is None
                if more is not None:
                    batch.append(more)
            try:
                self._file.append(self._encoder.encode_lines(batch))
            except OSError:
                self._metrics.log_lost.inc(len(batch))
            if last:
                break
        self._file.close()
