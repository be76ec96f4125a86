"""What is live, and the ways to change it: push, rollback, and switching off."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from placement import intake, service
from placement.api import bodies
from placement.api.routes import Group
from placement.audit import Action, AuditLine
from placement.errors import PlaceRefusedError, PushRefusedError
from placement.live import Live, LivePolicies, Precondition
from placement.service import Service
from placement.settings import MIB, Settings
from sched_env import problems
from wire.contracts.bundle import Manifest
from wire.contracts.feature_spec import ProblemName
from wire.contracts.policies import COUNTER_HEADER, Flipped, Left, LivePolicy, Policies, Tried
from wire.contracts.record import PromotionRecord
from wire.errors import LoadmasterError
from wire.secret_files import Role

Changed = tuple[Live, PromotionRecord | None]

group = Group("policies")

MATCH = {"If-Match": ('Digest that is live now, in quotes: "sha256:..."', False)}
_FIRST = {"If-None-Match": ("* for the first push of a problem", False)}
_COUNTER = {COUNTER_HEADER: ("Counter that the flip shall have; without it, the next", False)}


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
    summary="Push a signed bundle with its signed promotion record",
    takes="application/x-tar",
    gives=Flipped,
    refuses=(400, 401, 403, 404, 408, 412, 413, 422, 423, 500),
    headers=MATCH | _FIRST,
    secured=True,
)
async def push(request: Request) -> Response:
    """Take a bundle and the record that promotes it (tar), verify both, try the policy, then swap it in atomically.

    A refused bundle changes nothing and the answer says why. The counter is the record's.
    """
    return await staged(request, "push", lambda live, *sent: live.push(*sent))


@group.route(
    "POST",
    "/v1/policies/{problem}/rollback",
    summary="Flip back to the previous policy",
    gives=Flipped,
    refuses=(401, 403, 404, 412, 422, 500),
    headers=MATCH | _COUNTER,
    secured=True,
)
async def rollback(request: Request) -> Response:
    """Make the previous policy live again; a flip like any other, so the counter rises.

    While the store cannot be written it happens in memory, and ``degraded`` says so until it is written.
    """
    return await flipped(
        request,
        "rollback",
        "rollback",
        lambda live, wanted: live.rollback(wanted, precondition(request), _counter(request)),
    )


@group.route(
    "DELETE",
    "/v1/policies/{problem}",
    summary="Leave a problem to its heuristic",
    gives=Flipped,
    refuses=(401, 403, 404, 412, 500),
    headers=MATCH,
    secured=True,
)
async def switch_off(request: Request) -> Response:
    """Let no policy answer; a rollback brings the policy back, and the next promotion puts another in its place."""
    return await flipped(
        request, "switch_off", "rollback", lambda live, wanted: live.switch_off(wanted, precondition(request))
    )


async def staged(
    request: Request,
    action: Action,
    put: Callable[[LivePolicies, ProblemName, Path, Precondition], Changed],
    check: Callable[[Request], object] = lambda _: None,
) -> Response:
    """Receive a bundle with its proof from a client that knows what is live, and put it to its use."""

    async def change(running: Service, wanted: ProblemName) -> Changed:
        check(request)
        running.live.refuse_frozen()
        believed = demanded(request)
        running.live.check(wanted, believed)  # before the body: a stale client need not send it
        async with received(request, running) as archive:
            return await running.flip(put, running.live, wanted, archive, believed)

    return await audited(request, action, "push", change)


async def flipped(
    request: Request, action: Action, role: Role, flip: Callable[[LivePolicies, ProblemName], Live]
) -> Response:
    """Change what answers by nothing but a call."""

    async def change(running: Service, wanted: ProblemName) -> Changed:
        return await running.flip(flip, running.live, wanted), None

    return await audited(request, action, role, change)


async def audited(
    request: Request, action: Action, role: Role, change: Callable[[Service, ProblemName], Awaitable[Changed]]
) -> Response:
    """Make a change for the holder of a token with the role, and write down who it was, or who wanted it."""
    running, wanted = service.of(request), bodies.known_problem(request)
    peer = request.client.host if request.client else "unknown"
    try:
        name = intake.check_token(request.headers.get("authorization"), running.settings.push_token_file, role)
    except PushRefusedError as error:
        running.audit.stranger(action, wanted, peer, str(error))
        raise
    try:
        live, record = await change(running, wanted)
    except LoadmasterError as error:
        live = running.live.get(wanted)
        counter = live.pointer.counter if live.pointer else None
        line = AuditLine(action, wanted, peer, name, "refused", live.digest, counter, reason=str(error)[: bodies.LINE])
        await asyncio.to_thread(running.audit.write, line)
        raise
    pointer = live.pointer
    assert pointer is not None  # noqa: S101  (a flip has just made it)
    sequence, approver = (record.sequence, record.approver) if record else (None, None)
    line = AuditLine(action, wanted, peer, name, "done", live.digest, pointer.counter, sequence, approver)
    await asyncio.to_thread(running.audit.write, line)
    running.metrics.show_live(wanted, live)
    running.metrics.flips.labels(wanted, action).inc()
    trying = pointer.canary.digest if pointer.canary else None
    return bodies.answer(
        Flipped(wanted, live.digest, pointer.counter, pointer.loaded_at, pointer.shadow_digest, trying)
    )


@asynccontextmanager
async def received(request: Request, running: Service) -> AsyncIterator[Path]:
    """Keep the body of a push in a file as it arrives, for as long as it is looked at."""
    folder = running.store.staging()
    try:
        archive = folder / "body.tar"
        with archive.open("wb") as file:
            async for chunk in bodies.chunks(request, running.settings.max_bundle_mib * MIB):
                file.write(chunk)
        yield archive
    except ClientDisconnect as error:
        raise PushRefusedError("archive", 400, "the body broke off", "all of it") from error
    except OSError as error:
        raise PushRefusedError("store", 500, f"the body cannot be kept: {error}", "free space") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def demanded(request: Request) -> Precondition:
    """Return what the client believes is live, or refuse one that does not say."""
    believed = precondition(request)
    if believed is None:
        expected = 'If-Match: "<live digest>" or If-None-Match: *'
        raise PushRefusedError("precondition", 412, "no precondition", expected)
    return believed


def precondition(request: Request) -> Precondition | None:
    """Return what the client believes is live; None when it does not say."""
    if_match = request.headers.get("if-match")
    if if_match is not None:
        return Precondition(if_match.strip().removeprefix("W/").strip('"'))
    return Precondition(None) if request.headers.get("if-none-match", "").strip() == "*" else None


def _counter(request: Request) -> int | None:
    text = request.headers.get(COUNTER_HEADER)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > 15:
        raise PushRefusedError("counter", 412, f"{COUNTER_HEADER} is {text[:40]!r}", "a whole number that rises")
    return int(text)


def _describe(live: Live, settings: Settings, problem: ProblemName) -> LivePolicy | None:
    pointer, fallback = live.pointer, settings.fallback(problem)
    if pointer is None:
        return LivePolicy(None, 0, None, None, fallback, live.degraded) if live.degraded else None
    canary, left = pointer.canary, pointer.returned
    return LivePolicy(
        live.digest,
        pointer.counter,
        pointer.previous_digest,
        pointer.loaded_at,
        fallback,
        live.degraded,
        pointer.shadow_digest,
        Tried(canary.digest, canary.share, canary.since) if canary else None,
        Left(left.digest, left.at, left.until, left.reason) if left else None,
    )
