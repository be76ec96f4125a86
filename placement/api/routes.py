"""Routes that carry their own description: what the service answers and what ``/openapi.json`` says are one place."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

Endpoint = Callable[[Request], Awaitable[Response]]


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
    ) -> None:
        super().__init__(path, endpoint, methods=[method])
        self.method, self.tag, self.summary = method.lower(), tag, summary
        self.takes, self.gives, self.refuses = takes, gives, refuses
        self.headers, self.secured = headers or {}, secured

    @property
    def parameters(self) -> list[str]:
        """Names in the path."""
        return re.findall(r"{(\w+)}", self.path)


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
