"""How the application is served: one place for the command line, the tests and the benchmarks."""

from __future__ import annotations

import uvicorn

from placement.app import create_app
from placement.connections import guarded
from placement.settings import Settings


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
