"""The ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from placement import service
from placement.api import (
    bodies,
    clusters,
    extender,
    health,
    jobs,
    looking,
    models,
    openapi,
    page,
    place,
    policies,
    trying,
)
from placement.api.routes import Shortcut
from placement.errors import PlaceRefusedError, PushRefusedError
from placement.over_time import OverTime
from placement.request_ids import RequestIds
from placement.settings import Settings, load
from sched_env import problems
from wire.errors import LoadmasterError

if TYPE_CHECKING:
    from placement.cpn.service import Cpn

DESCRIBED = (
    *place.group.routes,
    *clusters.group.routes,
    *extender.group.routes,
    *policies.group.routes,
    *trying.group.routes,
    *models.group.routes,
    *jobs.group.routes,
    *looking.group.routes,
    *health.group.routes,
)
"""Every route of the API; the pages for people come beside them."""

PATH_CHARACTERS = 200
"""Of an unknown path, in its refusal."""


def create_app(settings: Settings | None = None) -> Starlette:
    """Build the application; the store is taken and policies are loaded when it starts."""
    chosen = settings or load()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.service = running = await asyncio.to_thread(service.start, chosen)
        app.state.over_time = seen = OverTime(running.metrics)
        loops = (running.recover_for_ever, running.follow_for_ever, seen.read_for_ever)
        tasks = [asyncio.create_task(loop()) for loop in loops]
        app.state.cpn = await asyncio.to_thread(_job_controller, chosen, running)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            if app.state.cpn is not None:
                await asyncio.to_thread(app.state.cpn.close)
            await asyncio.to_thread(running.close)

    app = Starlette(
        routes=[*DESCRIBED, Route("/openapi.json", described), *page.routes],
        exception_handlers={LoadmasterError: refuse, HTTPException: unknown, Exception: fail},
        lifespan=lifespan,
        middleware=[Middleware(Shortcut, routes=DESCRIBED, refuse=refuse), Middleware(RequestIds)],
    )
    app.router.redirect_slashes = False  # an empty 307 is a fourth shape; a path that does not exist is a 404
    return app


def _job_controller(settings: Settings, running: service.Service) -> Cpn | None:
    """Start the job controller where one is configured."""
    if settings.cpn_file is None:
        return None
    from placement.cpn.service import (
        start,
    )  # databases and compiled kernels, which a service without jobs need not load

    controller = start(settings.cpn_file, running.metrics.registry, running.decider, running.live)
    controller.start()
    return controller


async def described(_: Request) -> Response:
    """Answer with the OpenAPI document of the routes."""
    return bodies.answer(openapi.document(DESCRIBED))


async def fail(_: Request, error: Exception) -> Response:
    """Answer for what nobody foresaw in the same shape; the server logs the traceback, the caller gets none of it."""
    return bodies.refusal(f"internal error ({type(error).__name__}); the service's log has it", 500)


async def unknown(request: Request, error: Exception) -> Response:
    """Answer for a path or a method that does not exist, and a body that broke off, in the same shape."""
    status, headers = (error.status_code, error.headers) if isinstance(error, HTTPException) else (500, None)
    said = bodies.refusal(
        f"{request.method} {request.url.path[:PATH_CHARACTERS]}: {error}; expected a route of /docs", status
    )
    said.headers.update(headers or {})
    return said


async def refuse(request: Request, error: Exception) -> Response:
    """Turn our errors into answers, all of one shape."""
    running = service.of(request)
    if isinstance(error, PushRefusedError):
        running.metrics.refuse(error.code)
        name = request.path_params.get("problem")
        live = running.live.get(name) if error.status == 412 and name in problems.names() else None
        counter = live.pointer.counter if live and live.pointer else None
        return bodies.refusal(error, error.status, live.digest if live else None, counter)
    if isinstance(error, PlaceRefusedError):
        if error.status == 413 and request.method == "PUT":
            running.metrics.refuse("size")
        return bodies.refusal(error, error.status)
    return bodies.refusal(error, 500)
