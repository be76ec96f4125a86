"""Every request has an id: the caller's own (``X-Request-Id``), or a new one; answers, log and audit log have it."""

from __future__ import annotations

import logging
import os
import re
from contextvars import ContextVar
from datetime import UTC, datetime

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = b"x-request-id"
current: ContextVar[str] = ContextVar("request_id", default="")
"""Of the request that is being answered; empty outside of one."""

_FIT = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
"""What may stand in a log line as it came."""


def name_of(scope: Scope) -> bytes:
    """Return the id of a request: the caller's, if it may stand in a log line as it came, or a new one."""
    given = next((value for name, value in scope["headers"] if name == HEADER), b"")
    return given if _FIT.fullmatch(given) else os.urandom(8).hex().encode()


class RequestIds:
    """Names requests that no shortcut answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer under a name."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = name_of(scope)
        token = current.set(name.decode())

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (HEADER, name)]
            await send(message)

        try:
            await self._app(scope, receive, named)
        finally:
            current.reset(token)


class JsonLines(logging.Formatter):
    """One JSON object a line, with the id of the request that it belongs to."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a line."""
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if current.get():
            line["request"] = current.get()
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()
