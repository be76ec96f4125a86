"""The page for people at ``/``, the API reference at ``/docs``, and their files."""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from placement.errors import PlaceRefusedError
from wire.errors import legal

_HEADERS = {
    # Everything comes from this service, nothing inline: text that reaches the page can never become code.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


async def home(_: Request) -> Response:
    """Show what is live, the last decisions, and a form to try a placement."""
    return _file("page.html", "text/html")


async def docs(_: Request) -> Response:
    """Show the API reference, made from /openapi.json in the browser."""
    return _file("docs.html", "text/html")


async def web(request: Request) -> Response:
    """Serve the scripts and the style sheet of both pages."""
    kinds = {
        "page.js": "text/javascript",
        "charts.js": "text/javascript",
        "docs.js": "text/javascript",
        "style.css": "text/css",
    }
    name = request.path_params["name"]
    if name not in kinds:
        raise PlaceRefusedError(404, f"no file {name!r}", legal(kinds))
    return _file(name, kinds[name])


def _file(name: str, kind: str) -> Response:
    return Response(files("placement").joinpath("web", name).read_bytes(), media_type=kind, headers=_HEADERS)


routes = [Route("/", home), Route("/docs", docs), Route("/web/{name}", web)]
