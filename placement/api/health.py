"""Health, readiness and metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from placement import metrics, service
from placement.api import bodies
from sched_env import problems

router = APIRouter(tags=["operation"])


@router.get("/healthz", summary="The process answers")
async def healthz() -> Response:
    """Answer as long as the event loop turns."""
    return bodies.answer({"ok": True})


@router.get("/readyz", summary="Decisions can be made")
async def readyz(request: Request) -> Response:
    """Say what answers. A damaged policy does not make the service unready: the fallback answers, and is shown here."""
    live = {problem: service.of(request).live.get(problem) for problem in problems.names()}
    return bodies.answer(
        {
            "ready": True,
            "answering": {problem: state.digest or "fallback" for problem, state in live.items()},
            "degraded": {problem: state.degraded for problem, state in live.items() if state.degraded},
        }
    )


@router.get("/metrics", summary="Prometheus metrics", response_class=PlainTextResponse)
async def prometheus(request: Request) -> Response:
    """Write the exposition text."""
    return Response(service.of(request).metrics.render(), media_type=metrics.CONTENT_TYPE)
