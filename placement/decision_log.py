"""The decision log: one JSON line a decision, written beside the event loop, rotated by size.

The way back from a live decision starts here: line -> digest -> run -> commit -> data windows. Losing lines is counted;
it never delays or fails a decision.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from pathlib import Path
from typing import IO

import msgspec

from placement.metrics import Metrics
from placement.settings import Settings
from wire.contracts.decision import DecisionLine

FILE_NAME = "decisions.jsonl"
MIB = 1024 * 1024
QUEUE_LINES = 20_000
"""Lines that may wait for a slow disk: seconds of load, a few MiB of memory."""
RECENT = 50
"""Decisions kept in memory for the page."""


class DecisionLog:
    """Appends decisions; keeps the last ones at hand."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._metrics, self._settings = metrics, settings
        self._path = settings.log_dir / FILE_NAME
        self._queue: queue.Queue[DecisionLine | None] = queue.Queue(QUEUE_LINES)
        self._encoder = msgspec.json.Encoder()
        self._file: IO[bytes] | None = None
        self.recent: deque[DecisionLine] = deque(maxlen=RECENT)
        self._thread: threading.Thread | None = None
        if settings.decision_log:
            settings.log_dir.mkdir(parents=True, exist_ok=True)
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
                self._append(batch)
            except OSError:
                self._metrics.log_lost.inc(len(batch))
                self._file = None  # opened anew next time: the folder may be back, the disk less full
            if last:
                break
        if self._file is not None:
            self._file.close()

    def _append(self, batch: list[DecisionLine]) -> None:
        if self._file is None:
            self._file = self._path.open("ab")
        self._file.write(self._encoder.encode_lines(batch))
        self._file.flush()
        if self._file.tell() >= self._settings.log_file_mib * MIB:
            self._file.close()
            self._file = None
            self._rotate()

    def _rotate(self) -> None:
        """Move decisions.jsonl to .1, .1 to .2 and so on; the oldest falls off."""
        for number in range(self._settings.log_files - 1, 0, -1):
            older = self._numbered(number)
            if older.exists():
                older.replace(self._numbered(number + 1))
        self._path.replace(self._numbered(1))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{FILE_NAME}.{number}")
