"""Reading bodies without trusting their length, and answering in one shape."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from placement.errors import PlaceRefusedError
from sched_env import problems
from wire.contracts.feature_spec import ProblemName
from wire.contracts.policies import Refusal
from wire.errors import legal

JSON = "application/json"

LINE = 600
"""Characters of a refusal."""


def announced(request: Request) -> int:
    """Return what the client says the body's size is; 0 when it does not say."""
    said = request.headers.get("content-length", "0")
    return int(said) if said.isascii() and said.isdigit() and len(said) < 16 else 0


async def chunks(request: Request, limit: int) -> AsyncIterator[bytes]:
    """Yield a body as it arrives; stops with 413 as soon as it is, or says it will be, larger than ``limit``."""
    size = announced(request)
    if size <= limit:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                break
            yield chunk
    if size > limit:
        raise PlaceRefusedError(413, f"the body has {size} bytes or more", f"at most {limit}")


async def read(request: Request, limit: int, small: int, on_large: Callable[[], None]) -> bytes:
    """Read a whole body, up to ``limit`` bytes; ``on_large`` is asked as soon as it is, or says it will be, not small.

    A client that goes away in the middle, or is too slow, gets 400: there is nobody to read it.
    """
    said = announced(request)
    if said > small:
        on_large()
    if said > limit:
        raise PlaceRefusedError(413, f"the body has {said} bytes or more", f"at most {limit}")
    content: bytes | bytearray = b""
    more = True
    # Message by message, not as a stream: a small body is one message, and a generator costs as much as its decoding.
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise PlaceRefusedError(400, "the body broke off", "all of it")
        more = message.get("more_body", False)
        chunk = message.get("body", b"")
        if not content:
            content = bytearray(chunk) if more else chunk
        else:
            content += chunk
        if len(content) > small:
            on_large()
        if len(content) > limit:
            raise PlaceRefusedError(413, f"the body has {len(content)} bytes or more", f"at most {limit}")
    return bytes(content)


class Json(Response):
    """An answer in JSON; its two headers need no working out, which would take longer than its encoding."""

    media_type = JSON

    def __init__(self, content: bytes, status: int = 200) -> None:
        self.status_code, self.body, self.background = status, content, None
        self.raw_headers = [(b"content-length", b"%d" % len(content)), (b"content-type", JSON.encode())]


def answer(content: Any, status: int = 200) -> Response:
    """Answer with JSON."""
    return Json(msgspec.json.encode(content), status)


def refusal(error: object, status: int, live_digest: str | None = None, live_counter: int | None = None) -> Response:
    """Refuse in the one shape of all refusals; whatever a client sent, at most a line of it comes back."""
    said = " ".join(str(error).split())
    cut = said if len(said) <= LINE else said[: LINE - 1] + "…"
    response = answer(Refusal(cut, live_digest, live_counter), status)
    if status == 503:
        response.headers["Retry-After"] = "1"
    return response


def known_problem(request: Request) -> ProblemName:
    """Return the problem of a path, or 404."""
    name: ProblemName = request.path_params["problem"]
    if name in problems.names():
        return name
    raise PlaceRefusedError(404, f"problem {name!r} is unknown", legal(problems.names()))
