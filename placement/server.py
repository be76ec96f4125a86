"""How the application is served: one place for the command line, the tests and the benchmarks."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

import uvicorn

from placement.app import create_app
from placement.connections import guarded
from placement.settings import Settings

LOOK_S = 0.05
NEW_CALLERS_S = 1.0
"""How long callers who have not heard of it yet may come; afterwards nobody waits for an empty room."""


class Server(uvicorn.Server):
    """Serves until told to stop; told by SIGTERM, it first answers everybody who is still on their way.

    Args:
        config: As :func:`config` makes it.
        drain_s: How long; a second signal ends it at once.
    """

    def __init__(self, config: uvicorn.Config, drain_s: float) -> None:
        super().__init__(config)
        self._drain_s, self._draining = drain_s, False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop being ready, tell everybody to close, then stop."""
        if sig != signal.SIGTERM or self._draining or not self._drain_s:
            super().handle_exit(sig, frame)
            return
        self._draining = True
        drain(self.config)
        threading.Thread(target=self._end, args=(sig, frame), name="drain", daemon=True).start()

    def _end(self, sig: int, frame: FrameType | None) -> None:
        started = time.monotonic()
        while (spent := time.monotonic() - started) < self._drain_s:
            time.sleep(LOOK_S)
            if spent > NEW_CALLERS_S and not self.server_state.connections:
                break
        super().handle_exit(sig, frame)


def drain(served: uvicorn.Config) -> None:
    """Let ``/readyz`` say no, and every answer end its connection."""
    served_by: Any = served
    served_by.http.draining = True  # the guarded class, see config
    served_by.app.state.draining = True


def config(settings: Settings, *, port: int = 0, log_level: str = "warning") -> uvicorn.Config:
    """Return uvicorn's settings for a service."""
    return uvicorn.Config(
        create_app(settings),
        port=port,
        http=guarded(settings),
        ws="none",
        log_level=log_level,
        access_log=False,  # a decision has its own log; an access line for each would double the work
        timeout_graceful_shutdown=10,
        timeout_keep_alive=75,  # a scheduler asks in bursts; a connection closed under its hands is a failed call
        server_header=False,
        proxy_headers=False,  # who pushed from where is what the socket says, not what a header claims
    )
