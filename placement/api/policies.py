"""What is live, and the two ways to change it: push and rollback."""

from __future__ import annotations

import hashlib
import logging
import shutil

from starlette.requests import Request
from starlette.responses import Response

from placement import intake, service
from placement.api import bodies
from placement.api.routes import Group
from placement.errors import PlaceRefusedError, PushRefusedError
from placement.live import Live, Precondition
from placement.settings import Settings
from sched_env import problems
from wire.contracts.bundle import Manifest
from wire.contracts.feature_spec import ProblemName
from wire.contracts.policies import COUNTER_HEADER, Flipped, LivePolicy, Policies

log = logging.getLogger(__name__)

group = Group("policies")


_CHANGES = {
    "If-Match": ('Digest that is live now, in quotes: "sha256:..."', False),
    COUNTER_HEADER: ("Promotion counter; must be above the last one seen", True),
}
_FIRST = {"If-None-Match": ("* for the first push of a problem", False)}


@group.route("GET", "/v1/policies", summary="What is live", gives=Policies)
async def policies(request: Request) -> Response:
    """Say for each problem which policy answers, since when, and what was live before."""
    running = service.of(request)
    shown = {problem: _describe(running.live.get(problem), running.settings, problem) for problem in problems.names()}
    return bodies.answer(Policies(shown))


@group.route("GET", "/v1/policies/{problem}", summary="Manifest of the live policy", gives=Manifest, refuses=(404,))
async def manifest(request: Request) -> Response:
    """Return the manifest: feature spec, metrics, gate verdict, data range, commit."""
    problem = bodies.known_problem(request)
    policy = service.of(request).live.get(problem).policy
    if policy is None:
        raise PlaceRefusedError(404, f"no policy is live for {problem}")
    return bodies.answer(policy.manifest)


@group.route(
    "PUT",
    "/v1/policies/{problem}",
    summary="Push a signed bundle",
    takes="application/x-tar",
    gives=Flipped,
    refuses=(401, 403, 404, 412, 413, 422),
    headers=_CHANGES | _FIRST,
    secured=True,
)
async def push(request: Request) -> Response:
    """Take a bundle (tar), verify signature, digests, features, graph and golden vectors, then swap it in atomically.

    A refused bundle changes nothing and the answer says why.
    """
    running, wanted = service.of(request), bodies.known_problem(request)
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


@group.route(
    "POST",
    "/v1/policies/{problem}/rollback",
    summary="Flip back to the previous policy",
    gives=Flipped,
    refuses=(401, 403, 404, 412),
    headers=_CHANGES,
    secured=True,
)
async def rollback(request: Request) -> Response:
    """Make the previous policy live again; a flip like any other, so the counter must rise."""
    running, wanted = service.of(request), bodies.known_problem(request)
    intake.check_token(request.headers.get("authorization"), running.settings.push_token_file)
    live = await running.flip(running.live.rollback, wanted, _precondition(request), _counter(request))
    return _flipped(running, wanted, live, "rollback")


def _precondition(request: Request) -> Precondition | None:
    if_match = request.headers.get("if-match")
    if if_match is not None:
        return Precondition(if_match.strip().removeprefix("W/").strip('"'))
    return Precondition(None) if request.headers.get("if-none-match", "").strip() == "*" else None


def _counter(request: Request) -> int:
    text = request.headers.get(COUNTER_HEADER, "")
    if not text.isdecimal() or len(text) > 15:
        raise PushRefusedError("counter", 412, f"{COUNTER_HEADER} is {text!r}", "a whole number that rises")
    return int(text)


def _describe(live: Live, settings: Settings, problem: ProblemName) -> LivePolicy | None:
    pointer, fallback = live.pointer, settings.fallback(problem)
    if pointer is None:
        return LivePolicy(None, 0, None, None, fallback, live.degraded) if live.degraded else None
    return LivePolicy(live.digest, pointer.counter, pointer.previous_digest, pointer.loaded_at, fallback, live.degraded)


def _flipped(running: service.Service, problem: ProblemName, live: Live, kind: str) -> Response:
    running.metrics.show_live(problem, live)
    running.metrics.flips.labels(problem, kind).inc()
    assert live.pointer is not None  # noqa: S101  (a flip has just written it)
    return bodies.answer(Flipped(problem, live.pointer.digest, live.pointer.counter, live.pointer.loaded_at))
