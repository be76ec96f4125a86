"""``POST /v1/place``: decode, decide, encode; msgspec on both ends because a body can hold 20,000 candidates."""

from __future__ import annotations

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from placement import service, state
from placement.api import bodies
from placement.api.routes import Group
from placement.errors import PlaceRefusedError
from wire.contracts.decision import DecisionLine
from wire.contracts.place import PlaceRequest, PlaceResponse

group = Group("placement")


class Decisions(msgspec.Struct, frozen=True):
    """Answer of ``GET /v1/decisions``."""

    decisions: list[DecisionLine]
    totals: dict[str, int]
    """Problem -> decisions since the service started."""
    fallbacks: dict[str, int]
    """Problem -> those that the heuristic made."""


_decoder = msgspec.json.Decoder(PlaceRequest)
_encoder = msgspec.json.Encoder()


@group.route(
    "POST",
    "/v1/place",
    summary="Rank candidates for one or many requests",
    takes=PlaceRequest,
    gives=PlaceResponse,
    refuses=(400, 413, 422),
)
async def place(request: Request) -> Response:
    """Answer with ranked candidates, the reason, the digest of the policy and whether the fallback answered.

    Requests of one call are independent: all are ranked against the same state. A batch that misses the deadline is
    answered by the fallback heuristic.
    """
    running = service.of(request)
    body = await bodies.read(request, running.settings.max_body_mib * 1024 * 1024)
    started = time.perf_counter()
    asked = decode(body)
    if asked.candidates is None:
        raise PlaceRefusedError(422, f"cluster {asked.cluster!r}: no watched clusters configured", "candidates")
    functions = {entry.function for entry in asked.requests if entry.function is not None}
    present = state.from_candidates(asked.problem, asked.candidates, functions)
    decision = await running.decider.decide(present, asked.requests, asked.top_k)
    answer = PlaceResponse(
        problem=asked.problem,
        digest=decision.digest,
        placements=decision.placements,
        defaulted_features=decision.defaulted,
        decision_us=round((time.perf_counter() - started) * 1e6, 1),
    )
    return Response(_encoder.encode(answer), media_type=bodies.JSON)


@group.route("GET", "/v1/decisions", summary="The last decisions", gives=Decisions)
async def decisions(request: Request) -> Response:
    """Return the last decisions, newest first, as the decision log holds them, and how many there were in all."""
    running = service.of(request)
    return bodies.answer(Decisions(list(running.log.recent)[::-1], **running.metrics.since_start()))


def decode(body: bytes) -> PlaceRequest:
    """Decode a body; 400 when it is not JSON, 422 when it is not a placement request."""
    try:
        asked = _decoder.decode(body)
    except msgspec.ValidationError as error:
        raise PlaceRefusedError(422, f"body: {error}", "a PlaceRequest (see /docs)") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PlaceRefusedError(400, f"body: {error}", "JSON in UTF-8") from error
    if (asked.candidates is None) == (asked.cluster is None):
        found = "neither candidates nor cluster" if asked.candidates is None else "both candidates and cluster"
        raise PlaceRefusedError(422, f"body has {found}", "exactly one of both")
    return asked
