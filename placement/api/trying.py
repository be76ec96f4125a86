"""What is tried beside the live policy: a shadow only scores, a canary answers a share of the calls."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from placement.api.policies import MATCH, Changed, audited, demanded, precondition, received
from placement.api.routes import Group
from placement.errors import PushRefusedError
from placement.service import Service
from wire.contracts.feature_spec import ProblemName
from wire.contracts.policies import SHARE_HEADER, Flipped

group = Group("policies")

LARGEST_SHARE = 0.5
"""A canary is compared with what is live: that needs calls too."""

_SHARE = {SHARE_HEADER: (f"Share of the calls, above 0 and up to {LARGEST_SHARE:g}", True)}
_STAGED = (400, 401, 403, 404, 408, 412, 413, 422, 423, 500)


@group.route(
    "PUT",
    "/v1/policies/{problem}/shadow",
    summary="Let a signed bundle score beside the live policy",
    takes="application/x-tar",
    gives=Flipped,
    refuses=_STAGED,
    headers=MATCH,
    secured=True,
)
async def shadow(request: Request) -> Response:
    """Take a bundle with its proof, as a push does, and score with it what the live policy has decided.

    It decides nothing: metrics say how often it would have chosen otherwise, and how long it takes.
    """
    return await audited(request, "shadow", "push", partial(_stage, request, None))


@group.route(
    "PUT",
    "/v1/policies/{problem}/canary",
    summary="Let a signed bundle answer a share of the calls",
    takes="application/x-tar",
    gives=Flipped,
    refuses=_STAGED,
    headers=MATCH | _SHARE,
    secured=True,
)
async def canary(request: Request) -> Response:
    """Take a bundle with its proof, as a push does, and let it answer a share of the calls, by the request's hash.

    The service ends it by itself when it is shown to do worse than what is live.
    """

    async def change(running: Service, wanted: ProblemName) -> Changed:
        return await _stage(request, _share(request), running, wanted)

    return await audited(request, "canary", "push", change)


@group.route(
    "POST",
    "/v1/policies/{problem}/canary/advance",
    summary="Make the canary live",
    gives=Flipped,
    refuses=(401, 403, 404, 412, 422, 423, 500),
    headers=MATCH,
    secured=True,
)
async def advance(request: Request) -> Response:
    """Make the canary live, with the counter of the record that it came with."""

    async def change(running: Service, wanted: ProblemName) -> Changed:
        return await running.flip(running.live.advance, wanted, precondition(request)), None

    return await audited(request, "advance", "push", change)


@group.route(
    "DELETE",
    "/v1/policies/{problem}/canary",
    summary="End the canary",
    gives=Flipped,
    refuses=(401, 403, 404, 412),
    secured=True,
)
async def end_canary(request: Request) -> Response:
    """Let the live policy answer every call again."""

    async def change(running: Service, wanted: ProblemName) -> Changed:
        return await running.flip(running.live.end, wanted, "canary"), None

    return await audited(request, "end_canary", "rollback", change)


@group.route(
    "DELETE",
    "/v1/policies/{problem}/shadow",
    summary="End the shadow",
    gives=Flipped,
    refuses=(401, 403, 404, 412),
    secured=True,
)
async def end_shadow(request: Request) -> Response:
    """Score beside the live policy no longer."""

    async def change(running: Service, wanted: ProblemName) -> Changed:
        return await running.flip(running.live.end, wanted, "shadow"), None

    return await audited(request, "end_shadow", "rollback", change)


async def _stage(request: Request, share: float | None, running: Service, wanted: ProblemName) -> Changed:
    running.live.refuse_frozen()
    believed = demanded(request)
    running.live.check(wanted, believed)
    async with received(request, running) as archive:
        return await running.flip(running.live.stage, wanted, archive, believed, share)


def _share(request: Request) -> float:
    text = request.headers.get(SHARE_HEADER, "")
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0.0 < share <= LARGEST_SHARE:
        found = f"{SHARE_HEADER} is {text[:40]!r}" if text else f"no {SHARE_HEADER}"
        raise PushRefusedError("precondition", 422, found, f"a share above 0 and up to {LARGEST_SHARE:g}")
    return share
