"""Limits of a connection that uvicorn has none for: headers, half-sent requests, slow readers, how many there are.

A server that waits for whatever a client has begun can be stopped by anybody who begins and does not go on. Each phase
has its time; when all connections are taken, the one that has waited longest, of the peer that has most, makes room.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from functools import partial
from http import HTTPStatus
from typing import Any, Literal

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from placement.api import bodies
from placement.api.routes import AT_ONCE
from placement.settings import Settings

Phase = Literal["head", "body", "none"]
"""What of a request is still to come; a new connection is expected to send headers at once."""

PIPELINED = 16
"""Requests that a client may send ahead of their answers on one connection."""


class TooMuchError(Exception):
    """Raised inside the parser's callbacks; uvicorn then answers by ``send_400_response``."""


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits; :func:`guarded` makes the class for some settings."""

    settings: Settings
    draining = False
    """Set on the class when the server is about to stop: every answer then ends its connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._refusal = HTTPStatus.BAD_REQUEST, "not an HTTP request; expected HTTP/1.1"
        self._timer: asyncio.TimerHandle | None = None
        self._until, self._allowed_s = math.inf, 0.0
        """When what is waited for must be here, and how long it had."""
        self._head_bytes = 0
        self._phase: Phase = "head"
        self.since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room if there is none, and wait for headers."""
        super().connection_made(transport)
        self.since = self.loop.time()
        self._wait(self.settings.header_timeout_s)
        if len(self.connections) > self.settings.max_connections:
            _make_room(self.connections)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._stop_waiting()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what comes before the end of the headers, from the first read after their beginning."""
        if self._phase == "none" and self._idle:
            self._begin()  # blank lines are no beginning of a message, and no reason to wait for ever
        self._head_bytes += len(data)
        super().data_received(data)
        if self._phase == "head" and self._head_bytes > self.settings.header_kib * 1024:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, self._too_large)

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._begin()

    def on_headers_complete(self) -> None:
        """Refuse headers that are too large, and requests sent too far ahead; then wait for the body."""
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self.settings.header_kib * 1024:
            self._refusal = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, self._too_large
            raise TooMuchError
        if len(self.pipeline) >= PIPELINED:
            self._refusal = HTTPStatus.TOO_MANY_REQUESTS, f"more than {PIPELINED} requests ahead of their answers"
            raise TooMuchError
        self._phase = "body"
        super().on_headers_complete()
        if self.draining and self.cycle is not None:
            self.cycle.keep_alive = False
        self.scope[AT_ONCE] = partial(_answer, self.cycle)  # type: ignore[literal-required]
        self._wait(self.settings.body_timeout_s)

    def on_message_complete(self) -> None:
        """The request is here in full."""
        super().on_message_complete()
        self._phase = "none"
        self._stop_waiting()

    def on_response_complete(self) -> None:
        """From here on uvicorn's keep-alive time counts, unless the client is still sending."""
        super().on_response_complete()
        self.since = self.loop.time()

    def pause_writing(self) -> None:
        """A client that does not take its answer is waited for only so long."""
        super().pause_writing()
        self._wait(self.settings.body_timeout_s)

    def resume_writing(self) -> None:
        """It has taken it."""
        super().resume_writing()
        if self._phase == "none":
            self._stop_waiting()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  (uvicorn's own word for it)
        """Refuse in the shape of every refusal."""
        self._refuse(*self._refusal)

    @property
    def answering(self) -> bool:
        """Whether a request is here in full and its answer is not out."""
        return self._phase == "none" and not self._idle

    @property
    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    @property
    def _too_large(self) -> str:
        return f"more than {self.settings.header_kib} KiB of request line and headers; expected less"

    def _begin(self) -> None:
        self._phase, self._head_bytes, self.since = "head", 0, self.loop.time()
        self._wait(self.settings.header_timeout_s)

    def _wait(self, seconds: float) -> None:
        self._until, self._allowed_s = self.loop.time() + seconds, seconds
        # A timer that goes off too early looks again; one for each phase of each request would cost more than parsing.
        if self._timer is not None and self._timer.when() > self._until:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self.loop.call_at(self._until, self._look)

    def _stop_waiting(self) -> None:
        self._until = math.inf

    def _look(self) -> None:
        self._timer = None
        if self._until == math.inf:
            return
        if self.loop.time() < self._until:
            self._timer = self.loop.call_at(self._until, self._look)
            return
        self._until = math.inf
        if self._idle if self._phase == "head" else self._phase == "body" and not self.cycle.response_started:
            found = f"half a request for {self._allowed_s:g} s; expected all of it"
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, found)
        else:
            self.transport.abort()

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        if self.transport.is_closing():
            return
        content = bodies.refusal(text, status).body
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {bodies.JSON}\r\n"
            f"content-length: {len(content)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + bytes(content))
        self.transport.close()


def _answer(cycle: RequestResponseCycle, status: int, headers: list[tuple[bytes, bytes]], content: bytes) -> bool:
    """Write a whole answer: what uvicorn does with two messages, whose headers are ours and need no looking at."""
    if cycle.flow.write_paused or cycle.disconnected or cycle.response_started or cycle.scope["method"] == "HEAD":
        return False
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    lines = [STATUS_LINE[status]]
    for name, value in (*cycle.default_headers, *headers):
        lines += (name, b": ", value, b"\r\n")
    lines += (b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n", content)
    cycle.transport.write(b"".join(lines))
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True


def _make_room(connections: set[GuardedProtocol]) -> None:
    """Close the connection that has waited longest, of the peer that has most; one whose answer is on the way last."""
    peers = Counter(connection.client[0] if connection.client else "" for connection in connections)
    busiest = peers.most_common(1)[0][0]
    theirs = [one for one in connections if (one.client[0] if one.client else "") == busiest]
    closed = min(theirs, key=lambda one: (one.answering, one.since))
    connections.discard(closed)
    closed.transport.abort()


def guarded(chosen: Settings) -> type[GuardedProtocol]:
    """Return the protocol class that keeps these settings."""
    return type("Guarded", (GuardedProtocol,), {"settings": chosen})
