"""``POST /v1/place``: decode, decide, encode; msgspec on both ends because a body can hold 20,000 candidates."""

from __future__ import annotations

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from placement import lane, service
from placement.api import bodies
from placement.api.routes import Group
from placement.asked import check_work
from placement.settings import MIB
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


_encoder = msgspec.json.Encoder()


@group.route(
    "POST",
    "/v1/place",
    summary="Rank candidates for one or many requests",
    takes=PlaceRequest,
    gives=PlaceResponse,
    refuses=(400, 408, 413, 422, 503),
    quick=True,
)
async def place(request: Request) -> Response:
    """Answer with ranked candidates, the reason, the digest of the policy and whether the fallback answered.

    Requests of one call are independent: all are ranked against the same state. A batch that misses the deadline is
    answered by the fallback heuristic.
    """
    running = service.of(request)
    with running.lane.call() as call:
        body = await bodies.read(request, running.settings.max_body_mib * MIB, lane.SMALL_BYTES, call.enlarge)
        started = time.perf_counter()
        read = await running.lane.read(body, call)
        asked, state = read.call, read.state
        if state is None:
            state = running.clusters.get(asked.cluster or "").state(asked.problem)
            check_work(asked, len(state.names), running.settings)
        async with running.lane.turn(call, len(asked.requests) * len(state.names)):
            decision = await running.decider.decide_beside(state, asked.requests, asked.top_k, explain=asked.explain)
    answer = PlaceResponse(
        problem=asked.problem,
        digest=decision.digest,
        placements=decision.placements,
        defaulted_features=decision.defaulted,
        decision_us=round((time.perf_counter() - started) * 1e7) / 10.0,
    )
    return bodies.Json(_encoder.encode(answer))


@group.route("GET", "/v1/decisions", summary="The last decisions", gives=Decisions)
async def decisions(request: Request) -> Response:
    """Return the last decisions, newest first, as the decision log holds them, and how many there were in all."""
    running = service.of(request)
    return bodies.answer(Decisions(running.log.recent(), **running.metrics.since_start()))
