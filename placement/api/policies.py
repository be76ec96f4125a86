"""What is live, and the two ways to change it: push and rollback."""

from __future__ import annotations

import hashlib
import logging
import shutil
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from placement import intake, service
from placement.api import bodies, openapi
from placement.errors import PlaceRefusedError, PushRefusedError
from placement.live import Live, Precondition
from placement.settings import Settings
from sched_env import problems
from wire.contracts.feature_spec import ProblemName

log = logging.getLogger(__name__)

router = APIRouter(tags=["policies"])


class LivePolicy(msgspec.Struct, frozen=True):
    """What answers for one problem."""

    digest: str | None
    """Of the policy that answers; null when the heuristic does although the store names a policy."""
    counter: int
    """Of the last flip; 0 when the store cannot say."""
    previous_digest: str | None
    loaded_at: str | None
    fallback: str
    """Heuristic that answers when the policy cannot."""
    degraded: str | None = None
    """Why what answers is not what the store says is live."""


class Policies(msgspec.Struct, frozen=True):
    """Answer of ``GET /v1/policies``; null where nothing was ever pushed."""

    policies: dict[ProblemName, LivePolicy | None]


class Flipped(msgspec.Struct, frozen=True):
    """Answer of a push or a rollback."""

    problem: ProblemName
    digest: str
    counter: int
    loaded_at: str


@router.get("/v1/policies", summary="What is live", openapi_extra=openapi.answers("Policies"))
async def policies(request: Request) -> Response:
    """Say for each problem which policy answers, since when, and what was live before."""
    running = service.of(request)
    shown = {problem: _describe(running.live.get(problem), running.settings, problem) for problem in problems.names()}
    return bodies.answer(Policies(shown))


@router.get(
    "/v1/policies/{problem}", summary="Manifest of the live policy", openapi_extra=openapi.answers("Manifest", (404,))
)
async def manifest(problem: str, request: Request) -> Response:
    """Return the manifest: feature spec, metrics, gate verdict, data range, commit."""
    policy = service.of(request).live.get(bodies.known_problem(problem)).policy
    if policy is None:
        raise PlaceRefusedError(404, f"no policy is live for {problem}")
    return bodies.answer(policy.manifest)


@router.put(
    "/v1/policies/{problem}",
    summary="Push a signed bundle",
    openapi_extra=openapi.push("Flipped", refusals=(401, 403, 404, 412, 413, 422)),
)
async def push(problem: str, request: Request) -> Response:
    """Take a bundle (tar), verify signature, digests, features, graph and golden vectors, then swap it in atomically.

    A refused bundle changes nothing and the answer says why.
    """
    running, wanted = service.of(request), bodies.known_problem(problem)
    intake.check_token(request.headers.get("authorization"), running.settings.push_token_file)
    believed = _precondition(request)
    if believed is None:
        raise PushRefusedError("precondition", 412, "no precondition", 'If-Match: "<live digest>" or If-None-Match: *')
    counter = _counter(request)
    running.live.check(wanted, believed, counter)  # before the body: a stale client need not send it
    folder = running.store.staging()
    try:
        archive, digest = folder / "body.tar", hashlib.sha256()
        with archive.open("wb") as file:
            async for chunk in bodies.chunks(request, running.settings.max_bundle_mib * 1024 * 1024):
                digest.update(chunk)
                file.write(chunk)
        log.info("push: problem=%s counter=%d body sha256=%s", wanted, counter, digest.hexdigest())
        live = await running.flip(running.live.push, wanted, archive, believed, counter)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return _flipped(running, wanted, live, "push")


@router.post(
    "/v1/policies/{problem}/rollback",
    summary="Flip back to the previous policy",
    openapi_extra=openapi.push("Flipped", refusals=(401, 403, 404, 412), archive=False),
)
async def rollback(problem: str, request: Request) -> Response:
    """Make the previous policy live again; a flip like any other, so the counter must rise."""
    running, wanted = service.of(request), bodies.known_problem(problem)
    intake.check_token(request.headers.get("authorization"), running.settings.push_token_file)
    live = await running.flip(running.live.rollback, wanted, _precondition(request), _counter(request))
    return _flipped(running, wanted, live, "rollback")


def _precondition(request: Request) -> Precondition | None:
    if_match = request.headers.get("if-match")
    if if_match is not None:
        return Precondition(if_match.strip().removeprefix("W/").strip('"'))
    return Precondition(None) if request.headers.get("if-none-match", "").strip() == "*" else None


def _counter(request: Request) -> int:
    text = request.headers.get("x-loadmaster-counter", "")
    if not text.isdecimal() or len(text) > 15:
        raise PushRefusedError("counter", 412, f"X-Loadmaster-Counter is {text!r}", "a whole number that rises")
    return int(text)


def _describe(live: Live, settings: Settings, problem: ProblemName) -> LivePolicy | None:
    pointer, fallback = live.pointer, settings.fallback(problem)
    if pointer is None:
        return LivePolicy(None, 0, None, None, fallback, live.degraded) if live.degraded else None
    return LivePolicy(live.digest, pointer.counter, pointer.previous_digest, pointer.loaded_at, fallback, live.degraded)


def _flipped(running: service.Service, problem: ProblemName, live: Live, kind: str) -> Response:
    running.metrics.show_live(problem, live)
    running.metrics.flips.labels(problem, kind).inc()
    shown: Any = live.pointer
    return bodies.answer(Flipped(problem, shown.digest, shown.counter, shown.loaded_at))
