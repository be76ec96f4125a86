"""The audit log: who changed what is live, or tried to, from where and with which token; one JSON line each.

A caller without a valid token is counted and named in the server's log, at most once a second, and not written here:
nobody can push the lines that matter out of the log by knocking often.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import Literal

import msgspec

from placement.appending import AppendedFile
from placement.request_ids import current
from placement.settings import Settings
from wire.contracts.feature_spec import ProblemName

log = logging.getLogger(__name__)

FILE_NAME = "audit.jsonl"

Action = Literal["push", "rollback", "switch_off", "shadow", "canary", "advance", "end_shadow", "end_canary", "return"]
"""``return`` is the service's own."""


class AuditLine(msgspec.Struct, frozen=True):
    """One attempt to change what is live."""

    action: Action
    problem: ProblemName
    peer: str
    """Address of the socket's other end; what a header claims is not asked."""
    token: str
    """Name of the token's holder."""
    outcome: Literal["done", "refused"]
    digest: str | None
    """What is live after it."""
    counter: int | None
    record: int | None = None
    """Sequence of the promotion record that the push carried."""
    approver: str | None = None
    reason: str = ""
    """Of a refusal."""
    request: str = msgspec.field(default_factory=current.get)
    """Id of the call; empty for what the service did by itself."""
    at: str = msgspec.field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))


class AuditLog:
    """Writes the lines."""

    def __init__(self, settings: Settings) -> None:
        self._file = AppendedFile(settings.log_dir / FILE_NAME, settings.log_file_mib, settings.log_files)
        self._strangers, self._told = 0, 0.0

    def write(self, line: AuditLine) -> None:
        """Write a line; where it cannot be written, the server's log still has it."""
        text = msgspec.json.encode(line)
        log.info("audit: %s", text.decode())
        try:
            self._file.append(text + b"\n")
        except OSError as error:
            log.warning("the audit log cannot be written: %s", error)

    def stranger(self, action: Action, problem: ProblemName, peer: str, reason: str) -> None:
        """Note a caller without a valid token."""
        self._strangers += 1
        if time.monotonic() - self._told >= 1.0:
            log.warning("%s of %s refused to %s: %s (%d so far)", action, problem, peer, reason, self._strangers)
            self._told = time.monotonic()

    def close(self) -> None:
        """Let the file go."""
        self._file.close()
