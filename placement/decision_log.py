"""The decision log: one JSON line a decision, written beside the event loop; full files become Parquet.

The way back from a live decision starts here: line -> digest -> run -> commit -> data windows. Losing lines is counted;
it never delays or fails a decision.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque

import msgspec

from placement import decision_files
from placement.appending import AppendedFile
from placement.metrics import Metrics
from placement.settings import Settings
from wire.contracts.decision import DecisionLine

log = logging.getLogger(__name__)

FILE_NAME = "decisions.jsonl"
QUEUE_LINES = 20_000
"""Lines that may wait for a slow disk: seconds of load, a few MiB of memory."""
EVERY_S = 0.05
"""How often lines are written."""
CONVERT_AGAIN_S = 60.0
"""Pause after a file could not be turned into Parquet."""
RECENT = 50
"""Decisions kept in memory for the page."""


class DecisionLog:
    """Appends decisions; keeps the last ones at hand."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._metrics, self._settings = metrics, settings
        self._file = AppendedFile(settings.log_dir / FILE_NAME, settings.log_file_mib, settings.log_files)
        self._waiting: deque[DecisionLine] = deque()
        self._encoder = msgspec.json.Encoder()
        self.recent: deque[DecisionLine] = deque(maxlen=RECENT)
        self._closed = threading.Event()
        self._try_at = 0.0
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

    def _convert(self) -> None:
        """Turn what was rotated, now or before a restart, into Parquet; tried again where the disk does not let it."""
        folder = self._settings.log_dir
        try:
            full = sorted(folder.glob(f"{FILE_NAME}.*"), reverse=True) if time.monotonic() >= self._try_at else []
            for lines in full:
                lost = decision_files.convert_beside(lines, self._settings.log_files)
                if lost:
                    self._metrics.log_lost.inc(lost)
        except (OSError, ValueError) as error:  # without pyarrow the lines stay lines
            self._try_at = time.monotonic() + CONVERT_AGAIN_S
            log.warning("the decision log cannot be turned into Parquet for now: %s", error)

    def close(self) -> None:
        """Write what is waiting and stop."""
        if self._thread is not None:
            self._closed.set()
            self._thread.join(timeout=10)

    def _run(self) -> None:
        last, begun = False, time.monotonic()
        while not last:
            last = self._closed.wait(EVERY_S)
            if time.monotonic() - begun > self._settings.log_file_s:
                begun = time.monotonic()
                with contextlib.suppress(OSError):  # the next line says so, and counts
                    self._file.rotate()
            self._convert()
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), 1000))]
                try:
                    self._file.append(self._encoder.encode_lines(batch))
                except OSError:
                    self._metrics.log_lost.inc(len(batch))
        self._file.close()
