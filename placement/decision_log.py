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
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from placement import decision_files
from placement.appending import AppendedFile
from placement.arms import Arm
from placement.errors import FallbackReason
from placement.metrics import Metrics
from placement.ranking import feature_hash
from placement.sampled import Sampled
from placement.settings import Settings
from sched_env.observation import Observation
from wire.contracts.decision import DecisionLine
from wire.contracts.feature_spec import ProblemName
from wire.contracts.place import Ranked

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
LOGGED_SCORES = 5
"""Top scores in a line."""
HASHED_LATER_ROWS, HASHED_LATER_LINES = 512, 1_000
"""Observations of at most so many candidates wait with their line until it is written, as long as few lines wait: at
most 30 MiB. A hash in the middle of a decision costs four times what it costs among other hashes."""


class Decided(NamedTuple):
    """What was decided, as it is at hand then; the line is made of it when it is written."""

    at_s: float
    problem: ProblemName
    arm: Arm
    request: str
    features: Observation | str
    """What was seen, or its hash."""
    candidates: int
    feasible: int
    ranked: Sequence[Ranked]
    fallback: FallbackReason | None
    reason: str
    latency_us: float

    def line(self) -> DecisionLine:
        """Return the line of the log."""
        ranked = self.ranked
        return DecisionLine(
            at=datetime.fromtimestamp(self.at_s, UTC).isoformat(timespec="milliseconds"),
            problem=self.problem,
            digest=self.arm.digest,
            counter=self.arm.counter,
            arm=self.arm.name,
            request=self.request,
            features=self.features if isinstance(self.features, str) else feature_hash(self.features),
            candidates=self.candidates,
            feasible=self.feasible,
            chosen=ranked[0].name if ranked else None,
            runner_up=ranked[1].name if len(ranked) > 1 else None,
            top=[(entry.name, entry.score) for entry in ranked[:LOGGED_SCORES]],
            propensity=1.0 if ranked else None,  # the choice is deterministic
            fallback=self.fallback,
            reason=self.reason,
            latency_us=round(self.latency_us, 1),
        )


class DecisionLog:
    """Appends decisions; keeps the last ones at hand."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._metrics, self._settings = metrics, settings
        self._file = AppendedFile(settings.log_dir / FILE_NAME, settings.log_file_mib, settings.log_files)
        self.sampled = Sampled(settings)
        self._waiting: deque[Decided] = deque()
        self._encoder = msgspec.json.Encoder()
        self._recent: deque[Decided] = deque(maxlen=RECENT)
        self._closed = threading.Event()
        self._try_at = 0.0
        self._thread: threading.Thread | None = None
        if settings.decision_log:
            self._thread = threading.Thread(target=self._run, name="decision-log", daemon=True)
            self._thread.start()

    def write(self, decided: Decided) -> None:
        """Note a decision; nobody is woken for it, which would take longer than the decision."""
        waiting = len(self._waiting)
        if not isinstance(decided.features, str) and (
            decided.candidates > HASHED_LATER_ROWS or waiting > HASHED_LATER_LINES
        ):
            decided = decided._replace(features=feature_hash(decided.features))
        self._recent.append(decided)
        if self._thread is None:
            return
        if waiting < QUEUE_LINES:
            self._waiting.append(decided)
        else:
            self._metrics.log_lost.inc()

    def recent(self) -> list[DecisionLine]:
        """Return the last decisions, the newest first."""
        return [decided.line() for decided in reversed(list(self._recent))]

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
            self._metrics.settle()
            self.sampled.write()
            while self._waiting:
                batch = [self._waiting.popleft().line() for _ in range(min(len(self._waiting), 1000))]
                try:
                    self._file.append(self._encoder.encode_lines(batch))
                except OSError:
                    self._metrics.log_lost.inc(len(batch))
        self._file.close()
        self.sampled.close()
