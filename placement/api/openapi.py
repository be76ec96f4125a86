"""OpenAPI of the described routes: schemas come from the msgspec contracts, the one definition there is."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import msgspec

from placement.api.routes import Described
from wire.contracts.policies import Refusal

TITLE = "Loadmaster placement"
_TOKEN = "pushToken"  # noqa: S105  (the name of a scheme)


def document(routes: Sequence[Described]) -> dict[str, Any]:
    """Describe every route and every contract that its bodies and answers are made of."""
    kinds = [kind for route in routes for kind in (route.takes, route.gives) if kind and not isinstance(kind, str)]
    kinds.append(Refusal)
    found, components = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}", schema_hook=_anything
    )
    # By position: kinds such as dict[str, bool] have no name to look them up by.
    schemas = dict(zip(map(repr, kinds), found, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": TITLE,
            "version": version("loadmaster"),
            "description": "Where VMs, pods, function instances and GPU jobs go, decided by the policy that is live.",
        },
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {_TOKEN: {"type": "http", "scheme": "bearer"}}},
    }


def _operation(route: Described, schemas: dict[str, Any]) -> dict[str, Any]:
    def content(kind: Any) -> dict[str, Any]:
        if isinstance(kind, str):
            binary = {} if kind.startswith("text/") else {"format": "binary"}
            return {kind: {"schema": {"type": "string", **binary}}}
        return {"application/json": {"schema": schemas[repr(kind)]}}

    refused = {"description": "Refused; the error says why", "content": content(Refusal)}
    operation: dict[str, Any] = {
        "tags": [route.tag],
        "summary": route.summary,
        "description": inspect.getdoc(route.endpoint),
        "operationId": route.name,
        "responses": {
            "200": {"description": "Done", "content": content(route.gives)},
            **{str(status): refused for status in route.refuses},
        },
        "parameters": [
            *(_parameter(name, "path", required=True) for name in route.parameters),
            *(_parameter(name, "header", required, text) for name, (text, required) in route.headers.items()),
        ],
    }
    if route.takes:
        operation["requestBody"] = {"required": True, "content": content(route.takes)}
    if route.secured:
        operation["security"] = [{_TOKEN: []}]
    return operation


def _parameter(name: str, place: str, required: bool, text: str = "") -> dict[str, Any]:
    described = {"description": text} if text else {}
    return {"name": name, "in": place, "required": required, "schema": {"type": "string"}, **described}


def _anything(kind: type) -> dict[str, Any]:
    if kind is object:
        return {"description": "any JSON value"}
    raise NotImplementedError  # msgspec then says which type has no schema
