"""Reading bodies without trusting their length, and answering in one shape."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from placement.errors import PlaceRefusedError
from sched_env import problems
from wire.contracts.feature_spec import ProblemName
from wire.errors import legal

JSON = "application/json"


async def chunks(request: Request, limit: int) -> AsyncIterator[bytes]:
    """Yield a body as it arrives; stops with 413 as soon as it is, or says it will be, larger than ``limit``."""
    announced = request.headers.get("content-length", "0")
    size = int(announced) if announced.isdigit() else 0
    if size <= limit:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                break
            yield chunk
    if size > limit:
        raise PlaceRefusedError(413, f"the body has {size} bytes or more", f"at most {limit}")


async def read(request: Request, limit: int) -> bytes:
    """Read a whole body, up to ``limit`` bytes."""
    return b"".join([chunk async for chunk in chunks(request, limit)])


def answer(content: Any, status: int = 200) -> Response:
    """Answer with JSON."""
    return Response(msgspec.json.encode(content), status, media_type=JSON)


def known_problem(request: Request) -> ProblemName:
    """Return the problem of a path, or 404."""
    name: ProblemName = request.path_params["problem"]
    if name in problems.names():
        return name
    raise PlaceRefusedError(404, f"problem {name!r} is unknown", legal(problems.names()))
