"""Schemathesis makes requests from /openapi.json, legal and illegal: every answer must be one that it describes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as examples

from placement.app import DESCRIBED

NAMES = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "ignored_auth",
)


@schemathesis.serializer("application/x-tar")
def as_bytes(_: Any, value: Any) -> bytes:
    """Send what was made up in the place of an archive as it is."""
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory, workshop: Any, kit: Any) -> Iterator[Any]:
    """What a real service says of itself."""
    with kit.listening(kit.settings_in(tmp_path_factory.mktemp("described"), workshop)) as url:
        yield schemathesis.openapi.from_url(f"{url}/openapi.json")


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("route", DESCRIBED, ids=lambda route: f"{route.method} {route.path}")
def test_every_answer_is_one_that_the_document_describes(described: Any, kit: Any, route: Any, mode: Any) -> None:
    operation = described[route.path][route.method]
    anything = route.takes == "application/yaml"  # a text: what is wrong in it, the document cannot say
    if mode == schemathesis.GenerationMode.NEGATIVE and (anything or not (route.takes or route.headers)):
        pytest.skip("takes nothing that could be wrong")
    headers = {"Authorization": f"Bearer {kit.TOKEN}"} if route.secured else {}
    checks = [schemathesis.checks.CHECKS.get_one(name) for name in NAMES]

    @examples(
        max_examples=20,
        deadline=None,
        derandomize=True,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def holds(case: Any) -> None:
        case.call_and_validate(checks=checks, headers=headers)

    holds()
