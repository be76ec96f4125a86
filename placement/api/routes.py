"""Routes that carry their own description: what the service answers and what ``/openapi.json`` says are one place."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from placement import request_ids
from wire.errors import LoadmasterError

Endpoint = Callable[[Request], Awaitable[Response]]
AtOnce = Callable[[int, list[tuple[bytes, bytes]], bytes], bool]
AT_ONCE = "loadmaster.at_once"
"""Where in a scope our server leaves what writes a whole answer; false when it cannot, and nothing was written."""


class Described(Route):
    """A route, with the contracts of its body and of its answers.

    Args:
        method: The one method it answers to.
        path: Its path; ``{name}`` is a parameter.
        endpoint: What answers; its docstring is the description.
        tag: The part of the API it belongs to.
        summary: One line about it.
        takes: Contract of the JSON body, or a media type for bytes; None for no body.
        gives: Contract of the answer, or a media type for text.
        refuses: Status codes of its refusals, which all look alike.
        headers: Header -> (what it says, whether it is needed).
        secured: Whether the push token is asked for.
        quick: Whether it comes by the thousand, and is answered without asking every layer (:class:`Shortcut`).
    """

    def __init__(
        self,
        method: str,
        path: str,
        endpoint: Endpoint,
        *,
        tag: str,
        summary: str,
        gives: Any,
        takes: Any = None,
        refuses: tuple[int, ...] = (),
        headers: dict[str, tuple[str, bool]] | None = None,
        secured: bool = False,
        quick: bool = False,
    ) -> None:
        super().__init__(path, endpoint, methods=[method])
        self.method, self.tag, self.summary = method.lower(), tag, summary
        self.takes, self.gives, self.refuses = takes, gives, refuses
        self.headers, self.secured, self.quick = headers or {}, secured, quick

    @property
    def parameters(self) -> list[str]:
        """Names in the path."""
        return re.findall(r"{(\w+)}", self.path)


class Shortcut:
    """Answers the quick routes itself: matching a hundred paths and catching what never comes cost as much as deciding.

    It names requests itself, and where our own server is underneath, an answer is one write instead of two messages.

    Args:
        app: Answers everything else.
        routes: Of which the quick ones, whose paths have no parameters, are taken.
        refuse: Turns an error of ours into an answer.
    """

    def __init__(
        self, app: ASGIApp, routes: Iterable[Described], refuse: Callable[[Request, Exception], Awaitable[Response]]
    ) -> None:
        self._app, self._refuse = app, refuse
        self._quick = {(route.method.upper(), route.path): route.endpoint for route in routes if route.quick}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let the application answer."""
        endpoint = self._quick.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if endpoint is None:
            await self._app(scope, receive, send)
            return
        name = request_ids.name_of(scope)
        token = request_ids.current.set(name.decode())
        at_once: AtOnce | None = scope.pop(AT_ONCE, None)
        try:
            request = Request(scope, receive, send)
            try:
                response = await endpoint(request)
            except LoadmasterError as error:
                response = await self._refuse(request, error)
            response.raw_headers.append((request_ids.HEADER, name))
            if at_once is None or not at_once(response.status_code, response.raw_headers, bytes(response.body)):
                await response(scope, receive, send)
        finally:
            request_ids.current.reset(token)


class Group:
    """Collects the routes of one part of the API by decorator."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.routes: list[Described] = []

    def route(self, method: str, path: str, **described: Any) -> Callable[[Endpoint], Endpoint]:
        """Add a route; what can be described is in :class:`Described`."""

        def add(endpoint: Endpoint) -> Endpoint:
            self.routes.append(Described(method, path, endpoint, tag=self.tag, **described))
            return endpoint

        return add
