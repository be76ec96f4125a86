"""The FastAPI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI, Request, Response

from placement import service
from placement.api import bodies, health, openapi, page, place, policies
from placement.errors import PlaceRefusedError, PushRefusedError
from placement.settings import Settings, load
from sched_env import problems
from wire.contracts.bundle import Manifest
from wire.contracts.place import PlaceRequest, PlaceResponse
from wire.errors import LoadmasterError


def create_app(settings: Settings | None = None) -> FastAPI:
    """Build the application; the store is taken and policies are loaded when it starts."""
    chosen = settings or load()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.service = running = await asyncio.to_thread(service.start, chosen)
        try:
            yield
        finally:
            await asyncio.to_thread(running.close)

    app = FastAPI(
        title="Loadmaster placement",
        version=version("loadmaster"),
        description="Where VMs, pods, function instances and GPU jobs go, decided by the policy that is live.",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's own pages load scripts from elsewhere; ours at /docs does not
        redoc_url=None,
    )
    for module in (place, policies, health, page):
        app.include_router(module.router)
    openapi.install(app, (PlaceRequest, PlaceResponse, policies.Policies, policies.Flipped, Manifest))
    app.add_exception_handler(LoadmasterError, refuse)
    app.add_exception_handler(Exception, fail)
    return app


async def fail(request: Request, error: Exception) -> Response:  # noqa: ARG001 - the signature is Starlette's
    """Answer for what nobody foresaw in the same shape; the server logs the traceback, the caller gets none of it."""
    return bodies.answer(openapi.Refusal(f"internal error ({type(error).__name__}); the service's log has it"), 500)


async def refuse(request: Request, error: Exception) -> Response:
    """Turn our errors into answers, all of one shape."""
    running = service.of(request)
    if isinstance(error, PushRefusedError):
        running.metrics.refuse(error.code)
        name = request.path_params.get("problem")
        live = running.live.get(name) if error.status == 412 and name in problems.names() else None
        said = openapi.Refusal(
            str(error),
            live.digest if live else None,
            live.pointer.counter if live and live.pointer else None,
        )
        return bodies.answer(said, error.status)
    if isinstance(error, PlaceRefusedError):
        if error.status == 413 and request.method == "PUT":
            running.metrics.refuse("size")
        return bodies.answer(openapi.Refusal(str(error)), error.status)
    return bodies.answer(openapi.Refusal(str(error)), 500)
