"""What is tried beside the live policy: a shadow only scores, a canary answers a share of the calls."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from placement.api.policies import MATCH, flipped, precondition, staged
from placement.api.routes import Group
from placement.errors import PushRefusedError
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
    return await staged(request, "shadow", lambda live, *sent: live.stage(*sent, share=None))


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
    return await staged(request, "canary", lambda live, *sent: live.stage(*sent, share=_share(request)), check=_share)


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
    return await flipped(request, "advance", "push", lambda live, wanted: live.advance(wanted, precondition(request)))


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
    return await flipped(request, "end_canary", "rollback", lambda live, wanted: live.end(wanted, "canary"))


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
    return await flipped(request, "end_shadow", "rollback", lambda live, wanted: live.end(wanted, "shadow"))


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
