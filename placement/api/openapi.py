"""OpenAPI of routes that bypass pydantic: schemas come from the msgspec contracts, the one definition there is."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

_REF = "#/components/schemas/"


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF + name}}}


def answers(name: str, refusals: tuple[int, ...] = ()) -> dict[str, Any]:
    """Describe a 200 answer and the refusals, all of which look alike."""
    responses = {"200": {"description": "Done", "content": _json(name)}}
    for status in refusals:
        responses[str(status)] = {"description": "Refused; the error says why", "content": _json("Refusal")}
    return {"responses": responses}


def body(asks: str, gives: str, refusals: tuple[int, ...]) -> dict[str, Any]:
    """Describe a JSON body and its answer."""
    return {"requestBody": {"required": True, "content": _json(asks)}, **answers(gives, refusals)}


def push(gives: str, refusals: tuple[int, ...], *, archive: bool = True) -> dict[str, Any]:
    """Describe a change of what is live: token, precondition and counter, with or without an archive."""

    def header(name: str, text: str, required: bool) -> dict[str, Any]:
        return {"name": name, "in": "header", "required": required, "description": text, "schema": {"type": "string"}}

    described = answers(gives, refusals)
    described["security"] = [{"pushToken": []}]
    described["parameters"] = [
        header("If-Match", 'Digest that is live now, in quotes: "sha256:..."', required=False),
        header("X-Loadmaster-Counter", "Promotion counter; must be above the last one seen", required=True),
    ]
    if archive:
        described["parameters"].append(header("If-None-Match", "* for the first push of a problem", required=False))
        tar = {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}}
        described["requestBody"] = {"required": True, "content": tar}
    return described


class Refusal(msgspec.Struct, frozen=True):
    """Body of every refusal."""

    error: str
    """What was found, what was expected, what to do."""
    live_digest: str | None = None
    """On 412: what is live."""
    live_counter: int | None = None


def _anything(kind: type) -> dict[str, Any]:
    if kind is object:
        return {"description": "any JSON value"}
    raise NotImplementedError  # msgspec then says which type has no schema


def _forget_pydantic(document: dict[str, Any]) -> None:
    """Take out the refusal that FastAPI assumes for every path parameter; ours are all of one shape."""
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)
    for operations in document["paths"].values():
        for operation in operations.values():
            content = operation["responses"].get("422", {}).get("content", {})
            if content.get("application/json", {}).get("schema", {}).get("$ref") == _REF + "HTTPValidationError":
                del operation["responses"]["422"]


def install(app: FastAPI, kinds: tuple[type, ...]) -> None:
    """Make the app's schema hold the contracts beside what FastAPI finds by itself."""

    def schema() -> dict[str, Any]:
        if app.openapi_schema is None:
            _, components = msgspec.json.schema_components(
                (*kinds, Refusal), ref_template=_REF + "{name}", schema_hook=_anything
            )
            document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            schemas.update(components)
            _forget_pydantic(document)
            document["components"]["securitySchemes"] = {"pushToken": {"type": "http", "scheme": "bearer"}}
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = schema  # type: ignore[method-assign]
