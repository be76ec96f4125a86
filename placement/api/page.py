"""The page for people at ``/``, the API reference at ``/docs``, and their files."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter, Response

from placement.api import bodies

router = APIRouter(include_in_schema=False)

_HEADERS = {
    # Everything comes from this service, nothing inline: text that reaches the page can never become code.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@router.get("/")
async def home() -> Response:
    """Show what is live, the last decisions, and a form to try a placement."""
    return _file("page.html", "text/html")


@router.get("/docs")
async def docs() -> Response:
    """Show the API reference, made from /openapi.json in the browser."""
    return _file("docs.html", "text/html")


@router.get("/web/{name}")
async def web(name: str) -> Response:
    """Serve the scripts and the style sheet of both pages."""
    kinds = {"page.js": "text/javascript", "docs.js": "text/javascript", "style.css": "text/css"}
    if name not in kinds:
        return bodies.answer({"error": "no such file"}, 404)
    return _file(name, kinds[name])


def _file(name: str, kind: str) -> Response:
    return Response(files("placement").joinpath("web", name).read_bytes(), media_type=kind, headers=_HEADERS)
