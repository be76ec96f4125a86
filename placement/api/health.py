"""Health, readiness and metrics."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from placement import metrics, service
from placement.api import bodies
from placement.api.routes import Group
from placement.errors import PlaceRefusedError
from sched_env import problems

group = Group("operation")


class Readiness(msgspec.Struct, frozen=True):
    """Answer of ``GET /readyz``."""

    ready: bool
    answering: dict[str, str]
    """Problem -> digest of the policy that answers, or ``fallback``."""
    degraded: dict[str, str]
    """Problem -> why what answers is not what the store says is live."""


@group.route("GET", "/healthz", summary="The process answers", gives=dict[str, bool])
async def healthz(_: Request) -> Response:
    """Answer as long as the event loop turns."""
    return bodies.answer({"ok": True})


@group.route("GET", "/readyz", summary="Decisions can be made", gives=Readiness, refuses=(503,))
async def readyz(request: Request) -> Response:
    """Say what answers. A damaged policy does not make the service unready: the fallback answers, and is shown here.

    503 while the service is about to stop: it still answers, and wants no new callers.
    """
    if getattr(request.app.state, "draining", False):
        raise PlaceRefusedError(503, "the service is about to stop", "another replica")
    live = {problem: service.of(request).live.get(problem) for problem in problems.names()}
    return bodies.answer(
        Readiness(
            ready=True,
            answering={problem: state.digest or "fallback" for problem, state in live.items()},
            degraded={problem: state.degraded for problem, state in live.items() if state.degraded},
        )
    )


@group.route("GET", "/metrics", summary="Prometheus metrics", gives="text/plain")
async def prometheus(request: Request) -> Response:
    """Write the exposition text."""
    return Response(service.of(request).metrics.render(), media_type=metrics.CONTENT_TYPE)
